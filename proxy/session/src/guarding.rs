//! Setting the read-only guard, and refusing what may write while it is in doubt.

use std::sync::Arc;

use pgpalisade_policies::{Analysis, Chain, Class, Control, Statement, TextEncoding, classify};

use super::action::{Action, Prerequisite, Refused};
use super::in_flight::Request;
use super::judgement::{Judged, lifetime};
use super::read_only::{AccessChange, WriteAccess};
use super::{ReadWriteRequest, Session};
use crate::fence::{
    Admitted, Leave, Name, Pipeline, Plan, PreparedText, Unguarded, Unmet, end_of_failed,
    ends_transaction,
};
use crate::rejection::{Rejection, RejectionKind};
use crate::wire::backend::TransactionStatus;
use crate::wire::encode;
use crate::wire::frontend::{self, FrontendTag};
use crate::wire::header::Header;

impl Session {
    /// Change of the access mode that comes before anything else is sent.
    #[inline]
    pub(super) fn set_access_first(&mut self, tag: FrontendTag) -> Option<Action> {
        // Checked first: in a pipeline this excludes all messages but one.
        if self.server.ledger.is_empty() {
            self.set_access_now(tag)
        } else {
            None
        }
    }

    fn set_access_now(&mut self, tag: FrontendTag) -> Option<Action> {
        if self.is_failed() || self.is_binding() || self.server.ledger.is_copying_in() {
            return None;
        }
        let change = if self.is_inside() {
            let lifetime = self.client.state.token_lifetime();
            let due = self.server.read_only.due_later(lifetime);
            due.filter(|_| self.write_access() == WriteAccess::MayWrite)?
        } else {
            self.server.read_only.due_outside(self.write_access())?
        };
        match change {
            // The next message finds the change due again, after this one was answered.
            _ if tag.runs_nothing() => {
                self.client.settles = true;
                return None;
            }
            // No reply to wait for: if it fails, the session ends.
            AccessChange::Release => {
                self.begin_set_access(change);
                return None;
            }
            // If it fails, the client's own Sync ends the pipeline that its message begins.
            AccessChange::ReadWrite(_) if tag.is_extended() => {
                self.client.pipeline = Pipeline::Open
            }
            AccessChange::ReadWrite(_) | AccessChange::Guard => {}
        }
        Some(Action::Need(Prerequisite::Access(change)))
    }

    #[inline]
    pub(super) fn write_access(&self) -> WriteAccess {
        if self.client.fence.may_write(self.client.state.token()) {
            WriteAccess::MayWrite
        } else {
            WriteAccess::MayNotWrite
        }
    }

    /// Permission for a Parse, which can run functions of the database: checks of a domain in an array literal.
    pub(super) fn before_parse(&mut self, judged: &Judged<'_>) -> Result<Leave, Action> {
        let mut statements = judged.verdict.statements.iter();
        let may_run = statements.clone().any(Statement::may_hide_a_write)
            && (statements.any(Statement::is_unread) || has_literal(judged.text));
        self.before_running(may_run, Some(judged.verdict), Some(judged))
    }

    /// Permission for a Bind, which can run functions of the database: planning runs those declared stable, and
    /// reading parameters runs the checks of domains.
    pub(super) fn before_bind(
        &mut self,
        name: Name<'_>,
        meaning: &PreparedText,
        body: &[u8],
    ) -> Result<Leave, Action> {
        let has_parameters = frontend::bind_parameters(body) != Some(0);
        let may_run = has_parameters || self.may_hide(name, meaning);
        self.before_running(may_run, meaning.verdict().map(AsRef::as_ref), None)
    }

    /// Permission for a Describe of a statement, which may parse its text again.
    pub(super) fn before_describe(
        &mut self,
        name: Name<'_>,
        meaning: &PreparedText,
    ) -> Result<Leave, Action> {
        self.before_running(
            self.may_hide(name, meaning),
            meaning.verdict().map(AsRef::as_ref),
            None,
        )
    }

    /// Whether a write can hide in what runs by the name of a statement: a function may have run DEALLOCATE and
    /// PREPARE, so that it is another one. Where read-only mode is sure, what steers is believed. So is what ends an
    /// open transaction: a reply to anything else contradicts it.
    fn may_hide(&self, name: Name<'_>, meaning: &PreparedText) -> bool {
        let Some(verdict) = meaning.verdict().filter(|_| !may_hide_a_write(meaning)) else {
            return true;
        };
        let mut statements = verdict.statements.iter();
        if name.is_unnamed() || statements.clone().any(Statement::computes_nothing) {
            return !name.is_unnamed();
        }
        let is_of_block = statements.all(|one| one.controls.iter().any(Control::is_transaction));
        let is_open = self.server.read_only.guard().in_doubt() == Some(Unguarded::BegunOtherwise);
        self.unguarded().is_some() && !(is_of_block && is_open)
    }

