//! A candidate in an election of ZooKeeper: its recipe for a lock, with the nodes that kazoo makes.
//!
//! Candidates are nodes with a number, below one path. The lowest leads, and each waits only for the one in front of
//! it. The token is the `czxid` of the own node. Sources:
//! <https://zookeeper.apache.org/doc/r3.8.0/recipes.html#sc_leaderElection>,
//! <https://github.com/python-zk/kazoo/blob/2.9.0/kazoo/recipe/lock.py>.

mod jute;
mod session;

use std::str::FromStr;
use std::time::Duration;
use std::{fmt, io};

use async_trait::async_trait;
use bytes::TryGetError;
use pgpalisade_authority::{Leased, Token};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::host_and_process;
use super::lease::Lease;
use super::lock::{Candidate, LockError, Patience};
use jute::{Ask, NO_NODE, NODE_EXISTS};
use session::Session;

const DEFAULT_PORT: u16 = 2181;
/// How often a candidate looks where it stands.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// For the end of the session.
const GOODBYE: Duration = Duration::from_secs(1);
/// What kazoo has in the names of candidates, behind 32 digits of their own and in front of the number.
const KAZOO: &str = "__lock__";
/// How many digits the number has that ZooKeeper puts behind a name.
const DIGITS: usize = 10;

/// What is said where somebody has removed a candidate.
const REMOVED: &str = "somebody has deleted its node in ZooKeeper";

/// The servers of an ensemble: `host:port`, several with commas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Servers(Vec<String>);

impl FromStr for Servers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let servers: Result<Vec<String>, String> = text.split(',').map(server).collect();
        servers.map(Self)
    }
}

/// One server, with its port.
fn server(text: &str) -> Result<String, String> {
    let wrong = || {
        format!(
            "{text:?} is not a server of ZooKeeper: write HOST:PORT, several with commas, and nothing behind them \
             (10.0.0.1:2181,10.0.0.2:2181)"
        )
    };
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse::<u16>()),
        _ => (text, Ok(DEFAULT_PORT)),
    };
    let in_brackets = host.starts_with('[') && host.ends_with(']');
    let named = !host.is_empty() && !host.contains(|c: char| "[]:/?@ ".contains(c));
    match port {
        Ok(port) if named || in_brackets => Ok(format!("{host}:{port}")),
        _ => Err(wrong()),
    }
}

/// The path below which the candidates are: absolute, no slash at its end, nothing that ZooKeeper refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ElectionPath(String);

impl FromStr for ElectionPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let part =
            |part: &str| !["", ".", ".."].contains(&part) && !part.contains(char::is_control);
        let parts = text.strip_prefix('/');
        match parts.is_some_and(|parts| parts.split('/').all(part)) {
            true => Ok(Self(text.to_owned())),
            false => Err("name the path of its candidates: zookeeper:/elections/jobs".to_owned()),
        }
    }
}

impl fmt::Display for ElectionPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which election.
#[derive(Debug)]
pub(crate) struct ZooKeeperElection {
    pub(crate) servers: Servers,
    pub(crate) path: ElectionPath,
}

/// Why ZooKeeper has not done it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ZooKeeperError {
    #[error("no connection: {0}")]
    Io(#[from] io::Error),
    #[error("no answer in time")]
    Silent,
    #[error("what answers there is no ZooKeeper, or an answer is too long")]
    Garbled,
    #[error("the session has expired")]
    Expired,
    #[error("a server gives sessions less time than another: give all the same maxSessionTimeout")]
    Shorter,
    /// A code of its own: <https://zookeeper.apache.org/doc/r3.8.0/apidocs/zookeeper-server/> (`KeeperException.Code`).
    #[error("it refuses, with code {0}{hint}", hint = hint(*.0))]
    Refused(i32),
}

impl From<TryGetError> for ZooKeeperError {
    fn from(_: TryGetError) -> Self {
        Self::Garbled
    }
}

/// What to do, where that is known.
fn hint(code: i32) -> &'static str {
    match code {
        -102 => " (NoAuth): its ACL must let anybody create, read and delete below the path",
        -108 => " (NoChildrenForEphemerals): a node on the path is ephemeral; choose another path",
        -8 => " (BadArguments): choose another path",
        _ => "",
    }
}

