//! A BEGIN that is held back: its client is answered, and it is sent ahead of the client's next message, which decides
//! on the server connection of the transaction.

use std::cell::RefCell;
use std::sync::Arc;

use bytes::BytesMut;
use pgpalisade_policies::{
    Analysis, Chain, Control, FencingVariable, Lifetime, Statement, TextEncoding, VerdictCache,
    Weight, classify, is_ascii, weigh,
};

use super::action::Action;
use super::frame::Frame;
use super::in_flight::Origin;
use super::unserved::{Block, Needs, NextReply};
use super::{ClientHalf, Session};
use crate::fence::{Permit, TokenValue};
use crate::rejection::Rejection;
use crate::wire::backend::TransactionStatus;
use crate::wire::encode::{self, CommandComplete, ReadyForQuery, Severity};
use crate::wire::frontend::{self, FrontendTag};
use crate::wire::header::{self, HEADER_LEN, Header};

/// Any Query.
const QUERY: Header = Header {
    tag: b'Q',
    body_len: 0,
};

/// Part of a text in which a BEGIN ends, or a token is declared first.
const FRONT_MAX: usize = 256;

impl ClientHalf {
    /// Answers a whole Query at the front of `bytes` that only begins a transaction, and holds it back, or that ends
    /// one that was lost. A ROLLBACK with more after it is answered, and blanked: the rest needs a server connection.
    pub fn hold_back(
        &mut self,
        bytes: &mut [u8],
        verdicts: &RefCell<VerdictCache>,
        out: &mut BytesMut,
    ) -> Needs {
        if self.block == Block::Failed {
            return self.end_failed(bytes, verdicts, out);
        }
        let query = query(bytes).filter(|(_, text)| text.len() <= FRONT_MAX);
        let Some((message, text)) = query else {
            return Needs::Server;
        };
        let Some(command_tag) = command_tag(text).filter(|_| self.block == Block::None) else {
            return Needs::Server;
        };
        let verdict = read(text, verdicts);
        let statements = verdict.as_deref().map(|verdict| &*verdict.statements);
        // A refusal is told at once.
        let is_admitted = |begin: &Statement| {
            let is_stale = self.tokens().is_some_and(|held| held.stale().is_some());
            let held = self.tokens().or_else(|| self.state.token());
            let admitted = self.fence.admit_effects(QUERY, &begin.effects, held);
            // In place of one with READ WRITE, another text may be sent.
            !is_stale && admitted.is_ok() && begin.why.is_none()
        };
        if !matches!(statements, Some([only]) if begins(only) && is_admitted(only)) {
            return Needs::Server;
        }
        self.block = Block::Begun(message.into());
        self.drop_unnamed();
        complete(command_tag, TransactionStatus::InTransaction, out);
        Needs::Nothing
    }

    fn end_failed(
        &mut self,
        bytes: &mut [u8],
        verdicts: &RefCell<VerdictCache>,
        out: &mut BytesMut,
    ) -> Needs {
        let ends = |text: &[u8]| {
            let verdict = read(text, verdicts);
            let statements = verdict.as_deref().map(|verdict| &*verdict.statements);
            matches!(statements, Some([only]) if ends(only))
        };
        let Some((_, text)) = query(bytes) else {
            return Needs::Server;
        };
        if text.len() <= FRONT_MAX && ends(text) {
            self.block = Block::None;
            self.drop_unnamed();
            complete("ROLLBACK", TransactionStatus::Idle, out);
            return Needs::Nothing;
        }
        let mut front = text.iter().take(FRONT_MAX);
        let first = front.position(|byte| *byte == b';').unwrap_or_default();
        // COMMIT and what begins the next transaction are left to a failed one at the server.
        let word = text.trim_ascii_start().first_chunk::<8>();
        if word.is_some_and(|word| word.eq_ignore_ascii_case(b"ROLLBACK"))
            && text
                .get(..first)
                .is_some_and(|front| ends(front) && !has_comment(front))
            && let Some(rollback) = bytes.get_mut(HEADER_LEN..=HEADER_LEN + first)
        {
            rollback.fill(b' ');
            self.block = Block::None;
            encode::put(out, &CommandComplete::new("ROLLBACK".into()));
        }
        Needs::Server
    }

    /// As any Query does.
    fn drop_unnamed(&mut self) {
        if let Some(all) = &mut self.statements {
            all.unnamed = None;
        }
    }

    /// Tokens that a server connection for this message should be registered with, in canonical form: those in force,
    /// or those that the message declares before anything else. The latter do not count before they are declared.
    #[must_use]
    pub fn wants(&self, message: &[u8], verdicts: &RefCell<VerdictCache>) -> Option<String> {
        if let Some(held) = self.tokens() {
            return held.stale().is_none().then(|| held.to_string());
        }
        let (_, text) = query(message)?;
        let front = text.get(..FRONT_MAX).unwrap_or(text);
        if !may_name_ours(front) {
            return None;
        }
        let value = self.declared_first(&*read(text, verdicts)?)?;
        self.fence.may_declare_all(&value, Lifetime::Session).ok()?;
        self.wants_for(&value)
    }

