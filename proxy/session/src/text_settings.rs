//! The settings by which the server reads a text, as far as it has told them.
//!
//! The server reports a change with ReadyForQuery, and a change counts at once. So inside of a request cycle, behind
//! whatever may have run a SET or a function, nobody but the server knows them.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-ASYNC>

use pgpalisade_policies::{Lexing, StandardStrings, TextEncoding};

use super::ledger::Settled;

/// Whether anything has run since the last ReadyForQuery that may have changed a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ran {
    Nothing,
    Something,
}

/// The reports of the server on which the reading of a text depends.
#[derive(Debug, Clone, Copy)]
pub struct Reports {
    client: TextEncoding,
    server: TextEncoding,
    strings: StandardStrings,
}

impl Default for Reports {
    /// Nothing was reported.
    fn default() -> Self {
        Self {
            client: TextEncoding::Other,
            server: TextEncoding::Other,
            strings: StandardStrings::Unknown,
        }
    }
}

impl Reports {
    /// Takes note of a report.
    pub fn note(&mut self, name: &[u8], value: &[u8]) {
        match name {
            b"client_encoding" => self.client = encoding(value),
            b"server_encoding" => self.server = encoding(value),
            b"standard_conforming_strings" => self.strings = strings(value),
            _ => {}
        }
    }

    const fn lexing(self) -> Lexing {
        Lexing {
            encoding: match (self.client, self.server) {
                (TextEncoding::Utf8, TextEncoding::Utf8) => TextEncoding::Utf8,
                _ => TextEncoding::Other,
            },
            strings: self.strings,
        }
    }
}

const fn encoding(name: &[u8]) -> TextEncoding {
    match name {
        b"UTF8" => TextEncoding::Utf8,
        _ => TextEncoding::Other,
    }
}

const fn strings(value: &[u8]) -> StandardStrings {
    match value {
        b"on" => StandardStrings::On,
        b"off" => StandardStrings::Off,
        _ => StandardStrings::Unknown,
    }
}

/// How the server reads the texts of a session.
#[derive(Debug)]
pub(crate) struct TextSettings {
    reports: Reports,
    ran: Ran,
}

impl TextSettings {
    /// Those of a session whose login has brought these reports.
    pub(crate) const fn new(reports: Reports) -> Self {
        Self {
            reports,
            ran: Ran::Nothing,
        }
    }

    /// The server has reported a setting.
    pub(crate) fn on_report(&mut self, name: &[u8], value: &[u8]) {
        self.reports.note(name, value);
    }

    /// Something is sent that may run a SET or a function.
    #[inline]
    pub(crate) const fn on_run(&mut self) {
        self.ran = Ran::Something;
    }

    /// The end of a request cycle is sent: its ReadyForQuery will tell.
    #[inline]
    pub(crate) const fn on_cycle_sent(&mut self) {
        self.ran = Ran::Nothing;
    }

    /// How the server reads texts, as far as it has told.
    #[must_use]
    pub(crate) const fn reported(&self) -> Lexing {
        self.reports.lexing()
    }

    /// How the server will read a text that is sent now; `None` where that is known only once everything in flight was
    /// answered.
    #[must_use]
    pub(crate) fn for_text(&self, text: &[u8], settled: Option<Settled<'_>>) -> Option<Lexing> {
        if text.is_ascii() && !text.contains(&b'\\') {
            // The same in every encoding, and with either value of the other setting.
            return Some(self.reported());
        }
        let known = settled.filter(|_| self.ran == Ran::Nothing);
        match known {
            Some(_) => Some(self.reported()),
            None if text.is_ascii() => Some(Lexing::with_unknown_strings(self.reported().encoding)),
            None => settled.map(|_| Lexing::with_unknown_strings(TextEncoding::Other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_flight::{InFlight, Request};
    use crate::ledger::Ledger;

    const REPORTED: Lexing = Lexing {
        encoding: TextEncoding::Utf8,
        strings: StandardStrings::On,
    };

    fn settings() -> TextSettings {
        let mut reports = Reports::default();
        for (name, value) in [
            ("server_encoding", "UTF8"),
            ("client_encoding", "UTF8"),
            ("standard_conforming_strings", "on"),
        ] {
            reports.note(name.as_bytes(), value.as_bytes());
        }
        TextSettings::new(reports)
    }

    /// What is known of how a text will be read: right away, behind something that has run in the same request cycle,
    /// and behind a cycle that was not answered yet.
    #[track_caller]
    fn check(text: &str, expect: [Option<Lexing>; 3]) {
        let text = text.as_bytes();
        let (answered, mut in_flight) = (Ledger::default(), Ledger::default());
        in_flight.push(InFlight::client(Request::Query, None));
        let mut settings = settings();
        let at_once = settings.for_text(text, answered.settled());
        let behind_a_cycle = settings.for_text(text, in_flight.settled());
        settings.on_run();
        let behind_a_run = settings.for_text(text, answered.settled());
        assert_eq!([at_once, behind_a_run, behind_a_cycle], expect);
        settings.on_cycle_sent();
        assert_eq!(settings.for_text(text, answered.settled()), at_once);
    }

    #[test]
    fn a_setting_counts_as_it_was_reported_while_nothing_can_have_changed_it() {
        let (known, worst) = (Some(REPORTED), |encoding| {
            Some(Lexing::with_unknown_strings(encoding))
        });
        check("SELECT 1", [known; 3]);
        let unknown_strings = worst(TextEncoding::Utf8);
        check("SELECT '\\'", [known, unknown_strings, unknown_strings]);
        check("SELECT 'é'", [known, worst(TextEncoding::Other), None]);
    }

    #[test]
    fn only_utf8_on_both_sides_is_utf8() {
        let ledger = Ledger::default();
        for (server, client, expect) in [
            ("UTF8", "UTF8", TextEncoding::Utf8),
            ("UTF8", "SJIS", TextEncoding::Other),
            ("UTF8", "LATIN1", TextEncoding::Other),
            ("UTF8", "SQL_ASCII", TextEncoding::Other),
            ("LATIN1", "UTF8", TextEncoding::Other),
            ("SQL_ASCII", "UTF8", TextEncoding::Other),
            ("EUC_JP", "EUC_JP", TextEncoding::Other),
        ] {
            let mut settings = settings();
            settings.on_report(b"server_encoding", server.as_bytes());
            settings.on_report(b"client_encoding", client.as_bytes());
            settings.on_report(b"standard_conforming_strings", b"off");
            let found = settings.for_text("é\\".as_bytes(), ledger.settled());
            let strings = StandardStrings::Off;
            let encoding = expect;
            assert_eq!(
                found,
                Some(Lexing { encoding, strings }),
                "{server} {client}"
            );
        }
        let unreported = TextSettings::new(Reports::default()).reported();
        assert_eq!(
            unreported,
            Lexing::with_unknown_strings(TextEncoding::Other)
        );
    }
}
