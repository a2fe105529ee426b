//! Runs many conversations, on one server for each thread.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::conversation::{Conversation, Session};
use super::generator;
use super::needless::Refusal;
use super::shrinker::shrink;
use super::trial::{SILENT, Trial};

pub const LOOKED_AT: u64 = 40;

const TOLD_OF: u64 = 5000;

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub conversations: u64,
    pub duration: Duration,
    pub threads: usize,
    pub violations_max: usize,
    /// One conversation in this many is checked for needless refusals.
    pub looked_at: u64,
    pub sessions: Vec<Session>,
    /// Of the proxies.
    pub flags: Vec<String>,
}

/// Plays conversations on servers of its own, and judges them.
pub trait Oracle {
    fn new(plan: &Plan) -> Self;
    /// The conversation with this number of the plan.
    fn judge(&mut self, plan: &Plan, at: u64) -> Judged;
    fn server_has_crashed(&self) -> bool;
}

#[derive(Clone, Debug, Default)]
pub struct Judged {
    pub errors: Vec<String>,
    pub busy: Duration,
    pub refusal: Option<Refusal>,
    pub violation: Option<Violation>,
    /// Whether two clients had the same server connection.
    pub shares: bool,
}

#[derive(Clone, Debug)]
pub struct Violation {
    pub seed: u64,
    pub what: Vec<String>,
    /// The original one if the violation did not repeat.
    pub shortest: String,
    pub repeats: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub conversations: u64,
    pub violations: Vec<Violation>,
    pub errors: BTreeMap<String, u64>,
    /// Checked refusals by reason: their number, the needless ones, and an example of these.
    pub refusals: BTreeMap<String, (u64, u64, String)>,
    /// Conversations in which two clients had the same server connection.
    pub shared: u64,
    pub took: Duration,
    /// Duration of the conversations with their judgement, summed over all threads.
    pub busy: Duration,
}

/// Runs conversations until the limit, the end of the time, or enough violations.
pub fn run<O: Oracle>(plan: &Plan) -> Report {
    let report = Mutex::new(Report::default());
    let next = AtomicU64::new(0);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..plan.threads {
            scope.spawn(|| run_thread::<O>(plan, &next, begun, &report));
        }
    });
    let mut report = report.into_inner().expect("the report");
    report.took = begun.elapsed();
    report
}

fn run_thread<O: Oracle>(plan: &Plan, next: &AtomicU64, begun: Instant, report: &Mutex<Report>) {
    let mut oracle = O::new(plan);
    loop {
        let found = report.lock().expect("the report").violations.len();
        let at = next.fetch_add(1, Ordering::Relaxed);
        if at >= plan.conversations
            || begun.elapsed() >= plan.duration
            || found >= plan.violations_max
        {
            return;
        }
        let judge = AssertUnwindSafe(|| oracle.judge(plan, at));
        let judged = match catch_unwind(judge) {
            Ok(judged) => judged,
            // PostgreSQL has faults too, and its crash closes the judge's own connections.
            Err(_) if oracle.server_has_crashed() => {
                let seed = plan.seed.wrapping_add(at);
                println!("PostgreSQL crashed in the conversation of seed {seed}");
                oracle = O::new(plan);
                continue;
            }
            Err(panic) => resume_unwind(panic),
        };
        let mut report = report.lock().expect("the report");
        report.conversations += 1;
        report.busy += judged.busy;
        report.shared += u64::from(judged.shares);
        if report.conversations.is_multiple_of(TOLD_OF) {
            let (so_far, wrong) = (report.conversations, report.violations.len());
            let seconds = begun.elapsed().as_secs();
            println!("{so_far} conversations after {seconds} s, {wrong} violations");
        }
        for sqlstate in judged.errors {
            *report.errors.entry(sqlstate).or_default() += 1;
        }
        if let Some(refusal) = judged.refusal {
            let entry = report.refusals.entry(refusal.reason).or_default();
            entry.0 += 1;
            if refusal.needless {
                entry.1 += 1;
                entry.2 = refusal.what;
            }
        }
        if let Some(violation) = judged.violation {
            let (so_far, seconds) = (report.conversations, begun.elapsed().as_secs());
            println!("after {so_far} conversations and {seconds} s\n{violation}\n");
            report.violations.push(violation);
        }
    }
}

impl Oracle for Trial {
    fn new(plan: &Plan) -> Self {
        Self::with_flags(&plan.flags)
    }

    fn judge(&mut self, plan: &Plan, at: u64) -> Judged {
        let seed = plan.seed.wrapping_add(at);
        let conversation = generator::conversation(seed, &plan.sessions);
        let started = Instant::now();
        let outcome = self.run(&conversation);
        let busy = started.elapsed();
        let refusal = match at % plan.looked_at {
            0 if !outcome.is_violation() => self.assess(&conversation, &outcome.heard),
            _ => None,
        };
        let violation = outcome
            .is_violation()
            .then(|| violation(self, seed, &conversation, outcome.violations));
        let errors = outcome.heard.errors.into_iter();
        Judged {
            errors: errors.map(|told| told.sqlstate).collect(),
            busy,
            refusal,
            violation,
            shares: false,
        }
    }

    fn server_has_crashed(&self) -> bool {
        self.has_crashed()
    }
}

fn violation(
    trial: &mut Trial,
    seed: u64,
    conversation: &Conversation,
    what: Vec<String>,
) -> Violation {
    let silent = what == [SILENT];
    let mut again = |conversation: &Conversation| {
        let violations = trial.run(conversation).violations;
        !violations.is_empty() && (violations == [SILENT]) == silent
    };
    let repeats = (0..5).any(|_| again(conversation));
    let shortest = if repeats {
        shrink(conversation, &mut again)
    } else {
        conversation.clone()
    };
    Violation {
        seed,
        what,
        shortest: shortest.to_string(),
        repeats,
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "VIOLATION with seed {}: {}",
            self.seed,
            self.what.join(", ")
        )?;
        if !self.repeats {
            writeln!(f, "it did not do it again; this is all of it:")?;
        }
        write!(f, "{}", self.shortest)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.took.as_secs_f64();
        let each = self.busy.as_millis() / u128::from(self.conversations.max(1));
        writeln!(
            f,
            "conversations  {} in {seconds:.0} s, each {each} ms",
            self.conversations
        )?;
        writeln!(f, "violations     {}", self.violations.len())?;
        writeln!(f, "errors told")?;
        for (sqlstate, count) in &self.errors {
            writeln!(f, "  {sqlstate} {count}")?;
        }
        if self.shared > 0 {
            writeln!(f, "shared         {}", self.shared)?;
        }
        let all: u64 = self.refusals.values().map(|(count, ..)| count).sum();
        let needless: u64 = self
            .refusals
            .values()
            .map(|(_, needless, _)| needless)
            .sum();
        writeln!(
            f,
            "refusals       {all} looked at, {needless} of them needless"
        )?;
        let mut reasons: Vec<_> = self.refusals.iter().collect();
        reasons.sort_by_key(|(_, (count, needless, _))| {
            (std::cmp::Reverse(*needless), std::cmp::Reverse(*count))
        });
        for (reason, (count, needless, example)) in reasons {
            writeln!(f, "  {needless:>5} of {count:>5}  {reason}")?;
            if !example.is_empty() {
                writeln!(f, "                  {example}")?;
            }
        }
        Ok(())
    }
}
