//! Conversations written by hand: as a table, or step by step.

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

    pub(crate) fn say(self, message: Message) -> Self {
        self.step(Step::Say(message))
    }

    fn step(mut self, step: Step) -> Self {
        self.0.steps.push(step);
        self
    }

    pub(crate) fn query(self, sql: impl Into<Sql>) -> Self {
        self.say(Message::Query(vec![sql.into()]))
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

    pub(crate) fn close(self, target: Target, name: impl Into<Name>) -> Self {
        self.say(Message::Close(target, name.into()))
    }

    /// Parse, Bind and Execute, unnamed.
    pub(crate) fn extended(self, sql: impl Into<Sql>) -> Self {
        self.parse("", sql).bind("", "").execute("")
    }

    pub(crate) fn sync(self) -> Self {
        self.say(Message::Sync)
    }

    /// Appends the steps of a table's line.
    fn told(self, steps: &str) -> Self {
        steps.split(" ;; ").fold(self, Self::told_one)
    }

    fn told_one(self, step: &str) -> Self {
        let (word, rest) = step.split_once(' ').unwrap_or((step, ""));
        let name = |word: &str| Name::from(word.trim_start_matches('.'));
        let two = || rest.split_once(' ').unwrap_or((rest, ""));
        match word {
            "-" => self,
            ">" => self.extended(rest),
            "send" => self.step(Step::Send),
            "wait" => self.step(Step::Wait),
            "declare" => self.step(Step::Declare(if rest == "@1" { "@1" } else { "@2" })),
            "Parse" => self.parse(name(two().0), two().1),
            "Bind" => self.bind(name(two().0), name(two().1)),
            "Execute" => self.execute(name(rest)),
            "ExecuteOne" => self.say(Message::Execute(name(rest), 1)),
            "CloseStatement" => self.close(Target::Statement, name(rest)),
            "ClosePortal" => self.close(Target::Portal, name(rest)),
            "Sync" => self.sync(),
            "Flush" => self.say(Message::Flush),
            "CopyData" => self.say(Message::CopyData("x\n".into())),
            "CopyDone" => self.say(Message::CopyDone),
            "CopyFail" => self.say(Message::CopyFail),
            "Malformed" => self.say(Message::Malformed(rest.as_bytes()[0], "x".into())),
            _ => self.query(step),
        }
    }

    /// The same steps in three groupings: unchanged, each message in its own packet, and each answered before the
    /// next if an answer comes. A single message has only one.
    pub(crate) fn groupings(self) -> Vec<Self> {
        if self.0.steps.len() == 1 {
            return vec![self];
        }
        let with = |separator: Step| {
            let mut script = self.clone();
            let steps = std::mem::take(&mut script.0.steps);
            script.0.steps = steps
                .into_iter()
                .flat_map(|step| [step, separator.clone()])
                .collect();
            script
        };
        vec![with(Step::Send), with(Step::Wait), self]
    }
}

/// All in three groupings.
pub(crate) fn grouped(scripts: impl IntoIterator<Item = Script>) -> Vec<Script> {
    scripts.into_iter().flat_map(Script::groupings).collect()
}

/// Writes hidden from any parser.
const HIDDEN: &str = "{hidden} = SELECT w() | TABLE v | SELECT '{x}'::d[] | SELECT !!! 1";

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

/// Pairs in which each element of both lists comes at least once. Each shows the fault by itself;
/// `make mediation` combines them at random.
pub(crate) fn pairs<A: Clone, B: Clone>(first: &[A], second: &[B]) -> Vec<(A, B)> {
    let count = first.len().max(second.len());
    let (first, second) = (first.iter().cloned(), second.iter().cloned());
    first.cycle().zip(second.cycle()).take(count).collect()
}

/// The conversations of a table.
///
/// A line that is not indented has sessions; with `grouped` they say all in three groupings. Each line below it has
/// alternatives divided by ` | `, and each combination of them is a conversation. ` ;; ` divides the steps of one.
///
/// - A step that is no word of [`Script::told_one`] is a Query. `> SELECT 1` is a Parse, Bind and Execute. `.` is the
///   empty name.
/// - `text, pipeline: BEGIN ;; SELECT 1` has statements, in these forms: one after the other (`queries`), the same
///   `sent` or `answered` one by one, in one `text`, in one `pipeline`.
/// - `{a} & {b} = 1 & x | 2 & y` gives places of other lines their values. `{p1}` to `{p3}` are [`payloads`].
pub(crate) fn conversations(table: &str) -> Vec<Script> {
    let mut families: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in table.lines().filter(|line| !line.is_empty()) {
        match (line.strip_prefix("    "), families.last_mut()) {
            (Some(line), Some((_, lines))) => lines.push(line),
            _ => families.push((line, Vec::new())),
        }
    }
    let all = families.iter().flat_map(|(head, lines)| {
        let (sessions, is_grouped) = match head.strip_suffix(", grouped") {
            Some(sessions) => (sessions, true),
            None => (*head, false),
        };
        let sessions = sessions.split(", ");
        let scripts: Vec<Script> = sessions.flat_map(|name| family(name, lines)).collect();
        if is_grouped {
            grouped(scripts)
        } else {
            scripts
        }
    });
    all.collect()
}

