//! Reading the store of marks. One function for each kind of store.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use pgpalisade_authority::{Contents, Etcd, Scope, embedded, etcd, postgres};
use tokio::time::timeout;

use super::finding::Verdict;
use crate::config::AuthorityLocation;

#[derive(Debug)]
pub(super) struct Store {
    pub(super) held: Held,
    /// The verdict on the store itself.
    pub(super) verdict: Verdict,
}

/// The contents of a store.
#[derive(Debug)]
pub(super) enum Held {
    Contents(Contents),
    /// Not created yet.
    Nothing,
    /// Only the process that has it open can read it.
    InUse,
    /// Unreadable.
    Unknown,
}

impl Held {
    pub(super) const fn contents(&self) -> Option<&Contents> {
        match self {
            Self::Contents(contents) => Some(contents),
            _ => None,
        }
    }
}

/// Reads the store of the configuration. `protected`: the system identifier of the protected cluster.
pub(super) async fn look(
    location: &AuthorityLocation,
    protected: Option<u64>,
    within: Duration,
) -> Store {
    let place = location.to_string();
    match location {
        AuthorityLocation::Embedded(dir) => embedded(&place, dir, within).await,
        AuthorityLocation::Etcd(options) => etcd(&place, options, within).await,
        AuthorityLocation::Postgres(options) => {
            let options = options.as_ref().clone().with_timeout(within);
            postgres(&place, &options, protected).await
        }
    }
}

/// Reads the store, and checks that this process may open it as `serve` does. A store over a network needs nothing of
/// this machine.
pub(super) async fn try_open(
    location: &AuthorityLocation,
    store: Store,
    within: Duration,
) -> Store {
    let AuthorityLocation::Embedded(dir) = location else {
        return store;
    };
    if matches!(store.held, Held::Unknown) {
        return store;
    }
    let dir = dir.clone();
    let trying = tokio::task::spawn_blocking(move || embedded::try_open(&dir));
    let verdict = match timeout(within, trying).await {
        Ok(Ok(Ok(()))) => return store,
        Ok(Ok(Err(error))) => Verdict::fail(error.to_string(), RUN_AS_PROXY),
        Ok(Err(_)) | Err(_) => Verdict::fail(
            format!("{location} could not be opened within {within:?}"),
            "look at the disk",
        ),
    };
    Store { verdict, ..store }
}

fn unknown(seen: String, advice: &str) -> Store {
    Store {
        held: Held::Unknown,
        verdict: Verdict::fail(seen, advice),
    }
}

fn nothing(place: &str) -> Store {
    let seen = format!("{place}: there is no store yet; the first start of a proxy creates it");
    let advice = "make sure that this is the right place: an empty store has forgotten every mark";
    Store {
        held: Held::Nothing,
        verdict: Verdict::warn(seen, advice),
    }
}

/// Number of scopes whose marks sessions declare.
pub(super) fn of_sessions<'a>(scopes: impl Iterator<Item = &'a Scope>) -> usize {
    scopes.filter(|scope| !scope.is_epoch()).count()
}

fn read(place: &str, contents: &Contents, took: Duration) -> String {
    format!(
        "{place}, authority {}, marks: {}, read in {} ms",
        contents.identity,
        of_sessions(contents.marks.iter().map(|(scope, _)| scope)),
        took.as_millis()
    )
}

async fn embedded(place: &str, dir: &Path, within: Duration) -> Store {
    let began = Instant::now();
    let dir = dir.to_owned();
    // A dead network disk blocks the thread, not the command.
    let reading = tokio::task::spawn_blocking(move || embedded::read(&dir));
    match timeout(within, reading).await {
        Ok(Ok(Ok(embedded::Found::Contents(contents)))) => Store {
            verdict: Verdict::ok(read(place, &contents, began.elapsed())),
            held: Held::Contents(contents),
        },
        Ok(Ok(Ok(embedded::Found::InUse))) => Store {
            verdict: Verdict::ok(format!(
                "{place} is in use, probably by its running proxy; only that proxy can read it"
            )),
            held: Held::InUse,
        },
        Ok(Ok(Ok(embedded::Found::Nothing))) => nothing(place),
        Ok(Ok(Err(error))) => unknown(error.to_string(), RUN_AS_PROXY),
        Ok(Err(_)) | Err(_) => unknown(
            format!("{place} could not be read within {within:?}"),
            "look at the disk",
        ),
    }
}

