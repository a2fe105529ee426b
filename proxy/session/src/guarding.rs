//! When the read-only guard is stated, and what is refused while it is in doubt.

use pgpalisade_policies::{Analysis, Statement, WriteReason};

use super::action::{Action, Prerequisite, Refused};
use super::in_flight::{Leave, Request};
use super::judgement::{Judged, lifetime};
use super::read_only::{Adjustment, WriteAccess};
use super::{Binds, Session, Settles};
use crate::fence::{Meaning, Pipeline, Unguarded};
use crate::rejection::Rejection;
use crate::wire::backend::TransactionStatus;
use crate::wire::frontend::{self, FrontendTag};

impl Session {
    /// What must be stated before anything else is sent.
    #[inline]
    pub(super) fn adjust_first(&mut self, tag: FrontendTag) -> Option<Action> {
        // Looked at first, for in a pipeline it is so for all messages but one.
        if self.server.ledger.is_empty() {
            self.adjust_now(tag)
        } else {
            None
        }
    }

    fn adjust_now(&mut self, tag: FrontendTag) -> Option<Action> {
        if self.is_failed() || self.binds() == Binds::Yes || self.server.ledger.is_copying_in() {
            return None;
        }
        let adjustment = if self.is_inside() {
            let lifetime = self.client.variables.token_lifetime();
            let due = self.server.read_only.due_later(lifetime);
            due.filter(|_| self.standing() == WriteAccess::MayWrite)?
        } else {
            self.server.read_only.due_outside(self.standing())?
        };
        match adjustment {
            // What follows finds it due again, once this was answered.
            _ if tag.runs_nothing() => {
                self.client.settles = Settles::Yes;
                return None;
            }
            // Nothing has to be known of it: should it fail, the session ends.
            Adjustment::Release => {
                self.begin_adjustment(adjustment);
                return None;
            }
            // Should it fail, the client's own Sync ends the pipeline that its message begins.
            Adjustment::Lift(_) if tag.is_extended() => self.client.pipeline = Pipeline::Open,
            Adjustment::Lift(_) | Adjustment::Guard => {}
        }
        Some(Action::Need(Prerequisite::Access(adjustment)))
    }

    #[inline]
    pub(super) fn standing(&self) -> WriteAccess {
        match self.client.fence.may_write(self.client.variables.token()) {
            true => WriteAccess::MayWrite,
            false => WriteAccess::MayNotWrite,
        }
    }

    /// What comes before a Parse: it can run functions of the database, the checks of a domain in an array's literal.
    pub(super) fn before_parse(&mut self, judged: &Judged<'_>) -> Result<Leave, Action> {
        let statements = &judged.verdict.statements;
        let unread =
            |statement: &Statement| statement.why.as_ref().is_some_and(WriteReason::is_unparsed);
        let may_read_one = has_literal(judged.text) || statements.iter().any(unread);
        let may_run = may_read_one && statements.iter().any(Statement::may_hide_a_write);
        self.before_running(may_run, Some(judged))
    }

    /// What comes before a Bind: the text is planned, for which functions that are said to be stable are run, and
    /// parameters are read, which checks those of a domain.
    pub(super) fn before_bind(&mut self, meaning: &Meaning, body: &[u8]) -> Result<Leave, Action> {
        let may_run = may_hide_a_write(meaning) || frontend::bind_parameters(body) != Some(0);
        self.before_running(may_run, None)
    }

    /// What comes before a Describe of a statement: its text may be read again, as by a Parse.
    pub(super) fn before_describe(&mut self, meaning: &Meaning) -> Result<Leave, Action> {
        self.before_running(may_hide_a_write(meaning), None)
    }

    /// What comes before a message that prepares an Execute, where it may run a function of the database. What could
    /// hide in an Execute could hide there.
    fn before_running(
        &mut self,
        may_run: bool,
        judged: Option<&Judged<'_>>,
    ) -> Result<Leave, Action> {
        if !may_run {
            return Ok(Leave::Read);
        }
        if self.standing() == WriteAccess::MayWrite {
            self.server.text_settings.on_run();
            return Ok(Leave::ReadUnguarded);
        }
        if let Some(rejection) = self.unguarded() {
            return Err(match self.server.ledger.is_empty() {
                true => {
                    let statement = judged.map(Judged::for_the_record);
                    self.refuse(Box::new(rejection), Refused::InPipeline, statement)
                }
                false => Action::Need(Prerequisite::Replies),
            });
        }
        self.server.text_settings.on_run();
        Ok(Leave::Read)
    }

    /// The refusal of what may hide a write, while read-only mode is in doubt. In a transaction that has failed nothing
    /// runs.
    pub(super) fn unguarded(&self) -> Option<Rejection> {
        let why = self.server.read_only.guard().in_doubt()?;
        if why == Unguarded::BegunOtherwise && self.is_failed() {
            return None;
        }
        let token = self.client.variables.token();
        self.client.fence.unguarded(token, why)
    }

    /// What is stated before a text that binds a token, so that what follows in the same text can write. In an open
    /// pipeline the transaction may have taken its snapshot, so there it waits until something follows that needs it.
    pub(super) fn adjustment_before_binding(
        &mut self,
        verdict: &Analysis,
        request: Request,
    ) -> Option<Adjustment> {
        // In a failed transaction it would fail too.
        if self.is_failed() || !self.server.ledger.is_empty() {
            return None;
        }
        if request == Request::Execute && self.server.status == TransactionStatus::Idle {
            self.server.read_only.lift_later();
            return None;
        }
        if self.is_inside() {
            self.server.read_only.due_inside(lifetime(verdict))
        } else {
            self.server.read_only.due_outside(WriteAccess::MayWrite)
        }
    }
}

fn may_hide_a_write(meaning: &Meaning) -> bool {
    meaning.verdict().is_none_or(|verdict| {
        let mut statements = verdict.statements.iter();
        statements.any(Statement::may_hide_a_write)
    })
}

/// Whether a text has a string constant, also one in dollars. Nothing else is read by a function of its type when a
/// text is parsed: <https://www.postgresql.org/docs/current/sql-syntax-lexical.html#SQL-SYNTAX-CONSTANTS>
fn has_literal(text: &[u8]) -> bool {
    let in_dollars = |pair: &[u8]| matches!(pair, [b'$', next] if !next.is_ascii_digit());
    text.contains(&b'\'') || text.windows(2).any(in_dollars)
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
