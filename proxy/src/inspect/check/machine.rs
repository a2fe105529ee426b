//! Checks of this machine: what `serve` needs, tried by the same procedure.

use std::error::Error;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use pgpalisade_server::accounts::{FileError, Logins};

use super::super::finding::{Check, CheckResult};
use super::super::store::StoreContents;
use super::FindingSink;
use crate::config::{AuthorityLocation, Config};
use crate::http::HttpError;
use crate::local::{Local, Purpose};
use crate::policy_file::{Loaded, PolicyFileErrors};
use crate::process;

pub(super) struct Tried {
    pub(super) policy: Result<Loaded, PolicyFileErrors>,
    pub(super) logins: Result<Logins, FileError>,
    pub(super) places: Vec<Endpoint>,
}

pub(super) struct Endpoint {
    name: String,
    tried: Result<(), io::Error>,
}

impl Endpoint {
    pub(super) fn is_in_use(&self) -> bool {
        let error = self.tried.as_ref().err();
        error.is_some_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    }
}

/// Whether a proxy with this configuration runs, as far as its store shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Running {
    Yes,
    No,
    Unknown,
}

/// Tries everything. Addresses are reported later: their meaning depends on whether the proxy runs.
pub(super) async fn checks(config: &Config, report: &mut FindingSink<'_>) -> Tried {
    report.add(Check::User, user(config));
    let Local {
        policy,
        rejections,
        certificates,
        logins,
        users,
        listeners,
        http,
    } = Local::take(config, Purpose::Check, None).await;
    let place = |(address, listener): (_, Result<_, _>)| Endpoint {
        name: format!("{address}"),
        tried: listener.map(drop),
    };
    let mut places: Vec<Endpoint> = listeners.into_iter().map(place).collect();
    let (http, token) = match http {
        Ok(http) => (http.map(|http| (http.address().to_string(), Ok(()))), None),
        Err(HttpError::Listen { address, source }) => {
            (Some((address.to_string(), Err(source))), None)
        }
        Err(error) => (None, Some(error.to_string())),
    };
    places.extend(http.map(|(address, tried)| Endpoint {
        name: format!("{address} (http)"),
        tried,
    }));
    let files = [
        certificates.err().map(|error| error.to_string()),
        users.err().map(|error| error.to_string()),
        token,
    ];
    report.add(Check::Files, of_files(files));
    let rejections = rejections.map(drop);
    report.add(Check::Rejections, of_rejections(config, rejections));
    Tried {
        policy,
        logins,
        places,
    }
}

/// The user that runs the checks: root may do what the proxy's user may not.
fn user(config: &Config) -> CheckResult {
    let (uid, user) = (process::uid(), process::user());
    let of_others = |path: PathBuf| {
        let owner = std::fs::metadata(&path).as_ref().map(Metadata::uid).ok()?;
        (owner != uid).then(|| (path, process::name_of(owner)))
    };
    let others = places_of_proxy(config).into_iter().find_map(of_others);
    match others.filter(|_| uid == 0) {
        None => CheckResult::ok(format!(
            "all of this is checked as {user}, so the proxy should run as {user} too"
        )),
        Some((path, owner)) => CheckResult::warn(
            format!(
                "all of this is checked as {user}, but {} belongs to {owner}",
                path.display()
            ),
            format!("run it as the user of the proxy: sudo -u {owner} pgpalisade check .."),
        ),
    }
}

fn places_of_proxy(config: &Config) -> Vec<PathBuf> {
    let store = match &config.takeover.authority {
        AuthorityLocation::Embedded(directory) => Some(directory.clone()),
        AuthorityLocation::Etcd(_) | AuthorityLocation::Postgres(_) => None,
    };
    let log = config.rejections.file.as_deref();
    let directory = log.and_then(Path::parent).map(Path::to_path_buf);
    [store, log.map(Path::to_path_buf), directory]
        .into_iter()
        .flatten()
        .filter(|path| !path.as_os_str().is_empty() && path.exists())
        .collect()
}

fn of_files(wrong: [Option<String>; 3]) -> CheckResult {
    let wrong: Vec<String> = wrong.into_iter().flatten().collect();
    if wrong.is_empty() {
        return CheckResult::ok("all files for TLS, the console and HTTP can be used");
    }
    let advice = "correct the file or its permissions: a proxy does not start without it";
    CheckResult::fail(wrong.join("; "), advice)
}