/// A candidate, whose session is kept while it waits and while it leads.
pub(super) struct ZooKeeperCandidate {
    session: Session,
    path: String,
    lease: Lease,
    /// Once it is one.
    own: Option<Node>,
}

/// A candidate's node.
struct Node {
    path: String,
    number: String,
    czxid: i64,
}

impl ZooKeeperCandidate {
    pub(super) async fn register(
        election: &ZooKeeperElection,
        ttl: Duration,
    ) -> Result<Self, ZooKeeperError> {
        let asked_at = Instant::now();
        let session = Session::open(&election.servers, ttl).await?;
        Ok(Self {
            lease: Lease {
                ttl: session.lives(),
                asked_at,
            },
            session,
            path: election.path.to_string(),
            own: None,
        })
    }

    /// Makes its node, and the path to it.
    async fn join(&mut self, patience: Patience) -> Result<Token, LockError> {
        let Self { session, path, .. } = self;
        // One that has not waited is not to be waited for by others.
        if patience == Patience::NoWait && !candidates(session, path).await?.is_empty() {
            return Err(held());
        }
        for (end, _) in path.match_indices('/').skip(1) {
            make(session, path.get(..end).unwrap_or_default()).await?;
        }
        make(session, path).await?;
        let prefix = format!("{path}/{:032x}{KAZOO}", rand::random::<u128>());
        let about = host_and_process();
        let (path, data) = (prefix.as_str(), about.as_str());
        let made = session.ask(Ask::MakeCandidate { path, data }).await?;
        let (path, czxid) = jute::made(made)?;
        let number = number(&path).ok_or(ZooKeeperError::Garbled)?.to_owned();
        let token = u64::try_from(czxid)
            .ok()
            .and_then(|czxid| Token::new(czxid).ok());
        self.own = Some(Node {
            path,
            number,
            czxid,
        });
        Ok(token.ok_or(ZooKeeperError::Garbled)?)
    }
}

#[async_trait(?Send)]
impl Candidate for ZooKeeperCandidate {
    async fn elected(&mut self, patience: Patience) -> Result<Token, LockError> {
        let joined = timeout_at(self.lease.sure_until(), self.join(patience)).await;
        let token = joined.map_err(|_| ZooKeeperError::Silent)??;
        let Self {
            session,
            path,
            lease,
            own,
        } = self;
        let own = own.as_ref().ok_or(ZooKeeperError::Garbled)?;
        let turn = turn(session, path, own, patience);
        lease
            .kept_for(turn, async || renew(session, own).await)
            .await?;
        Ok(token)
    }

    async fn lost(&mut self) -> String {
        let Self {
            session,
            lease,
            own,
            ..
        } = self;
        let Some(own) = own.as_ref() else {
            return REMOVED.to_owned();
        };
        let removed = async {
            loop {
                sleep(LOOK_EVERY).await;
                if let Ok(false) = is_there(session, own).await {
                    return REMOVED.to_owned();
                }
            }
        };
        tokio::select! {
            why = removed => why,
            why = lease.lost(async || renew(session, own).await) => why,
        }
    }

    async fn leads(&self) -> bool {
        let Some(own) = self.own.as_ref() else {
            return false;
        };
        let renewed = timeout_at(self.lease.sure_until(), renew(&self.session, own)).await;
        matches!(renewed, Ok(Ok(Leased::Held)))
    }

    async fn resign(self: Box<Self>) {
        // Where it is not heard, the session ends by itself, and the node with it.
        let _expires = timeout(GOODBYE, self.session.ask(Ask::Close)).await;
    }
}

