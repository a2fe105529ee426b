//! What was refused, and what only would have been.

use std::sync::Arc;

use super::Facts;
use super::table::{Cell, Row, RowIter, rows};
use super::tables::{shown, time, yes};
use crate::fence::statement_text::StatementText;
use crate::fence::traceparent::Traceparent;
use crate::rejection::{Enforcement, OpenTransaction};
use crate::rejection_log::RejectionRecord;
use crate::rejection_log::overlaps::{Overlap, Writer};

pub(super) fn rejections(facts: &Facts) -> RowIter {
    let row = |record: Arc<RejectionRecord>| {
        let (session, statement) = (&record.session, &record.statement);
        vec![
            time(record.time),
            record.kind.as_str().into(),
            record.kind.sqlstate().into(),
            record.scope.clone().into(),
            record.token.into(),
            record.mark.into(),
            record.raised_at.map(time).into(),
            record.raised_by.as_deref().map(shown).into(),
            shown(&session.user),
            shown(&session.database),
            session.application_name.as_deref().map(shown).into(),
            session.client_addr.to_string().into(),
            session
                .backend_pid
                .map(|pid| Cell::Number(pid.into()))
                .into(),
            yes(session.is_authenticated()).into(),
            statement.class.as_deref().map(shown).into(),
            statement
                .text
                .as_ref()
                .map(|text| shown(StatementText::as_str(text)))
                .into(),
            statement
                .traceparent
                .as_ref()
                .map(|parent| shown(Traceparent::as_str(parent)))
                .into(),
            record.needs_as_str().into(),
            record.transaction.map(OpenTransaction::as_str).into(),
            record.reason.as_deref().map(shown).into(),
            yes(record.enforced == Enforcement::Refused).into(),
            record.count.into(),
        ]
    };
    rows(facts.shared.rejections.recent(), row)
}

pub(super) fn overlaps(facts: &Facts) -> Vec<Row> {
    let row = |overlap: Overlap| {
        let [one, other] = &overlap.writers;
        let name = |writer: &Writer| writer.application.as_deref().map(shown).into();
        let host = |writer: &Writer| writer.host.as_deref().unwrap_or("local").into();
        vec![
            overlap.scope.as_str().into(),
            name(one),
            host(one),
            name(other),
            host(other),
            time(overlap.since.into()),
            time(overlap.until.into()),
            Cell::Number(overlap.duration().as_secs()),
            overlap.turns.into(),
        ]
    };
    let overlaps = facts.shared.rejections.overlaps();
    overlaps.into_iter().map(row).collect()
}
