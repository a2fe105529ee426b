//! Steps that bring the message at the front of the client's bytes closer to being sent.

use std::fmt::Write as _;
use std::sync::Arc;

use pgpalisade_authority::{Scope, Token};
use pgpalisade_policies::TokenBounds;

use super::judgement::SettingsToShow;
use super::steps::Step;
use super::{End, Front, Gate, Process, Relay};
use crate::fence::{Binding, Holding, Standing, TokenValue};
use crate::rejection::Rejection;
use crate::rejection_log::{RejectionKind, SessionLabel};
use crate::session::access::Adjustment;
use crate::session::ledger::Origin;
use crate::session::{Pipeline, access};
use crate::takeover::{Declare, DeclareError, Identified, Takeover};
use crate::upstream::own;
use crate::wire::backend::{self, TransactionStatus};
use crate::wire::encode::{ErrorFields, Severity};

/// A session keeps this many values of `fencing.token` that were accepted for it.
const ACCEPTED_MAX: usize = 256;

/// What becomes of the message that a step was taken for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    /// It is looked at again.
    Stays,
    /// It is done with and not sent.
    Dropped,
}

impl Relay {
    /// Takes a step that is not [`Step::Forward`].
    pub(super) fn take(&mut self, step: Step) -> Result<Message, End> {
        match step {
            Step::Forward(_) | Step::NeedBytes => {}
            Step::Discard => return Ok(Message::Dropped),
            Step::Terminate => return Err(End::ClientLeft),
            Step::Broken(error) => self.on_wire_error(error),
            Step::Refuse(rejection, refused) => {
                self.refuse(rejection, refused);
                return Ok(Message::Dropped);
            }
            Step::AwaitReplies => self.await_replies(),
            Step::Declare(value) => self.declare(value),
            Step::Adjust(adjustment) => self.adjust(adjustment),
            Step::PublishSettings => self.publish_settings(),
        }
        Ok(Message::Stays)
    }

    /// Lets the client's messages wait until everything that was sent has been answered.
    pub(super) fn await_replies(&mut self) {
        if self.position.pipeline == Pipeline::Open {
            // The server keeps replies of a pipeline back until it is asked.
            own::flush(self.upstream.own_messages());
        }
        self.gate = Gate::Replies;
    }

    /// Takes the next step towards the acceptance of a value. The message is looked at again after each.
    fn declare(&mut self, value: TokenValue) {
        let takeover = self.worker.takeover.clone();
        let identified = match self.process {
            Process::Unknown => {
                let identifying = identify(takeover, self.backend_pid);
                self.gate = Gate::Identification(Box::pin(identifying));
                return;
            }
            Process::Found(identified) | Process::Known(identified) => identified,
        };
        self.process = Process::Known(identified);
        let by = describe_session(&self.label);
        let declaring = Box::pin(declare(takeover, value.clone(), identified, by));
        self.gate = Gate::Declaration(value, identified, declaring);
    }

    /// Says whether the gate opens.
    pub(super) fn on_identified(&mut self, answer: Result<Identified, Box<Rejection>>) -> bool {
        match answer {
            Ok(identified) => {
                self.process = Process::Found(identified);
                let out = self.upstream.own_messages();
                own::probe(out, &mut self.ledger, self.position.pipeline);
                self.gate = Gate::Replies;
                false
            }
            Err(rejection) => {
                self.refusal_on_hold = Some(rejection);
                true
            }
        }
    }

    /// Says whether the gate opens.
    pub(super) fn on_declared(&mut self, answer: Result<(), Box<Rejection>>) -> bool {
        let Gate::Declaration(value, identified, _) = std::mem::replace(&mut self.gate, Gate::Open)
        else {
            return false;
        };
        match answer {
            Ok(()) => {
                // From here on the session is made ready for the new token; the old one, which the
                // declaration may have made stale, must not put the backstop up in between.
                self.front = Front::Binds;
                self.accepted.retain(|holding| holding.stale().is_none());
                if self.accepted.len() >= ACCEPTED_MAX {
                    self.accepted.remove(0);
                }
                let holding = holding(&self.worker.fence, &value, identified);
                self.accepted.push(Arc::new(holding));
            }
            Err(rejection)
                if rejection.kind == RejectionKind::AuthorityUnavailable
                    && self.may_be_replaced(&value) =>
            {
                self.end_unanswered(*rejection);
                return false;
            }
            Err(rejection) => self.refusal_on_hold = Some(rejection),
        }
        true
    }

