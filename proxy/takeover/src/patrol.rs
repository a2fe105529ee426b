//! The patrol: looks whether another server has become the primary while the control connection is up.
//!
//! A primary that hangs does not break its connections, and one that was deposed without its knowledge goes on. So the
//! other servers are asked what they are. Where one address is named and it stands for one server there is nobody else
//! to ask, and nothing is done, but where a session turned out to be on another server than the control connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::Cluster;
use pgpalisade_tls::Login;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::control::Control;
use super::hosts::{self, Candidate, Link, Place, Role};

/// Between two rounds. It bounds what a primary that hangs adds to a failover.
const EVERY: Duration = Duration::from_secs(1);
/// Of the looks that somebody asks for too.
const AT_LEAST: Duration = Duration::from_millis(200);
/// How long a server may take to answer.
const LOOK_WITHIN: Duration = Duration::from_secs(1);

/// What the patrol needs.
pub(super) struct Patrol {
    login: Login,
    control: Control,
    /// Connections to the servers that have answered last.
    open: HashMap<Place, Link>,
    /// Those of which was said that they take writes and are not the primary.
    told: HashMap<Place, Cluster>,
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

    /// A round every second, and where somebody asks for one.
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

    /// Looks at every server but the one that the control connection leads to; at that one anew where there is doubt.
    async fn round(&mut self, in_doubt: bool) {
        let Some((place, primary)) = self.control.standing() else {
            // It is looked for already.
            return self.open.clear();
        };
        let (mut others, _) = hosts::candidates(&self.login).await;
        match in_doubt {
            true => self.open.clear(),
            false => others.retain(|other| other.place != place),
        }
        self.open
            .retain(|at, link| !link.client.is_closed() && others.iter().any(|o| o.place == *at));
        let mut looks = JoinSet::new();
        for at in others {
            let open = self.open.remove(&at.place);
            looks.spawn(timeout(
                LOOK_WITHIN,
                hosts::visit(self.login.clone(), at, open),
            ));
        }
        while let Some(looked) = looks.join_next().await {
            // The others do not answer, and are connected to anew.
            let Ok(Ok((at, Ok(open)))) = looked else {
                continue;
            };
            self.open.insert(at.place, open.link);
            if let Role::Primary(other) = open.role {
                self.on_primary(&at, other, primary);
            }
        }
    }

    /// A server takes writes that is not where the control connection leads, or not that server any more.
    fn on_primary(&mut self, at: &Candidate, other: Cluster, primary: Cluster) {
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
