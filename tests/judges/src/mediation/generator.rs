//! Generates a conversation from a seed.
//!
//! Each conversation uses few names and few kinds of statements, so that related ones meet. Three in four contain a
//! [fragment](super::fragments), with other messages in between.

use clap::ValueEnum as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::conversation::{Conversation, Database, Message, Name, Session, Sql, Step, Target};
use super::steering;
use super::tables;
use super::words::{ENCODINGS, Kind, Words, once_in, one};

/// Names that are equal or nearly equal within PostgreSQL's 63 bytes.
pub fn long_names() -> Vec<Name> {
    let stem = "n".repeat(62);
    let cut = format!("{stem}o");
    [
        stem.clone(),
        cut.clone(),
        format!("{cut}a"),
        format!("{cut}b"),
        format!("{cut}{}", "c".repeat(137)),
        format!("{stem}\u{e9}"),
        format!("{stem}\u{e8}"),
    ]
    .map(String::into_bytes)
    .to_vec()
}

#[derive(Debug)]
pub struct Generator {
    pub random: StdRng,
    pub words: Words,
    pub steps: Vec<Step>,
    kinds: Vec<Kind>,
}

pub fn conversation(seed: u64, sessions: &[Session]) -> Conversation {
    let mut random = StdRng::seed_from_u64(seed);
    let session = one(&mut random, sessions);
    let database = if once_in(&mut random, 3) {
        one(&mut random, &Database::ALL)
    } else {
        Database::Utf8
    };
    // docs/guarantee.md says when EXECUTE of a name beyond ASCII may be refused.
    let names = match random.random_range(if session.has_twin() { 2 } else { 0 }..4) {
        0 => long_names()
            .choose_multiple(&mut random, 3)
            .cloned()
            .collect(),
        1 => vec![b"s".to_vec(), b"z".to_vec(), "z\u{e9}".into()],
        2 => vec![Vec::new(), b"s".to_vec()],
        _ => vec![b"s".to_vec()],
    };
    let encodings = [
        one(&mut random, &ENCODINGS[..7]),
        one(&mut random, &ENCODINGS),
    ];
    let kinds = Kind::value_variants()
        .iter()
        .copied()
        .filter(|_| once_in(&mut random, 3))
        .collect();
    let aims = steering::aims(&mut random, session);
    let startup = startup(&mut random, session, database, aims[0]);
    let tables = some_tables(&mut random, database, &aims);
    let mut generator = Generator {
        random,
        words: Words {
            session,
            names,
            encodings,
            aims,
            tables,
        },
        steps: Vec::new(),
        kinds,
    };
    generator.write();
    Conversation {
        session,
        database,
        startup,
        steps: generator.steps,
    }
}

fn some_tables(random: &mut StdRng, database: Database, aims: &[steering::Aim]) -> Vec<String> {
    let beyond = tables::names_beyond_ascii();
    let recoded =
        database != Database::Utf8 || aims.iter().any(|(name, _)| *name == "client_encoding");
    let mut name = || {
        if recoded && !once_in(random, 3) {
            beyond.choose(random).cloned().unwrap_or_default()
        } else {
            one(random, &tables::NAMES).to_owned()
        }
    };
    vec![name(), name()]
}

fn startup(
    random: &mut StdRng,
    session: Session,
    database: Database,
    aim: steering::Aim,
) -> Vec<(String, String)> {
    let mut chosen = vec![("aim.name", aim.0), ("aim.value", aim.1)];
    let off = "default_transaction_read_only";
    match random.random_range(0..24) {
        0 => chosen.push(("client_encoding", one(random, &ENCODINGS))),
        1 => chosen.push(("options", "-c standard_conforming_strings=off")),
        2 => chosen.push(("options", "-c default_transaction_read_only=off")),
        3 if session.is_strict() => chosen.push((off, "off")),
        4..8 if session.has_twin() => chosen.push((off, one(random, &["on", "off"]))),
        _ if database != Database::Utf8 && once_in(random, 2) => {
            chosen.push(("client_encoding", "UTF8"));
        }
        _ => {}
    }
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    chosen.into_iter().map(owned).collect()
}

