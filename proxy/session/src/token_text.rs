//! Value of `fencing.token` inside PostgreSQL after a take in the client's text, or in a server connection that another
//! client had: the proxy sets it.

use super::action::{Action, Prerequisite};
use super::{Session, injected};
use crate::fence::ServerText;
use crate::wire::frontend::FrontendTag;

impl Session {
    /// Sends the server the number ahead of the client's next message, so that nothing of the client runs before. The
    /// message with the take must be answered by then.
    #[inline]
    pub(super) fn tell_token(&mut self, tag: FrontendTag) -> Option<Action> {
        match self.client.state.server_text() {
            ServerText::Tokens => None,
            ServerText::Other => self.tell_token_before(tag),
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
        self.server.has_token_text = true;
        self.execute_own(&sql, None);
        None
    }
}
