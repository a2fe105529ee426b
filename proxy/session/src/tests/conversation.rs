//! Random conversations: what clients send, and a good deal that they should not.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, RngCore as _};

use super::frames::{bind, bind_one, empty, execute, function_call, message, parse, query, target};

/// Kind of session in a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Holds the current token and keeps it: the proxy must not be noticed.
    Faithful,
    /// Tries to write with and without a token.
    Any,
}

/// Texts that any client may send.
const TEXTS: &[&str] = &[
    "SELECT 1",
    "SELECT 1",
    "SELECT f()",
    "SELECT g()",
    "SELECT h()",
    "SELECT l()",
    "SELECT n()",
    "SELECT 1/0",
    "INSERT INTO t VALUES (1)",
    "INSERT INTO t VALUES (1)",
    "BEGIN",
    "BEGIN",
    "BEGIN READ ONLY",
    "BEGIN READ WRITE",
    "COMMIT",
    "COMMIT",
    "COMMIT AND CHAIN",
    "ROLLBACK",
    "ROLLBACK AND CHAIN",
    "SAVEPOINT a",
    "ROLLBACK TO a",
    "RELEASE a",
    "SET TRANSACTION READ ONLY",
    "SET TRANSACTION READ WRITE",
    "SET fencing.token = '5'",
    "SET LOCAL fencing.token = '5'",
    "RESET fencing.token",
    "PREPARE e AS SELECT 1",
    "PREPARE e AS INSERT INTO t VALUES (1)",
    "PREPARE e AS SELECT f()",
    "EXECUTE e",
    "EXECUTE e",
    "DEALLOCATE e",
    "SHOW transaction_read_only",
    "SHOW default_transaction_read_only",
    "SHOW fencing.token",
    "SET default_transaction_read_only = off",
    "SET default_transaction_read_only = on",
    "SET LOCAL default_transaction_read_only = on",
    "DECLARE c CURSOR WITH HOLD FOR SELECT g()",
    "DECLARE c CURSOR WITH HOLD FOR SELECT f()",
    "DECLARE c CURSOR FOR SELECT h()",
    "FETCH c",
    "MOVE c",
    "CLOSE c",
    "no statement",
    "",
];

/// Texts that change the token and the access mode, or run a prepared statement by its name.
const MOVING: &[&str] = &[
    "SET fencing.token = ''",
    "SET fencing.token = '5'",
    "SET fencing.token = '6'",
    "SET fencing.token = '7'",
    "SET LOCAL fencing.token = '7'",
    "SET LOCAL fencing.token = ''",
    "SET fencing.token = 'other=5'",
    "SET LOCAL fencing.token = 'other=5'",
    "SET fencing.token = 'next'",
    "SET LOCAL fencing.token = 'next'",
    "SET fencing.token = 'after:5'",
    "SET LOCAL fencing.token = 'after:6'",
    "RESET fencing.token",
    "RESET ALL",
    "DISCARD ALL",
    "SET default_transaction_read_only = off",
    "SET default_transaction_read_only = on",
    "RESET default_transaction_read_only",
    "SET LOCAL default_transaction_read_only = off",
    "SET LOCAL default_transaction_read_only = on",
    "SET transaction_read_only = off",
    "SET transaction_read_only = on",
    "SHOW fencing.status",
    "SHOW fencing.history",
    "PREPARE s AS INSERT INTO t VALUES (1)",
    "EXECUTE r",
    "EXECUTE s",
    "DEALLOCATE s",
];

/// Steps of a walk through a transaction, in this order: one of each line, or none.
const WALK: &[&[&str]] = &[
    &["BEGIN"],
    &["SAVEPOINT a"],
    &[
        "SET TRANSACTION READ ONLY",
        "SELECT g()",
        "SELECT l()",
        "SET LOCAL default_transaction_read_only = on",
        "DECLARE c CURSOR WITH HOLD FOR SELECT g()",
        "DECLARE c CURSOR WITH HOLD FOR SELECT f()",
    ],
    &["SELECT n()", "SELECT g()", "FETCH c"],
    &["RELEASE a", "ROLLBACK TO a", "COMMIT", "COMMIT AND CHAIN"],
    &["SELECT f()", "INSERT INTO t VALUES (1)"],
    &["COMMIT", "COMMIT", "ROLLBACK"],
    &["SELECT f()", "SHOW transaction_read_only"],
];

/// Texts that clear the token in a walk.
const DOWN: &[&str] = &[
    "SET fencing.token = ''",
    "SET LOCAL fencing.token = ''",
    "RESET fencing.token",
];

const NAMES: &[&str] = &["", "", "r", "s", "w"];

/// A generator of messages.
pub(super) struct Client<'a> {
    pub(super) rng: &'a mut StdRng,
    /// Texts that it sends. Half of the clients have few, and so combine those more often.
    texts: Vec<&'static str>,
    kind: Kind,
    messages: Vec<Vec<u8>>,
}

impl<'a> Client<'a> {
    /// Messages of a client in one conversation.
    pub(super) fn talk(rng: &'a mut StdRng, kind: Kind) -> Vec<Vec<u8>> {
        let mut text = || match kind {
            Kind::Any if rng.random_ratio(1, 3) => *MOVING.choose(rng).unwrap(),
            _ => *TEXTS.choose(rng).unwrap(),
        };
        let few: Vec<_> = std::iter::repeat_with(&mut text).take(6).collect();
        let mut client = Self {
            kind,
            texts: match (rng.random(), kind) {
                (true, _) => few,
                (false, Kind::Faithful) => TEXTS.to_vec(),
                (false, Kind::Any) => [TEXTS, TEXTS, MOVING, MOVING].concat(),
            },
            rng,
            messages: Vec::new(),
        };
        for _ in 0..client.rng.random_range(1..12) {
            client.part();
        }
        client.messages
    }

