//! `pgpalisade elect`: runs a command while this process leads, with the fencing token of its term.
//!
//! A leader that loses the lock learns it from the service or by its own clock, and stops its command. That is a
//! courtesy: the token, which the proxy compares, keeps a leader that slept from writing.

mod candidate;
mod etcd;
mod kubernetes;
mod leader;
mod lease;
mod lock;
mod proxied;
mod session;
mod signals;

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use pgpalisade_authority::Token;
use rustix::process::Signal;
use tokio::time::{Instant, sleep, sleep_until};

use candidate::{Candidate, LockError, Patience};
use leader::LeaderCommand;
use signals::{Caught, LeaderSignals};

pub use kubernetes::Cluster;
pub use lock::{Lock, LockSpec};
pub use proxied::LockKind;
pub use session::Proxied;

/// Exit code if leadership was lost, and the command runs in one term only: EX_TEMPFAIL of `sysexits.h`.
const LOST: u8 = 75;
/// Exit code if another leads, and the process is not to wait: EX_UNAVAILABLE.
pub const HELD: u8 = 69;

/// Pauses between two attempts to lead, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Interval between looks whether everything that the command started has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Settings of a leader.
#[derive(Debug)]
pub struct ElectConfig {
    /// The lock, whose holder leads.
    pub lock: Lock,
    /// The way to the database.
    pub proxied: Proxied,
    /// What runs while this process leads.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Time that the command has to end after a SIGTERM.
    pub grace: Duration,
    /// In which terms it runs.
    pub runs: Runs,
}

/// Terms in which the command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// Once in each term: a new campaign follows a lost one.
    EachTerm,
    /// Only in the first term.
    Once,
    /// Now, or not at all.
    Now,
}

impl Runs {
    const fn patience(self) -> Patience {
        match self {
            Self::EachTerm | Self::Once => Patience::Waits,
            Self::Now => Patience::NoWait,
        }
    }
}

