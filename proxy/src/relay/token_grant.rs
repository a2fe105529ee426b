//! Obtaining the tokens of a value for one session, at its login and at a SET alike.

use pgpalisade_authority::{Declaration, Scope, Token};
use tokio::time::Instant;

use super::{End, Relay};
use crate::fence::readable::readable;
use crate::fence::{Identified, Purpose};
use crate::rejection::Rejection;
use crate::rejection::RejectionKind;
use crate::rejection_log::SessionLabel;
use crate::session::access::Adjustment;
use crate::session::tokens::{Declared, Denied, Wanted};
use crate::session::{Adjusted, Identity};
use crate::takeover::{DeclareError, Takeover};

/// What has become of tokens that were asked for.
pub(super) enum Grant {
    /// The session holds them.
    Accepted,
    /// It does not, and the message that they were for is to be refused.
    Refused(Box<Rejection>),
    /// It does not, and the client was told so in the place of its own answer.
    Answered,
}

impl Relay {
    /// Has tokens accepted for the session, in this order: its open transaction is made read-write where that is due;
    /// its server process is found, and has answered since; each token is declared, which ends the sessions of lower
    /// ones. Everything that was sent before has been answered.
    pub(super) async fn obtain(
        &mut self,
        wanted: &Wanted,
        lift: Option<Adjustment>,
    ) -> Result<Grant, End> {
        if let Err(ending) = self.session.may_declare(wanted) {
            return Err(self.ended(ending));
        }
        if let Some(lift) = lift
            && self.adjust(lift).await? == Adjusted::Refused
        {
            return Ok(Grant::Answered);
        }
        let takeover = self.worker.takeover.clone();
        // One deadline for the search of the process and for the declaration.
        let deadline = takeover.deadline();
        let session = match self.session.identity() {
            Identity::Known(session) => session,
            Identity::Pid(pid) => {
                let found = self.meanwhile(identify(&takeover, pid, deadline)).await?;
                let session = match found {
                    Ok(session) => session,
                    Err(rejection) => {
                        let denied = self.session.on_not_identified(wanted, rejection);
                        return self.granted(denied);
                    }
                };
                self.session.probe();
                self.await_replies().await?;
                self.session.on_identified(session);
                session
            }
        };
        let by = describe_session(&self.label);
        let declaring = declare(&takeover, wanted, session, &by, deadline);
        let declared = self.meanwhile(declaring).await?;
        let denied = self.session.on_declared(wanted, session, declared);
        self.granted(denied)
    }

    fn granted(&mut self, outcome: Result<(), Denied>) -> Result<Grant, End> {
        self.put_output();
        match outcome {
            Ok(()) => Ok(Grant::Accepted),
            Err(Denied::Refused(rejection)) => Ok(Grant::Refused(rejection)),
            Err(Denied::Ends(ending)) => Err(self.ended(ending)),
        }
    }
}

/// Finds the server process that has the id which the server told at login.
async fn identify(
    takeover: &Takeover,
    pid: i32,
    deadline: Instant,
) -> Result<Identified, Box<Rejection>> {
    let found = takeover.identify(pid, deadline).await;
    found.map_err(|error| Box::new(rejection(None, None, error)))
}

/// Has all tokens of a value accepted for a session.
async fn declare(
    takeover: &Takeover,
    wanted: &Wanted,
    session: Identified,
    by: &str,
    deadline: Instant,
) -> Declared {
    let mut observed = Vec::new();
    for (scope, token, terms) in wanted.tokens() {
        let declaration = Declaration::new(scope, token, session.backend, session.cluster, by);
        if let Err(error) = takeover.declare(declaration, terms, deadline).await {
            let rejection = rejection(Some(scope), Some(token), error);
            let is_away = rejection.kind == RejectionKind::AuthorityUnavailable;
            match terms.purpose {
                Purpose::Admit => return Err(Box::new(rejection)),
                Purpose::Observe | Purpose::ObserveUnregistered => observed.push(rejection),
            }
            // The next scope would have no answer either. Where it is enforced, that is its refusal.
            if is_away && wanted.is_only_observed() {
                break;
            }
        }
    }
    Ok(observed)
}

fn rejection(scope: Option<&Scope>, token: Option<Token>, error: DeclareError) -> Rejection {
    match (error, scope, token) {
        (DeclareError::Stale { mark }, Some(scope), Some(token)) => {
            Rejection::stale(scope, token, mark)
        }
        (DeclareError::OutOfBounds { mark, bound }, Some(scope), Some(token)) => {
            Rejection::out_of_bounds(scope, token, mark, bound)
        }
        (error @ DeclareError::Authority(_), scope, _) => {
            Rejection::authority_unavailable(scope, &error)
        }
        (error @ DeclareError::WrongCluster { .. }, scope, _) => {
            Rejection::wrong_cluster(scope, &error)
        }
        (error @ DeclareError::Prepared { .. }, Some(scope), _) => {
            Rejection::prepared_transactions_left(scope, &error)
        }
        (error @ DeclareError::Backend { .. }, _, _) => Rejection::backend_unknown(&error),
        (error @ DeclareError::Witness { .. }, scope, _) => {
            Rejection::mark_not_copied(scope, &error)
        }
        (error, scope, _) => Rejection::takeover_incomplete(scope, &error),
    }
}

/// A session in words, for the record of who raised a mark.
fn describe_session(label: &SessionLabel) -> String {
    let SessionLabel {
        user,
        database,
        application_name,
        client_addr,
        ..
    } = label;
    // Other clients and terminals are shown it.
    let (user, database) = (readable(user), readable(database));
    match application_name.as_deref().map(readable) {
        Some(name) => format!("{user}@{client_addr} ({name}, database {database})"),
        None => format!("{user}@{client_addr} (database {database})"),
    }
}
