//! `pgpalisade elect`: runs a command while this process leads, with the fencing token of its term.
//!
//! Whoever loses the lock notices it by its own clock or is told, and its command is stopped. That is courtesy: what
//! keeps a leader that slept from writing is the token, which the proxy compares.

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

use leader::Leader;
use lock::{Candidate, LockError, Patience};
use signals::{Caught, LeaderSignals};

pub(crate) use etcd::EtcdElection;
pub(crate) use kubernetes::{Cluster, KubernetesElection};
pub(crate) use lock::{Lock, LockSpec};
pub(crate) use proxied::Kind;
pub(crate) use session::Proxied;

/// The exit code where leadership was lost and that is to be the end: EX_TEMPFAIL of `sysexits.h`.
pub(crate) const LOST: u8 = 75;
/// The exit code where another leads and that is not to be waited for: EX_UNAVAILABLE.
pub(crate) const HELD: u8 = 69;

/// Between two attempts to lead: doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How often it looks whether all that the command has started has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What is to be done.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Who holds it, leads.
    pub(crate) lock: Lock,
    pub(crate) proxied: Proxied,
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
    /// How long it has to end after a SIGTERM.
    pub(crate) grace: Duration,
    pub(crate) runs: Runs,
}

/// How often the command is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runs {
    /// Once in each term: after a lost one comes another candidacy.
    EachTerm,
    /// In one term, which is waited for.
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

/// What happens, for people.
pub(crate) enum Event<'a> {
    /// It waits for the lock.
    Campaigns,
    /// It cannot; the next attempt is after this time.
    Failed(&'a LockError, Duration),
    /// It leads, and the command runs.
    Leads(Token),
    /// It does not lead any more, and the command is told to end.
    Lost(&'a str),
    /// The command has not ended in time.
    Kills,
}

/// Why it cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ElectError {
    /// The system does not let it hear of signals.
    #[error("cannot listen for signals: {0}")]
    Signals(io::Error),
    /// There is no such program, or it may not be run. As in a shell the exit code is 127, or 126.
    #[error("cannot run {program:?}: {error}")]
    Command { program: OsString, error: io::Error },
    /// Another leads, or nobody knows who does, and that is not to be waited for.
    #[error("the command has not run: {0}")]
    NotNow(LockError),
}

impl ElectError {
    /// Whether all is well: another leads.
    pub(crate) const fn is_held(&self) -> bool {
        matches!(self, Self::NotNow(LockError::Held(_)))
    }
}

/// How a term has ended.
enum Ended {
    /// The command has, with this exit code.
    ByItself(u8),
    /// The lock was lost, and all that the command has started has ended since.
    Lost,
    /// The same, and a signal has told this process to end.
    LostAndCaught(Caught),
}

/// Campaigns, leads, and campaigns again, until the command ends by itself or a signal says so. Gives the exit code.
pub(crate) async fn run(plan: &Plan, say: &mut dyn FnMut(Event<'_>)) -> Result<u8, ElectError> {
    let mut signals = LeaderSignals::listen().map_err(ElectError::Signals)?;
    let mut pause = FIRST_PAUSE;
    loop {
        say(Event::Campaigns);
        let stood = match stand(plan, &mut signals).await {
            Ok(stood) => stood,
            Err(caught) => return Ok(caught.exit_code()),
        };
        let (mut candidate, token) = match stood {
            Ok(elected) => elected,
            Err(error) if plan.runs == Runs::Now => return Err(ElectError::NotNow(error)),
            Err(error) => {
                say(Event::Failed(&error, pause));
                match rest(&mut pause, &mut signals).await {
                    Some(caught) => return Ok(caught.exit_code()),
                    None => continue,
                }
            }
        };
        let begun = Instant::now();
        let ended = lead(plan, token, candidate.as_mut(), &mut signals, say).await;
        candidate.resign().await;
        match ended? {
            Ended::ByItself(code) => return Ok(code),
            Ended::LostAndCaught(caught) => return Ok(caught.exit_code()),
            Ended::Lost if plan.runs != Runs::EachTerm => return Ok(LOST),
            Ended::Lost => {}
        }
        // Two that take the lead from each other all the time would do nothing else.
        if begun.elapsed() > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        if let Some(caught) = rest(&mut pause, &mut signals).await {
            return Ok(caught.exit_code());
        }
    }
}

/// Waits, the next time longer, unless a signal says that this process is to end.
async fn rest(pause: &mut Duration, signals: &mut LeaderSignals) -> Option<Caught> {
    let now = *pause;
    *pause = (now * 2).min(LONGEST_PAUSE);
    tokio::select! {
        caught = signals.ending() => Some(caught),
        () = sleep(now) => None,
    }
}

/// Becomes a candidate, and waits for its turn, unless a signal says that this process is to end.
async fn stand(
    plan: &Plan,
    signals: &mut LeaderSignals,
) -> Result<Result<(Box<dyn Candidate>, Token), LockError>, Caught> {
    let registered = tokio::select! {
        biased;
        caught = signals.ending() => return Err(caught),
        registered = plan.lock.register(&plan.proxied) => registered,
    };
    let mut candidate = match registered {
        Ok(candidate) => candidate,
        Err(error) => return Ok(Err(error)),
    };
    let elected = tokio::select! {
        biased;
        caught = signals.ending() => Err(caught),
        elected = candidate.elected(plan.runs.patience()) => Ok(elected),
    };
    match elected {
        Ok(Ok(token)) => Ok(Ok((candidate, token))),
        Ok(Err(error)) => {
            candidate.resign().await;
            Ok(Err(error))
        }
        Err(caught) => {
            candidate.resign().await;
            Err(caught)
        }
    }
}

/// Runs the command until it ends, or until the lock is lost and it has ended then.
async fn lead(
    plan: &Plan,
    token: Token,
    candidate: &mut dyn Candidate,
    signals: &mut LeaderSignals,
    say: &mut dyn FnMut(Event<'_>),
) -> Result<Ended, ElectError> {
    // What came while it waited is not for a command that had not begun.
    signals.forget();
    say(Event::Leads(token));
    let mut leader = Leader::start(plan, token)?;
    let mut told = None;
    let why = loop {
        tokio::select! {
            biased;
            code = leader.exit_code() => match code {
                // It may have been refused, and known of the loss before this process.
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

/// Who leads, for people who look into the election's store.
fn host_and_process() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    format!("{host} (pgpalisade elect, process {})", std::process::id())
}
