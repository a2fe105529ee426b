//! Transactions in a text that only begin, end and set settings: their ends run nothing, so read-only mode stays sure.

use pgpalisade_policies::{Chain, Control, Statement};

use crate::decision::situation::{Pipeline, Situation};
use crate::guard::Guard;
use crate::wire::backend::TransactionStatus;

/// Read-only guard at the start of the text, while the text has done nothing else.
pub(super) struct Steering(Option<Guard>);

impl Steering {
    pub(super) fn new(situation: &Situation<'_>) -> Self {
        Self(is_idle(situation).then_some(situation.guard))
    }

    /// Read-only guard after a statement, before which it is `guard`.
    pub(super) fn guard_after(&mut self, guard: Guard, statement: &Statement) -> Guard {
        let has = |is_such: fn(&Control) -> bool| statement.controls.iter().any(is_such);
        let may_steer = statement.assigns.is_some() || has(Control::is_transaction);
        let only_steers = may_steer && !statement.may_hide_a_write();
        self.0 = self.0.filter(|_| only_steers);
        // Not one that chains: the next transaction has its modes.
        let ends = has(|control| {
            matches!(
                control,
                Control::Commit { chain: Chain::No } | Control::Rollback { chain: Chain::No }
            )
        });
        self.0
            .filter(|_| ends)
            .unwrap_or_else(|| guard.after(statement))
    }
}

/// Whether no transaction is open, not even that of a pipeline.
pub(super) fn is_idle(situation: &Situation<'_>) -> bool {
    let is_idle = situation.state.status() == TransactionStatus::Idle;
    is_idle && situation.pipeline == Pipeline::Closed
}