fn of_rejections<E: Error>(config: &Config, tried: Result<(), E>) -> CheckResult {
    let Some(file) = &config.rejections.file else {
        return CheckResult::ok("no rejection_log is set: rejections go to the log only");
    };
    let Err(error) = tried else {
        return CheckResult::ok(format!("{} can be written", file.display()));
    };
    let cause = error.source().map(|cause| format!(": {cause}"));
    CheckResult::fail(
        format!("{error}{}", cause.unwrap_or_default()),
        "create the directory, and let the user of the proxy write there",
    )
}

/// Whether the proxy runs, by its store and the cluster's proxies.
pub(super) fn running(
    location: &AuthorityLocation,
    held: &StoreContents,
    proxies: Option<usize>,
) -> Running {
    match (location, held, proxies) {
        (AuthorityLocation::Embedded(_), StoreContents::InUse, _) => Running::Yes,
        (
            AuthorityLocation::Embedded(_),
            StoreContents::Contents(_) | StoreContents::Nothing,
            _,
        ) => Running::No,
        (AuthorityLocation::Etcd(_) | AuthorityLocation::Postgres(_), _, Some(0)) => Running::No,
        _ => Running::Unknown,
    }
}

pub(super) fn listen(places: &[Endpoint], running: Running) -> CheckResult {
    let names = |places: &[&Endpoint]| {
        let names: Vec<&str> = places.iter().map(|place| &*place.name).collect();
        names.join(", ")
    };
    let failed = places.iter().filter(|place| !place.is_in_use());
    let failed = failed.filter_map(|place| {
        let why = match place.tried.as_ref().err()? {
            error if error.kind() == io::ErrorKind::NotFound => {
                "its directory does not exist".to_owned()
            }
            error => error.to_string(),
        };
        Some(format!("cannot listen on {}: {why}", place.name))
    });
    let failed: Vec<String> = failed.collect();
    if !failed.is_empty() {
        return CheckResult::fail(
            failed.join("; "),
            "name an address of this machine, or an existing directory that the user of the proxy may write to",
        );
    }
    let used: Vec<&Endpoint> = places.iter().filter(|place| place.is_in_use()).collect();
    let all = names(&places.iter().collect::<Vec<_>>());
    match (used.as_slice(), running) {
        ([], _) => CheckResult::ok(format!("can be listened on: {all}")),
        (used, Running::Yes) => {
            CheckResult::ok(format!("in use, as while the proxy runs: {}", names(used)))
        }
        (used, Running::No) => CheckResult::fail(
            format!(
                "another program listens there, since the proxy does not run: {}",
                names(used)
            ),
            "stop that program, or choose another address",
        ),
        (used, Running::Unknown) => CheckResult::warn(
            format!(
                "in use, by the proxy or by another program: {}",
                names(used)
            ),
            "if the proxy does not run, stop that program, or choose another address",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::CheckOutcome;
    use super::*;

    fn place(error: Option<io::ErrorKind>) -> Endpoint {
        Endpoint {
            name: "here".to_owned(),
            tried: error.map_or(Ok(()), |kind| Err(kind.into())),
        }
    }

    #[test]
    fn an_address_in_use_is_fine_only_while_the_proxy_runs() {
        use io::ErrorKind::{AddrInUse, PermissionDenied};
        for (errors, running, outcome) in [
            (&[None][..], Running::No, CheckOutcome::Ok),
            (&[None, Some(AddrInUse)], Running::Yes, CheckOutcome::Ok),
            (&[None, Some(AddrInUse)], Running::No, CheckOutcome::Fail),
            (&[Some(AddrInUse)], Running::Unknown, CheckOutcome::Warn),
            (&[Some(PermissionDenied)], Running::Yes, CheckOutcome::Fail),
            (
                &[Some(AddrInUse), Some(PermissionDenied)],
                Running::Yes,
                CheckOutcome::Fail,
            ),
        ] {
            let places: Vec<Endpoint> = errors.iter().copied().map(place).collect();
            let verdict = listen(&places, running);
            assert_eq!(verdict.outcome, outcome, "{errors:?} {running:?}");
        }
    }
}