impl Generator {
    fn write(&mut self) {
        let holds = self.words.session == Session::Holder;
        let fragment_at = if holds || !once_in(&mut self.random, 4) {
            Some(self.random.random_range(0..4))
        } else {
            None
        };
        for at in 0..self.random.random_range(2..7) {
            if fragment_at == Some(at) {
                self.fragment();
            } else {
                self.item();
            }
            self.breathe();
        }
        if fragment_at.is_some_and(|at| at >= 2) {
            self.fragment();
        }
        self.end();
        if self.words.session == Session::Late {
            self.keep_the_token();
        }
    }

    /// Removes statements that clear a token that the startup packet did not bring.
    fn keep_the_token(&mut self) {
        let lays_down = |sql: &Sql| {
            let text = String::from_utf8_lossy(sql).to_uppercase();
            ["RESET ALL", "DISCARD ALL", "FENCING."]
                .iter()
                .any(|word| text.contains(word))
        };
        for step in &mut self.steps {
            match step {
                Step::Say(Message::Query(parts)) => parts.retain(|sql| !lays_down(sql)),
                Step::Say(Message::Parse(_, sql)) if lays_down(sql) => *sql = "SELECT 1".into(),
                _ => {}
            }
        }
    }

    /// Ends everything open, so that deferred effects are committed. Adds a hidden write, which passes if read-only
    /// mode is off by now.
    fn end(&mut self) {
        self.say(Message::Sync);
        if once_in(&mut self.random, 2) {
            self.steps.push(Step::Wait);
        }
        self.query("COMMIT");
        if once_in(&mut self.random, 2) {
            self.steps.push(Step::Wait);
        }
        let probe = self.of(Kind::Hidden);
        self.query(probe);
    }

    pub fn say(&mut self, message: Message) {
        self.steps.push(Step::Say(message));
    }

    pub fn query(&mut self, sql: impl Into<Sql>) {
        self.say(Message::Query(vec![sql.into()]));
    }

    /// A name of this conversation, or the empty one.
    pub fn any_name(&mut self) -> Name {
        if once_in(&mut self.random, 3) {
            Vec::new()
        } else {
            self.words.name(&mut self.random)
        }
    }

    pub fn statement(&mut self) -> Sql {
        let kind = match self.kinds.choose(&mut self.random) {
            Some(kind) if !once_in(&mut self.random, 5) => *kind,
            _ => one(&mut self.random, Kind::value_variants()),
        };
        self.words.statement(&mut self.random, kind)
    }

    pub fn of(&mut self, kind: Kind) -> Sql {
        self.words.statement(&mut self.random, kind)
    }

    /// Maybe ends the packet, with or without waiting for replies.
    pub fn breathe(&mut self) {
        match self.random.random_range(0..10) {
            0..=3 => self.steps.push(Step::Wait),
            4 => self.steps.push(Step::Send),
            5 => {
                self.say(Message::Sync);
                self.steps.push(Step::Wait);
            }
            _ => {}
        }
    }

    /// Appends a statement in one of the ways to send it.
    pub fn deliver(&mut self, sql: Sql) {
        match self.random.random_range(0..5) {
            0..=2 => self.query(sql),
            3 => {
                self.extended(sql);
                self.say(Message::Sync);
            }
            _ => self.extended(sql),
        }
    }

    pub fn extended(&mut self, sql: Sql) {
        let (name, portal) = if once_in(&mut self.random, 3) {
            (self.any_name(), self.any_name())
        } else {
            (Vec::new(), Vec::new())
        };
        self.say(Message::Parse(name.clone(), sql));
        if once_in(&mut self.random, 5) {
            self.say(Message::Describe(Target::Statement, name.clone()));
        }
        self.say(Message::Bind(portal.clone(), name, Vec::new()));
        let rows = one(&mut self.random, &[0, 0, 1]);
        self.say(Message::Execute(portal, rows));
    }

    fn item(&mut self) {
        match self.random.random_range(0..20) {
            0..=8 => {
                let count = one(&mut self.random, &[1, 1, 1, 2, 2, 3, 4]);
                let parts = (0..count).map(|_| self.statement()).collect();
                self.say(Message::Query(parts));
            }
            9..=11 => {
                let sql = self.statement();
                self.extended(sql);
                if once_in(&mut self.random, 2) {
                    self.say(Message::Sync);
                }
            }
            12..=16 => self.piece(),
            17 => self.parameters(),
            18 => self.copying(),
            _ => {
                let message = self.malformed();
                self.say(message);
            }
        }
    }

