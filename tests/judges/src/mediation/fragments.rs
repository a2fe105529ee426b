//! Beginnings of bypasses: each one found earlier, with every part that may vary, and named after the proxy's belief
//! that it tests.

use rand::Rng;

use super::conversation::{Message, Name, Session, Sql, Step, Target};
use super::generator::{Generator, long_names};
use super::words::{Kind, once_in, one, pick};

impl Generator {
    pub fn fragment(&mut self) {
        if !once_in(&mut self.random, 3) {
            return self.walk();
        }
        if self.words.session == Session::Holder {
            match self.random.random_range(0..5) {
                0 => self.moves_in_a_transaction(),
                1 => self.lays_down(),
                2 => self.deposed(),
                _ => self.few_moves(),
            }
            return;
        }
        match self.random.random_range(0..10) {
            0 => self.names_that_are_cut(),
            1 => self.encoding_in_flight(),
            2 => self.skipped(),
            3 => self.portal_as_cursor(),
            4 => self.name_made_anew(),
            5 => self.default_in_flight(),
            6..=7 => self.malformed_then_anything(),
            8 if !self.words.session.has_twin() => self.lays_down(),
            _ => self.held_cursor(),
        }
    }

    /// Pauses between two steps of a bypass: usually nothing, or the end of a packet.
    pub(super) fn pause(&mut self) {
        match self.random.random_range(0..12) {
            0 => self.steps.push(Step::Send),
            1..=2 => self.steps.push(Step::Wait),
            3 => {
                self.say(Message::Sync);
                self.steps.push(Step::Wait);
            }
            4 => self.say(Message::Sync),
            5 => self.say(Message::Flush),
            _ => {}
        }
    }

    fn sync(&mut self) {
        self.say(Message::Sync);
        if once_in(&mut self.random, 2) {
            self.steps.push(Step::Wait);
        }
    }

    fn piercing(&mut self) -> Sql {
        self.words.piercing_query(&mut self.random)
    }

    /// A write that should look like a read, or a statement that switches read-only mode off.
    fn payload(&mut self) -> Sql {
        match self.random.random_range(0..3) {
            0 => self.of(Kind::Lift),
            _ => self.words.piercing(&mut self.random),
        }
    }

    fn execute(&mut self, name: &Name) {
        self.say(Message::Bind(Vec::new(), name.clone(), Vec::new()));
        self.say(Message::Execute(Vec::new(), 0));
        self.sync();
    }

    fn names_that_are_cut(&mut self) {
        if !once_in(&mut self.random, 4) {
            self.words.names = long_names();
        }
        let (one_name, other) = (
            self.words.name(&mut self.random),
            self.words.name(&mut self.random),
        );
        let payload = self.payload();
        self.say(Message::Parse(one_name.clone(), "SELECT 1".into()));
        self.pause();
        self.say(Message::Close(Target::Statement, other.clone()));
        self.pause();
        self.say(Message::Parse(other.clone(), payload));
        self.pause();
        let name = one(&mut self.random, &[&one_name, &other]).clone();
        if once_in(&mut self.random, 3) {
            self.sync();
            self.query([b"EXECUTE \"", &name[..], b"\""].concat());
        } else {
            self.execute(&name);
        }
        self.hidden();
    }

    pub(super) fn hidden(&mut self) {
        let sql = self.of(Kind::Hidden);
        self.deliver(sql);
    }

    /// The next text is read in the new encoding.
    fn encoding_in_flight(&mut self) {
        if once_in(&mut self.random, 3) {
            self.query("BEGIN");
            self.pause();
        }
        let set = self.words.encoding(&mut self.random);
        self.deliver(set);
        self.pause();
        if once_in(&mut self.random, 3) {
            let reset = pick(
                &mut self.random,
                "ROLLBACK | COMMIT | RESET ALL | DISCARD ALL | ROLLBACK TO s",
            );
            self.query(reset);
            self.pause();
        }
        let payload = if once_in(&mut self.random, 3) {
            self.of(Kind::Lift)
        } else {
            self.words.piercing(&mut self.random)
        };
        let text = self.words.smuggled_with(&mut self.random, &payload);
        self.query(text);
        self.query("COMMIT");
        self.hidden();
    }

    /// Messages after an error are skipped: the earlier statement or portal remains.
    fn skipped(&mut self) {
        let (name, portal) = (self.any_name(), self.any_name());
        let payload = self.piercing();
        let block = once_in(&mut self.random, 2);
        if block {
            self.query("BEGIN");
        }
        self.say(Message::Parse(name.clone(), payload));
        if once_in(&mut self.random, 2) {
            self.say(Message::Bind(portal.clone(), name.clone(), Vec::new()));
        }
        if block {
            self.say(Message::Parse(b"save".to_vec(), "SAVEPOINT s".into()));
            self.execute(&b"save".to_vec());
        } else {
            self.sync();
        }
        self.pause();
        if once_in(&mut self.random, 3) {
            self.say(Message::Bind(
                b"q".to_vec(),
                b"nothing".to_vec(),
                Vec::new(),
            ));
        } else {
            let error = self.of(Kind::Error);
            self.say(Message::Parse(b"e".to_vec(), error));
            self.say(Message::Bind(b"e".to_vec(), b"e".to_vec(), Vec::new()));
            self.say(Message::Execute(b"e".to_vec(), 0));
        }
        self.say(Message::Parse(name.clone(), "SELECT 1".into()));
        self.say(Message::Bind(portal.clone(), name.clone(), Vec::new()));
        self.sync();
        if block {
            self.say(Message::Parse(b"back".to_vec(), "ROLLBACK TO s".into()));
            self.execute(&b"back".to_vec());
        }
        if once_in(&mut self.random, 2) {
            self.say(Message::Bind(portal.clone(), name, Vec::new()));
        }
        self.say(Message::Execute(portal, 0));
        self.sync();
    }

