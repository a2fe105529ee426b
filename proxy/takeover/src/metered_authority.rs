//! Metering of the authority: each request is counted and timed. Its loss is logged once, and so is its return.
//!
//! All requests of this proxy pass through here, and answers stay unchanged.

use std::future::Future;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use pgpalisade_authority::{
    Answer, Authority, AuthorityError, AuthorityId, Backend, Cluster, Declaration, Declared,
    Drained, Enrolled, Following, LeaseId, LeaseStep, Leased, Mark, Rank, Registered,
    RepairRequest, Repaired, Scope, TakeoverRecord, Watch,
};
use tokio::time::Instant;

use super::meters::{Meters, millis};

/// Operations that write, most of the time. A store that cannot write may still read.
const WRITES: [&str; 4] = ["declare", "drained", "recover", "repair"];

/// A request that is given up sooner than this proves nothing.
const GIVEN_UP_AFTER: Duration = Duration::from_millis(500);

/// An authority, and since when it does not answer.
pub(super) struct MeteredAuthority {
    authority: Arc<dyn Authority>,
    meters: Meters,
    lost: Mutex<Option<Lost>>,
}

#[derive(Clone, Copy)]
struct Lost {
    since: Instant,
    /// A write was not answered, so that only a write shows the return.
    is_by_write: bool,
}

impl MeteredAuthority {
    pub(super) fn of(authority: Arc<dyn Authority>, meters: Meters) -> Arc<dyn Authority> {
        Arc::new(Self {
            authority,
            meters,
            lost: Mutex::default(),
        })
    }

    async fn ask<T>(
        &self,
        operation: &'static str,
        answer: impl Future<Output = Answer<T>> + Send,
    ) -> Answer<T> {
        let asked = Asked {
            metered: self,
            operation,
            at: Instant::now(),
        };
        let answer = answer.await;
        asked.ends(answer.as_ref().err());
        answer
    }

    fn is_lost(&self, operation: &str, error: &AuthorityError) {
        let mut lost = self.lost.lock();
        let is_new = lost.is_none();
        let lost = lost.get_or_insert_with(|| Lost {
            since: Instant::now(),
            is_by_write: false,
        });
        lost.is_by_write |= WRITES.contains(&operation);
        if is_new {
            tracing::warn!(%error, "the authority does not answer: no new token is accepted until it is back");
        }
    }

    fn is_back(&self, operation: &str) {
        let is_write = WRITES.contains(&operation);
        let lost = self
            .lost
            .lock()
            .take_if(|lost| is_write || !lost.is_by_write);
        if let Some(lost) = lost {
            let took_ms = millis(lost.since.elapsed());
            tracing::info!(took_ms, "the authority is back");
        }
    }
}

/// A request that has no answer yet. Its caller may stop waiting.
struct Asked<'a> {
    metered: &'a MeteredAuthority,
    operation: &'static str,
    at: Instant,
}

impl Asked<'_> {
    fn ends(self, error: Option<&AuthorityError>) {
        let asked = ManuallyDrop::new(self);
        let metered = asked.metered;
        let Some(error) = error else {
            metered.meters.answered(asked.operation, asked.at.elapsed());
            return metered.is_back(asked.operation);
        };
        metered.meters.unanswered(asked.operation);
        // A closed authority means that the proxy stops.
        if !matches!(error, AuthorityError::Closed) {
            metered.is_lost(asked.operation, error);
        }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.metered.meters.unanswered(self.operation);
        if self.at.elapsed() >= GIVEN_UP_AFTER {
            let why = "it did not answer in time".to_owned();
            self.metered
                .is_lost(self.operation, &AuthorityError::Unavailable(why));
        }
    }
}

macro_rules! metered {
    ($($operation:ident($($argument:ident: $of:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl Authority for MeteredAuthority {
            $(async fn $operation(&self, $($argument: $of),*) -> Answer<$answer> {
                let answer = self.authority.$operation($($argument),*);
                self.ask(stringify!($operation), answer).await
            })*

            // Not metered: records for people say nothing about whether tokens are accepted.

            async fn note_takeovers(&self, scope: &Scope, all: &[TakeoverRecord]) -> Answer<()> {
                self.authority.note_takeovers(scope, all).await
            }

            async fn takeovers(&self, of: Option<&Scope>) -> Answer<Vec<(Scope, TakeoverRecord)>> {
                self.authority.takeovers(of).await
            }

            fn identity(&self) -> AuthorityId {
                self.authority.identity()
            }

            fn watch(&self) -> Watch {
                self.authority.watch()
            }

            fn follow(&self, election: &str) -> Option<Following> {
                self.authority.follow(election)
            }
        }
    };
}

metered! {
    enrol(cluster: Cluster) -> Enrolled;
    declare(declaration: &Declaration) -> Declared;
    sessions() -> Vec<(Scope, Registered)>;
    marks() -> Vec<(Scope, Mark)>;
    mark(scope: &Scope) -> Option<Mark>;
    drained(scope: &Scope, rank: Rank, gone: &[Backend]) -> Drained;
    forget(gone: &[Backend]) -> ();
    repair(request: &RepairRequest) -> Repaired;
    cluster() -> Option<Cluster>;
    lease(scope: &Scope, holder: LeaseId, step: LeaseStep) -> Leased;
    recover(seen: Option<Cluster>, cluster: Cluster, marks: &[(Scope, Mark)]) -> Enrolled;
}
