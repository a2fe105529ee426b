//! Settings that PostgreSQL reports at a login, for all clients of the connection, and later.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-ASYNC>

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::access_mode::Reported;
use super::text_settings::Reports;
use crate::wire::backend::{self, tag};
use crate::wire::encode;
use crate::wire::header::HEADER_LEN;

/// Limit of names. PostgreSQL reports about 15.
const NAMES_MAX: usize = 256;

/// Reports that the session reads.
#[derive(Debug, Clone, Copy, Default)]
pub struct InitialReports {
    pub texts: Reports,
    pub reported: Reported,
}

impl InitialReports {
    /// Notes the body of a ParameterStatus.
    pub fn note(&mut self, body: &[u8]) {
        if let Some((name, value)) = backend::parameter_status(body) {
            self.texts.note(name, value);
            self.reported.note(name, value);
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct Greeting {
    /// One ParameterStatus for each name, as received.
    reports: Vec<Bytes>,
    pub initial: InitialReports,
}

impl Greeting {
    /// Notes a ParameterStatus. The last one of a name counts.
    pub fn note(&mut self, report: Bytes) {
        self.initial.note(body(&report));
        put(&mut self.reports, report);
    }

    /// Appends the reports for a client.
    pub fn put(&self, out: &mut BytesMut) {
        for report in &self.reports {
            out.extend_from_slice(report);
        }
    }

    /// Appends the reports that differ from those that a client knows, unless it has set the name itself.
    pub(super) fn put_news(
        &self,
        known: &Self,
        is_own: impl Fn(&[u8]) -> bool,
        out: &mut BytesMut,
    ) {
        if self.reports == known.reports {
            return;
        }
        let news = self.reports.iter().filter(|report| {
            let name = name(report).unwrap_or_default();
            find(&known.reports, name) != Some(*report) && !is_of_guard(name) && !is_own(name)
        });
        news.for_each(|report| out.extend_from_slice(report));
    }
}

/// Whether the read-only guard tells the client of a setting.
pub(super) fn is_of_guard(name: &[u8]) -> bool {
    matches!(name, b"default_transaction_read_only" | b"in_hot_standby")
}

/// Settings of a server connection that is lent, by its reports. What a client changes is reported again when that is
/// undone, or reset.
#[derive(Debug, Default)]
pub(super) struct ReportedSettings {
    /// At the login, or after the last reset.
    initial: Arc<Greeting>,
    /// Those that have another value now.
    changed: Vec<Bytes>,
    /// Those that were reported in the open transaction, and their reports before it.
    before: Vec<(Box<[u8]>, Option<Bytes>)>,
}

impl ReportedSettings {
    pub(super) fn new(initial: Arc<Greeting>) -> Self {
        let (changed, before) = (Vec::new(), Vec::new());
        Self {
            initial,
            changed,
            before,
        }
    }

    pub(super) const fn initial(&self) -> &Arc<Greeting> {
        &self.initial
    }

    fn now(&self, name: &[u8]) -> Option<&Bytes> {
        let changed = find(&self.changed, name);
        changed.or_else(|| find(&self.initial.reports, name))
    }

    /// Notes a report in a transaction.
    pub(super) fn note(&mut self, name: &[u8], body: &[u8]) {
        let is_known = self.before.iter().any(|(known, _)| **known == *name);
        if !is_known && self.before.len() < NAMES_MAX {
            self.before.push((name.into(), self.now(name).cloned()));
        }
        self.note_own(body);
    }

    /// Notes a report of a reset, or of a setting that a client takes along.
    pub(super) fn note_own(&mut self, body: &[u8]) {
        put(&mut self.changed, report(body));
    }

    /// Notes a report of what the server has from its configuration.
    pub(super) fn note_default(&mut self, name: &[u8], body: &[u8]) {
        self.changed
            .retain(|changed| self::name(changed) != Some(name));
        Arc::make_mut(&mut self.initial).note(report(body));
    }

    /// Notes the end of a reset. What has another value than at the login now has it from a configuration that the
    /// server has read again.
    pub(super) fn end_reset(&mut self) {
        for report in std::mem::take(&mut self.changed) {
            let known = name(&report).and_then(|name| find(&self.initial.reports, name));
            if known.is_some_and(|known| *known != report) {
                Arc::make_mut(&mut self.initial).note(report);
            }
        }
    }

    /// Notes that the open transaction has committed these settings for its client, which takes them along.
    pub(super) fn adopt(&mut self, is_adopted: impl Fn(&[u8]) -> bool) {
        self.before.retain(|(name, _)| !is_adopted(name));
    }

    /// Notes the end of a transaction. Returns whether it has left a setting.
    pub(super) fn settle(&mut self) -> bool {
        let before = std::mem::take(&mut self.before);
        let mut before = before.iter();
        before.any(|(name, before)| self.now(name) != before.as_ref())
    }

    /// Appends what its client must know of the open transaction, which was lost.
    pub(super) fn put_undone(&self, out: &mut BytesMut) {
        for (name, before) in &self.before {
            if let Some(before) = before
                .as_ref()
                .filter(|before| self.now(name) != Some(before))
            {
                out.extend_from_slice(before);
            }
        }
    }
}

/// The last report of a name counts.
fn put(reports: &mut Vec<Bytes>, report: Bytes) {
    let Some(name) = name(&report) else {
        return;
    };
    if let Some(known) = reports
        .iter_mut()
        .find(|known| self::name(known) == Some(name))
    {
        *known = report;
    } else if reports.len() < NAMES_MAX {
        reports.push(report);
    }
}

fn find<'a>(reports: &'a [Bytes], name: &[u8]) -> Option<&'a Bytes> {
    let mut reports = reports.iter();
    reports.find(|report| self::name(report) == Some(name))
}

fn report(body: &[u8]) -> Bytes {
    let mut report = BytesMut::new();
    encode::put_raw(&mut report, tag::PARAMETER_STATUS, body);
    report.freeze()
}

fn body(report: &[u8]) -> &[u8] {
    report.get(HEADER_LEN..).unwrap_or_default()
}

fn name(report: &[u8]) -> Option<&[u8]> {
    backend::parameter_status(body(report)).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::encode::ParameterStatus;

    fn report(name: &str, value: &str) -> Bytes {
        let mut out = BytesMut::new();
        encode::put(&mut out, &ParameterStatus::new(name.into(), value.into()));
        out.freeze()
    }

    #[test]
    fn the_last_report_of_a_name_counts_in_its_first_place() {
        let mut greeting = Greeting::default();
        for (name, value) in [("a", "1"), ("a", "2"), ("b", "")] {
            greeting.note(report(name, value));
        }
        greeting.note(Bytes::from_static(b"S\0\0\0\x06xx"));
        let mut out = BytesMut::new();
        greeting.put(&mut out);
        let expect = [("a", "2"), ("b", "")].map(|(name, value)| report(name, value));
        assert_eq!(out, expect.concat());
    }

    #[test]
    fn a_server_cannot_report_without_end() {
        let mut greeting = Greeting::default();
        for number in 0..2 * NAMES_MAX {
            greeting.note(report(&number.to_string(), ""));
        }
        assert_eq!(greeting.reports.len(), NAMES_MAX);
    }
}
