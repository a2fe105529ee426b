//! The campaign of this proxy for the lease of a scope, from start to end.

use std::sync::Arc;
use std::time::Duration;

use pgpalisade_fence::{Fence, Purpose, Terms};
use pgpalisade_policies::Mode;
use pgpalisade_takeover::{DeclareError, Lease, Takeover};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Leadership, Leaderships, Loss, Term};

/// Pause after a failed attempt, or a term.
const RETRY: Duration = Duration::from_secs(1);

/// Time without a primary, after which another proxy may lead, which may reach one.
const PRIMARY_WITHIN: Duration = Duration::from_secs(15);

/// Time for a stopping proxy to close the connections of its terms, before it goes on to end everything else.
const STEP_DOWN_WITHIN: Duration = Duration::from_secs(5);

/// Interval of the looks at mark and primary in a term.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Describes the declarer to people.
const DECLARER: &str = "a listener";

impl Leaderships {
    /// Campaigns for every scope.
    pub(crate) fn campaign(&self, takeover: &Takeover, fence: &watch::Receiver<Arc<Fence>>) {
        for leadership in &self.all {
            let campaign = Campaign {
                leadership: Arc::clone(leadership),
                takeover: takeover.clone(),
                fence: fence.clone(),
                stop: self.stop.clone(),
            };
            self.campaigns.spawn(campaign.run());
        }
    }

    /// Ends all terms, and campaigns no more. Returns once their connections are closed, and their leases are to be
    /// given back; a lease whose connections do not close in time is kept until they do.
    pub(crate) async fn step_down(&self) {
        self.stop.cancel();
        self.campaigns.close();
        let ended = tokio::time::timeout(STEP_DOWN_WITHIN, self.campaigns.wait()).await;
        if ended.is_err() {
            tracing::warn!("connections of a leader do not close: its lease is kept until they do");
        }
    }
}

struct Campaign {
    leadership: Arc<Leadership>,
    takeover: Takeover,
    fence: watch::Receiver<Arc<Fence>>,
    stop: CancellationToken,
}

impl Campaign {
    async fn run(self) {
        let mut last_error = None;
        loop {
            let lost = CancellationToken::new();
            let winning = self.stop.run_until_cancelled(self.win(&lost)).await;
            match winning {
                None => return,
                Some(Ok(lease)) => {
                    last_error = None;
                    self.lead(lease, &lost).await;
                }
                Some(Err(error)) => self.report(&error, &mut last_error),
            }
            // After a term, others have a chance.
            let pause = tokio::time::sleep(RETRY);
            let _ = self.stop.run_until_cancelled(pause).await;
        }
    }

    /// Waits for the lease, and takes the next token under it.
    async fn win(&self, lost: &CancellationToken) -> Result<Lease, DeclareError> {
        let lost = lost.clone();
        let _known = self.takeover.find_primary().await;
        let scope = self.leadership.scope();
        let terms = self.terms();
        self.takeover
            .lead(scope, DECLARER, terms, move || lost.cancel())
            .await
    }

    /// Leads until the lease or the token is lost, or the proxy stops.
    async fn lead(&self, lease: Lease, lost: &CancellationToken) {
        let (scope, mark) = (self.leadership.scope(), lease.mark());
        let cached = self.takeover.marks().mark(scope);
        // After a repair the number means nothing.
        if cached.incarnation() != mark.incarnation {
            return;
        }
        let (token, term) = (mark.token, Term::new(cached, mark.token));
        tracing::info!(%scope, %token, "this proxy leads: sessions of its listener get the token");
        *self.leadership.term.lock() = Some(Arc::clone(&term));
        let loss = tokio::select! {
            () = lost.cancelled() => Loss::Lease,
            loss = self.watch(&term) => loss,
            () = self.stop.cancelled() => Loss::Stop,
        };
        *self.leadership.term.lock() = None;
        tracing::info!(%scope, %token, reason = loss.why(), "this proxy no longer leads");
        match self.mode() {
            Mode::Enforce => term.end(loss).await,
            // Ends no session.
            Mode::Observe => drop(term.close()),
        }
        // The connections are closed: another may have the lease.
        drop(lease);
    }

    /// Waits until the term's token is of no use.
    async fn watch(&self, term: &Term) -> Loss {
        let mut seen = Instant::now();
        loop {
            if !term.is_current() {
                return Loss::Mark;
            }
            if self.takeover.primary().is_some() {
                seen = Instant::now();
            } else if seen.elapsed() > PRIMARY_WITHIN {
                return Loss::Primary;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn report(&self, error: &DeclareError, last: &mut Option<String>) {
        // Another leads.
        if matches!(error, DeclareError::LeaseHeld { unanswered: None }) {
            return;
        }
        let text = error.to_string();
        if last.as_ref() != Some(&text) {
            tracing::warn!(scope = %self.leadership.scope(), error = %text, "this proxy cannot lead yet");
            *last = Some(text);
        }
    }

    fn terms(&self) -> Terms {
        let purpose = match self.mode() {
            Mode::Enforce => Purpose::Admit,
            Mode::Observe => Purpose::ObserveUnregistered,
        };
        let scope = self.leadership.scope().as_str();
        let bounds = self.fence.borrow().policy().bounds(scope);
        Terms { purpose, bounds }
    }

    fn mode(&self) -> Mode {
        let scope = self.leadership.scope().as_str();
        self.fence.borrow().mode_of_scope(scope)
    }
}
