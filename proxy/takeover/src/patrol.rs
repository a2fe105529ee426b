//! The patrol: looks whether another server has become the primary while the control connection is up.
//!
//! A primary that hangs does not break its connections, and one that was deposed may not know it. So the patrol asks
//! the other servers for their roles. If only one address is known, there is no other to ask. It is asked only after
//! a session turned out to be on another server than the control connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::Cluster;
use pgpalisade_tls::Login;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::control::Control;
use super::hosts::{self, HostAddress, HostCandidate, HostConnection};

/// Interval between rounds. It bounds the delay that a hanging primary adds to a failover.
const EVERY: Duration = Duration::from_secs(1);
/// Minimum interval, even for rounds on request.
const AT_LEAST: Duration = Duration::from_millis(200);
/// Time limit for the answer of a server.
const LOOK_WITHIN: Duration = Duration::from_secs(1);
/// Time for a name server that does not answer, and the next one.
const RESOLVED_WITHIN: Duration = Duration::from_secs(10);

pub(super) struct Patrol {
    login: Login,
    control: Control,
    /// Connections to the servers that answered last.
    open: HashMap<HostAddress, HostConnection>,
    /// Servers already reported to take writes without being the primary.
    told: HashMap<HostAddress, Cluster>,
}

impl Patrol {
    pub(super) fn new(login: Login, control: Control) -> Self {
        Self {
            login,
            control,
            open: HashMap::new(),
            told: HashMap::new(),
        }
    }

    /// Runs a round every second, and on request.
    pub(super) async fn run(mut self, doubt: Arc<Notify>) {
        loop {
            sleep(AT_LEAST).await;
            let in_doubt = tokio::select! {
                () = sleep(EVERY - AT_LEAST) => false,
                () = doubt.notified() => true,
            };
            self.round(in_doubt).await;
        }
    }

    /// Looks at every server except that of the control connection. In doubt it looks at that one too, over new
    /// connections.
    async fn round(&mut self, in_doubt: bool) {
        let Some((place, primary)) = self.control.status() else {
            // The search for a primary is already under way.
            return self.open.clear();
        };
        let (mut others, _) = hosts::candidates(
            &self.login,
            Instant::now() + RESOLVED_WITHIN,
            RESOLVED_WITHIN,
        )
        .await;
        if in_doubt {
            self.open.clear();
        } else {
            others.retain(|other| other.place != place);
        }
        self.open
            .retain(|at, link| !link.client.is_closed() && others.iter().any(|o| o.place == *at));
        let mut looks = JoinSet::new();
        for at in others {
            let open = self.open.remove(&at.place);
            let look = hosts::visit(self.login.clone(), at, open);
            looks.spawn(timeout(LOOK_WITHIN, look));
        }
        while let Some(looked) = looks.join_next().await {
            // The others do not answer, and get a new connection next time.
            let Ok(Ok((at, Ok(open)))) = looked else {
                continue;
            };
            self.open.insert(at.place, open.link);
            if let Some(other) = open.writes {
                self.on_primary(&at, other, primary);
            }
        }
    }

    /// Handles a server that takes writes but is not, or no longer, that of the control connection.
    fn on_primary(&mut self, at: &HostCandidate, other: Cluster, primary: Cluster) {
        if other == primary {
            return;
        }
        if other.follows(&primary) {
            tracing::warn!(server = %at, cluster = %other, %primary, "another server became the primary");
            self.control.renew();
        } else if self.told.insert(at.place, other) != Some(other) {
            tracing::error!(
                server = %at,
                cluster = %other,
                %primary,
                "a server that is not the primary on record takes writes: stop it, or make it a standby"
            );
        }
    }
}
