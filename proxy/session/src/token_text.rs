//! Value of `fencing.token` inside PostgreSQL after a take in the client's text: the token number replaces the take.

use pgpalisade_policies::{Analysis, Control};

use super::action::{Action, Prerequisite};
use super::{Session, injected};
use crate::fence::{HeldTokens, ServerText, takes};
use crate::wire::frontend::FrontendTag;

/// Whether a text is a single take. Any other text with a take is refused.
pub(super) fn is_take(verdict: &Analysis) -> bool {
    let [statement] = &*verdict.statements else {
        return false;
    };
    matches!(&*statement.controls, [only] if takes(only))
}

/// Verdict with the tokens that its take has obtained.
pub(super) fn with_tokens(verdict: &Analysis, tokens: &str) -> Analysis {
    let mut verdict = verdict.clone();
    let statements = verdict.statements.iter_mut();
    for control in statements.flat_map(|statement| &mut statement.controls) {
        if takes(control)
            && let Control::SetFencing { value, .. } = control
        {
            *value = tokens.into();
        }
    }
    verdict
}

impl Session {
    /// Sends the server the number ahead of the client's next message, so that nothing of the client runs before. The
    /// message with the take must be answered by then.
    #[inline]
    pub(super) fn tell_token(&mut self, tag: FrontendTag) -> Option<Action> {
        match self.client.state.server_text() {
            ServerText::Tokens => None,
            ServerText::Take => self.tell_token_before(tag),
        }
    }

    fn tell_token_before(&mut self, tag: FrontendTag) -> Option<Action> {
        if tag.runs_nothing() || self.is_failed() {
            return None;
        }
        if !self.server.ledger.is_empty() {
            return Some(Action::Need(Prerequisite::Replies));
        }
        let state = &mut self.client.state;
        let text = state.token().map_or_else(String::new, |held| {
            held.text(state.scope(&self.client.fence))
        });
        let sql = injected::setting("fencing.token", &text, state.token_lifetime());
        state.on_tokens_sent();
        self.execute_own(&sql, None);
        None
    }

    /// Value of `fencing.token` for tokens that a message waited for.
    pub(super) fn text_of(&self, tokens: Option<&HeldTokens>) -> Box<str> {
        let scope = self.client.state.scope(&self.client.fence);
        tokens.map_or_else(Box::default, |held| held.text(scope).into())
    }
}