    /// Permission for a message that prepares an Execute. If it may run a function of the database, a write can hide
    /// in it as in the Execute.
    fn before_running(
        &mut self,
        may_run: bool,
        verdict: Option<&Analysis>,
        judged: Option<&Judged<'_>>,
    ) -> Result<Leave, Action> {
        if !may_run {
            return Ok(Leave::Read);
        }
        if let Some(rejection) = self.unguarded() {
            let rejection = Box::new(rejection);
            return Err(self.refuse_once_answered(rejection, Refused::InPipeline, judged));
        }
        self.server.text_settings.on_run();
        let declares = verdict.is_some_and(|verdict| verdict.any_control(Control::gives_token));
        Ok(if declares {
            Leave::Read
        } else {
            self.leave_for_reads()
        })
    }

    /// Refusal of what may hide a write, while read-only mode is in doubt. In a failed transaction nothing runs.
    pub(super) fn unguarded(&self) -> Option<Rejection> {
        let why = self.server.read_only.guard().in_doubt()?;
        if why == Unguarded::BegunOtherwise && self.is_failed() {
            return None;
        }
        let token = self.client.state.token();
        self.client.fence.unguarded(token, why)
    }

    /// What a text does after it has ended the open transaction and then set a token, if that comes too late to make
    /// the next transaction read-write.
    pub(super) fn after_a_late_token<'a>(&self, verdict: &'a Analysis) -> Option<&'a [Statement]> {
        if self.client.state.status() == TransactionStatus::Idle {
            return None;
        }
        let is_undone = self.is_failed();
        let mut guards = false;
        for (at, statement) in verdict.statements.iter().enumerate() {
            for control in &statement.controls {
                let begins_another = match control {
                    Control::Commit { chain } | Control::Rollback { chain } => *chain == Chain::No,
                    other => matches!(other, Control::PrepareTransaction),
                };
                if begins_another {
                    let undone = end_of_failed(control).filter(|_| is_undone);
                    let end = undone.as_ref().unwrap_or(control);
                    guards |= self.server.read_only.guards_after(end);
                } else if (control.sets_token() || control.resets_token()) && guards {
                    return verdict.statements.get(at + 1..);
                }
            }
        }
        None
    }

    /// Refusal of a text that writes in such a transaction.
    pub(super) fn declared_after_an_end(&self, verdict: &Analysis) -> Option<Box<Rejection>> {
        let mut later = self.after_a_late_token(verdict)?.iter();
        let writes = later.any(|statement| statement.effects.class == Class::Write);
        writes.then(|| Box::new(Rejection::declared_after_an_end()))
    }

    /// Sends a BEGIN of the proxy's in place of one with READ WRITE, if that is why it is refused. The transaction is
    /// read-only until it declares a token, as after a plain BEGIN.
    pub(super) fn begin_guarded(
        &mut self,
        unmet: &Unmet,
        refused: &Judged<'_>,
        request: Request,
    ) -> Option<Action> {
        let Unmet::Refuse(rejection) = unmet else {
            return None;
        };
        let begin = guarded_begin(rejection, refused, request)?;
        let verdict = Arc::new(classify(begin.as_bytes(), TextEncoding::Utf8));
        let judged = Judged {
            verdict: &verdict,
            text: begin.as_bytes(),
        };
        let body = [begin.as_bytes(), b"\0"].concat();
        let header = Header {
            tag: b'Q',
            body_len: body.len(),
        };
        Some(match self.decide(header, &judged, Request::Query) {
            // The permission is for this text.
            Action::Forward(_) => {
                encode::put_raw(&mut self.output.to_server, header.tag, &body);
                self.client.pipeline = Pipeline::Closed;
                Action::Discard
            }
            other => other,
        })
    }

    /// Replaces the plan of a text whose refusal is only observed, if in enforce mode [`Self::begin_guarded`] would not
    /// have refused it either.
    pub(super) fn as_if_guarded(
        &self,
        planned: (Admitted, Plan),
        message: Header,
        judged: &Judged<'_>,
        request: Request,
    ) -> (Admitted, Plan) {
        let observed = planned.0.observed.as_deref();
        let begin = observed.and_then(|rejection| guarded_begin(rejection, judged, request));
        let guarded = begin.and_then(|begin| {
            let verdict = classify(begin.as_bytes(), TextEncoding::Utf8);
            self.plan(message, &verdict).ok()
        });
        match guarded {
            Some((admitted, plan)) => {
                let guard = planned.1.guard;
                (admitted, Plan { guard, ..plan })
            }
            None => planned,
        }
    }

    /// Refusal, only observed, of a token that is declared after a query of the open transaction, which enforce mode
    /// would have begun read-only.
    pub(super) fn late_token(&mut self, plan: &Plan, verdict: &Analysis) -> Option<Box<Rejection>> {
        let client = &mut self.client;
        if !client.fence.would_be_read_only(client.state.token()) {
            return None;
        }
        if plan.declares && client.has_queried {
            client.has_queried = false;
            return Some(Box::new(Rejection::declared_too_late()));
        }
        for statement in &verdict.statements {
            let mut controls = statement.controls.iter();
            client.has_queried &= !controls.clone().any(ends_transaction);
            let is_savepoint = |control: &Control| matches!(control, Control::Savepoint(_));
            let steers = statement.only_steers() || controls.clone().any(Control::is_transaction);
            client.has_queried |= !steers || controls.any(is_savepoint);
        }
        None
    }

    /// Change of the access mode before a text that binds a token, so that the rest of the text can write. The
    /// transaction of an open pipeline may have its snapshot: there the change waits until a message needs it.
    pub(super) fn set_access_before_binding(
        &mut self,
        verdict: &Analysis,
        request: Request,
    ) -> Option<AccessChange> {
        if self.after_a_late_token(verdict).is_some() {
            self.server.read_only.read_write_after_end();
            return None;
        }
        // In a failed transaction the change would fail too.
        if self.is_failed() || !self.server.ledger.is_empty() {
            return None;
        }
        if request == Request::Execute && self.client.state.status() == TransactionStatus::Idle {
            self.server.read_only.read_write_later();
            return None;
        }
        if self.is_inside() {
            let prepared = self.prepared.as_ref();
            let is_sent = prepared.is_some_and(|done| done.read_write == ReadWriteRequest::Sent);
            let due = self.server.read_only.due_inside(lifetime(verdict));
            due.filter(|_| !is_sent)
        } else {
            self.server.read_only.due_outside(WriteAccess::MayWrite)
        }
    }
}