    /// Whether the session could go on under a lower token than one of these.
    fn may_be_replaced(&self, value: &TokenValue) -> bool {
        let in_force = self.settings.token().into_iter();
        let at_reset = self.settings.startup_token();
        let mut held = in_force.chain(at_reset).chain(&self.accepted);
        let lower = |holding: &Arc<Holding>| {
            let declared = value.tokens().iter();
            holding.bindings().iter().any(|held| {
                declared
                    .clone()
                    .any(|(scope, token)| held.cell.scope() == scope && held.token < *token)
            })
        };
        // Of so many values some were forgotten.
        self.accepted.len() >= ACCEPTED_MAX || held.any(lower)
    }

    /// A declaration has had no answer, so the register may have the session at the declared token, or get it there
    /// later. A takeover with that token would spare the session: it must not go on under a lower one.
    fn end_unanswered(&mut self, rejection: Rejection) {
        let rejection = rejection.ending_the_session();
        self.record(&rejection);
        rejection.encode(Severity::Fatal, self.client_outbox.tail());
        self.gate = Gate::Closing("a declaration has had no answer");
    }

    fn adjust(&mut self, adjustment: Adjustment) {
        let sql = own::adjustment(adjustment);
        let error = match adjustment {
            Adjustment::Lift => Some(Box::new(Rejection::declared_too_late())),
            Adjustment::Default(_) | Adjustment::Lower => None,
        };
        let pipeline = self.position.pipeline;
        own::execute(
            self.upstream.own_messages(),
            &mut self.ledger,
            pipeline,
            &sql,
            error,
        );
        if adjustment == Adjustment::Lift {
            if pipeline == Pipeline::Open {
                own::flush(self.upstream.own_messages());
            }
            self.gate = Gate::Lift;
        } else {
            self.access.adjust(adjustment);
        }
    }

    /// The answer to a lift has come.
    pub(super) fn on_lifted(&mut self) {
        if matches!(self.gate, Gate::Lift) && self.ledger.is_empty() {
            if !self.ledger.is_skipping() && self.position.status != TransactionStatus::Failed {
                self.access.adjust(Adjustment::Lift);
            }
            self.open_gate();
        }
    }

    /// The open transaction cannot become read-write any more. The client's message is answered by
    /// the error that has just been sent.
    pub(super) fn on_lift_refused(&mut self, rejection: &Rejection) {
        self.record(rejection);
        if self.position.pipeline == Pipeline::Closed {
            // The proxy's own Sync stands for the end of the client's Query.
            if let Some(sync) = self.ledger.front_mut() {
                sync.origin = Origin::Client;
            }
            self.drop_front = true;
        }
        self.gate = Gate::Replies;
    }

    /// A statement of the proxy's own has failed that must not: the session's access mode is not known.
    pub(super) fn on_own_statement_failed(&mut self, body: &[u8]) {
        let message = backend::error_field(body, b'M').unwrap_or_default();
        let message = String::from_utf8_lossy(message);
        tracing::error!(client.addr = %self.label.client_addr, %message, "a statement of the proxy's own failed");
        self.end_session(
            "a statement of the proxy's own failed",
            &ErrorFields {
                severity: Severity::Fatal,
                sqlstate: "58000",
                message: "terminating connection because pgpalisade could not prepare the session",
                detail: &message,
                hint: "Connect again.",
            },
        );
    }

    fn publish_settings(&mut self) {
        let values = self.settings_to_show();
        for (name, value) in &values {
            let sql = own::setting(name, value);
            let out = self.upstream.own_messages();
            own::execute(out, &mut self.ledger, self.position.pipeline, &sql, None);
        }
        self.shown.published = Some(values);
        self.shown.server_has_token = true;
    }

