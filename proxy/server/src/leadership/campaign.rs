//! The campaign of this proxy for the lead of a scope, from start to end.

use std::sync::Arc;
use std::time::Duration;

use pgpalisade_authority::{Claim, Election, Incarnation, Mandate, Mark, Standing, Token};
use pgpalisade_fence::{Fence, Purpose, Terms};
use pgpalisade_policies::Mode;
use pgpalisade_takeover::{DeclareError, Takeover};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{Leadership, Leaderships, Source, Term, on_loss};
use crate::forced_end::Loss;

/// Pause after a failed attempt, or a term.
const RETRY: Duration = Duration::from_secs(1);

/// Time without a primary, after which another proxy may lead, which may reach one.
const PRIMARY_WITHIN: Duration = Duration::from_secs(15);

/// Time for a stopping proxy to close the connections of its terms, before it goes on to end everything else.
const STEP_DOWN_WITHIN: Duration = Duration::from_secs(5);

/// Interval of the looks at mark and primary in a term.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Maximum attempts to take the next token while others declare tokens.
const TAKES_MAX: u32 = 8;

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
                closing: self.closing.clone(),
                stop: self.stop.clone(),
            };
            self.campaigns.spawn(campaign.run());
        }
    }

    /// Campaigns no more, and ends each term once none of its connections is left. A proxy that accepts no clients
    /// must not keep others from leading.
    pub(crate) fn close(&self) {
        self.closing.cancel();
    }

    /// Ends all terms, and campaigns no more. Returns once their connections are closed, and their leases are to be
    /// given back; a lease whose connections do not close in time is kept until they do.
    pub(crate) async fn step_down(&self) {
        self.close();
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
    closing: CancellationToken,
    stop: CancellationToken,
}

/// Why there is no term yet.
enum NotLeading {
    /// Another leads, so far as is known.
    Another,
    /// The election says so.
    Waits(String),
    Undeclared(DeclareError),
    Unread(String),
}

/// What was logged last since this proxy led.
#[derive(Default)]
struct Told {
    reason: Option<String>,
    error: Option<String>,
}

impl From<DeclareError> for NotLeading {
    fn from(error: DeclareError) -> Self {
        match error {
            DeclareError::LeaseHeld { unanswered: None } => Self::Another,
            error => Self::Undeclared(error),
        }
    }
}

/// A mandate whose token is below the mark: it may not lead again, unless the scope is repaired.
struct Deposed {
    mandate: Mandate,
    incarnation: Incarnation,
    /// Not told at once: as a rule another replica leads, and the election soon says so.
    is_told: bool,
}

impl Campaign {
    async fn run(self) {
        let (mut told, mut deposed) = (Told::default(), None);
        while !self.closing.is_cancelled() {
            let led = match &self.leadership.source {
                _ if !self.may_exist() => Err(NotLeading::Unread(
                    "the policy does not name the scope, and tokens.scopes is \"listed\""
                        .to_owned(),
                )),
                Source::Lease => self.lead_by_lease().await,
                Source::Election(election) => {
                    self.lead_by_election(election.as_ref(), &mut deposed).await
                }
            };
            let pause = match (&self.leadership.source, &led) {
                (
                    Source::Election(election),
                    Ok(()) | Err(NotLeading::Another | NotLeading::Waits(_)),
                ) => election.look_every(),
                // After a term under the lease, others have a chance.
                _ => RETRY,
            };
            self.report(led.err(), &mut told);
            let _ = self.closing.run_until_cancelled(sleep(pause)).await;
        }
    }

    /// Waits for the lease, takes the next token under it, and leads.
    async fn lead_by_lease(&self) -> Result<(), NotLeading> {
        let lost = CancellationToken::new();
        let tell = lost.clone();
        let win = async {
            let _known = self.takeover.find_primary().await;
            let scope = self.leadership.scope();
            self.takeover
                .lead(scope, DECLARER, || self.terms(), move || tell.cancel())
                .await
        };
        let Some(lease) = self.closing.run_until_cancelled(win).await else {
            return Ok(());
        };
        let lease = lease?;
        let loss = async {
            tokio::select! {
                () = lost.cancelled() => Loss::Lease,
                () = self.no_primary() => Loss::Primary,
            }
        };
        self.lead(lease.mark(), loss).await;
        // The connections are closed: another may have the lease.
        drop(lease);
        Ok(())
    }

