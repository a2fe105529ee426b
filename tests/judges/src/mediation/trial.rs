//! One conversation and its judgement, repeated on the same servers.

use std::collections::BTreeMap;
use std::time::Duration;

use super::conversation::{Conversation, Database, Message, Session, Step};
use super::judge::Judge;
use super::needless::{self, Refusal};
use super::runner::{self, End, Heard};
use super::twin;
use super::world::{Copy, Rules, World, name_of};
use pgpalisade_test_servers::wire::Endpoint;

#[derive(Debug)]
struct Court {
    world: World,
    judges: BTreeMap<Database, Judge>,
}

/// Both kinds of worlds, for one thread. Each starts on first use.
#[derive(Debug, Default)]
pub struct Trial {
    plain: Option<Court>,
    governed: Option<Court>,
    /// Replaces the relative tokens of a conversation. Only rises.
    number: u64,
    flags: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct Outcome {
    pub heard: Heard,
    pub violations: Vec<String>,
}

impl Outcome {
    pub fn is_violation(&self) -> bool {
        !self.violations.is_empty()
    }
}

impl Trial {
    /// With these flags of the proxies.
    pub fn with_flags(flags: &[String]) -> Self {
        Self {
            flags: flags.to_vec(),
            ..Self::default()
        }
    }

    pub fn run(&mut self, conversation: &Conversation) -> Outcome {
        let number = self.next_number();
        self.court(conversation.session).run(conversation, number)
    }

    pub fn has_crashed(&self) -> bool {
        let courts = [&self.plain, &self.governed];
        courts
            .into_iter()
            .flatten()
            .any(|court| court.world.has_crashed())
    }

    pub fn assess(&mut self, conversation: &Conversation, heard: &Heard) -> Option<Refusal> {
        let (mut cut, refused) = needless::first_refusal(conversation, heard)?;
        cut.steps.push(Step::Say(Message::Sync));
        cut.steps.push(Step::Wait);
        let wrote = self.writes_directly(&cut);
        let court = self.court(cut.session);
        court.world.restore(cut.database, Copy::Twin);
        Some(refused.judged(wrote))
    }

    /// Whether the conversation writes without the proxy.
    pub fn writes_directly(&mut self, conversation: &Conversation) -> bool {
        let number = self.next_number();
        self.court(conversation.session)
            .writes_directly(conversation, number)
    }

    fn next_number(&mut self) -> u64 {
        self.number += 10;
        FIRST + self.number
    }

    fn court(&mut self, session: Session) -> &mut Court {
        let (court, rules) = if session.is_governed() {
            (&mut self.governed, Rules::Governed)
        } else {
            (&mut self.plain, Rules::Plain)
        };
        court.get_or_insert_with(|| {
            let world = World::start(rules, &self.flags);
            let judge = Judge::new(&world, Database::Utf8);
            let judges = [(Database::Utf8, judge)].into();
            Court { world, judges }
        })
    }
}

/// Bound for the end of a session after its client has gone.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// PostgreSQL must answer every conversation to its end.
pub const SILENT: &str = "it no longer answers";

/// Above all stale tokens.
const FIRST: u64 = 100;

const SECRET: &str = "secret";

impl Court {
    /// Created on first use.
    fn open(&mut self, database: Database) -> (&World, &mut Judge) {
        let world = &mut self.world;
        let judge = self.judges.entry(database).or_insert_with(|| {
            world.create(database);
            Judge::new(world, database)
        });
        (world, judge)
    }