/// Waits until nobody is in front of it.
async fn turn(
    session: &Session,
    path: &str,
    own: &Node,
    patience: Patience,
) -> Result<(), LockError> {
    loop {
        let others = candidates(session, path).await;
        let others = match others {
            Ok(others) => others,
            // One that does not answer is heard of when the session cannot be kept.
            Err(_) if patience == Patience::Waits => {
                sleep(LOOK_EVERY).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if !others.iter().any(|name| own.path.ends_with(name)) {
            return Err(LockError::Lost(REMOVED.to_owned()));
        }
        let Some(front) = in_front(&others, &own.number) else {
            return Ok(());
        };
        if patience == Patience::NoWait {
            return Err(held());
        }
        let front = format!("{path}/{front}");
        loop {
            sleep(LOOK_EVERY).await;
            if let Ok(false) = is_there(session, own).await {
                return Err(LockError::Lost(REMOVED.to_owned()));
            }
            if let Err(ZooKeeperError::Refused(NO_NODE)) = session.ask(Ask::Exists(&front)).await {
                break;
            }
        }
    }
}

fn held() -> LockError {
    LockError::Held("there are candidates in ZooKeeper".to_owned())
}

/// The names of all candidates, as the ensemble has them.
async fn candidates(session: &Session, path: &str) -> Result<Vec<String>, ZooKeeperError> {
    let asked = async {
        session.ask(Ask::Sync(path)).await?;
        jute::names(session.ask(Ask::Children(path)).await?)
    };
    let mut names = match asked.await {
        Err(ZooKeeperError::Refused(NO_NODE)) => Vec::new(),
        names => names?,
    };
    names.retain(|name| number(name).is_some());
    Ok(names)
}

/// The last one that is in front of this number. Numbers have as many digits, so they compare as text.
fn in_front<'a>(names: &'a [String], own: &str) -> Option<&'a String> {
    let before = names
        .iter()
        .filter(|name| number(name).is_some_and(|number| number < own));
    before.max_by_key(|name| number(name))
}

/// What ZooKeeper has put behind a name. Whoever has one is waited for, whatever client has made it.
fn number(name: &str) -> Option<&str> {
    let number = name.get(name.len().checked_sub(DIGITS)?..)?;
    number
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then_some(number)
}

/// Makes a node that stays, where there is none.
async fn make(session: &Session, path: &str) -> Result<(), ZooKeeperError> {
    match session.ask(Ask::Make(path)).await {
        Ok(_) | Err(ZooKeeperError::Refused(NODE_EXISTS)) => Ok(()),
        // It may be there and let nobody make it.
        Err(error) => match session.ask(Ask::Exists(path)).await {
            Ok(_) => Ok(()),
            Err(_) => Err(error),
        },
    }
}

/// Whether its node is there, as far as one server knows.
async fn is_there(session: &Session, own: &Node) -> Result<bool, ZooKeeperError> {
    is_own(session.ask(Ask::Exists(&own.path)).await, own)
}

/// Writes its node again: a member that is cut off from the others could still be read from, and only what they agree
/// on says that the session lives.
async fn renew(session: &Session, own: &Node) -> Result<Leased, ZooKeeperError> {
    let (path, about) = (own.path.as_str(), host_and_process());
    let written = session.ask(Ask::Write { path, data: &about }).await;
    Ok(match is_own(written, own)? {
        true => Leased::Held,
        false => Leased::NotHeld,
    })
}

fn is_own(state: Result<bytes::Bytes, ZooKeeperError>, own: &Node) -> Result<bool, ZooKeeperError> {
    match state {
        Ok(state) => Ok(jute::czxid(state)? == own.czxid),
        Err(ZooKeeperError::Expired | ZooKeeperError::Refused(NO_NODE)) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_strictly() {
        let read = |text: &str| text.parse::<Servers>().map(|servers| servers.0);
        assert_eq!(read("a,[::1]:7,b:1").unwrap(), ["a:2181", "[::1]:7", "b:1"]);
        for text in [
            "",
            "a,",
            "a:",
            "a:x",
            "a:65536",
            "a/jobs",
            "u@a",
            "::1",
            "http://a:1",
        ] {
            assert!(read(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn paths_are_read_strictly() {
        let read = |text: &str| text.parse::<ElectionPath>().is_ok();
        assert!(read("/jobs") && read("/elections/jobs"));
        for text in [
            "", "/", "jobs", "/jobs/", "//jobs", "/a/../b", "/a/.", "/a\n",
        ] {
            assert!(!read(text), "{text:?}");
        }
    }

    #[test]
    fn each_waits_for_the_one_in_front_of_it() {
        let names = [
            "f__lock__0000000003",
            "a__lock__0000000007",
            "x-lock-0000000005",
            "config",
        ];
        let names = names.map(str::to_owned);
        let front = |own: &str| in_front(&names, own).map(String::as_str);
        assert_eq!(front("0000000007"), Some("x-lock-0000000005"));
        assert_eq!(front("0000000005"), Some("f__lock__0000000003"));
        assert_eq!(front("0000000003"), None);
    }
}
