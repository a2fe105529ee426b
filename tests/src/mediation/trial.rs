//! One conversation and its judgement, again and again on the same servers.

use super::conversation::{Conversation, Session};
use super::judge::{Judge, differences};
use super::needless::{self, Refusal};
use super::runner::{self, Heard};
use super::world::{Rules, WATCHED, World};

/// A world with its judge.
#[derive(Debug)]
struct Court {
    world: World,
    judge: Judge,
}

/// Both kinds of worlds, for one thread.
#[derive(Debug)]
pub struct Trial {
    plain: Court,
    governed: Court,
    /// Stands for the tokens of a conversation. It rises, as tokens do.
    number: u64,
}

/// What came of a conversation.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What its session was told.
    pub heard: Heard,
    /// What it has changed and may not.
    pub violations: Vec<String>,
}

impl Outcome {
    /// Whether it has shown something.
    pub fn is_violation(&self) -> bool {
        !self.violations.is_empty()
    }
}

impl Trial {
    /// Starts the servers.
    pub fn start() -> Self {
        let court = |rules| {
            let world = World::start(rules);
            let judge = Judge::new(&world);
            Court { world, judge }
        };
        Self {
            plain: court(Rules::Plain),
            governed: court(Rules::Governed),
            number: 100,
        }
    }

    /// Runs a conversation and judges it.
    pub fn run(&mut self, conversation: &Conversation) -> Outcome {
        self.number += 10;
        let number = self.number;
        let court = self.court(conversation.session);
        court.run(conversation, number)
    }

    /// Whether its first refusal was needless.
    pub fn assess(&mut self, conversation: &Conversation, heard: &Heard) -> Option<Refusal> {
        let number = self.number;
        let court = self.court(conversation.session);
        needless::assess(&court.world, &mut court.judge, conversation, heard, number)
    }

    fn court(&mut self, session: Session) -> &mut Court {
        match session.is_governed() {
            true => &mut self.governed,
            false => &mut self.plain,
        }
    }
}

impl Court {
    fn run(&mut self, conversation: &Conversation, number: u64) -> Outcome {
        let session = conversation.session;
        let (world, judge) = (&self.world, &mut self.judge);
        let before = judge.counters();
        let others = match session {
            Session::Neighbour => judge.belonging_to_others(),
            _ => Vec::new(),
        };
        let rows = match session {
            Session::Holder => judge.rows(),
            _ => Vec::new(),
        };
        let mut found = Vec::new();
        let heard = runner::run(
            world,
            &(world.endpoint(), WATCHED),
            conversation,
            number,
            &mut |token| {
                if world.declare(token) {
                    found.extend(judge.found_by(token));
                }
            },
        );
        let after = judge.counters();
        let written = judge.written(&before, &after);
        if written.is_empty() {
            return Outcome {
                heard,
                violations: Vec::new(),
            };
        }
        let violations = match session {
            Session::Bare | Session::Elsewhere | Session::Ungoverned => written,
            Session::Neighbour => {
                let mut wrong = differences(&others, &judge.belonging_to_others());
                wrong.extend(
                    written
                        .into_iter()
                        .filter(|record| record.starts_with("LogicalMessage")),
                );
                if judge.notifications() > 0 {
                    wrong.push("a notification".to_owned());
                }
                wrong
            }
            Session::Holder => judge.wrong_rows(&rows, number, &found),
        };
        match violations.is_empty() && !session.is_strict() {
            true => judge.clean(),
            false => judge.restore(world),
        }
        Outcome { heard, violations }
    }
}
