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
    pub fn on_report(&mut self, name: &[u8], value: &[u8]) {
        report(&mut self.reported, name, value);
    }

    /// Something is sent that may run a SET or a function.
    #[inline]
    pub const fn on_run(&mut self) {
        self.ran = Ran::Something;
    }

    /// The end of a request cycle is sent: its ReadyForQuery will tell.
    #[inline]
    pub const fn on_cycle_sent(&mut self) {
        self.ran = Ran::Nothing;
    }

    /// How the server will read a text that is sent now; `None` where that is known only once everything in flight was
    /// answered.
    #[must_use]
    pub fn for_text(&self, text: &[u8], settled: Option<Settled<'_>>) -> Option<Lexing> {
        let known = settled.filter(|_| self.ran == Ran::Nothing);
        if text.is_ascii() {
            // The same in every encoding, and mostly with every value of the other one.
            return Some(match known {
                Some(_) => self.reported,
                None => Lexing::with_unknown_strings(self.reported.encoding),
            });
        }
        settled.map(|_| match self.ran {
            Ran::Nothing => self.reported,
            Ran::Something => Lexing::with_unknown_strings(TextEncoding::Unsafe),
        })
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
pub fn encoding(name: &[u8]) -> TextEncoding {
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
