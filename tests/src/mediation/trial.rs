//! One conversation and its judgement, again and again on the same servers.

use std::time::Duration;

use super::conversation::{Conversation, Message, Session, Step};
use super::judge::{Judge, differences};
use super::needless::{self, Refusal};
use super::runner::{self, End, Heard};
use super::world::{Rules, TWIN, WATCHED, World};

/// A world with its judge.
#[derive(Debug)]
struct Court {
    world: World,
    judge: Judge,
}

/// Both kinds of worlds, for one thread. Each is started when it is needed.
#[derive(Debug, Default)]
pub struct Trial {
    plain: Option<Court>,
    governed: Option<Court>,
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
    /// Runs a conversation and judges it.
    pub fn run(&mut self, conversation: &Conversation) -> Outcome {
        let number = self.next_number();
        self.court(conversation.session).run(conversation, number)
    }

    /// Whether its first refusal was needless.
    pub fn assess(&mut self, conversation: &Conversation, heard: &Heard) -> Option<Refusal> {
        let (mut cut, refused) = needless::first_refusal(conversation, heard)?;
        cut.steps.push(Step::Say(Message::Sync));
        cut.steps.push(Step::Wait);
        let wrote = self.writes_directly(&cut);
        if wrote {
            self.court(cut.session).world.restore(TWIN);
        }
        Some(refused.judged(wrote))
    }

    /// Whether the conversation writes where nothing stands in between.
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
        let (court, rules) = match session.is_governed() {
            true => (&mut self.governed, Rules::Governed),
            false => (&mut self.plain, Rules::Plain),
        };
        court.get_or_insert_with(|| {
            let world = World::start(rules);
            let judge = Judge::new(&world);
            Court { world, judge }
        })
    }
}

/// A session ends within this once its client has gone.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// A violation: PostgreSQL answers every conversation to its end.
pub const SILENT: &str = "it no longer answers";

/// Above all tokens that are stale.
const FIRST: u64 = 100;

impl Court {
    fn writes_directly(&mut self, conversation: &Conversation, number: u64) -> bool {
        let (world, judge) = (&self.world, &mut self.judge);
        let before = judge.counters();
        runner::run(
            world,
            &(world.direct(), TWIN),
            conversation,
            number,
            &mut |_| {},
        );
        judge.sessions_end(ENDS_WITHIN);
        let after = judge.counters();
        !judge.written(&before, &after).is_empty()
    }

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
        let mut heard = runner::run(
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
        let within = match heard.end {
            End::Silent => Duration::ZERO,
            End::Answered | End::Closed => ENDS_WITHIN,
        };
        if !judge.sessions_end(within) {
            heard.end = End::Silent;
        }
        let after = judge.counters();
        let written = judge.written(&before, &after);
        let silent = (heard.end == End::Silent).then(|| SILENT.to_owned());
        if written.is_empty() {
            return Outcome {
                heard,
                violations: silent.into_iter().collect(),
            };
        }
        let mut violations = match session {
            Session::Bare | Session::Elsewhere | Session::Taker | Session::Ungoverned => written,
            Session::Neighbour => {
                let mut wrong = differences(&others, &judge.belonging_to_others());
                let message = |record: &String| record.starts_with("LogicalMessage");
                wrong.extend(written.into_iter().filter(message));
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
        violations.extend(silent);
        Outcome { heard, violations }
    }
}
