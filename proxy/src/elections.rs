//! Elections of the scopes that the policy in force names.

use std::sync::Arc;

use pgpalisade_authority::Scope;
use pgpalisade_fence::{Fence, Purpose, Terms};
use pgpalisade_policies::{ElectedScope, Mode};
use pgpalisade_takeover::{Elected, Elections, Takeover};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

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
