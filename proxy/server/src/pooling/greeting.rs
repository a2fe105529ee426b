//! Settings that PostgreSQL reports at a login, for all clients of the connection.

use bytes::{Bytes, BytesMut};
use pgpalisade_session::read_only::Reported;
use pgpalisade_session::text_settings::Reports;
use pgpalisade_wire::backend;
use pgpalisade_wire::encode::{self, ParameterStatus};
use pgpalisade_wire::header::HEADER_LEN;

const APPLICATION_NAME: &str = "application_name";

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

    /// Appends the reports for a client, with its own application name if it has one.
    pub(crate) fn put(&self, application_name: Option<&str>, out: &mut BytesMut) {
        for report in &self.reports {
            match application_name {
                Some(own) if name(report) == Some(APPLICATION_NAME.as_bytes()) => {
                    let (name, value) = (APPLICATION_NAME.to_owned(), own.to_owned());
                    encode::put(out, &ParameterStatus::new(name, value));
                }
                _ => out.extend_from_slice(report),
            }
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
    use super::*;

    fn report(name: &str, value: &str) -> Bytes {
        let mut out = BytesMut::new();
        encode::put(&mut out, &ParameterStatus::new(name.into(), value.into()));
        out.freeze()
    }

    #[test]
    fn the_last_report_of_a_name_counts_in_its_first_place() {
        let mut greeting = Greeting::default();
        for (name, value) in [
            ("a", "1"),
            ("application_name", "psql"),
            ("a", "2"),
            ("b", ""),
        ] {
            greeting.note(report(name, value));
        }
        greeting.note(Bytes::from_static(b"S\0\0\0\x06xx"));
        for (own, shown) in [(None, "psql"), (Some("web"), "web"), (Some(""), "")] {
            let mut out = BytesMut::new();
            greeting.put(own, &mut out);
            let expect = [("a", "2"), ("application_name", shown), ("b", "")];
            let expect = expect.map(|(name, value)| report(name, value)).concat();
            assert_eq!(out, expect, "{own:?}");
        }
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
