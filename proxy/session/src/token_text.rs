//! The value of `fencing.token` inside PostgreSQL where a take stands in the client's text: the number takes its place.

use pgpalisade_policies::{Analysis, Control, FencingVariable};

use super::action::{Action, Prerequisite};
use super::{Session, injected};
use crate::fence::Pipeline;
use crate::fence::{HeldTokens, TokenValue, ends_transaction, takes, variables};
use crate::wire::backend::TransactionStatus;
use crate::wire::frontend::FrontendTag;

/// What PostgreSQL has been told of the session's token.
#[derive(Debug)]
pub(super) struct TokenText {
    pub(super) known: KnowsToken,
    now: Told,
    /// It was told inside the open transaction, whose rollback undoes it.
    may_be_undone: bool,
    /// By the startup packet: what a RESET returns to.
    at_startup: Told,
}

/// Whether the server has a value for `fencing.token`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KnowsToken {
    No,
    /// Even if an empty one.
    Yes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// What the session holds.
    Token,
    /// The same, inside a pipeline, whose end may undo it.
    TokenInPipeline,
    /// That the next one is to be taken, which only the proxy understands.
    Take,
}

impl Default for TokenText {
    fn default() -> Self {
        Self {
            known: KnowsToken::No,
            now: Told::Token,
            may_be_undone: false,
            at_startup: Told::Token,
        }
    }
}

impl TokenText {
    /// The startup packet has this value.
    pub(super) fn on_startup(&mut self, value: &TokenValue) {
        if value.takes() {
            (self.now, self.at_startup) = (Told::Take, Told::Take);
        }
    }

    /// A text of the client goes to the server as it is.
    pub(super) fn on_sent(&mut self, verdict: &Analysis) {
        let brings_back = self.at_startup == Told::Take;
        let is_told = |control: &Control| takes(control) || (brings_back && resets(control));
        let mut statements = verdict.statements.iter();
        if statements.any(|statement| statement.controls.iter().any(is_told)) {
            self.now = Told::Take;
        }
    }

    /// Something was rolled back, and the number with it, where it was told behind a DISCARD ALL in a pipeline: that is
    /// committed at once.
    pub(super) fn on_rollback(&mut self) {
        if self.at_startup == Told::Take {
            self.now = Told::Take;
        }
    }

    /// Whether the end of the pipeline decides what the server has.
    pub(super) const fn is_in_doubt(&self) -> bool {
        matches!(self.now, Told::TokenInPipeline)
    }

    /// ReadyForQuery.
    pub(super) const fn on_ready(&mut self, status: TransactionStatus) {
        if self.is_in_doubt() {
            self.now = Told::Token;
        }
        if matches!(status, TransactionStatus::Idle) {
            self.may_be_undone = false;
        }
    }

    /// Whether a statement may undo what was told. What follows waits until that is known.
    pub(super) fn is_undone_by(&self, control: &Control) -> bool {
        let ends = ends_transaction(control) || matches!(control, Control::RollbackTo(_));
        self.at_startup == Told::Take && self.may_be_undone && ends
    }

    /// Whether what stands behind a RESET in a text, or a rollback, would find the take of the startup packet, not the
    /// number. In a failed transaction COMMIT is a rollback.
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

/// Whether a text does nothing but take: any other that takes is refused.
pub(super) fn is_take(verdict: &Analysis) -> bool {
    let [statement] = &*verdict.statements else {
        return false;
    };
    matches!(&*statement.controls, [only] if takes(only))
}

/// A verdict with the tokens that its take has come to.
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
    /// Tells the server the number, in front of the client's next message: so nothing of the client runs before. What
    /// the take stands in has to be answered by then.
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

    /// What the tokens that a message waited for are, as a text of the same meaning.
    pub(super) fn text_of(&self, tokens: Option<&HeldTokens>) -> Box<str> {
        let scope = variables::scope(&self.client.fence, &self.client.variables);
        tokens.map_or_else(Box::default, |held| held.text(scope).into())
    }
}