    /// A portal of the protocol, run by FETCH or MOVE.
    fn portal_as_cursor(&mut self) {
        self.query("BEGIN");
        self.pause();
        let name = self.words.name(&mut self.random);
        let portal = if name.is_empty() { b"p".to_vec() } else { name };
        let payload = self.piercing();
        self.say(Message::Parse(Vec::new(), payload));
        self.say(Message::Bind(portal.clone(), Vec::new(), Vec::new()));
        if once_in(&mut self.random, 2) {
            self.say(Message::Describe(Target::Portal, portal.clone()));
        }
        self.pause();
        let verb = pick(
            &mut self.random,
            "FETCH \" | FETCH ALL FROM \" | MOVE \" | MOVE ALL FROM \"",
        );
        let sql = [verb.as_bytes(), &portal, b"\""].concat();
        if once_in(&mut self.random, 2) {
            self.say(Message::Parse(b"f".to_vec(), sql));
            self.execute(&b"f".to_vec());
        } else {
            self.sync();
            self.query(sql);
        }
        self.query("COMMIT");
    }

    /// An SQL name is redefined before it is executed. If a function does so, writes that read-only mode lets pass
    /// are outside the guarantee.
    fn name_made_anew(&mut self) {
        let name = self.words.quoted(&mut self.random);
        let payload = self.piercing();
        self.query([b"PREPARE ", &name[..], b" AS SELECT 1"].concat());
        self.breathe();
        let gone = match self.random.random_range(0..4) {
            0 => b"DEALLOCATE ALL".to_vec(),
            1 => b"DISCARD ALL".to_vec(),
            _ => [b"DEALLOCATE ", &name[..]].concat(),
        };
        let made = [b"PREPARE ", &name[..], b" AS ", &payload].concat();
        let parts = vec![gone, made, [b"EXECUTE ", &name[..]].concat()];
        match self.random.random_range(0..3) {
            0 => self.say(Message::Query(parts)),
            1 => {
                for sql in parts {
                    self.query(sql);
                    self.pause();
                }
            }
            _ => {
                for sql in parts {
                    self.extended(sql);
                }
                self.sync();
            }
        }
    }

    /// The server reports the new default of later transactions only at the end of the request.
    fn default_in_flight(&mut self) {
        let lift = if once_in(&mut self.random, 2) {
            "SELECT sets('default_transaction_read_only', 'off')".into()
        } else {
            self.of(Kind::Lift)
        };
        let hidden = self.of(Kind::Hidden);
        let mut parts: Vec<Sql> = vec!["BEGIN".into(), lift, "COMMIT".into(), hidden];
        if once_in(&mut self.random, 3) {
            parts.insert(2, self.statement());
        }
        if once_in(&mut self.random, 3) {
            parts.remove(0);
        }
        match self.random.random_range(0..4) {
            0 => self.say(Message::Query(parts)),
            1 => {
                for sql in parts {
                    self.extended(sql);
                }
                self.sync();
            }
            _ => {
                for sql in parts {
                    self.query(sql);
                    if once_in(&mut self.random, 6) {
                        self.pause();
                    }
                }
            }
        }
    }

    /// The server replies with an error when the proxy knows of no request.
    fn malformed_then_anything(&mut self) {
        let message = if once_in(&mut self.random, 2) {
            Message::Malformed(b'H', b"x".to_vec())
        } else {
            self.malformed()
        };
        self.say(message);
        self.pause();
        for _ in 0..one(&mut self.random, &[0, 1, 1, 1, 2]) {
            let sql = self.of(Kind::Read);
            self.query(sql);
        }
        self.sync();
        if once_in(&mut self.random, 3) {
            self.skipped();
        } else {
            self.default_in_flight();
        }
    }

    /// A held cursor, run when the transaction ends.
    fn held_cursor(&mut self) {
        let name = self.words.quoted(&mut self.random);
        let query = match self.words.session {
            Session::Neighbour => self.piercing(),
            _ => self.of(Kind::Hidden),
        };
        self.query("BEGIN");
        self.query([b"DECLARE ", &name[..], b" CURSOR WITH HOLD FOR ", &query].concat());
        self.pause();
        let middle = self.statement();
        self.deliver(middle);
        self.pause();
        self.query("COMMIT");
        self.query([b"FETCH ", &name[..]].concat());
    }
}
