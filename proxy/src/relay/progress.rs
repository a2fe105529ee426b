//! Steps that bring the message at the front of the client's bytes closer to being sent.

use std::fmt::Write as _;

use pgpalisade_policies::{Access, Lexing};

use super::judgement::SettingsToShow;
use super::steps::Step;
use super::{End, Gate, Relay};
use crate::fence::{Binding, Standing};
use crate::rejection::Rejection;
use crate::rejection_log::Enforcement;
use crate::session::access::Adjustment;
use crate::session::in_flight::Origin;
use crate::session::search_path::QUESTIONS;
use crate::session::{Pipeline, access};
use crate::upstream::own;
use crate::wire::backend::{self, TransactionStatus};
use crate::wire::encode::{ErrorFields, Severity};

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
            Step::AskSearchPath => self.ask_for_search_path(),
            Step::Classify(text, lexing) => self.classify(text, lexing),
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
            if adjustment != Adjustment::Default(Access::ReadWrite) {
                // Should it be cancelled, nothing may stand behind it that relies on it.
                self.await_replies();
            }
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
        self.record(rejection, Enforcement::Refused);
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

    /// Follows a policy that was loaded since the last message.
    #[inline]
    pub(super) fn follow_policy(&mut self) {
        if !self.worker.is_in_force(self.fence.fence()) {
            self.fence = self.worker.fence_for(&self.label);
        }
    }

    /// Has a text classified on another thread.
    fn classify(&mut self, text: Vec<u8>, lexing: Lexing) {
        let classification = self.worker.classification.clone();
        let classifying = classification.of(text, lexing);
        self.gate = Gate::Classification(Box::pin(classifying));
    }

    fn ask_for_search_path(&mut self) {
        self.search_path.ask();
        for question in QUESTIONS {
            let out = self.upstream.own_messages();
            own::execute(
                out,
                &mut self.ledger,
                self.position.pipeline,
                question,
                None,
            );
        }
        self.await_replies();
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
        let fence = &self.fence;
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
                    .fence()
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
pub(super) fn reported_access(value: &[u8]) -> Option<Access> {
    access::parse(value)
}
