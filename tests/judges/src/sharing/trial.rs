//! One conversation and its judgement, repeated on the same servers.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use super::conversation::{Conversation, Turn, Who};
use super::judge::{Judge, Verdict};
use super::{generator, leavings, pooled};
use crate::mediation::conversation::Database;
use crate::mediation::run::{Judged, Oracle, Plan, Violation};
use crate::mediation::world::{Copy, Rules, World, name_of};
use pgpalisade_test_servers::wire::{Endpoint, Wire};

/// Client and parameters.
type Key = (Option<Who>, Vec<(&'static str, &'static str)>);

/// A server, and a proxy that shares connections to it.
#[derive(Debug)]
pub struct Place {
    pub world: World,
    watched: Wire,
    twin: Wire,
    /// Sessions without the proxy, by client and startup packet; those of nobody never change.
    twins: HashMap<Key, Wire>,
    /// Random numbers after each client's seed.
    pub randoms: [BTreeSet<String>; 2],
    /// Replaces the relative tokens of a conversation. Only rises.
    number: u64,
}

impl Place {
    fn start(backends: usize, flags: &[String]) -> Self {
        // Of several, clients may keep all but one.
        let max = if backends > 1 { backends + 1 } else { 1 };
        let max = max.to_string();
        let own = [
            "--pool",
            "transaction",
            "--workers",
            "1",
            "--backends-max",
            &max,
            "--backends-leaders",
            "0",
            "--backends-sessions",
            "4",
            "--backends-wait",
            "5s",
        ];
        let own = own.map(str::to_owned);
        let world = World::start(Rules::Shared, &[&own[..], flags].concat());
        let open = |copy| {
            let mut wire = world.admin(&name_of(Database::Utf8, copy));
            wire.ok(leavings::WORLD);
            wire.ok(&leavings::texts());
            wire
        };
        let (watched, twin) = (open(Copy::Watched), open(Copy::Twin));
        let mut place = Self {
            world,
            watched,
            twin,
            twins: HashMap::new(),
            randoms: [BTreeSet::new(), BTreeSet::new()],
            number: FIRST,
        };
        place.randoms = Who::BOTH.map(|who| {
            let sql = "SELECT random() FROM setseed(0.#), generate_series(1, 100)";
            place
                .twin
                .rows(&who.says(sql))
                .into_iter()
                .flatten()
                .collect()
        });
        place
    }

    pub fn watched(&self) -> (Endpoint, String) {
        let database = name_of(Database::Utf8, Copy::Watched);
        (self.world.endpoint(), database)
    }
    /// A session without the proxy, as after its login.
    pub fn take_twin(&mut self, key: &Key) -> Wire {
        self.twins.remove(key).unwrap_or_else(|| {
            let database = name_of(Database::Utf8, Copy::Twin);
            let mut parameters = vec![("user", "postgres"), ("database", &*database)];
            parameters.extend(&key.1);
            Wire::login(&self.world.direct(), &parameters)
        })
    }

    /// Keeps such a session for later.
    pub fn keep_twin(&mut self, key: Key, mut wire: Wire) {
        if key.0.is_some() {
            wire.query("ROLLBACK");
            wire.ok("DISCARD ALL");
            wire.ok(&format!("SET seed = {}", rand::random::<f64>()));
        }
        self.twins.insert(key, wire);
    }

    pub fn notify_watched(&mut self) {
        self.watched.ok(&notify());
    }

    pub fn notify_twin(&mut self) {
        self.twin.ok(&notify());
    }

    /// Number of rows of the log with a token below this one.
    pub fn rows_below(&mut self, token: u64) -> String {
        let sql = format!("SELECT count(*) FROM log WHERE token <> '' AND token::int8 < {token}");
        self.watched.rows(&sql).concat().concat()
    }

    /// Removes the rows of the log: what each says, and the token that PostgreSQL knew.
    pub fn take_rows(&mut self) -> Vec<Vec<String>> {
        let sql = "DELETE FROM log RETURNING what, coalesce(token, '')";
        self.watched.rows(sql)
    }
}

/// To all names that conversations use.
fn notify() -> String {
    let unseen = (1..10).map(|nth| format!("NOTIFY {}{nth}n; ", leavings::UNSEEN));
    format!("{}NOTIFY {}n", unseen.collect::<String>(), leavings::SEEN)
}

/// Above the tokens of the world.
const FIRST: u64 = 100;

/// Places with one and two server connections, for one thread. Each starts on first use.
#[derive(Debug)]
pub struct Trial {
    places: [Option<Place>; 2],
    flags: Vec<String>,
}

impl Trial {
    pub fn run(&mut self, conversation: &Conversation) -> Verdict {
        let place = &mut self.places[conversation.backends - 1];
        let place = place.get_or_insert_with(|| Place::start(conversation.backends, &self.flags));
        place.number += 10;
        let number = place.number;
        place.take_rows();
        let events = pooled::play(place, conversation, number);
        Judge::new(place, conversation, number).judge(&events)
    }
}

impl Oracle for Trial {
    fn new(plan: &Plan) -> Self {
        Self {
            places: [None, None],
            flags: plan.flags.clone(),
        }
    }

    fn judge(&mut self, plan: &Plan, at: u64) -> Judged {
        let seed = plan.seed.wrapping_add(at);
        let conversation = generator::conversation(seed);
        let started = Instant::now();
        let verdict = self.run(&conversation);
        let busy = started.elapsed();
        let violation = (!verdict.violations.is_empty()).then(|| {
            let mut again = |shorter: &Conversation| !self.run(shorter).violations.is_empty();
            let repeats = (0..5).any(|_| again(&conversation));
            let shortest = if repeats {
                shrink(&conversation, &mut again)
            } else {
                conversation
            };
            Violation {
                seed,
                what: verdict.violations,
                shortest: shortest.to_string(),
                repeats,
            }
        });
        Judged {
            errors: verdict.errors,
            busy,
            refusal: None,
            violation,
            shares: verdict.shares,
        }
    }

    fn server_has_crashed(&self) -> bool {
        let places = self.places.iter().flatten();
        places.into_iter().any(|place| place.world.has_crashed())
    }
}

/// Drops turns, and requests of those that remain.
fn shrink(
    conversation: &Conversation,
    fails: &mut dyn FnMut(&Conversation) -> bool,
) -> Conversation {
    let mut shortest = conversation.clone();
    let mut at = 0;
    while at < shortest.turns.len() {
        let mut shorter = shortest.clone();
        shorter.turns.remove(at);
        if fails(&shorter) {
            shortest = shorter;
            continue;
        }
        let mut nth = 0;
        while let Turn::Says(_, cycles) | Turn::Sends(_, cycles) = &shortest.turns[at]
            && nth < cycles.len()
        {
            let mut shorter = shortest.clone();
            if let Turn::Says(_, cycles) | Turn::Sends(_, cycles) = &mut shorter.turns[at] {
                cycles.remove(nth);
            }
            if fails(&shorter) {
                shortest = shorter;
            } else {
                nth += 1;
            }
        }
        at += 1;
    }
    shortest
}
