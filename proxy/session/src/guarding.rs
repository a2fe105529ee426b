//! Keeping PostgreSQL's read-only mode up for a session that may not write, and taking it down for one that may.

use pgpalisade_policies::{Access, Control, Statement, Verdict, WriteReason};

use super::access::{Adjustment, Place, WriteAccess};
use super::action::{Action, Prerequisite, Refused};
use super::in_flight::{Leave, Request};
use super::judgement::Judged;
use super::names::Meaning;
use super::read_only::Certainty;
use super::{Binds, Pipeline, Session, Settles};
use crate::fence::Unguarded;
use crate::rejection::Rejection;
use crate::wire::backend::TransactionStatus;
use crate::wire::frontend::{self, FrontendTag};

impl Session {
    /// A change of the access mode that is due before anything else is sent.
    #[inline]
    pub(super) fn adjust_first(&mut self, tag: FrontendTag) -> Option<Action> {
        // Looked at first, for in a pipeline it is so for all messages but one.
        match self.server.ledger.is_empty() {
            true => self.adjust_now(tag),
            false => None,
        }
    }

    fn adjust_now(&mut self, tag: FrontendTag) -> Option<Action> {
        if self.is_failed() || self.binds() == Binds::Yes {
            return None;
        }
        let adjustment = self.due_adjustment(self.standing())?;
        match adjustment {
            // What follows finds it due again, once this was answered.
            _ if tag.runs_nothing() => {
                self.client.settles = Settles::Yes;
                return None;
            }
            // Only what runs a query needs it: see `lower_due`.
            Adjustment::SetReadOnly => return None,
            // Should it fail, the client's own Sync ends the pipeline that its message begins.
            Adjustment::SetReadWrite if tag.is_extended() => self.client.pipeline = Pipeline::Open,
            // Nothing has to be known of it: should it fail, the session ends.
            Adjustment::Default(Access::ReadWrite) => {
                self.begin_adjustment(adjustment);
                return None;
            }
            Adjustment::SetReadWrite | Adjustment::Default(Access::ReadOnly) => {}
        }
        Some(Action::Need(Prerequisite::Access(adjustment)))
    }

    fn due_adjustment(&self, standing: WriteAccess) -> Option<Adjustment> {
        // While requests are in flight the session's state is not known, and nothing can have
        // changed it: what could was waited for.
        if !self.server.ledger.is_empty() || self.server.ledger.is_copying_in() {
            return None;
        }
        let place = match self.is_inside() {
            true => Place::Inside,
            false => Place::Outside,
        };
        self.server.read_only.mode.adjustment(standing, place)
    }

    /// What comes before something that could hide a write, where the session has lost its token inside a transaction:
    /// the transaction becomes read-only.
    pub(super) fn lower_due(&self) -> Option<Prerequisite> {
        match self.standing() {
            WriteAccess::MayWrite => None,
            WriteAccess::MayNotWrite => self.lower_due_for_reads(),
        }
    }

    /// The same, where the session is known not to be one that may write.
    #[inline]
    fn lower_due_for_reads(&self) -> Option<Prerequisite> {
        if !self.is_inside()
            || self.binds() == Binds::Yes
            || self.is_failed()
            || self.server.ledger.is_copying_in()
            || !self.server.read_only.lower_due()
        {
            return None;
        }
        Some(match self.server.ledger.is_empty() {
            true => Prerequisite::Access(Adjustment::SetReadOnly),
            false => Prerequisite::Replies,
        })
    }

    /// The same for a text. A statement that only steers the session runs without: in a pipeline some of them must not
    /// follow another statement. A COMMIT may run the query of a cursor that it keeps.
    pub(super) fn lower_first(&self, verdict: &Verdict) -> Option<Prerequisite> {
        let commits = |control: &Control| matches!(control, Control::Commit { .. });
        let runs = |statement: &Statement| {
            statement.may_hide_a_write() || statement.controls.iter().any(commits)
        };
        let mut statements = verdict.statements.iter();
        statements.any(runs).then(|| self.lower_due())?
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
        let unread = |statement: &Statement| matches!(statement.why, Some(WriteReason::Opaque(_)));
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
            // It matters where the session loses its token before the pipeline ends.
            self.server.read_only.on_run();
            self.server.text_settings.on_run();
            return Ok(Leave::ReadUnguarded);
        }
        if let Some(prerequisite) = self.lower_due_for_reads() {
            return Err(Action::Need(prerequisite));
        }
        if self.server.read_only.certainty() == Certainty::InDoubt
            && let Some(rejection) = self.unguarded()
        {
            return Err(match self.server.ledger.is_empty() {
                true => {
                    let statement = judged.map(Judged::for_the_record);
                    self.refuse(Box::new(rejection), Refused::InPipeline, statement)
                }
                false => Action::Need(Prerequisite::Replies),
            });
        }
        self.server.read_only.on_run();
        self.server.text_settings.on_run();
        Ok(Leave::Read)
    }

    /// The refusal of what may hide a write, while read-only mode is in doubt.
    pub(super) fn unguarded(&self) -> Option<Rejection> {
        let token = self.client.variables.token();
        let fence = &self.client.fence;
        fence.unguarded(token, Unguarded::TransactionEnded)
    }

    /// A text that binds a token is sent to a session that may write already, so that what follows
    /// in the same text can. In an open pipeline the transaction may have taken its snapshot, so
    /// there it waits until something follows that needs it.
    pub(super) fn adjustment_before_binding(&self, request: Request) -> Option<Adjustment> {
        let in_pipeline_only =
            request == Request::Execute && self.server.status == TransactionStatus::Idle;
        // In a failed transaction the change would fail too.
        if in_pipeline_only || self.is_failed() {
            return None;
        }
        self.due_adjustment(WriteAccess::MayWrite)
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