    /// As [`Self::wants`], for tokens that are to be declared. `None` if one is stale, not known yet, or to be asked
    /// for: whoever has declared it before may have lost its election since.
    #[must_use]
    pub fn wants_for(&self, value: &TokenValue) -> Option<String> {
        let (marks, policy) = (self.fence.fence(), self.fence.rules().policy());
        let claims = value.claims().iter().map(|(scope, claim)| {
            let token = claim.token()?;
            let is_asked_for = policy.bounds(scope.as_str()).election().is_some();
            let counts = !is_asked_for && marks.mark_above(scope, token).is_none();
            // As `HeldTokens` are written.
            counts.then(|| format!("{scope}={token}"))
        });
        Some(claims.collect::<Option<Vec<_>>>()?.join(","))
    }

    fn declared_first(&self, verdict: &Analysis) -> Option<TokenValue> {
        let mut statements = verdict.statements.iter().peekable();
        let mut is_inside = self.block != Block::None;
        while statements.next_if(|statement| begins(statement)).is_some() {
            is_inside = true;
        }
        match &*statements.next()?.controls {
            [
                Control::SetFencing {
                    variable: FencingVariable::Token,
                    value,
                    lifetime,
                },
            ] if is_inside || *lifetime == Lifetime::Session => {
                let scope = self.state.scope(&self.fence);
                TokenValue::parse(value, scope).ok().flatten()
            }
            _ => None,
        }
    }
}

impl Session {
    /// Decides the BEGIN that was held back, as it would have been decided before. The replies to it are dropped.
    pub(super) fn begin_held(
        &mut self,
        message: &[u8],
        verdicts: &RefCell<VerdictCache>,
    ) -> Result<Permit, Action> {
        let Ok(Some(header)) = header::parse(message, frontend::body_max) else {
            return Err(Action::Discard);
        };
        match self.on_frontend(Frame::new(header, message), verdicts) {
            Action::Forward(permit) => {
                if let Some(begin) = self.server.ledger.back_mut() {
                    begin.origin = Origin::Injected;
                }
                Ok(permit)
            }
            other => Err(other),
        }
    }

    /// Refuses the BEGIN that was held back. Its client believes to be in a transaction: that has failed.
    pub(super) fn refuse_held(&mut self, rejection: &Rejection) {
        let mut error = BytesMut::new();
        rejection.encode(Severity::Error, &mut error);
        self.client.next_reply = NextReply::Error(error[..].into());
        self.client.block = Block::Failed;
    }
}

/// The whole Query at the front of `bytes`, and its text.
fn query(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let header = header::parse(bytes, frontend::body_max).ok().flatten()?;
    let message = bytes.get(..header.frame_len())?;
    let text = frontend::query(message.get(HEADER_LEN..)?).ok()?;
    let is_query = FrontendTag::from_byte(header.tag) == Ok(FrontendTag::Query);
    is_query.then_some((message, text))
}

/// Whether a text may name a setting of ours.
fn may_name_ours(text: &[u8]) -> bool {
    // No early exit, so that the compiler can vectorize the loop.
    let pairs = text.iter().zip(text.get(1..).unwrap_or_default());
    pairs.fold(false, |found, (a, b)| {
        found | ((a | 0x20 == b'f') & (b | 0x20 == b'e'))
    })
}

/// Verdict on a text that every server reads the same.
fn read(text: &[u8], verdicts: &RefCell<VerdictCache>) -> Option<Arc<Analysis>> {
    let (mut verdicts, encoding) = (verdicts.borrow_mut(), TextEncoding::Utf8);
    if !is_ascii(text) || weigh(text) == Weight::Heavy {
        return None;
    }
    let known = verdicts.find(text, encoding);
    Some(known.unwrap_or_else(|| {
        let verdict = Arc::new(classify(text, encoding));
        verdicts.keep(text, encoding, &verdict);
        verdict
    }))
}

fn complete(command_tag: &str, status: TransactionStatus, out: &mut BytesMut) {
    encode::put(out, &CommandComplete::new(command_tag.to_owned()));
    encode::put(out, &ReadyForQuery::new(status.into()));
}

/// Whether a comment begins here that may go on beyond the end.
fn has_comment(front: &[u8]) -> bool {
    front.windows(2).any(|pair| pair == b"--")
}

fn ends(statement: &Statement) -> bool {
    let chain = Chain::No;
    let (commit, rollback) = (Control::Commit { chain }, Control::Rollback { chain });
    matches!(&*statement.controls, [only] if *only == commit || *only == rollback)
}

fn begins(statement: &Statement) -> bool {
    matches!(&*statement.controls, [Control::Begin { .. }])
}

/// Command tag of a BEGIN that has no comment before it.
fn command_tag(text: &[u8]) -> Option<&'static str> {
    let text = text.trim_ascii_start();
    let begins_with = |word: &[u8]| {
        let front = text.get(..word.len());
        front.is_some_and(|front| front.eq_ignore_ascii_case(word))
    };
    let words: [(&[u8], _); 2] = [(b"BEGIN", "BEGIN"), (b"START", "START TRANSACTION")];
    let mut words = words.into_iter();
    words.find_map(|(word, command_tag)| begins_with(word).then_some(command_tag))
}
