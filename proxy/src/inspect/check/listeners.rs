//! The check of the listeners that give a token.

use std::collections::BTreeMap;
use std::time::Duration;

use pgpalisade_authority::Standing;
use pgpalisade_policies::{Numbers, Policy};
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
    let refused = policy.and_then(|policy| {
        let mut all = sources.iter();
        all.find_map(|(scope, source)| Some((scope, refusal(policy, scope, source)?)))
    });
    if let Some((scope, (why, advice))) = refused {
        return CheckResult::fail(format!("scope {scope} {why}"), advice);
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

/// Why the proxy cannot declare the tokens of a listener, and what to do.
fn refusal(
    policy: &Policy,
    scope: &str,
    source: &TokenSource,
) -> Option<(&'static str, &'static str)> {
    let takes = matches!(source, TokenSource::Lease | TokenSource::Kubernetes { .. });
    let bounds = policy.bounds(scope);
    if !policy.may_exist(scope) {
        Some((
            "is not in the policy, and tokens.scopes is \"listed\"",
            "add [scope.NAME] to the policy",
        ))
    } else if takes && bounds.election().is_some() {
        Some((
            "follows an election, so the proxy can take no token for a listener",
            "remove the listener, or numbers of the scope in the policy",
        ))
    } else if !takes && bounds.numbers == Some(Numbers::Issued) {
        Some((
            "has numbers = \"issued\", so the proxy cannot declare the number of an election for a listener",
            "use token = \"SCOPE=lease\", or remove numbers of the scope in the policy",
        ))
    } else {
        None
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_a_listener_cannot_have() {
        let policy = Policy::parse(
            "tokens.scopes = 'listed'\nscope.a.numbers = 'issued'\nscope.b.numbers = { etcd_election = '/b' }\n\
             scope.c = {}",
            &|_| Ok(()),
        );
        let policy = policy.unwrap_or_else(|errors| panic!("{errors}"));
        let file = TokenSource::File("/leader".into());
        for (scope, source, refused) in [
            ("a", &TokenSource::Lease, None),
            ("a", &file, Some("issued")),
            ("b", &TokenSource::Lease, Some("election")),
            ("b", &file, None),
            ("c", &file, None),
            ("d", &TokenSource::Lease, Some("listed")),
        ] {
            let found = refusal(&policy, scope, source).map(|(why, _)| why);
            assert_eq!(found.is_some(), refused.is_some(), "{scope}={source}");
            assert!(
                found
                    .unwrap_or_default()
                    .contains(refused.unwrap_or_default())
            );
        }
    }
}
