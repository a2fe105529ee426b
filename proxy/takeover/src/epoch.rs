//! The epoch: a mark of the proxies' own, which rises at each start of a proxy, and after sessions were registered.
//!
//! A restored authority may have every mark, but lack a session that joined at one of them since the backup. Only a
//! number that has risen since shows this. As a mark, the epoch is in every store and in the witness, compared and
//! recovered like any other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pgpalisade_authority::{Authority, AuthorityError, Declaration, Declared, Scope, Token};
use tokio::time::Instant;

use super::control::Control;
use super::declare::NOBODY;
use super::error::DeclareError;
use super::in_time;
use super::witness::{Table, Witness};

/// The epoch, and what raises it.
pub(super) struct Epoch {
    pub(super) control: Control,
    pub(super) authority: Arc<dyn Authority>,
    pub(super) witness: Arc<Witness>,
    declared_by: String,
    pub(super) timeout: Duration,
    /// The epoch must rise: this proxy has started, or has registered a session.
    due: AtomicBool,
}

impl Epoch {
    pub(super) fn new(
        control: &Control,
        authority: &Arc<dyn Authority>,
        declared_by: &str,
        timeout: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            control: control.clone(),
            authority: Arc::clone(authority),
            witness: Witness::new(control.clone()),
            declared_by: declared_by.to_owned(),
            timeout,
            due: AtomicBool::new(true),
        })
    }

    /// Must be called before a session is registered.
    pub(super) fn note_joining(&self) {
        self.due.store(true, Ordering::Release);
    }

    /// Raises the epoch if that is due: in the authority, then in the witness.
    pub(super) async fn raise(&self) -> Result<(), DeclareError> {
        if !self.due.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let raised = self.raise_now().await;
        if raised.is_err() {
            self.due.store(true, Ordering::Release);
        }
        raised
    }

    async fn raise_now(&self) -> Result<(), DeclareError> {
        let deadline = Instant::now() + self.timeout;
        let (table, cluster) = self.control.witness(deadline).await?;
        if table == Table::Missing {
            return Ok(());
        }
        let scope = Scope::epoch();
        let mark = in_time(self.authority.mark(&scope), deadline).await?;
        let token = match mark {
            None => Token::MIN,
            Some(mark) => mark.token.next().unwrap_or(mark.token),
        };
        let declaration = Declaration::new(&scope, token, NOBODY, cluster, &self.declared_by);
        match in_time(self.authority.declare(&declaration), deadline).await? {
            // Another proxy may have been faster; the epoch has risen all the same.
            Declared::Accepted { mark, .. } | Declared::Stale { mark } => {
                self.witness.record(&scope, &mark, deadline).await
            }
            Declared::OtherCluster { .. }
            | Declared::TooFar { .. }
            | Declared::NotElected { .. }
            | Declared::MarkIsLower { .. } => {
                let why = "another cluster is on record".to_owned();
                Err(DeclareError::Authority(AuthorityError::Unavailable(why)))
            }
        }
    }
}
