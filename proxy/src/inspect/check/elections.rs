//! The check of the elections whose numbers are tokens.

use std::time::Duration;

use pgpalisade_authority::Etcd;
use pgpalisade_policies::ElectedScope;
use tokio::time::timeout;

use super::super::finding::{CheckResult, listed};
use crate::config::AuthorityLocation;

const NEEDED: &str = "let the proxy's etcd user read all keys below it: until then every token of the scope is refused";

pub(super) async fn check(
    location: &AuthorityLocation,
    elected: &[ElectedScope],
    within: Duration,
) -> CheckResult {
    // With any other store, a policy with elections is refused.
    let AuthorityLocation::Etcd(options) = location else {
        return CheckResult::skip("no scope gets its tokens from an election");
    };
    if elected.is_empty() {
        return CheckResult::skip("no scope gets its tokens from an election");
    }
    let reading = timeout(within * 2, async {
        match Etcd::find(options.as_ref().clone()).await {
            Ok(Some(store)) => leaders(&store, elected).await,
            Ok(None) => CheckResult::skip("not checked: there is no store yet"),
            Err(_) => CheckResult::skip("not checked: the store cannot be read"),
        }
    });
    let silent = |_| CheckResult::fail("they were not read in time", NEEDED);
    reading.await.unwrap_or_else(silent)
}

async fn leaders(store: &Etcd, elected: &[ElectedScope]) -> CheckResult {
    let mut seen = Vec::new();
    for of in elected {
        let (scope, election) = (&of.scope, &of.election);
        match store.leader(election).await {
            Ok(Some(number)) => seen.push(format!("scope {scope}: {number} leads {election}")),
            Ok(None) => seen.push(format!("scope {scope}: nobody leads {election}")),
            Err(error) => {
                let seen = format!("scope {scope}: {election} cannot be read: {error}");
                return CheckResult::fail(seen, NEEDED);
            }
        }
    }
    CheckResult::ok(listed(seen))
}