fn family(name: &str, lines: &[&str]) -> Vec<Script> {
    let mut sessions = Session::all().into_iter();
    let session = sessions.find(|session| format!("{session:?}") == name);
    let session = session.unwrap_or_else(|| panic!("{name} is no session"));
    let (given, said): (Vec<&str>, Vec<&str>) = lines
        .iter()
        .partition(|line| line.starts_with('{') && line.contains("} = "));
    let mut texts = vec![said.join("\n")];
    for line in given.into_iter().chain([HIDDEN]) {
        let (names, values) = line.split_once(" = ").unwrap();
        if texts[0].contains(names.split(" & ").next().unwrap()) {
            let put = |text: &String, values: &str| {
                let pairs = names.split(" & ").zip(values.split(" & "));
                pairs.fold(text.clone(), |text, (name, value)| {
                    text.replace(name, value)
                })
            };
            texts = texts
                .iter()
                .flat_map(|text| values.split(" | ").map(move |values| put(text, values)))
                .collect();
        }
    }
    for (at, payload) in (1..).zip(payloads(session)) {
        texts = texts
            .iter()
            .map(|text| text.replace(&format!("{{p{at}}}"), payload))
            .collect();
    }
    texts
        .iter()
        .flat_map(|text| combinations(session, text))
        .collect()
}

fn combinations(session: Session, text: &str) -> Vec<Script> {
    let mut scripts = vec![Script::of(session)];
    for line in text.lines() {
        let steps = alternatives(line);
        scripts = scripts
            .iter()
            .flat_map(|script| {
                let told = |steps: &String| script.clone().told(steps);
                steps.iter().map(told).collect::<Vec<_>>()
            })
            .collect();
    }
    scripts
}

/// The alternatives of a line, as steps.
fn alternatives(line: &str) -> Vec<String> {
    const FORMS: [&str; 5] = ["queries", "sent", "answered", "text", "pipeline"];
    let are_forms = |(forms, _): &(&str, &str)| forms.split(", ").all(|form| FORMS.contains(&form));
    let (forms, rest) = line
        .split_once(": ")
        .filter(are_forms)
        .unwrap_or(("queries", line));
    let put = |form: &str, steps: &str| match form {
        "sent" => steps.replace(" ;; ", " ;; send ;; ") + " ;; send",
        "answered" => steps.replace(" ;; ", " ;; wait ;; ") + " ;; wait",
        "text" => steps.replace(" ;; ", "; "),
        "pipeline" => format!("> {} ;; Sync", steps.replace(" ;; ", " ;; > ")),
        _ => steps.to_owned(),
    };
    let all = rest.split(" | ");
    all.flat_map(|steps| forms.split(", ").map(move |form| put(form, steps)))
        .collect()
}

/// Whether a conversation must write without the proxy: otherwise it tests nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worth {
    /// Each must write.
    Writes,
    /// The conversation starts with writes that are allowed.
    NotAsked,
}

/// Tests that run the conversations of a table: doc, name, [`Worth`], table.
macro_rules! held {
    ($($(#[$doc:meta])* $name:ident: $worth:ident, $table:literal;)+) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            use $crate::script::{Worth, check, conversations};
            check(Worth::$worth, conversations($table));
        }
    )+};
}
pub(crate) use held;

/// More of them say nothing new.
const SHOWN_MAX: usize = 6;

/// Runs all of them. None may make a forbidden change.
#[track_caller]
pub(crate) fn check(worth: Worth, scripts: Vec<Script>) {
    let mut trial = Trial::default();
    let idle: Vec<String> = scripts
        .iter()
        .filter(|Script(script)| worth == Worth::Writes && !trial.writes_directly(script))
        .map(|Script(script)| script.to_string())
        .collect();
    assert!(
        idle.is_empty(),
        "these would write nothing on PostgreSQL itself:\n{}",
        idle.join("\n\n")
    );
    let (all, mut wrong) = (scripts.len(), Vec::new());
    for Script(conversation) in scripts {
        if wrong.len() >= SHOWN_MAX {
            break;
        }
        let outcome = trial.run(&conversation);
        if outcome.is_violation() {
            wrong.push(format!("{}\n{conversation}", outcome.violations.join(", ")));
        }
    }
    assert!(
        wrong.is_empty(),
        "of {all} conversations these have changed what they may not:\n{}",
        wrong.join("\n\n")
    );
}
