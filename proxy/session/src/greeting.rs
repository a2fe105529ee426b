//! Settings that PostgreSQL reports at a login, for all clients of the connection.

use bytes::{Bytes, BytesMut};
use pgpalisade_session::read_only::Reported;
use pgpalisade_session::text_settings::Reports;
use pgpalisade_wire::backend;
use pgpalisade_wire::header::HEADER_LEN;

/// Limit of names. PostgreSQL reports about 15.
const NAMES_MAX: usize = 256;

/// Reports that the session reads.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InitialReports {
    pub(crate) texts: Reports,
    pub(crate) reported: Reported,
}

impl InitialReports {
    /// Notes the body of a ParameterStatus.
    pub(crate) fn note(&mut self, body: &[u8]) {
        if let Some((name, value)) = backend::parameter_status(body) {
            self.texts.note(name, value);
            self.reported.note(name, value);
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Greeting {
    /// One ParameterStatus for each name, as received.
    reports: Vec<Bytes>,
    pub(crate) initial: InitialReports,
}

impl Greeting {
    /// Notes a ParameterStatus. The last one of a name counts.
    pub(crate) fn note(&mut self, report: Bytes) {
        let Some(name) = name(&report) else {
            return;
        };
        self.initial.note(body(&report));
        let mut reports = self.reports.iter_mut();
        if let Some(known) = reports.find(|known| self::name(known) == Some(name)) {
            *known = report;
        } else if self.reports.len() < NAMES_MAX {
            self.reports.push(report);
        }
    }

    /// Appends the reports for a client.
    pub(crate) fn put(&self, out: &mut BytesMut) {
        for report in &self.reports {
            out.extend_from_slice(report);
        }
    }
}

fn body(report: &[u8]) -> &[u8] {
    report.get(HEADER_LEN..).unwrap_or_default()
}

fn name(report: &[u8]) -> Option<&[u8]> {
    backend::parameter_status(body(report)).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use pgpalisade_wire::encode::{self, ParameterStatus};

    use super::*;

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
