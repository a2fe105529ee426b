//! Elections that the proxy follows: those of the scopes that the policy in force names, and those of listeners.

use std::sync::Arc;

use pgpalisade_authority::etcd::follow_election;
use pgpalisade_authority::{OpenError, Scope};
use pgpalisade_elect::FollowedLease;
use pgpalisade_fence::{Fence, Purpose, Terms};
use pgpalisade_policies::{ElectedScope, Mode};
use pgpalisade_server::leadership::{NumberFile, Source};
use pgpalisade_takeover::{Elected, Elections, Takeover};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::{AuthorityLocation, TokenSource};

/// What makes the proxy lead for a listener. Must be called in the runtime that will run its connections.
///
/// # Errors
///
/// Unreadable files for etcd.
pub(crate) fn source(
    source: &TokenSource,
    authority: &AuthorityLocation,
) -> Result<Source, OpenError> {
    Ok(match (source, authority) {
        (TokenSource::Etcd { key, identity }, AuthorityLocation::Etcd(options)) => {
            Source::Election(follow_election(options, key, identity)?)
        }
        // The configuration allows an election in etcd only with the former.
        (TokenSource::Lease | TokenSource::Etcd { .. }, _) => Source::Lease,
        (TokenSource::File(path), _) => Source::Election(Box::new(NumberFile::new(path.clone()))),
        (
            TokenSource::Kubernetes {
                cluster,
                lease,
                identity,
            },
            _,
        ) => Source::Election(Box::new(FollowedLease::new(cluster, lease, identity))),
    })
}

/// Follows the elections of the policy in force, until the proxy ends.
pub(crate) async fn follow(
    takeover: Takeover,
    mut fence: watch::Receiver<Arc<Fence>>,
    shutdown: CancellationToken,
) {
    let mut elections = Elections::new(takeover);
    loop {
        let wanted = elected(&fence.borrow_and_update());
        elections.follow(wanted);
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = fence.changed() => if changed.is_err() {
                // No further reload can come. This policy stays in force.
                return shutdown.cancelled().await;
            },
        }
    }
}

fn elected(fence: &Fence) -> Vec<Elected> {
    let policy = fence.policy();
    let elected = |elected: &ElectedScope| {
        Some(Elected {
            // Scope names were checked with the file.
            scope: Scope::new(&elected.scope).ok()?,
            terms: Terms {
                purpose: match fence.mode_of_scope(&elected.scope) {
                    Mode::Enforce => Purpose::Admit,
                    Mode::Observe => Purpose::ObserveUnregistered,
                },
                bounds: policy.bounds(&elected.scope),
            },
        })
    };
    policy.elected().iter().filter_map(elected).collect()
}
