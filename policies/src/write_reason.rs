//! Reasons why a statement counts as a write.

use std::fmt;

/// Reason why a text was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
pub enum Opaque {
    /// Longer than [`MAX_PARSED`](crate::MAX_PARSED).
    #[strum(to_string = "it is too long to be parsed")]
    TooLong,
    /// Not kept until complete, because too many long texts were arriving.
    #[strum(to_string = "it is long, and too many long texts were arriving at the same time")]
    NoRoom,
    /// Contains a NUL byte.
    #[strum(to_string = "it contains a NUL byte")]
    Nul,
    /// Is not UTF-8.
    #[strum(to_string = "it is not UTF-8")]
    NotUtf8,
    /// Has bytes above 0x7F in a client encoding whose characters can contain ASCII bytes.
    #[strum(
        to_string = "it has characters beyond ASCII, and it is not sure that client and server both use UTF8"
    )]
    Encoding,
    /// Too deeply nested, has too many tokens or too many operator characters in a row, or the parser failed.
    #[strum(to_string = "it is too complex to be examined")]
    Parser,
    /// Reads differently with `standard_conforming_strings` off.
    #[strum(to_string = "its meaning depends on standard_conforming_strings")]
    Backslash,
}

/// Reason why a statement counts as a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteReason {
    /// Statement of a kind that is not on the list of reads.
    Kind(&'static str),
    /// Contains a statement other than SELECT.
    Contains(&'static str),
    /// SELECT .. INTO
    Into,
    /// FOR UPDATE, FOR SHARE and similar clauses.
    Locking,
    /// Calls a function that counts as a write: its name, and the reason.
    Function(Box<str>, &'static str),
    /// Switches read-only mode off.
    SetsReadWrite,
    /// Calls set_config for a setting that the text does not name.
    ComputedSetting,
    /// COPY to a file or a program of the server.
    CopyToServer,
    /// LOCK in a mode above ACCESS SHARE.
    LockMode,
    /// EXPLAIN with an unknown option.
    ExplainOption,
    /// The text was not understood.
    Opaque(Opaque),
    /// PostgreSQL's grammar refuses the text.
    Syntax(SyntaxError),
}

/// A refusal by PostgreSQL's grammar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// The parser's message, without literals.
    pub error: Box<str>,
    /// Whether the text may name a `fencing.` setting.
    pub names_ours: bool,
}

impl WriteReason {
    /// Whether the text was not parsed. The server may know another SQL than this grammar.
    #[must_use]
    pub const fn is_unparsed(&self) -> bool {
        matches!(self, Self::Opaque(_) | Self::Syntax(_))
    }
}

impl From<Opaque> for WriteReason {
    fn from(why: Opaque) -> Self {
        Self::Opaque(why)
    }
}

impl fmt::Display for WriteReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => write!(f, "{kind} counts as a write"),
            Self::Contains(what) => write!(f, "it contains a {what}"),
            Self::Into => f.write_str("SELECT INTO creates a table"),
            Self::Locking => f.write_str("it locks rows"),
            Self::Function(name, why) => write!(f, "function {name} counts as a write: {why}"),
            Self::SetsReadWrite => f.write_str("it would switch read-only mode off"),
            Self::ComputedSetting => {
                f.write_str("it calls set_config for a setting that is not a literal")
            }
            Self::CopyToServer => f.write_str("it copies to a file or program of the server"),
            Self::LockMode => f.write_str("it locks a table in a mode above ACCESS SHARE"),
            Self::ExplainOption => f.write_str("it has an EXPLAIN option that is not known"),
            Self::Opaque(why) => write!(f, "it counts as a write because {why}"),
            Self::Syntax(syntax) => write!(f, "it cannot be parsed: {}", syntax.error),
        }
    }
}