const RUN_AS_PROXY: &str =
    "run this as the user that the proxy runs as, and give that user the directory of the store";

const NEEDED: &str =
    "a proxy does not start, and takes no new token, while its store cannot be used";

async fn etcd(place: &str, options: &etcd::Options, within: Duration) -> Store {
    let began = Instant::now();
    // Each call has its own bound; this is for their sum.
    let within = within * 2;
    let reading = timeout(within, async {
        let store = match Etcd::find(options.clone()).await {
            Ok(Some(store)) => store,
            Ok(None) => return nothing(place),
            Err(error) => return unknown(error.to_string(), NEEDED),
        };
        let endpoints = store.endpoints().await;
        match Contents::read(&store).await {
            Ok(contents) => Store {
                verdict: of_members(&endpoints, read(place, &contents, began.elapsed())),
                held: Held::Contents(contents),
            },
            Err(error) => unknown(error.to_string(), NEEDED),
        }
    });
    let silent = |_| {
        unknown(
            format!("{place} could not be read within {within:?}"),
            NEEDED,
        )
    };
    reading.await.unwrap_or_else(silent)
}

/// Whether every member is reachable, healthy, and of one cluster.
fn of_members(endpoints: &[etcd::Endpoint], seen: String) -> Verdict {
    let mut seen = seen;
    let (mut clusters, mut complaints) = (BTreeSet::new(), Vec::new());
    for etcd::Endpoint { url, state } in endpoints {
        match state {
            Ok(member) => {
                clusters.insert(member.cluster_id);
                seen.push_str(&format!(
                    "; {url}: etcd {}, {}",
                    member.version, member.role
                ));
                if member.stale_reads {
                    seen.push_str(
                        ", a version whose reads may be stale after a pause (no token is admitted by a read)",
                    );
                }
                complaints.extend(member.errors.iter().map(|error| format!("{url}: {error}")));
                if member.role == etcd::Role::NoLeader {
                    complaints.push(format!("{url} knows no leader"));
                }
            }
            Err(error) => complaints.push(format!("{url} does not answer: {error}")),
        }
    }
    if clusters.len() > 1 {
        let advice =
            "name the members of one etcd cluster only: marks of two clusters are two marks";
        return Verdict::fail(format!("{seen}; they belong to different clusters"), advice);
    }
    if complaints.is_empty() {
        return Verdict::ok(seen);
    }
    let advice = "repair these members: without a majority no new token is accepted";
    Verdict::warn(format!("{seen}; {}", complaints.join("; ")), advice)
}

async fn postgres(place: &str, options: &postgres::Options, protected: Option<u64>) -> Store {
    let began = Instant::now();
    let info = match postgres::inspect(options).await {
        Ok(info) => info,
        Err(error) => return unknown(error.to_string(), NEEDED),
    };
    let contents = match postgres::read(options).await {
        Ok(contents) => contents,
        Err(error) => return unknown(error.to_string(), NEEDED),
    };
    let took = began.elapsed();
    let Some(contents) = contents else {
        return match info.in_recovery {
            true => unknown(format!("{place} is a standby"), STANDBY),
            false => nothing(place),
        };
    };
    let mut seen = read(place, &contents, took);
    seen.push_str(&format!(", PostgreSQL {}", info.version));
    Store {
        verdict: of_server(&info, protected, seen),
        held: Held::Contents(contents),
    }
}

