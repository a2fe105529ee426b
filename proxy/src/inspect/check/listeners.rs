//! The check of the listeners that give a token.

use std::collections::BTreeSet;

use pgpalisade_policies::Policy;

use super::super::finding::{CheckResult, listed};
use crate::config::{AuthorityLocation, Config};

pub(super) fn check(config: &Config, policy: Option<&Policy>) -> CheckResult {
    let listeners = config.clients.token_listeners.iter();
    let scopes: BTreeSet<&str> = listeners.map(|listener| listener.scope.as_str()).collect();
    if scopes.is_empty() {
        return CheckResult::skip("no listener gives a token");
    }
    let elected = scopes
        .iter()
        .find(|scope| policy.is_some_and(|policy| policy.bounds(scope).election().is_some()));
    if let Some(scope) = elected {
        return CheckResult::fail(
            format!(
                "scope {scope} follows an election, so the proxy can take no token for a listener"
            ),
            "remove the listener, or numbers of the scope in the policy",
        );
    }
    let seen = format!(
        "the proxy campaigns for scope {}",
        listed(scopes.into_iter().map(str::to_owned))
    );
    match config.takeover.authority {
        AuthorityLocation::Embedded(_) => CheckResult::warn(
            format!("{seen}; no other proxy can share its store, and lead after it"),
            "use etcd or postgres as the authority of all replicas' proxies",
        ),
        AuthorityLocation::Etcd(_) | AuthorityLocation::Postgres(_) => CheckResult::ok(seen),
    }
}
