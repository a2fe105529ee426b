//! Encodings by which the server reads a text, as far as it has reported them.
//!
//! A change counts at once, but the server reports it with ReadyForQuery. Inside a request cycle, after anything that
//! may have run a SET or a function, only the server knows them.
//!
//! Nothing else is tracked. A reload of the server can change `standard_conforming_strings` unseen, so texts are read
//! as either value would have them read.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-ASYNC>

use pgpalisade_policies::{TextEncoding, is_ascii};

use super::ledger::Settled;

/// Reports of the server on which the reading of a text depends.
#[derive(Debug, Clone, Copy)]
pub struct Reports {
    client: TextEncoding,
    server: TextEncoding,
}

impl Default for Reports {
    /// Nothing was reported.
    fn default() -> Self {
        Self {
            client: TextEncoding::Other,
            server: TextEncoding::Other,
        }
    }
}

impl Reports {
    /// Notes a report.
    pub fn note(&mut self, name: &[u8], value: &[u8]) {
        match name {
            b"client_encoding" => self.client = encoding(value),
            b"server_encoding" => self.server = encoding(value),
            _ => {}
        }
    }

    /// Whether the client's texts are UTF-8.
    pub(crate) fn is_utf8(self) -> bool {
        self.client == TextEncoding::Utf8
    }
}

const fn encoding(name: &[u8]) -> TextEncoding {
    match name {
        b"UTF8" => TextEncoding::Utf8,
        _ => TextEncoding::Other,
    }
}

/// Whether PostgreSQL looks at a setting when it parses a text, and not again whenever the statement runs, as at
/// `search_path`. `*` stands for any.
pub(crate) fn decides_meaning(name: &str) -> bool {
    matches!(
        name,
        "*" | "datestyle"
            | "timezone"
            | "intervalstyle"
            | "timezone_abbreviations"
            | "standard_conforming_strings"
            | "backslash_quote"
            | "transform_null_equals"
            | "array_nulls"
            | "xmloption"
            | "lc_monetary"
            | "client_encoding"
    )
}

/// Whether one of these settings may matter for a text: it has a string literal, or NULL.
pub(crate) fn decide(text: &[u8]) -> bool {
    let is_null = |word: &[u8]| word.eq_ignore_ascii_case(b"null");
    let mut pairs = text.windows(2);
    text.contains(&b'\'')
        || pairs.any(|pair| matches!(pair, [b'$', next] if !next.is_ascii_digit()))
        || text.windows(4).any(is_null)
}

/// Encodings by which the server reads the texts of a session.
#[derive(Debug)]
pub(crate) struct TextSettings {
    reports: Reports,
    /// Whether anything that may have changed a setting has run since the last ReadyForQuery.
    has_run: bool,
    /// Whether a setting that decides what a text means may differ from its value at the start of the session.
    differ: bool,
}

impl TextSettings {
    /// Settings of a session, as its login reported them.
    pub(crate) const fn new(reports: Reports) -> Self {
        Self {
            reports,
            has_run: false,
            differ: false,
        }
    }

    /// Notes that a setting may change that decides what a text means.
    pub(crate) const fn on_change(&mut self) {
        self.differ = true;
    }

    /// Notes that all settings are those of the start.
    pub(crate) const fn on_reset(&mut self) {
        self.differ = false;
    }

    /// Whether a text that is sent now may mean something else than at the start of the session.
    pub(crate) const fn differ(&self) -> bool {
        self.differ
    }

    /// Notes a report of the server.
    pub(crate) fn on_report(&mut self, name: &[u8], value: &[u8]) {
        self.reports.note(name, value);
    }

    /// Notes that something is sent that may run a SET or a function.
    #[inline]
    pub(crate) const fn on_run(&mut self) {
        self.has_run = true;
    }

    /// Notes that the end of a request cycle is sent: its ReadyForQuery reports changes.
    #[inline]
    pub(crate) const fn on_cycle_sent(&mut self) {
        self.has_run = false;
    }

    /// Whether the client's texts are UTF-8, as the server has reported it.
    pub(crate) fn is_utf8(&self) -> bool {
        self.reports.is_utf8()
    }

    /// Encoding of texts, as the server has reported it.
    #[must_use]
    pub(crate) const fn reported(&self) -> TextEncoding {
        match (self.reports.client, self.reports.server) {
            (TextEncoding::Utf8, TextEncoding::Utf8) => TextEncoding::Utf8,
            _ => TextEncoding::Other,
        }
    }

    /// Encoding in which the server will read a text that is sent now; `None` if unknown until everything in flight
    /// is answered.
    #[must_use]
    pub(crate) fn for_text(
        &self,
        text: &[u8],
        settled: Option<Settled<'_>>,
    ) -> Option<TextEncoding> {
        if is_ascii(text) {
            // The same in every encoding.
            return Some(TextEncoding::Utf8);
        }
        settled.map(|_| {
            if self.has_run {
                TextEncoding::Other
            } else {
                self.reported()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_flight::{InFlight, Request};
    use crate::ledger::Ledger;

    fn settings(server: &str, client: &str) -> TextSettings {
        let mut reports = Reports::default();
        reports.note(b"server_encoding", server.as_bytes());
        reports.note(b"client_encoding", client.as_bytes());
        TextSettings::new(reports)
    }

    #[test]
    fn a_setting_counts_as_it_was_reported_while_nothing_can_have_changed_it() {
        let (answered, mut in_flight) = (Ledger::default(), Ledger::default());
        in_flight.push(InFlight::client(Request::Query, None));
        let (known, other) = (Some(TextEncoding::Utf8), Some(TextEncoding::Other));
        // At once, after something has run in the same request cycle, and after a cycle that was not answered.
        for (text, expect) in [
            ("SELECT 1", [known; 3]),
            ("SELECT '\\'", [known; 3]),
            ("SELECT 'é'", [known, other, None]),
        ] {
            let text = text.as_bytes();
            let mut settings = settings("UTF8", "UTF8");
            let at_once = settings.for_text(text, answered.settled());
            let after_a_cycle = settings.for_text(text, in_flight.settled());
            settings.on_run();
            let after_a_run = settings.for_text(text, answered.settled());
            assert_eq!([at_once, after_a_run, after_a_cycle], expect);
            settings.on_cycle_sent();
            assert_eq!(settings.for_text(text, answered.settled()), at_once);
        }
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
            let mut settings = settings("UTF8", "UTF8");
            settings.on_report(b"server_encoding", server.as_bytes());
            settings.on_report(b"client_encoding", client.as_bytes());
            let found = settings.for_text("é".as_bytes(), ledger.settled());
            assert_eq!(found, Some(expect), "{server} {client}");
        }
        let unreported = TextSettings::new(Reports::default());
        assert_eq!(unreported.reported(), TextEncoding::Other);
    }
}
