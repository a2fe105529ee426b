//! Value of `fencing.token` inside PostgreSQL after a take in the client's text: the token number replaces the take.

use pgpalisade_policies::{Analysis, Control, FencingVariable};

use super::action::{Action, Prerequisite};
use super::{Session, injected};
use crate::fence::Pipeline;
use crate::fence::{HeldTokens, TokenValue, ends_transaction, takes, variables};
use crate::wire::backend::TransactionStatus;
use crate::wire::frontend::FrontendTag;

/// PostgreSQL's knowledge of the session's token.
#[derive(Debug)]
pub(super) struct TokenText {
    /// Whether the server has a value for `fencing.token`, perhaps an empty one.
    pub(super) is_known: bool,
    now: Told,
    /// The value was set inside the open transaction, so a rollback undoes it.
    may_be_undone: bool,
    /// Value in the startup packet, to which RESET returns.
    at_startup: Told,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// The tokens that the session holds.
    Token,
    /// The same, set inside a pipeline whose end may undo it.
    TokenInPipeline,
    /// A take, which only the proxy understands.
    Take,
}

impl Default for TokenText {
    fn default() -> Self {
        Self {
            is_known: false,
            now: Told::Token,
            may_be_undone: false,
            at_startup: Told::Token,
        }
    }
}

impl TokenText {
    /// Notes the value in the startup packet.
    pub(super) fn on_startup(&mut self, value: &TokenValue) {
        if value.takes() {
            (self.now, self.at_startup) = (Told::Take, Told::Take);
        }
    }

    /// Notes a text of the client that is sent unchanged.
    pub(super) fn on_sent(&mut self, verdict: &Analysis) {
        let brings_back = self.at_startup == Told::Take;
        let is_told = |control: &Control| takes(control) || (brings_back && resets(control));
        let mut statements = verdict.statements.iter();
        if statements.any(|statement| statement.controls.iter().any(is_told)) {
            self.now = Told::Take;
        }
    }

    /// Notes a rollback, which undoes the number if a DISCARD ALL came before it in a pipeline: that is committed at
    /// once.
    pub(super) fn on_rollback(&mut self) {
        if self.at_startup == Told::Take {
            self.now = Told::Take;
        }
    }

    /// Whether the end of the pipeline decides which value the server has.
    pub(super) const fn is_in_doubt(&self) -> bool {
        matches!(self.now, Told::TokenInPipeline)
    }

    pub(super) const fn on_ready(&mut self, status: TransactionStatus) {
        if self.is_in_doubt() {
            self.now = Told::Token;
        }
        if matches!(status, TransactionStatus::Idle) {
            self.may_be_undone = false;
        }
    }

    /// Whether a statement may undo the value. What follows waits until that is known.
    pub(super) fn is_undone_by(&self, control: &Control) -> bool {
        let ends = ends_transaction(control) || matches!(control, Control::RollbackTo(_));
        self.at_startup == Told::Take && self.may_be_undone && ends
    }

    /// Whether a statement after a RESET or rollback in the text would see the take of the startup packet instead of
    /// the number. COMMIT of a failed transaction is a rollback.
    pub(super) fn is_shown_by(&self, verdict: &Analysis) -> bool {
        let brings_back = |control: &Control| resets(control) || self.is_undone_by(control);
        let in_front = verdict
            .statements
            .split_last()
            .map_or(&[][..], |(_, all)| all);
        let mut in_front = in_front.iter().flat_map(|statement| &statement.controls);
        self.at_startup == Told::Take && in_front.any(brings_back)
    }
}

const fn resets(control: &Control) -> bool {
    matches!(
        control,
        Control::ResetFencing {
            variable: FencingVariable::Token,
            ..
        } | Control::ResetAll
            | Control::DiscardAll
    )
}

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
        match self.server.token_text.now {
            Told::Token | Told::TokenInPipeline => None,
            Told::Take => self.tell_token_before(tag),
        }
    }

    fn tell_token_before(&mut self, tag: FrontendTag) -> Option<Action> {
        if tag.runs_nothing() || self.is_failed() {
            return None;
        }
        if !self.server.ledger.is_empty() {
            return Some(Action::Need(Prerequisite::Replies));
        }
        let (client, server) = (&self.client, &mut self.server);
        server.token_text.may_be_undone =
            client.pipeline == Pipeline::Open || server.status != TransactionStatus::Idle;
        server.token_text.now = match client.pipeline {
            Pipeline::Open => Told::TokenInPipeline,
            Pipeline::Closed => Told::Token,
        };
        let scope = variables::scope(&client.fence, &client.variables);
        let token = client.variables.token();
        let text = token.map_or_else(String::new, |held| held.text(scope));
        let sql = injected::setting("fencing.token", &text, client.variables.token_lifetime());
        self.execute_own(&sql, None);
        None
    }

    /// Value of `fencing.token` for tokens that a message waited for.
    pub(super) fn text_of(&self, tokens: Option<&HeldTokens>) -> Box<str> {
        let scope = variables::scope(&self.client.fence, &self.client.variables);
        tokens.map_or_else(Box::default, |held| held.text(scope).into())
    }
}
