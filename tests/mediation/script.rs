//! Conversations written by hand.

use pgpalisade_judges::mediation::conversation::{
    Conversation, Database, Message, Name, Session, Sql, Step, Target,
};
use pgpalisade_judges::mediation::trial::Trial;

/// Builder of a conversation.
#[derive(Clone, Debug)]
pub(crate) struct Script(Conversation);

impl Script {
    pub(crate) fn of(session: Session) -> Self {
        Self(Conversation {
            session,
            database: Database::Utf8,
            startup: Vec::new(),
            steps: Vec::new(),
        })
    }

    pub(crate) fn startup(mut self, name: &str, value: &str) -> Self {
        self.0.startup.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn say(mut self, message: Message) -> Self {
        self.0.steps.push(Step::Say(message));
        self
    }

    pub(crate) fn query(self, sql: impl Into<Sql>) -> Self {
        self.say(Message::Query(vec![sql.into()]))
    }

    pub(crate) fn queries(self, texts: &[&str]) -> Self {
        texts.iter().fold(self, |script, sql| script.query(*sql))
    }

    pub(crate) fn parse(self, name: impl Into<Name>, sql: impl Into<Sql>) -> Self {
        self.say(Message::Parse(name.into(), sql.into()))
    }

    pub(crate) fn bind(self, portal: impl Into<Name>, statement: impl Into<Name>) -> Self {
        self.say(Message::Bind(portal.into(), statement.into(), Vec::new()))
    }

    pub(crate) fn execute(self, portal: impl Into<Name>) -> Self {
        self.say(Message::Execute(portal.into(), 0))
    }

    pub(crate) fn close_statement(self, name: impl Into<Name>) -> Self {
        self.say(Message::Close(Target::Statement, name.into()))
    }

    pub(crate) fn close_portal(self, name: impl Into<Name>) -> Self {
        self.say(Message::Close(Target::Portal, name.into()))
    }

    /// Parse, Bind and Execute, unnamed.
    pub(crate) fn extended(self, sql: impl Into<Sql>) -> Self {
        self.parse("", sql).bind("", "").execute("")
    }

    /// One Query with all of these.
    pub(crate) fn text(self, texts: &[&str]) -> Self {
        let parts = texts.iter().map(|sql| sql.as_bytes().to_vec());
        self.say(Message::Query(parts.collect()))
    }

    /// One pipeline with all of these.
    pub(crate) fn pipeline(self, texts: &[&str]) -> Self {
        let all = texts.iter().fold(self, |script, sql| script.extended(*sql));
        all.sync()
    }

    pub(crate) fn malformed(self, tag: u8, body: &[u8]) -> Self {
        self.say(Message::Malformed(tag, body.to_vec()))
    }

    /// Appends another script.
    pub(crate) fn then(mut self, other: &Self) -> Self {
        self.0.steps.extend(other.0.steps.iter().cloned());
        self
    }

    pub(crate) fn sync(self) -> Self {
        self.say(Message::Sync)
    }

    pub(crate) fn wait(mut self) -> Self {
        self.0.steps.push(Step::Wait);
        self
    }

    pub(crate) fn declare(mut self, token: &'static str) -> Self {
        self.0.steps.push(Step::Declare(token));
        self
    }

    /// The same steps in three groupings: unchanged, each message in its own packet, and each answered before the
    /// next if an answer comes.
    pub(crate) fn groupings(&self) -> [Self; 3] {
        let with = |separator: Step| {
            let mut script = self.clone();
            let steps = std::mem::take(&mut script.0.steps);
            script.0.steps = steps
                .into_iter()
                .flat_map(|step| [step, separator.clone()])
                .collect();
            script
        };
        [with(Step::Send), with(Step::Wait), self.clone()]
    }
}

/// Writes hidden from any parser.
pub(crate) const HIDDEN: [&str; 4] = ["SELECT w()", "TABLE v", "SELECT '{x}'::d[]", "SELECT !!! 1"];

/// Queries that make a forbidden change if they are taken for reads. In strict sessions read-only mode stops all
/// others.
pub(crate) const fn payloads(session: Session) -> [&'static str; 3] {
    match session {
        Session::Neighbour => [
            "INSERT INTO a.jobs VALUES ('x') RETURNING what",
            "WITH x AS (UPDATE a.jobs SET what = 'x' RETURNING 1) SELECT * FROM x",
            "SELECT setval('counter', 7)",
        ],
        _ => [
            "SELECT pg_notify('news', 'x')",
            "SELECT lo_create(0)",
            "SELECT pg_logical_emit_message(false, 'a', 'b')",
        ],
    }
}

/// A script in three groupings, with the grouping in the name.
pub(crate) fn grouped(what: &str, script: Script) -> Vec<(String, Script)> {
    let ways = [
        "each sent by itself",
        "each answered before the next",
        "in one packet",
    ];
    ways.into_iter()
        .zip(script.groupings())
        .map(|(way, script)| (format!("{what}, {way}"), script))
        .collect()
}

/// Pairs in which each element of both lists comes at least once. Each shows the fault by itself;
/// `make mediation` combines them at random.
pub(crate) fn pairs<A: Clone, B: Clone>(first: &[A], second: &[B]) -> Vec<(A, B)> {
    let count = first.len().max(second.len());
    let (first, second) = (first.iter().cloned(), second.iter().cloned());
    first.cycle().zip(second.cycle()).take(count).collect()
}

/// Whether a conversation must write without the proxy: otherwise it tests nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worth {
    /// Each must write.
    Writes,
    /// The conversation starts with writes that are allowed.
    NotAsked,
}

/// More of them say nothing new.
const SHOWN_MAX: usize = 6;

/// Runs all of them. None may make a forbidden change.
#[track_caller]
pub(crate) fn check(worth: Worth, scripts: Vec<(String, Script)>) {
    let mut trial = Trial::default();
    let idle: Vec<String> = scripts
        .iter()
        .filter(|(_, Script(script))| worth == Worth::Writes && !trial.writes_directly(script))
        .map(|(what, Script(script))| format!("{what}\n{script}"))
        .collect();
    assert!(
        idle.is_empty(),
        "these would write nothing on PostgreSQL itself:\n{}",
        idle.join("\n\n")
    );
    let (all, mut wrong) = (scripts.len(), Vec::new());
    for (what, Script(conversation)) in scripts {
        if wrong.len() >= SHOWN_MAX {
            break;
        }
        let outcome = trial.run(&conversation);
        if outcome.is_violation() {
            wrong.push(format!(
                "{what}: {}\n{conversation}",
                outcome.violations.join(", ")
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "of {all} conversations these have changed what they may not:\n{}",
        wrong.join("\n\n")
    );
}
