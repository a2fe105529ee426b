//! Refused requests, and observed ones.

use std::sync::Arc;

use pgpalisade_rejection_log::RejectionRecord;
use pgpalisade_rejection_log::overlaps::{Overlap, OverlapWriter};

use super::Facts;
use super::table::{Cell, Row, RowIter, columns, row_of, rows, time};

/// The fields of a line of the rejection log.
pub(super) const COLUMNS: &str = "\
    time text, kind text, sqlstate text, scope text, token int8, mark int8, raised_at text, \
    raised_by text, user text, database text, application_name text, client_addr text, \
    backend_pid int8, authenticated text, statement_class text, statement text, traceparent text, \
    needs text, transaction text, reason text, enforced text, count int8";

pub(super) fn rejections(facts: &Facts) -> RowIter {
    let columns = columns(COLUMNS);
    let row = move |record: Arc<RejectionRecord>| row_of(&columns, &*record);
    rows(facts.shared.rejections.recent(), row)
}

pub(super) fn overlaps(facts: &Facts) -> Vec<Row> {
    let row = |overlap: Overlap| {
        let [one, other] = &overlap.writers;
        let name = |writer: &OverlapWriter| writer.application.as_deref().into();
        let host = |writer: &OverlapWriter| writer.host.as_deref().unwrap_or("local").into();
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
