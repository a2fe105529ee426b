//! `pgpalisade elect`: runs a command while this process leads, with the fencing token of its term.
//!
//! A leader that loses the lock stops its command. That is a courtesy: the token keeps a leader that slept from
//! writing.

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

use candidate::{Candidate, LockError};
use leader::LeaderCommand;
use signals::{Caught, LeaderSignals};

pub use kubernetes::{Cluster, FollowedLease, LeaseName};
pub use lock::{Lock, LockSpec};
pub use session::Proxied;
pub use signals::Signals;

/// Exit code if leadership was lost in the only term: EX_TEMPFAIL of `sysexits.h`.
const LOST: u8 = 75;
/// Exit code if another leads and the process does not wait: EX_UNAVAILABLE.
pub const HELD: u8 = 69;

/// Pauses between two attempts to lead, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Interval between looks for processes of the command.
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct ElectConfig {
    pub lock: Lock,
    pub proxied: Proxied,
    pub program: OsString,
    pub arguments: Vec<OsString>,
    /// Time that the command has to end after a SIGTERM.
    pub grace: Duration,
    /// Whether it campaigns until it leads.
    pub waits: bool,
    /// Whether the command runs in the first term only. Otherwise a new campaign follows a lost one.
    pub once: bool,
}

/// Progress, for people.
pub enum Event<'a> {
    Campaigns,
    /// The attempt failed; the next one is after this time.
    Failed(&'a LockError, Duration),
    Leads(Token),
    /// The process no longer leads, and the command is told to end.
    Lost(&'a str),
    Kills,
}

#[derive(Debug, thiserror::Error)]
pub enum ElectError {
    #[error("cannot listen for signals: {0}")]
    Signals(io::Error),
    /// The exit code is that of a shell: 127, or 126 if the program may not be run.
    #[error("cannot run {program:?}: {error}")]
    Command { program: OsString, error: io::Error },
    /// Another leads, or the leader is unknown, and the process does not wait.
    #[error("the command has not run: {0}")]
    NotNow(LockError),
}

impl ElectError {
    /// Whether another leads, which is no failure.
    pub const fn is_held(&self) -> bool {
        matches!(self, Self::NotNow(LockError::Held(_)))
    }
}

enum NotElected {
    Caught(Caught),
    Failed(LockError),
}

/// End of a term.
enum Ended {
    ByItself(u8),
    /// The lock was lost, and everything that the command started has ended since.
    Lost,
    /// The same, and a signal has told this process to end.
    LostAndCaught(Caught),
}

/// Campaigns, leads, and campaigns again, until the command ends or a signal ends this process. Returns the exit
/// code.
pub async fn run(plan: &ElectConfig, say: &mut dyn FnMut(Event<'_>)) -> Result<u8, ElectError> {
    let mut signals = LeaderSignals::listen().map_err(ElectError::Signals)?;
    let mut pause = FIRST_PAUSE;
    loop {
        say(Event::Campaigns);
        let (candidate, token) = match stand(plan, &mut signals).await {
            Ok(elected) => elected,
            Err(NotElected::Caught(caught)) => return Ok(caught.exit_code()),
            Err(NotElected::Failed(error)) if !plan.waits => {
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
            Ended::Lost if plan.once => return Ok(LOST),
            Ended::Lost => {}
        }
        // Otherwise two processes could take the lead from each other all the time.
        if begun.elapsed() > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        if let Some(caught) = rest(&mut pause, &mut signals).await {
            return Ok(caught.exit_code());
        }
    }
}

/// Pauses, longer each time, unless a signal ends this process.
async fn rest(pause: &mut Duration, signals: &mut LeaderSignals) -> Option<Caught> {
    let now = *pause;
    *pause = (now * 2).min(LONGEST_PAUSE);
    tokio::select! {
        caught = signals.ending() => Some(caught),
        () = sleep(now) => None,
    }
}

/// Registers as a candidate, and waits for its turn, unless a signal ends this process.
async fn stand(
    plan: &ElectConfig,
    signals: &mut LeaderSignals,
) -> Result<(Box<dyn Candidate>, Token), NotElected> {
    let mut candidate = unless_caught(signals, plan.lock.register(&plan.proxied)).await?;
    let elected = candidate.elected(plan.waits);
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

/// Runs the command until it ends. If the lock is lost, stops it and waits for its end.
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
                // A refused command may have learnt of the loss before this process.
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

/// Names the leader for people who read the election's store.
fn host_and_process() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    format!("{host} (pgpalisade elect, process {})", std::process::id())
}
