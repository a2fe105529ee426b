//! The settings by which the server reads a text, as far as it has told them.
//!
//! The server reports a change with ReadyForQuery, and a change counts at once. So inside of a request cycle, behind
//! whatever may have run a SET or a function, nobody but the server knows them.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-ASYNC>

use pgpalisade_policies::{Lexing, StandardStrings, TextEncoding};

use super::ledger::Settled;

/// The setting of the client's encoding.
const CLIENT_ENCODING: &[u8] = b"client_encoding";
/// The setting of what a backslash means in a plain string.
const STANDARD_STRINGS: &[u8] = b"standard_conforming_strings";

/// Whether anything has run since the last ReadyForQuery that may have changed a setting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Ran {
    #[default]
    Nothing,
    Something,
}

/// How the server reads the texts of a session.
#[derive(Debug)]
pub struct TextSettings {
    reported: Lexing,
    ran: Ran,
}

impl TextSettings {
    /// As they were reported at login.
    #[must_use]
    pub const fn new(reported: Lexing) -> Self {
        Self {
            reported,
            ran: Ran::Nothing,
        }
    }

    /// The server has reported a setting.
    pub(crate) fn on_report(&mut self, name: &[u8], value: &[u8]) {
        report(&mut self.reported, name, value);
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
        self.reported
    }

    /// How the server will read a text that is sent now; `None` where that is known only once everything in flight was
    /// answered.
    #[must_use]
    pub(crate) fn for_text(&self, text: &[u8], settled: Option<Settled<'_>>) -> Option<Lexing> {
        if text.is_ascii() && !text.contains(&b'\\') {
            // The same in every encoding, and with either value of the other setting.
            return Some(self.reported);
        }
        let known = settled.filter(|_| self.ran == Ran::Nothing);
        match known {
            Some(_) => Some(self.reported),
            None if text.is_ascii() => Some(Lexing::with_unknown_strings(self.reported.encoding)),
            None => settled.map(|_| Lexing::with_unknown_strings(TextEncoding::Unsafe)),
        }
    }
}

/// Takes note of a setting that the server has reported.
pub fn report(reported: &mut Lexing, name: &[u8], value: &[u8]) {
    if name == CLIENT_ENCODING {
        reported.encoding = encoding(value);
    } else if name == STANDARD_STRINGS {
        reported.strings = match value {
            b"on" => StandardStrings::On,
            b"off" => StandardStrings::Off,
            _ => StandardStrings::Unknown,
        };
    }
}

/// Whether bytes of a text that look like ASCII are ASCII in a client encoding.
///
/// In these six a character's second byte can be one of ASCII's, a backslash or a quote among them:
/// <https://www.postgresql.org/docs/current/multibyte.html>
#[must_use]
pub(crate) fn encoding(name: &[u8]) -> TextEncoding {
    const UNSAFE: [&str; 12] = [
        "SJIS",
        "SHIFT_JIS_2004",
        "SHIFT_JIS",
        "SHIFTJIS",
        "MSKANJI",
        "WIN932",
        "BIG5",
        "GBK",
        "UHC",
        "GB18030",
        "JOHAB",
        "WIN949",
    ];
    let safe = !UNSAFE
        .iter()
        .any(|unsafe_name| name.eq_ignore_ascii_case(unsafe_name.as_bytes()));
    if safe {
        TextEncoding::AsciiSafe
    } else {
        TextEncoding::Unsafe
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_flight::{InFlight, Request};
    use crate::ledger::Ledger;

    const REPORTED: Lexing = Lexing {
        encoding: TextEncoding::AsciiSafe,
        strings: StandardStrings::On,
    };

    /// What is known of how a text will be read: right away, behind something that has run in the same request cycle,
    /// and behind a cycle that was not answered yet.
    #[track_caller]
    fn check(text: &str, expect: [Option<Lexing>; 3]) {
        let text = text.as_bytes();
        let (answered, mut in_flight) = (Ledger::default(), Ledger::default());
        in_flight.push(InFlight::client(Request::Query, None));
        let mut settings = TextSettings::new(REPORTED);
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
        let unknown_strings = worst(TextEncoding::AsciiSafe);
        check("SELECT '\\'", [known, unknown_strings, unknown_strings]);
        check("SELECT 'é'", [known, worst(TextEncoding::Unsafe), None]);
    }

    #[test]
    fn reports_are_followed() {
        let mut settings = TextSettings::new(REPORTED);
        settings.on_report(b"client_encoding", b"SJIS");
        settings.on_report(b"standard_conforming_strings", b"off");
        let ledger = Ledger::default();
        let expect = Lexing {
            encoding: TextEncoding::Unsafe,
            strings: StandardStrings::Off,
        };
        assert_eq!(
            settings.for_text("é\\".as_bytes(), ledger.settled()),
            Some(expect)
        );
        settings.on_report(b"client_encoding", b"UTF8");
        settings.on_report(b"standard_conforming_strings", b"on");
        assert_eq!(
            settings.for_text("é\\".as_bytes(), ledger.settled()),
            Some(REPORTED)
        );
    }
}
