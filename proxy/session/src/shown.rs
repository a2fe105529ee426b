//! Settings that only the proxy knows, set so that SHOW finds them.

use std::fmt::Write as _;

use pgpalisade_authority::Scope;
use pgpalisade_policies::{Analysis, Control, FencingShow, Lifetime};

use super::action::{Prerequisite, Refused, Waiting};
use super::in_flight::Request;
use super::judgement::Judged;
use super::{Session, injected};
use crate::fence::{HeldToken, TokenStatus};

impl Session {
    /// Asks the authority for the last takeovers before a SHOW of them.
    pub(super) fn ask_history_first(
        &mut self,
        judged: &Judged<'_>,
        request: Request,
    ) -> Option<Prerequisite> {
        let prepared = self.prepared.as_ref();
        let is_known = prepared.is_some_and(|done| done.history.is_some());
        if !judged.verdict.any_control(shows_history) || is_known || self.is_failed() {
            return None;
        }
        if !self.server.ledger.is_empty() {
            return Some(Prerequisite::Replies);
        }
        self.prepared().waiting = Some(Waiting {
            refused: Refused::of(request),
            statement: Some(judged.for_the_record()),
        });
        Some(Prerequisite::History)
    }

    /// Publishes a setting that only the proxy knows before a SHOW of it.
    pub(super) fn publish_first(&mut self, verdict: &Analysis) -> Option<Prerequisite> {
        let shows = |control: &Control| matches!(control, Control::ShowFencing(_));
        if !verdict.any_control(shows) || self.is_failed() {
            return None;
        }
        if !self.server.ledger.is_empty() {
            return Some(Prerequisite::Replies);
        }
        self.publish_settings(verdict);
        None
    }

    /// Sets in the server what the SHOW after it asks for. Everything sent before is answered.
    fn publish_settings(&mut self, verdict: &Analysis) {
        for (name, value) in self.settings_to_show(verdict) {
            let sql = injected::setting(name, &value, Lifetime::Session);
            self.execute_own(&sql, None);
        }
        self.server.has_token_text = true;
    }

    /// Scopes of the tokens in force; without a token, the scope of a bare number.
    #[must_use]
    pub fn scopes(&self) -> Vec<Scope> {
        let client = &self.client;
        match client.state.token() {
            Some(held) => {
                let marks = held.tokens().iter().map(|token| &token.mark);
                marks.map(|mark| mark.scope().clone()).collect()
            }
            None => vec![client.state.scope(&client.fence).clone()],
        }
    }

    /// Stores how the last takeovers of the session's scopes went.
    pub fn on_history(&mut self, history: String) {
        self.prepared().history = Some(history.into());
    }

    /// Settings that SHOW is to find. `fencing.token` is left alone once it was set in the server.
    fn settings_to_show(&self, verdict: &Analysis) -> Vec<(&'static str, String)> {
        let client = &self.client;
        let scope = client.state.scope(&client.fence);
        let (mut mark, mut status) = (String::new(), String::new());
        match client.state.token() {
            Some(held) => {
                for (at, token) in held.tokens().iter().enumerate() {
                    if at > 0 {
                        mark.push(',');
                        status.push_str("; ");
                    }
                    describe(token, &mut mark, &mut status);
                }
            }
            None => {
                let known = client.fence.fence().mark(scope).mark();
                let known = known.map(|mark| mark.to_string()).unwrap_or_default();
                status = format!("token= scope={scope} mark={known} state=none");
                mark = known;
            }
        }
        let mut values = vec![("fencing.mark", mark), ("fencing.status", status)];
        if verdict.any_control(shows_history) {
            let history = self
                .prepared
                .as_ref()
                .and_then(|done| done.history.as_deref());
            // A Parse has no history yet: the server only needs to know the name.
            values.push(("fencing.history", history.unwrap_or_default().to_owned()));
        }
        // Where a client is lent its server connection, a scope of its own may have been set in another one.
        if !client.state.has_scope() || self.is_lent() {
            values.push(("fencing.scope", scope.to_string()));
        }
        if !self.server.has_token_text && client.state.token().is_none() {
            values.push(("fencing.token", String::new()));
        }
        values
    }
}

const fn shows_history(control: &Control) -> bool {
    matches!(control, Control::ShowFencing(FencingShow::History))
}

fn describe(held: &HeldToken, marks: &mut String, status: &mut String) {
    let scope = held.mark.scope();
    let token = held.token;
    let (mark, state) = match held.status() {
        TokenStatus::Current => (token, "current"),
        TokenStatus::Stale(mark) => (mark.token, "stale"),
        TokenStatus::Deposed => (token, "deposed"),
    };
    // Writing to a String cannot fail.
    let _ = write!(marks, "{mark}");
    let _ = write!(
        status,
        "token={token} scope={scope} mark={mark} state={state}"
    );
}