    /// Waits until the replica leads the election, declares its number or takes the next one, and leads.
    async fn lead_by_election(
        &self,
        election: &dyn Election,
        deposed: &mut Option<Deposed>,
    ) -> Result<(), NotLeading> {
        let win = async {
            let read = election.read().await.map_err(NotLeading::Unread)?;
            let (mandate, sure_until) = match read {
                Standing::Leads {
                    mandate,
                    sure_until,
                } => (mandate, sure_until),
                Standing::Waits(why) => {
                    *deposed = None;
                    return Err(NotLeading::Waits(why));
                }
            };
            // Otherwise the lead might end with the next read.
            let is_short = sure_until < Instant::now() + election.look_every() * 2;
            if is_short || self.is_over(deposed.as_mut(), &mandate) {
                return Err(NotLeading::Another);
            }
            let mark = self.declare(election, &mandate).await;
            Ok((mandate, sure_until, mark))
        };
        let Some(won) = self.closing.run_until_cancelled(win).await else {
            return Ok(());
        };
        let (mandate, sure_until, mark) = won?;
        let incarnation = match mark {
            Ok(mark) => {
                let loss = outlived(election, &mandate, sure_until);
                match self.lead(&mark, loss).await {
                    Loss::Mark => mark.incarnation,
                    _ => return Ok(()),
                }
            }
            Err(NotLeading::Undeclared(DeclareError::Stale { mark })) => mark.incarnation,
            Err(error) => return Err(error),
        };
        *deposed = Some(Deposed {
            mandate,
            incarnation,
            is_told: false,
        });
        Ok(())
    }

    fn is_over(&self, deposed: Option<&mut Deposed>, mandate: &Mandate) -> bool {
        let scope = self.leadership.scope();
        let mark = self.takeover.marks().mark(scope);
        let same = |deposed: &&mut Deposed| {
            deposed.mandate == *mandate && deposed.incarnation == mark.incarnation()
        };
        let Some(deposed) = deposed.filter(same) else {
            return false;
        };
        if !std::mem::replace(&mut deposed.is_told, true) {
            let (number, mark) = (mandate.number.map(Token::get), mark.mark().map(Token::get));
            tracing::warn!(
                %scope, number, mark,
                "the mark is above the number of this lead: no session gets a token until another leads, the replica \
                 is elected again, or the scope is repaired"
            );
        }
        true
    }

    /// Raises the mark to the number of a mandate, or to the next one if the election has none. The election is read
    /// again after the mark, so of two replicas that believe to lead, one takes a token and the other is refused.
    async fn declare(
        &self,
        election: &dyn Election,
        mandate: &Mandate,
    ) -> Result<Mark, NotLeading> {
        let (takeover, scope) = (&self.takeover, self.leadership.scope());
        let declare = async |claim| {
            let declared = takeover.declare_for_nobody(scope, claim, DECLARER, self.terms());
            declared.await
        };
        if let Some(number) = mandate.number {
            return Ok(declare(Claim::Token(number)).await?);
        }
        let mut takes = 0;
        loop {
            let mark = takeover.read_mark(scope, takeover.deadline()).await?;
            match election.read().await.map_err(NotLeading::Unread)? {
                Standing::Leads {
                    mandate: now,
                    sure_until,
                } if now == *mandate && sure_until > Instant::now() => {}
                _ => return Err(NotLeading::Another),
            }
            takes += 1;
            match declare(Claim::After(mark)).await {
                Err(DeclareError::Stale { .. } | DeclareError::MarkIsLower { .. })
                    if takes < TAKES_MAX => {}
                declared => return Ok(declared?),
            }
        }
    }