/// Progress, for people.
pub enum Event<'a> {
    /// The process waits for the lock.
    Campaigns,
    /// The attempt failed; the next one is after this time.
    Failed(&'a LockError, Duration),
    /// The process leads, and the command runs.
    Leads(Token),
    /// The process no longer leads, and the command is told to end.
    Lost(&'a str),
    /// The command has not ended in time.
    Kills,
}

/// Reason why there is no exit code of a command.
#[derive(Debug, thiserror::Error)]
pub enum ElectError {
    /// Signals cannot be received.
    #[error("cannot listen for signals: {0}")]
    Signals(io::Error),
    /// The program does not exist, or may not be run. As in a shell, the exit code is 127, or 126.
    #[error("cannot run {program:?}: {error}")]
    Command {
        /// As it was given.
        program: OsString,
        /// The system's.
        error: io::Error,
    },
    /// Another leads, or the leader is unknown, and the process is not to wait.
    #[error("the command has not run: {0}")]
    NotNow(LockError),
}

impl ElectError {
    /// Whether another leads, which is no failure.
    pub const fn is_held(&self) -> bool {
        matches!(self, Self::NotNow(LockError::Held(_)))
    }
}

/// End of a campaign without a term.
enum NotElected {
    /// A signal has told this process to end.
    Caught(Caught),
    Failed(LockError),
}

/// End of a term.
enum Ended {
    /// The command has ended, with this exit code.
    ByItself(u8),
    /// The lock was lost, and everything that the command started has ended since.
    Lost,
    /// The same, and a signal has told this process to end.
    LostAndCaught(Caught),
}

/// Campaigns, leads, and campaigns again, until the command ends on its own or a signal ends this process. Returns
/// the exit code.
pub async fn run(plan: &ElectConfig, say: &mut dyn FnMut(Event<'_>)) -> Result<u8, ElectError> {
    let mut signals = LeaderSignals::listen().map_err(ElectError::Signals)?;
    let mut pause = FIRST_PAUSE;
    loop {
        say(Event::Campaigns);
        let (candidate, token) = match stand(plan, &mut signals).await {
            Ok(elected) => elected,
            Err(NotElected::Caught(caught)) => return Ok(caught.exit_code()),
            Err(NotElected::Failed(error)) if plan.runs == Runs::Now => {
                return Err(ElectError::NotNow(error));
            }
            Err(NotElected::Failed(error)) => {
                say(Event::Failed(&error, pause));
                match rest(&mut pause, &mut signals).await {
                    Some(caught) => return Ok(caught.exit_code()),
                    None => continue,
                }
            }
        };
        let begun = Instant::now();
        let ended = lead(plan, token, candidate.as_ref(), &mut signals, say).await;
        candidate.resign().await;
        match ended? {
            Ended::ByItself(code) => return Ok(code),
            Ended::LostAndCaught(caught) => return Ok(caught.exit_code()),
            Ended::Lost if plan.runs != Runs::EachTerm => return Ok(LOST),
            Ended::Lost => {}
        }
        // After a short term the pause grows: otherwise two processes could take the lead from each other all the
        // time.
        if begun.elapsed() > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        if let Some(caught) = rest(&mut pause, &mut signals).await {
            return Ok(caught.exit_code());
        }
    }
}

/// Pauses, longer each time, unless a signal tells this process to end.
async fn rest(pause: &mut Duration, signals: &mut LeaderSignals) -> Option<Caught> {
    let now = *pause;
    *pause = (now * 2).min(LONGEST_PAUSE);
    tokio::select! {
        caught = signals.ending() => Some(caught),
        () = sleep(now) => None,
    }
}

/// Registers as a candidate, and waits for its turn, unless a signal tells this process to end.
async fn stand(
    plan: &ElectConfig,
    signals: &mut LeaderSignals,
) -> Result<(Box<dyn Candidate>, Token), NotElected> {
    let mut candidate = unless_caught(signals, plan.lock.register(&plan.proxied)).await?;
    let elected = candidate.elected(plan.runs.patience());
    match unless_caught(signals, elected).await {
        Ok(token) => Ok((candidate, token)),
        Err(error) => {
            candidate.resign().await;
            Err(error)
        }
    }
}

async fn unless_caught<T>(
    signals: &mut LeaderSignals,
    step: impl Future<Output = Result<T, LockError>>,
) -> Result<T, NotElected> {
    tokio::select! {
        biased;
        caught = signals.ending() => Err(NotElected::Caught(caught)),
        done = step => done.map_err(NotElected::Failed),
    }
}

/// Runs the command until it ends; if the lock is lost, stops it and waits for its end.
async fn lead(
    plan: &ElectConfig,
    token: Token,
    candidate: &dyn Candidate,
    signals: &mut LeaderSignals,
    say: &mut dyn FnMut(Event<'_>),
) -> Result<Ended, ElectError> {
    say(Event::Leads(token));
    let mut leader = LeaderCommand::start(plan, token)?;
    let mut told = None;
    let why = loop {
        tokio::select! {
            biased;
            code = leader.exit_code() => match code {
                // A failed command may have been refused, and so have learnt of the loss before this process.
                code if code == 0 || candidate.leads().await => return Ok(Ended::ByItself(code)),
                _ => break "the command ended, and leadership until then cannot be confirmed".to_owned(),
            },
            caught = signals.any() => {
                leader.signal(caught.signal());
                told = told.or(caught.ends().then_some(caught));
            }
            why = candidate.lost() => break why,
        }
    };
    say(Event::Lost(&why));
    leader.signal(Signal::TERM);
    let deadline = Instant::now() + plan.grace;
    while leader.lives() {
        tokio::select! {
            biased;
            caught = signals.ending() => told = Some(caught),
            () = sleep_until(deadline) => {
                say(Event::Kills);
                leader.kill().await;
                break;
            }
            () = sleep(LOOK_EVERY) => {}
        }
    }
    Ok(told.map_or(Ended::Lost, Ended::LostAndCaught))
}

/// Names the leader, for people who look into the election's store.
fn host_and_process() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    format!("{host} (pgpalisade elect, process {})", std::process::id())
}
