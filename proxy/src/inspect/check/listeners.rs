//! The check of the listeners that give a token.

use std::collections::BTreeMap;
use std::time::Duration;

use pgpalisade_authority::Standing;
use pgpalisade_policies::Policy;
use pgpalisade_server::leadership::Source;
use tokio::time::timeout;

use super::super::finding::{CheckResult, listed};
use crate::config::{AuthorityLocation, Config, TokenSource};
use crate::elections;

pub(super) async fn check(
    config: &Config,
    policy: Option<&Policy>,
    within: Duration,
) -> CheckResult {
    let listeners = config.clients.token_listeners.iter();
    let sources = listeners.map(|listener| (listener.scope.as_str(), &listener.source));
    let sources: BTreeMap<&str, &TokenSource> = sources.collect();
    if sources.is_empty() {
        return CheckResult::skip("no listener gives a token");
    }
    // With numbers of its own, the listener must bring them.
    let takes = |source: &TokenSource| {
        matches!(source, TokenSource::Lease | TokenSource::Kubernetes { .. })
    };
    let follows =
        |scope: &str| policy.is_some_and(|policy| policy.bounds(scope).election().is_some());
    let cannot = sources
        .iter()
        .find(|(scope, source)| takes(source) && follows(scope));
    if let Some((scope, _)) = cannot {
        return CheckResult::fail(
            format!(
                "scope {scope} follows an election, so the proxy can take no token for a listener"
            ),
            "remove the listener, or numbers of the scope in the policy",
        );
    }
    let authority = &config.takeover.authority;
    let mut named = Vec::new();
    for (scope, source) in &sources {
        match read(source, authority, within).await {
            Ok(Some(Standing::Waits(why))) => named.push(format!("{scope}={source} (now {why})")),
            Ok(_) => named.push(format!("{scope}={source}")),
            Err(error) => {
                return CheckResult::fail(
                    format!("scope {scope}: {source} cannot be read: {error}"),
                    "let the proxy read it: until then its listener gives no token",
                );
            }
        }
    }
    let seen = format!(
        "the proxy gives the tokens of {}",
        listed(named.into_iter())
    );
    match authority {
        AuthorityLocation::Embedded(_) => CheckResult::warn(
            format!("{seen}; no other proxy can share its store, and lead after it"),
            "use etcd or postgres as the authority of all replicas' proxies",
        ),
        AuthorityLocation::Etcd(_) | AuthorityLocation::Postgres(_) => CheckResult::ok(seen),
    }
}

async fn read(
    source: &TokenSource,
    authority: &AuthorityLocation,
    within: Duration,
) -> Result<Option<Standing>, String> {
    match elections::source(source, authority).map_err(|error| error.to_string())? {
        Source::Lease => Ok(None),
        Source::Election(election) => match timeout(within, election.read()).await {
            Ok(read) => read.map(Some),
            Err(_) => Err("it did not answer in time".to_owned()),
        },
    }
}
