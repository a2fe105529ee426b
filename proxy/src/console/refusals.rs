//! Refused requests, and observed ones.

use std::sync::Arc;

use pgpalisade_rejection_log::RejectionRecord;

use super::Facts;
use super::table::{RowIter, columns, row_of, rows};

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
