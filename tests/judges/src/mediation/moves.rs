//! Sessions that hold a token, clear it, and lose it, inside and outside of transactions.

use rand::Rng;
use rand::seq::IndexedRandom;

use super::conversation::{Message, Session, Sql, Step};
use super::generator::Generator;
use super::words::{Kind, once_in, one, pick};

const MOVES: &str = "BEGIN | BEGIN | BEGIN READ ONLY | COMMIT | COMMIT AND CHAIN | ROLLBACK | \
    ROLLBACK AND CHAIN | SAVEPOINT s | SAVEPOINT s | RELEASE s | ROLLBACK TO s | ROLLBACK TO s | \
    SET fencing.token = '' | SET fencing.token = '' | SET LOCAL fencing.token = '' | \
    SET fencing.token = '@0' | SET LOCAL fencing.token = '@0' | SET fencing.token = 'other=@0' | \
    SET fencing.token = 'other=next' | SET fencing.token = 'next' | \
    SET LOCAL fencing.token = 'after:@0' | RESET fencing.token | RESET ALL | \
    SET default_transaction_read_only = on | SET default_transaction_read_only = off | \
    SET LOCAL default_transaction_read_only = off | SET transaction_read_only = off | \
    SET transaction_read_only = on | SELECT 1/0 | SELECT 1 | no statement";

/// Values that a session may set. Tokens below 10 are stale.
pub(super) const fn token_values(session: Session) -> &'static [&'static str] {
    match session {
        Session::Holder => &[
            "@0", "@1", "@1", "@2", "5", "", "other=@0", "next", "after:@0", "after:@1", "after:5",
        ],
        Session::Faithful | Session::Late => &["@0"],
        Session::Ruler => &["default=@0,a=@0,b=@0"],
        Session::Neighbour | Session::Reader => &[
            "b=@0",
            "b=@1",
            "a=1",
            "b=@1,a=1",
            "",
            "b=next",
            "b=after:@0",
            "a=after:1",
        ],
        Session::Ungoverned | Session::Free => {
            &["a=1", "b=1", "c=1", "", "x", "c=next", "a=after:1"]
        }
        Session::Bare | Session::Elsewhere | Session::Taker => &[
            "5",
            "default=5",
            "other=@1",
            "other=5",
            "",
            "other=@0,5",
            "x",
            "other=next",
            "other=next,5",
            "after:5",
        ],
    }
}

impl Generator {
    /// Clears the token, and continues work begun under it.
    pub(super) fn lays_down(&mut self) {
        let down = pick(
            &mut self.random,
            "SET fencing.token = '' | SET LOCAL fencing.token = '' | \
                SELECT set_config('fencing.token', '', false) | SET fencing.token = '5'",
        );
        let hidden = self.of(Kind::Hidden);
        let mut parts: Vec<Sql> = vec![down.into(), hidden.clone()];
        match self.random.random_range(0..4) {
            0 => {}
            1 => parts.insert(0, "BEGIN".into()),
            2 => {
                parts = vec![
                    "BEGIN".into(),
                    [&b"DECLARE h CURSOR WITH HOLD FOR "[..], &hidden].concat(),
                    down.into(),
                    "COMMIT".into(),
                ];
            }
            _ => {
                parts = vec![
                    "BEGIN".into(),
                    "SAVEPOINT s".into(),
                    hidden,
                    "ROLLBACK TO s".into(),
                    down.into(),
                ];
                parts.push(self.of(Kind::Hidden));
            }
        }
        self.sequence(parts);
        if once_in(&mut self.random, 2) {
            self.query("COMMIT");
        }
    }

    /// Changes the token, the transaction and its mode, in random order.
    pub(super) fn few_moves(&mut self) {
        let hidden = self.of(Kind::Hidden);
        let mut moves: Vec<Sql> = (0..5)
            .map(|_| pick(&mut self.random, MOVES).into())
            .collect();
        moves.extend([hidden.clone(), hidden]);
        let parts = (0..self.random.random_range(4..10))
            .filter_map(|_| moves.choose(&mut self.random).cloned())
            .collect();
        self.sequence(parts);
    }

    /// As one text, one after the other, or in groups.
    fn sequence(&mut self, parts: Vec<Sql>) {
        match self.random.random_range(0..3) {
            0 => self.say(Message::Query(parts)),
            1 => {
                for sql in parts {
                    self.deliver(sql);
                    self.pause();
                }
            }
            _ => {
                let mut rest = &parts[..];
                while !rest.is_empty() {
                    let count = self.random.random_range(1..4).min(rest.len());
                    let (group, behind) = rest.split_at(count);
                    self.say(Message::Query(group.to_vec()));
                    self.pause();
                    rest = behind;
                }
            }
        }
    }

    fn written(&mut self) -> Sql {
        pick(
            &mut self.random,
            "INSERT INTO log VALUES ('x') | SELECT w() | TABLE v | SELECT !!! 1",
        )
        .into()
    }

    /// A transaction that writes under one token and continues under the next, which another session declares too.
    pub(super) fn moves_in_a_transaction(&mut self) {
        let mut parts: Vec<Sql> = vec!["BEGIN".into()];
        if once_in(&mut self.random, 4) {
            parts.push("SAVEPOINT s".into());
        }
        parts.push(self.written());
        if once_in(&mut self.random, 4) {
            parts.push(self.statement());
        }
        if once_in(&mut self.random, 4) {
            parts.push("ROLLBACK TO s".into());
        }
        let next = pick(
            &mut self.random,
            "SET fencing.token = '@1' | SET LOCAL fencing.token = '@1' | \
                SELECT set_config('fencing.token', '@1', false)",
        );
        parts.push(next.into());
        self.sequence(parts);
        let by = one(&mut self.random, &["@1", "@1", "@2"]);
        self.steps.push(Step::Declare(by));
        self.query("COMMIT");
    }

    /// Another session takes over while something is open or in flight.
    pub(super) fn deposed(&mut self) {
        if once_in(&mut self.random, 2) {
            self.query("BEGIN");
        }
        for _ in 0..self.random.random_range(1..4) {
            let sql = if once_in(&mut self.random, 2) {
                self.written()
            } else {
                self.statement()
            };
            self.deliver(sql);
        }
        self.pause();
        self.steps.push(Step::Declare("@1"));
        let sql = self.written();
        self.deliver(sql);
        self.query("COMMIT");
    }
}