    /// Leads with the token of a mark until it is lost, or the proxy stops.
    async fn lead(&self, mark: &Mark, lost: impl Future<Output = Loss>) -> Loss {
        let (scope, token) = (self.leadership.scope(), mark.token);
        let cached = self.takeover.marks().mark(scope);
        // After a repair the number means nothing.
        if cached.incarnation() != mark.incarnation {
            return Loss::Mark;
        }
        let term = Term::new(cached, token);
        tracing::info!(%scope, token = token.get(), "this proxy leads: sessions of its listener get the token");
        *self.leadership.term.lock() = Some(Arc::clone(&term));
        let loss = tokio::select! {
            loss = lost => loss,
            () = deposed(&term) => Loss::Mark,
            () = self.stop.cancelled() => Loss::Stop,
            () = self.all_left(&term) => Loss::Stop,
            loss = self.close_those_without_token() => loss,
        };
        *self.leadership.term.lock() = None;
        tracing::info!(%scope, token = token.get(), reason = loss.why(), "this proxy no longer leads");
        match self.mode() {
            Mode::Enforce => {
                let command = on_loss::run(&self.leadership.on_loss, &term, loss);
                tokio::join!(term.end(loss), command);
            }
            // Ends no session. Once the mode is "enforce", what has kept an old token is as useless as without one.
            Mode::Observe => self.leadership.keep_without_token(&term),
        }
        loss
    }

    /// Closes the connections without a token, from when the mode says so.
    async fn close_those_without_token(&self) -> Loss {
        let mut fence = self.fence.clone();
        loop {
            if self.mode() == Mode::Enforce {
                self.leadership.end_those_without_token();
            }
            if fence.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Waits until this proxy accepts no clients, and those of the term have left.
    async fn all_left(&self, term: &Term) {
        self.closing.cancelled().await;
        while !term.is_empty() {
            sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until there has been no primary for a while.
    async fn no_primary(&self) {
        let mut seen = Instant::now();
        while seen.elapsed() <= PRIMARY_WITHIN {
            if self.takeover.primary().is_some() {
                seen = Instant::now();
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Logs why this proxy does not lead, unless that was logged.
    fn report(&self, why: Option<NotLeading>, told: &mut Told) {
        let scope = self.leadership.scope();
        let error = match why {
            None => {
                *told = Told::default();
                return;
            }
            Some(NotLeading::Another) => return,
            Some(NotLeading::Waits(reason)) => {
                if told.reason.as_ref() != Some(&reason) {
                    tracing::info!(%scope, reason, "this proxy does not lead");
                }
                told.reason = Some(reason);
                return;
            }
            Some(NotLeading::Undeclared(error)) => error.to_string(),
            Some(NotLeading::Unread(error)) => error,
        };
        if told.error.as_ref() != Some(&error) {
            tracing::warn!(%scope, error, "this proxy cannot lead yet");
        }
        told.error = Some(error);
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

    fn may_exist(&self) -> bool {
        let scope = self.leadership.scope().as_str();
        self.fence.borrow().policy().may_exist(scope)
    }

    fn mode(&self) -> Mode {
        let scope = self.leadership.scope().as_str();
        self.fence.borrow().mode_of_scope(scope)
    }
}

/// Waits until the mark is above the token of a term.
async fn deposed(term: &Term) {
    while term.is_current() {
        sleep(LOOK_EVERY).await;
    }
}

/// Waits until a mandate is over, or may be over because the election cannot be read.
async fn outlived(election: &dyn Election, mandate: &Mandate, mut sure_until: Instant) -> Loss {
    loop {
        sleep_until(sure_until.min(Instant::now() + election.look_every())).await;
        match timeout_at(sure_until, election.read()).await {
            Ok(Ok(Standing::Leads {
                mandate: now,
                sure_until: until,
            })) if now == *mandate => sure_until = until,
            Ok(Ok(_)) => return Loss::Election,
            Ok(Err(_)) if Instant::now() < sure_until => {}
            Ok(Err(_)) | Err(_) => return Loss::Unread,
        }
    }
}