    /// What SHOW is to find. `fencing.token` is the server's own once it was set there.
    pub(super) fn settings_to_show(&self) -> SettingsToShow {
        let fence = &self.worker.fence;
        let scope = fence.session_scope(&self.settings);
        let (mut mark, mut status) = (String::new(), String::new());
        match self.settings.token() {
            Some(holding) => {
                for (at, binding) in holding.bindings().iter().enumerate() {
                    if at > 0 {
                        mark.push(',');
                        status.push_str("; ");
                    }
                    describe(binding, &mut mark, &mut status);
                }
            }
            None => {
                let known = fence
                    .cell(scope)
                    .mark()
                    .map(|mark| mark.to_string())
                    .unwrap_or_default();
                status = format!("token= scope={scope} mark={known} state=none");
                mark = known;
            }
        }
        let mut values = vec![("fencing.mark", mark), ("fencing.status", status)];
        if self.settings.scope().is_none() {
            values.push(("fencing.scope", scope.to_string()));
        }
        if !self.shown.server_has_token && self.settings.token().is_none() {
            values.push(("fencing.token", String::new()));
        }
        values
    }

    /// A session that has lost its token and cannot write any more need not be ended at a takeover. One
    /// that began with a token stays on the register: a RESET would bring that token back.
    pub(super) fn release_if_unbound(&mut self) {
        let quiet = !self.position.is_inside() && self.ledger.is_empty();
        if quiet
            && self.settings.token().is_none()
            && self.settings.startup_token().is_none()
            && self.access.is_read_only()
            && let Process::Known(identified) = self.process
        {
            self.process = Process::Unknown;
            self.accepted.clear();
            self.worker.takeover.release(identified.backend);
        }
    }
}

/// The holding of a value whose tokens were all accepted.
pub(crate) fn holding(
    fence: &crate::fence::Fence,
    value: &TokenValue,
    identified: Identified,
) -> Holding {
    let bindings = value.tokens().iter().map(|(scope, token)| Binding {
        cell: fence.cell(scope),
        token: *token,
        timeline: identified.cluster.timeline,
    });
    Holding::new(bindings.collect())
}

/// Finds the server process that has the id which the server told at login.
///
/// # Errors
///
/// What the client is told.
pub(crate) async fn identify(takeover: Takeover, pid: i32) -> Result<Identified, Box<Rejection>> {
    let found = takeover.identify(pid).await;
    found.map_err(|error| Box::new(rejection(None, None, error)))
}

/// Has all tokens of a value accepted for a session.
///
/// # Errors
///
/// What the client is told.
pub(crate) async fn declare(
    takeover: Takeover,
    value: TokenValue,
    session: Identified,
    by: String,
) -> Result<(), Box<Rejection>> {
    for (scope, token) in value.tokens() {
        let declare = Declare {
            scope: scope.clone(),
            token: *token,
            session,
            by: by.clone(),
            bounds: TokenBounds::default(),
        };
        takeover
            .declare(declare)
            .await
            .map_err(|error| Box::new(rejection(Some(scope), Some(*token), error)))?;
    }
    Ok(())
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
        (error @ DeclareError::Backend { .. }, _, _) => Rejection::backend_unknown(&error),
        (error, scope, _) => Rejection::takeover_incomplete(scope, &error),
    }
}

/// A session in words, for the record of who raised a mark.
pub(crate) fn describe_session(label: &SessionLabel) -> String {
    let SessionLabel {
        user,
        database,
        application_name,
        client_addr,
        ..
    } = label;
    match application_name {
        Some(name) => format!("{user}@{client_addr} ({name}, database {database})"),
        None => format!("{user}@{client_addr} (database {database})"),
    }
}

fn describe(binding: &Binding, marks: &mut String, status: &mut String) {
    let scope = binding.cell.scope();
    let token = binding.token;
    let (mark, state) = match binding.standing() {
        Standing::Current => (token, "current"),
        Standing::Stale(mark) => (mark.token, "stale"),
        Standing::Deposed => (token, "deposed"),
    };
    // Writing to a String cannot fail.
    let _ = write!(marks, "{mark}");
    let _ = write!(
        status,
        "token={token} scope={scope} mark={mark} state={state}"
    );
}

/// The value of the setting in a report of the server.
pub(super) fn reported_access(value: &[u8]) -> Option<pgpalisade_policies::Access> {
    access::parse(value)
}