/// The text without READ WRITE if that is why it is refused, and it is one BEGIN of nothing but words.
fn guarded_begin(rejection: &Rejection, judged: &Judged<'_>, request: Request) -> Option<String> {
    // One with a stale token is told so.
    let may_read = matches!(
        rejection.kind,
        RejectionKind::NoToken | RejectionKind::Policy
    );
    let [begin] = &*judged.verdict.statements else {
        return None;
    };
    let is_begin = matches!(&*begin.controls, [Control::Begin { .. }]);
    let text = str::from_utf8(judged.text).ok()?;
    let is_word = |char: char| char.is_ascii_alphabetic() || ",; \t\n\r".contains(char);
    let is_plain = text.chars().all(is_word);
    if !may_read || !is_begin || !is_plain || request != Request::Query {
        return None;
    }
    let words = text.split(|char: char| !char.is_ascii_alphabetic());
    let mut words = words.filter(|word| !word.is_empty()).peekable();
    let mut kept = Vec::new();
    let mut has_read_write = false;
    while let Some(word) = words.next() {
        let is_read = word.eq_ignore_ascii_case("read");
        match words.next_if(|next| is_read && next.eq_ignore_ascii_case("write")) {
            Some(_) => has_read_write = true,
            None => kept.push(word),
        }
    }
    has_read_write.then(|| kept.join(" "))
}

fn may_hide_a_write(meaning: &PreparedText) -> bool {
    meaning.verdict().is_none_or(|verdict| {
        let mut statements = verdict.statements.iter();
        statements.any(Statement::may_hide_a_write)
    })
}

/// Whether a text has a string constant, also in dollar quotes. Parsing calls a type's input function for nothing
/// else: <https://www.postgresql.org/docs/current/sql-syntax-lexical.html#SQL-SYNTAX-CONSTANTS>
fn has_literal(text: &[u8]) -> bool {
    // No early exit, so that the compiler can vectorize the loop.
    let pairs = text.iter().zip(text.get(1..).unwrap_or_default());
    let in_dollars = pairs.fold(false, |found, (dollar, next)| {
        found | ((*dollar == b'$') & !next.is_ascii_digit())
    });
    in_dollars || text.contains(&b'\'')
}

#[cfg(test)]
mod tests {
    use super::has_literal;

    #[test]
    fn literals() {
        for text in [
            "'{x}'::dom[]",
            "SELECT E'\\x'",
            "SELECT $$x$$",
            "SELECT $a$x$a$",
        ] {
            assert!(has_literal(text.as_bytes()), "{text}");
        }
        for text in [
            "SELECT $1 / 0",
            "",
            "SELECT 1 FROM t WHERE a = $1 AND b = $22",
        ] {
            assert!(!has_literal(text.as_bytes()), "{text}");
        }
    }
}
