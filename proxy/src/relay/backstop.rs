//! Keeping PostgreSQL's read-only mode up for a session that may not write, and taking it down for one that may.

use pgpalisade_policies::{Control, Statement, Verdict, WriteReason};

use super::steps::{Judged, Refused, Step};
use super::{Front, Relay};
use crate::fence::{Guard, Unguarded};
use crate::rejection::Rejection;
use crate::session::Pipeline;
use crate::session::access::{Adjustment, Place, Standing};
use crate::session::in_flight::{Leave, Request};
use crate::session::names::Meaning;
use crate::wire::backend::TransactionStatus;
use crate::wire::frontend::{self, FrontendTag};

impl Relay {
    /// A change of the access mode that is due before anything else is sent.
    pub(super) fn adjust_first(&mut self, tag: FrontendTag) -> Option<Step> {
        let passes = matches!(
            tag,
            FrontendTag::Sync
                | FrontendTag::Flush
                | FrontendTag::Terminate
                | FrontendTag::CopyData
                | FrontendTag::CopyDone
                | FrontendTag::CopyFail
        );
        let failed = self.position.status == TransactionStatus::Failed;
        // Looked at first, for in a pipeline it is so for all messages but one.
        let in_flight = !self.ledger.is_empty();
        if in_flight || passes || failed || self.front == Front::Binds {
            return None;
        }
        let adjustment = self.due_adjustment(self.standing())?;
        if adjustment == Adjustment::Lower {
            // Only what runs a query needs it: see `lower_due`.
            return None;
        }
        if tag.is_extended() {
            // Should it fail, the client's own Sync ends the pipeline that its message begins.
            self.position.pipeline = match adjustment {
                Adjustment::Lift => Pipeline::Open,
                Adjustment::Default(_) | Adjustment::Lower => self.position.pipeline,
            };
        }
        Some(Step::Adjust(adjustment))
    }

    pub(super) fn due_adjustment(&self, standing: Standing) -> Option<Adjustment> {
        // While requests are in flight the session's state is not known, and nothing can have
        // changed it: what could was waited for.
        if !self.ledger.is_empty() || self.ledger.is_copying_in() {
            return None;
        }
        let place = if self.position.is_inside() {
            Place::Inside
        } else {
            Place::Outside
        };
        self.access.adjustment(standing, place)
    }

    /// What comes before something that could hide a write, where the session has lost its token inside a transaction:
    /// the transaction becomes read-only.
    pub(super) fn lower_due(&self) -> Option<Step> {
        let standing = self.standing();
        if standing == Standing::MayWrite
            || !self.position.is_inside()
            || self.front == Front::Binds
            || self.position.status == TransactionStatus::Failed
            || self.ledger.is_copying_in()
        {
            return None;
        }
        match (
            self.access.adjustment(standing, Place::Inside),
            self.ledger.is_empty(),
        ) {
            (Some(lower @ Adjustment::Lower), true) => Some(Step::Adjust(lower)),
            (Some(Adjustment::Lower), false) => Some(Step::AwaitReplies),
            _ => None,
        }
    }

    /// The same for a text. A statement that only steers the session runs without: in a pipeline some of them must not
    /// follow another statement. A COMMIT may run the query of a cursor that it keeps.
    pub(super) fn lower_first(&self, verdict: &Verdict) -> Option<Step> {
        let commits = |control: &Control| matches!(control, Control::Commit { .. });
        let runs = |statement: &Statement| {
            statement.may_hide_a_write() || statement.controls.iter().any(commits)
        };
        verdict
            .statements
            .iter()
            .any(runs)
            .then(|| self.lower_due())?
    }

    pub(super) fn standing(&self) -> Standing {
        match self.fence.may_write(self.settings.token()) {
            true => Standing::MayWrite,
            false => Standing::MayNotWrite,
        }
    }

    /// What is left of read-only mode where the next message arrives. While the default is read-write, a transaction
    /// may still be read-only.
    pub(super) fn guard_now(&self) -> Guard {
        match self.guard {
            Guard::Sure if !self.access.is_read_only() => Guard::Ran,
            guard => guard,
        }
    }

    /// What comes before a Parse: it can run functions of the database, the checks of a domain in an array's literal.
    pub(super) fn before_parse(&mut self, judged: &Judged<'_>) -> Result<Leave, Step> {
        let statements = &judged.verdict.statements;
        let unread = |statement: &Statement| matches!(statement.why, Some(WriteReason::Opaque(_)));
        let may_read_one = has_literal(judged.text) || statements.iter().any(unread);
        let may_run = may_read_one && statements.iter().any(Statement::may_hide_a_write);
        let step = self.before_running(may_run);
        if matches!(step, Err(Step::Refuse(..))) {
            self.judged_as(judged);
        }
        step
    }

    /// What comes before a Bind: the text is planned, for which functions that are said to be stable are run, and
    /// parameters are read, which checks those of a domain.
    pub(super) fn before_bind(&mut self, meaning: &Meaning, body: &[u8]) -> Result<Leave, Step> {
        let takes_some = frontend::bind_parameters(body) != Some(0);
        self.before_running(takes_some || may_hide_a_write(meaning))
    }

    /// What comes before a Describe of a statement: its text may be read again, as by a Parse.
    pub(super) fn before_describe(&mut self, meaning: &Meaning) -> Result<Leave, Step> {
        self.before_running(may_hide_a_write(meaning))
    }

    /// What comes before a message that prepares an Execute, where it may run a function of the database. What could
    /// hide in an Execute could hide there.
    fn before_running(&mut self, may_run: bool) -> Result<Leave, Step> {
        if !may_run {
            return Ok(Leave::Read);
        }
        if self.standing() == Standing::MayWrite {
            // It matters where the session loses its token before the pipeline ends.
            if self.guard == Guard::Sure && self.access.is_read_only() {
                self.guard = Guard::Ran;
            }
            self.text_settings.on_run();
            return Ok(Leave::ReadUnguarded);
        }
        if let Some(step) = self.lower_due() {
            return Err(step);
        }
        if self.guard_now() == Guard::InDoubt
            && let Some(rejection) = self.unguarded()
        {
            return Err(match self.ledger.is_empty() {
                true => Step::Refuse(Box::new(rejection), Refused::InPipeline),
                false => Step::AwaitReplies,
            });
        }
        if self.guard == Guard::Sure {
            self.guard = Guard::Ran;
        }
        self.text_settings.on_run();
        Ok(Leave::Read)
    }

    /// The refusal of what may hide a write, while read-only mode is in doubt.
    pub(super) fn unguarded(&self) -> Option<Rejection> {
        let token = self.settings.token();
        self.fence.unguarded(token, Unguarded::TransactionEnded)
    }

    /// What is left of read-only mode behind an Execute of something that does nothing to the session.
    #[inline]
    pub(super) fn guard_after(&self, meaning: &Meaning) -> Guard {
        match (self.guard_now(), meaning.verdict()) {
            (Guard::Sure, Some(verdict)) => {
                verdict.statements.iter().fold(Guard::Sure, Guard::after)
            }
            (Guard::Sure, None) => Guard::Ran,
            (guard, _) => guard,
        }
    }

    /// A text that binds a token is sent to a session that may write already, so that what follows
    /// in the same text can. In an open pipeline the transaction may have taken its snapshot, so
    /// there it waits until something follows that needs it.
    pub(super) fn adjustment_before_binding(&self, request: Request) -> Option<Adjustment> {
        let in_pipeline_only =
            request == Request::Execute && self.position.status == TransactionStatus::Idle;
        if in_pipeline_only {
            return None;
        }
        self.due_adjustment(Standing::MayWrite)
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