    fn piece(&mut self) {
        let name = self.any_name();
        let target = one(&mut self.random, &[Target::Statement, Target::Portal]);
        let message = match self.random.random_range(0..14) {
            0..=3 => Message::Parse(name, self.statement()),
            4..=5 => Message::Bind(self.any_name(), name, Vec::new()),
            6..=7 => Message::Execute(name, one(&mut self.random, &[0, 0, 1, 2])),
            8 => Message::Close(target, name),
            9 => Message::Describe(target, name),
            10 => Message::Flush,
            11 => self.call(),
            _ => Message::Sync,
        };
        self.say(message);
    }

    /// The text does not show them.
    fn parameters(&mut self) {
        if self.words.session.has_twin() {
            return self.walk();
        }
        let encoding = self.words.encodings[0];
        let (text, value) = one(
            &mut self.random,
            &[
                ("SELECT set_config('client_encoding', $1, false)", encoding),
                ("SELECT sets('client_encoding', $1)", encoding),
                ("SELECT set_config('fencing.token', $1, false)", "5"),
                (
                    "SELECT set_config($1, 'off', false)",
                    "default_transaction_read_only",
                ),
                ("SELECT sets($1, 'off')", "default_transaction_read_only"),
                ("SELECT $1::d", "x"),
                ("SELECT runs($1)", "SET default_transaction_read_only = off"),
            ],
        );
        // Writes hidden from the token of scope `b` are outside the guarantee.
        let text = match self.words.session {
            Session::Neighbour | Session::Free | Session::Reader => text.replace("::d", "::text"),
            _ => text.to_owned(),
        };
        self.say(Message::Parse(Vec::new(), text.into()));
        self.say(Message::Bind(Vec::new(), Vec::new(), vec![value.into()]));
        self.say(Message::Execute(Vec::new(), 0));
        self.say(Message::Sync);
    }

    /// Whether a COPY is in progress or not.
    fn copying(&mut self) {
        if once_in(&mut self.random, 2) {
            let sql = self.of(Kind::Copy);
            self.deliver(sql);
            self.breathe();
        }
        for _ in 0..self.random.random_range(0..3) {
            let data = one(&mut self.random, &["x\n", "\\.\n", "x\ty\n"]);
            self.say(Message::CopyData(data.into()));
        }
        let end = one(&mut self.random, &[0, 1, 2]);
        match end {
            0 => self.say(Message::CopyDone),
            1 => self.say(Message::CopyFail),
            _ => {}
        }
    }

    fn call(&mut self) -> Message {
        let (function, arguments): (&str, &[&str]) = one(
            &mut self.random,
            &[
                ("w()", &[][..]),
                ("lo_create(oid)", &["0"]),
                ("pg_notify(text, text)", &["news", "x"]),
                (
                    "sets(text, text)",
                    &["default_transaction_read_only", "off"],
                ),
                ("txid_current()", &[]),
            ],
        );
        let hides = matches!(self.words.session, Session::Neighbour) && function == "w()";
        let differs =
            self.words.session.has_twin() && !matches!(function, "w()" | "sets(text, text)");
        if hides || differs {
            return Message::FunctionCall("harmless()", Vec::new());
        }
        Message::FunctionCall(function, arguments.to_vec())
    }

    /// A message that PostgreSQL answers only with an error.
    pub fn malformed(&mut self) -> Message {
        let (tag, body): (u8, &[u8]) = one(
            &mut self.random,
            &[
                (b'H', &b"x"[..]),
                (b'H', b"\0\0\0\0"),
                (b'S', b"x"),
                (b'D', b"X\0"),
                (b'D', b"S"),
                (b'D', b"Ss"),
                (b'D', b"Ss\0x"),
                (b'C', b"X\0"),
                (b'C', b"P"),
                (b'C', b"Ss\0x"),
                (b'E', b"\0"),
                (b'E', b"\0\0\0\0\0\0"),
                (b'E', b"s"),
                (b'B', b"\0\0"),
                (b'B', b"\0\0\0\0\0\0\0\0\0"),
                (b'P', b"s\0SELECT 1"),
                (b'P', b"\0SELECT 1\0"),
                (b'Q', b"SELECT 1"),
                (b'Q', b"SELECT 1\0x"),
                (b'F', b"\0\0"),
            ],
        );
        Message::Malformed(tag, body.to_vec())
    }
}