    fn writes_directly(&mut self, conversation: &Conversation, number: u64) -> bool {
        let (session, database) = (conversation.session, conversation.database);
        let (world, judge) = self.open(database);
        let others = |judge: &Judge| {
            if session.is_neighbour() {
                judge.belonging_to_others_directly(world, session)
            } else {
                Vec::new()
            }
        };
        let (before, owned) = (judge.counters(), others(judge));
        let twin = (world.direct(), name_of(database, Copy::Twin));
        let heard = runner::run(world, &twin, conversation, number, &mut |_| {});
        judge.sessions_end(ENDS_WITHIN);
        let after = judge.counters();
        let mut written = judge.written(&before, &after);
        written.extend(judge.unseen(conversation));
        match session {
            Session::Free | Session::Reader => {
                owned != others(judge) || (session == Session::Reader && heard.shows(SECRET))
            }
            Session::Neighbour => {
                // A write without rows is a notification or a message.
                let rows = written.iter().any(|record| record.starts_with("Heap"));
                owned != others(judge) || (!rows && !written.is_empty())
            }
            _ => !written.is_empty(),
        }
    }

    fn run(&mut self, conversation: &Conversation, number: u64) -> Outcome {
        let (session, database) = (conversation.session, conversation.database);
        if session.has_twin() {
            let outcome = self.compare(conversation, number);
            if !outcome.is_violation() {
                return outcome;
            }
            // Leftovers of an earlier conversation may be visible in one database only.
            let (world, judge) = self.open(database);
            judge.clean();
            judge.clean_twin(world);
            return self.compare(conversation, number);
        }
        let (world, judge) = self.open(database);
        let before = judge.counters();
        let others = if session.is_neighbour() {
            judge.belonging_to_others(session)
        } else {
            Vec::new()
        };
        let rows = match session {
            Session::Holder => judge.rows(),
            _ => Vec::new(),
        };
        let mut found = Vec::new();
        let watched = (world.endpoint(), name_of(database, Copy::Watched));
        let mut heard = runner::run(world, &watched, conversation, number, &mut |token| {
            if world.declare(token) {
                found.extend(judge.found_by(token));
            }
        });
        let within = match heard.end {
            End::Silent => Duration::ZERO,
            End::Answered | End::Closed => ENDS_WITHIN,
        };
        if !judge.sessions_end(within) {
            heard.end = End::Silent;
        }
        let after = judge.counters();
        let written = judge.written(&before, &after);
        let mut other_violations = Vec::new();
        if heard.end == End::Silent {
            other_violations.push(SILENT.to_owned());
        }
        if session == Session::Reader && heard.shows(SECRET) {
            other_violations.push("a row that it may not read".to_owned());
        }
        if written.is_empty() {
            return Outcome {
                heard,
                violations: other_violations,
            };
        }
        let mut violations = match session {
            Session::Neighbour | Session::Free | Session::Reader => {
                judge.changed_for_others(session, &others, written)
            }
            Session::Holder => judge.wrong_rows(&rows, number, &found),
            _ => written,
        };
        if violations.is_empty() && !session.is_strict() {
            judge.clean();
        } else {
            judge.restore(world);
        }
        violations.extend(other_violations);
        Outcome { heard, violations }
    }

    /// Runs the conversation on two databases, through the proxy and directly.
    fn compare(&mut self, conversation: &Conversation, number: u64) -> Outcome {
        let (world, judge) = self.open(conversation.database);
        let before = judge.counters();
        let run = |endpoint: Endpoint, copy: Copy| {
            let to = (endpoint, name_of(conversation.database, copy));
            runner::run(world, &to, conversation, number, &mut |_| {})
        };
        let direct = run(world.direct(), Copy::Twin);
        let mut heard = run(world.endpoint(), Copy::Watched);
        if !judge.sessions_end(ENDS_WITHIN) {
            heard.end = End::Silent;
        }
        let mut violations: Vec<_> = twin::difference(&direct.said, &heard.said)
            .into_iter()
            .collect();
        if heard.end != direct.end
            && !heard.said.iter().any(twin::is_own_word)
            && !twin::refused_the_data(&direct.said, &heard.said)
        {
            violations.push(format!("{:?}, and directly {:?}", heard.end, direct.end));
        }
        if before != judge.counters() {
            judge.clean();
            judge.clean_twin(world);
        }
        Outcome { heard, violations }
    }
}