    fn part(&mut self) {
        match self.rng.random_range(0..20) {
            0..5 => self.query(),
            5..8 => self.walk(),
            8..14 => self.pipeline(),
            14 | 15 => self.copy(),
            16 => self.copy_in_pipeline(),
            17 => self.messages.push(function_call()),
            18 => {
                let stray = [b'S', b'H', b'd', b'c', b'f'];
                let tag = *stray.choose(self.rng).unwrap();
                let body: &[u8] = if tag == b'f' { b"why\0" } else { b"" };
                self.messages.push(message(tag, body));
            }
            _ => self.odd(),
        }
    }

    fn text(&mut self) -> &'static str {
        self.texts.choose(self.rng).unwrap()
    }

    fn name(&mut self) -> &'static str {
        NAMES.choose(self.rng).unwrap()
    }

    fn query(&mut self) {
        let count = *[1, 1, 1, 2, 3].choose(self.rng).unwrap();
        let texts: Vec<_> = (0..count).map(|_| self.text()).collect();
        self.messages.push(query(&texts.join("; ")));
    }

    /// Steps that fit each other, in texts or in a pipeline.
    fn walk(&mut self) {
        let mut texts = Vec::new();
        for (at, step) in WALK.iter().enumerate() {
            if at == 3 && self.kind == Kind::Any && self.rng.random_ratio(2, 3) {
                texts.push(*DOWN.choose(self.rng).unwrap());
            }
            if self.rng.random_ratio(3, 4) {
                texts.push(*step.choose(self.rng).unwrap());
            }
        }
        if self.rng.random_ratio(1, 3) {
            for text in texts {
                self.messages.push(parse("", text));
                self.messages.push(bind("", ""));
                self.messages.push(execute("", 0));
            }
            return self.messages.push(empty(b'S'));
        }
        let mut rest = &texts[..];
        while !rest.is_empty() {
            let count = self.rng.random_range(1..4).min(rest.len());
            let (together, behind) = rest.split_at(count);
            self.messages.push(query(&together.join("; ")));
            rest = behind;
        }
    }

    fn pipeline(&mut self) {
        for _ in 0..self.rng.random_range(1..4) {
            let (statement, portal) = (self.name(), self.name());
            if self.rng.random_ratio(4, 5) {
                if !statement.is_empty() && self.rng.random() {
                    self.messages.push(target(b'C', b'S', statement));
                }
                let text = self.text();
                self.messages.push(parse(statement, text));
            }
            if self.rng.random_ratio(1, 4) {
                self.messages.push(target(b'D', b'S', statement));
            }
            self.messages.push(if self.rng.random_ratio(1, 4) {
                bind_one(portal, statement)
            } else {
                bind(portal, statement)
            });
            if self.rng.random_ratio(1, 4) {
                self.messages.push(target(b'D', b'P', portal));
            }
            for _ in 0..*[1, 1, 1, 1, 0, 2].choose(self.rng).unwrap() {
                let rows = self.rng.random_range(0..2);
                self.messages.push(execute(portal, rows));
            }
            if self.rng.random_ratio(1, 6) {
                self.messages.push(target(b'C', b'P', portal));
            }
            if self.rng.random_ratio(1, 6) {
                self.messages.push(empty(b'H'));
            }
        }
        if self.rng.random_ratio(5, 6) {
            self.messages.push(empty(b'S'));
        }
    }

    fn copy(&mut self) {
        let behind = *["", "", "; SELECT 1", "; INSERT INTO t VALUES (1)"]
            .choose(self.rng)
            .unwrap();
        self.messages
            .push(query(&format!("COPY t FROM STDIN{behind}")));
        self.data();
    }

    fn copy_in_pipeline(&mut self) {
        self.messages.push(parse("", "COPY t FROM STDIN"));
        self.messages.push(bind("", ""));
        self.messages.push(execute("", 0));
        if self.rng.random() {
            self.messages.push(empty(b'S'));
        }
        self.data();
        if self.rng.random_ratio(5, 6) {
            self.messages.push(empty(b'S'));
        }
    }

    fn data(&mut self) {
        for _ in 0..self.rng.random_range(0..4) {
            self.messages.push(message(b'd', b"1\n"));
        }
        self.messages.push(if self.rng.random_ratio(1, 4) {
            message(b'f', b"why\0")
        } else {
            empty(b'c')
        });
    }

    /// A message that PostgreSQL rejects for its layout.
    fn odd(&mut self) {
        let tag = *b"QPBDECH".choose(self.rng).unwrap();
        self.messages.push(message(tag, b"x"));
        if tag != b'Q' {
            self.messages.push(empty(b'S'));
        }
    }

    /// Bytes that are not a valid message.
    pub(super) fn noise(rng: &mut StdRng) -> Vec<u8> {
        let tag = *b"BCDEFHPQSXcdfp123CDEGINSTZnst!A".choose(rng).unwrap();
        let mut body = vec![0; rng.random_range(0..24)];
        rng.fill_bytes(&mut body);
        if rng.random() {
            let last = body.len().saturating_sub(1);
            body.iter_mut()
                .for_each(|byte| *byte = byte.saturating_sub(200));
            body.get_mut(last).into_iter().for_each(|byte| *byte = 0);
        }
        message(tag, &body)
    }
}