const STANDBY: &str = "let it lead to the primary: a standby stores nothing";

/// Whether the server keeps what it has confirmed.
fn of_server(info: &postgres::ServerInfo, protected: Option<u64>, seen: String) -> Verdict {
    let inside = info.system_identifier.is_some() && info.system_identifier == protected;
    if info.in_recovery {
        Verdict::fail(format!("{seen}; it is a standby"), STANDBY)
    } else if info.fsync != "on" {
        Verdict::warn(
            format!("{seen}; its fsync is {}", info.fsync),
            "set fsync = on there: a crash of that machine can lose marks",
        )
    } else if inside && !info.replicates_synchronously() {
        Verdict::warn(
            format!(
                "{seen}; it is inside the protected cluster, and no commit waits for a standby"
            ),
            "set synchronous_standby_names, or keep the store elsewhere: a failover can lose marks",
        )
    } else {
        Verdict::ok(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[track_caller]
    fn check(
        change: impl FnOnce(&mut postgres::ServerInfo),
        protected: u64,
        expect: Outcome,
        part: &str,
    ) {
        let mut info = postgres::ServerInfo {
            version: "15.1".to_owned(),
            in_recovery: false,
            system_identifier: Some(7),
            synchronous_standby_names: String::new(),
            synchronous_commit: "on".to_owned(),
            fsync: "on".to_owned(),
            schema_exists: true,
        };
        change(&mut info);
        let finding = of_server(&info, Some(protected), "seen".to_owned());
        assert_eq!(finding.outcome, expect, "{finding:?}");
        assert!(finding.seen.contains(part), "{finding:?}");
    }

    fn member(cluster_id: u64) -> Result<etcd::Member, String> {
        Ok(etcd::Member {
            version: "3.4.23".to_owned(),
            cluster_id,
            role: etcd::Role::Leader,
            db_size: 1,
            errors: Vec::new(),
            stale_reads: true,
        })
    }

    #[track_caller]
    fn check_members(states: &[Result<etcd::Member, String>], expect: Outcome, part: &str) {
        let endpoint = |state: &Result<_, _>| etcd::Endpoint {
            url: "http://a".to_owned(),
            state: state.clone(),
        };
        let endpoints: Vec<_> = states.iter().map(endpoint).collect();
        let finding = of_members(&endpoints, "seen".to_owned());
        assert_eq!(finding.outcome, expect, "{finding:?}");
        assert!(finding.seen.contains(part), "{finding:?}");
    }

    #[test]
    fn members_of_etcd() {
        check_members(
            &[member(1), member(1)],
            Outcome::Ok,
            "may be stale after a pause",
        );
        check_members(&[member(1), member(2)], Outcome::Fail, "different clusters");
        let silent = Err("refused".to_owned());
        check_members(
            &[member(1), silent],
            Outcome::Warn,
            "does not answer: refused",
        );
        let mut full = member(1);
        full.as_mut().unwrap().errors = vec!["NOSPACE".to_owned()];
        check_members(&[full], Outcome::Warn, "NOSPACE");
        let mut alone = member(1);
        alone.as_mut().unwrap().role = etcd::Role::NoLeader;
        check_members(&[alone], Outcome::Warn, "knows no leader");
    }

    #[test]
    fn servers_that_lose_marks() {
        check(|_| {}, 8, Outcome::Ok, "seen");
        check(|info| info.system_identifier = None, 7, Outcome::Ok, "seen");
        check(|_| {}, 7, Outcome::Warn, "inside the protected cluster");
        let synchronous = |info: &mut postgres::ServerInfo| {
            info.synchronous_standby_names = "ANY 1 (*)".to_owned();
        };
        check(synchronous, 7, Outcome::Ok, "seen");
        check(
            |info| info.fsync = "off".to_owned(),
            8,
            Outcome::Warn,
            "fsync is off",
        );
        check(|info| info.in_recovery = true, 8, Outcome::Fail, "standby");
    }
}
