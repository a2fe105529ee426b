//! Reads the store of marks.

use std::path::Path;
use std::time::{Duration, Instant};

use pgpalisade_authority::{Contents, Etcd, Scope, embedded, etcd, postgres};
use serde::Serialize;
use tokio::time::timeout;

use super::finding::CheckResult;
use crate::config::AuthorityLocation;

#[derive(Debug)]
pub(super) struct StoreSnapshot {
    pub(super) state: StoreState,
    /// What the store holds, if it was read.
    pub(super) contents: Option<Contents>,
    pub(super) verdict: CheckResult,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StoreState {
    Read,
    /// Only its proxy can read it: the marks shown are the copy in the cluster.
    InUse,
    Missing,
    Unreadable,
}

impl StoreSnapshot {
    const fn read(contents: Contents, verdict: CheckResult) -> Self {
        Self {
            state: StoreState::Read,
            contents: Some(contents),
            verdict,
        }
    }

    const fn unread(state: StoreState, verdict: CheckResult) -> Self {
        Self {
            state,
            contents: None,
            verdict,
        }
    }
}

/// Reads the configured store. `protected`: the system identifier of the protected cluster.
pub(super) async fn look(
    location: &AuthorityLocation,
    protected: Option<u64>,
    within: Duration,
) -> StoreSnapshot {
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
    store: StoreSnapshot,
    within: Duration,
) -> StoreSnapshot {
    let AuthorityLocation::Embedded(dir) = location else {
        return store;
    };
    if store.state == StoreState::Unreadable {
        return store;
    }
    let dir = dir.clone();
    // A running proxy needs its disk for itself.
    let is_idle = store.state == StoreState::Read;
    let trying = tokio::task::spawn_blocking(move || {
        embedded::try_open(&dir)?;
        if is_idle {
            embedded::has_room(&dir)
        } else {
            Ok(())
        }
    });
    let verdict = match timeout(within, trying).await {
        Ok(Ok(Ok(()))) => return store,
        Ok(Ok(Err(error))) => CheckResult::fail(error.to_string(), RUN_AS_PROXY),
        Ok(Err(_)) | Err(_) => CheckResult::fail(
            format!("{location} could not be opened within {within:?}"),
            "look at the disk",
        ),
    };
    StoreSnapshot { verdict, ..store }
}

fn unknown(seen: String, advice: &str) -> StoreSnapshot {
    StoreSnapshot::unread(StoreState::Unreadable, CheckResult::fail(seen, advice))
}

fn late(place: &str, within: Duration, advice: &str) -> StoreSnapshot {
    let seen = format!("{place} could not be read within {within:?}");
    unknown(seen, advice)
}

fn nothing(place: &str) -> StoreSnapshot {
    let seen = format!("{place}: there is no store yet; the first start of a proxy creates it");
    let advice = "make sure that this is the right place: an empty store has forgotten every mark";
    StoreSnapshot::unread(StoreState::Missing, CheckResult::warn(seen, advice))
}

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

async fn embedded(place: &str, dir: &Path, within: Duration) -> StoreSnapshot {
    let began = Instant::now();
    let dir = dir.to_owned();
    // A dead network disk blocks the thread, not the command.
    let reading = tokio::task::spawn_blocking(move || embedded::read(&dir));
    match timeout(within, reading).await {
        Ok(Ok(Ok(embedded::Found::Contents(contents)))) => {
            let verdict = CheckResult::ok(read(place, &contents, began.elapsed()));
            StoreSnapshot::read(contents, verdict)
        }
        Ok(Ok(Ok(embedded::Found::InUse))) => {
            let seen = format!(
                "{place} is in use, probably by its running proxy; only that proxy can read it"
            );
            StoreSnapshot::unread(StoreState::InUse, CheckResult::ok(seen))
        }
        Ok(Ok(Ok(embedded::Found::Nothing))) => nothing(place),
        Ok(Ok(Err(error))) => unknown(error.to_string(), RUN_AS_PROXY),
        Ok(Err(_)) | Err(_) => late(place, within, "look at the disk"),
    }
}

const RUN_AS_PROXY: &str =
    "run this as the user that the proxy runs as, and give that user the directory of the store";

const NEEDED: &str =
    "a proxy does not start, and takes no new token, while its store cannot be used";

async fn etcd(place: &str, options: &etcd::Options, within: Duration) -> StoreSnapshot {
    let began = Instant::now();
    // Each call has its own bound; this is for their sum.
    let within = within * 2;
    let reading = timeout(within, async {
        let store = match Etcd::find(options.clone()).await {
            Ok(Some(store)) => store,
            Ok(None) => return nothing(place),
            Err(error) => return unknown(error.to_string(), NEEDED),
        };
        match Contents::read(store.authority()).await {
            Ok(contents) => {
                let verdict = CheckResult::ok(read(place, &contents, began.elapsed()));
                StoreSnapshot::read(contents, verdict)
            }
            Err(error) => unknown(error.to_string(), NEEDED),
        }
    });
    let reading = reading.await;
    reading.unwrap_or_else(|_| late(place, within, NEEDED))
}

async fn postgres(
    place: &str,
    options: &postgres::Options,
    protected: Option<u64>,
) -> StoreSnapshot {
    let began = Instant::now();
    let (info, contents) = match postgres::read(options).await {
        Ok(found) => found,
        Err(error) => return unknown(error.to_string(), NEEDED),
    };
    let took = began.elapsed();
    let Some(contents) = contents else {
        return if info.in_recovery {
            unknown(format!("{place} is a standby"), STANDBY)
        } else {
            nothing(place)
        };
    };
    let mut seen = read(place, &contents, took);
    seen.push_str(&format!(", PostgreSQL {}", info.version));
    StoreSnapshot::read(contents, of_server(&info, protected, seen))
}

const STANDBY: &str = "let it lead to the primary: a standby stores nothing";

/// Whether the server keeps what it has confirmed.
fn of_server(info: &postgres::ServerInfo, protected: Option<u64>, seen: String) -> CheckResult {
    let inside = info.system_identifier.is_some() && info.system_identifier == protected;
    if info.in_recovery {
        CheckResult::fail(format!("{seen}; it is a standby"), STANDBY)
    } else if info.fsync != "on" {
        CheckResult::warn(
            format!("{seen}; its fsync is {}", info.fsync),
            "set fsync = on there: a crash of that machine can lose marks",
        )
    } else if inside && !info.replicates_synchronously() {
        CheckResult::warn(
            format!(
                "{seen}; it is inside the protected cluster, and no commit waits for a standby"
            ),
            "set synchronous_standby_names, or keep the store elsewhere: a failover can lose marks",
        )
    } else {
        CheckResult::ok(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckOutcome;
    use super::*;

    #[track_caller]
    fn check(
        change: impl FnOnce(&mut postgres::ServerInfo),
        protected: u64,
        expect: CheckOutcome,
        part: &str,
    ) {
        let mut info = postgres::ServerInfo {
            version: "15.1".to_owned(),
            in_recovery: false,
            system_identifier: Some(7),
            synchronous_standby_names: String::new(),
            fsync: "on".to_owned(),
        };
        change(&mut info);
        let finding = of_server(&info, Some(protected), "seen".to_owned());
        assert_eq!(finding.outcome, expect, "{finding:?}");
        assert!(finding.seen.contains(part), "{finding:?}");
    }

    #[test]
    fn servers_that_lose_marks() {
        check(|_| {}, 8, CheckOutcome::Ok, "seen");
        check(
            |info| info.system_identifier = None,
            7,
            CheckOutcome::Ok,
            "seen",
        );
        check(
            |_| {},
            7,
            CheckOutcome::Warn,
            "inside the protected cluster",
        );
        let synchronous = |info: &mut postgres::ServerInfo| {
            info.synchronous_standby_names = "ANY 1 (*)".to_owned();
        };
        check(synchronous, 7, CheckOutcome::Ok, "seen");
        check(
            |info| info.fsync = "off".to_owned(),
            8,
            CheckOutcome::Warn,
            "fsync is off",
        );
        check(
            |info| info.in_recovery = true,
            8,
            CheckOutcome::Fail,
            "standby",
        );
    }
}
