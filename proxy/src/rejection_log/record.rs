//! One refused statement or ended session, and its JSON line.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::SystemTime;

use serde::ser::{Serialize, SerializeStruct, Serializer};

use super::statement::{StatementText, boundary_at_most};

/// Longest name in a record. PostgreSQL's own names have at most 63 bytes; a client may send more before it is told so.
const MAX_NAME: usize = 256;

/// Longest name in a text that others read.
const SHOWN_NAME: usize = 63;

/// Why the fence refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectionKind {
    /// The token is below the mark.
    StaleToken,
    /// The statement needs a token and the session has none.
    NoToken,
    /// The token or scope is not valid, or was never issued.
    InvalidToken,
    /// The authority did not answer, so a new token could not be stored.
    AuthorityUnavailable,
    /// The policy refuses it whatever the token.
    Policy,
    /// Old sessions could not be confirmed gone in time.
    TakeoverIncomplete,
    /// The session is on a primary that a failover has deposed.
    DeposedPrimary,
    /// A takeover ended the session; nothing that was open was committed.
    SessionEnded,
    /// A takeover ended the session while a statement was under way that may have been committed.
    OutcomeUnknown,
}

impl RejectionKind {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 9] = [
        Self::StaleToken,
        Self::NoToken,
        Self::InvalidToken,
        Self::AuthorityUnavailable,
        Self::Policy,
        Self::TakeoverIncomplete,
        Self::DeposedPrimary,
        Self::SessionEnded,
        Self::OutcomeUnknown,
    ];

    /// Its place in [`Self::ALL`].
    pub(super) const fn index(self) -> usize {
        self as usize
    }

    /// The name in records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::StaleToken => "stale_token",
            Self::NoToken => "no_token",
            Self::InvalidToken => "invalid_token",
            Self::AuthorityUnavailable => "authority_unavailable",
            Self::Policy => "policy",
            Self::TakeoverIncomplete => "takeover_incomplete",
            Self::DeposedPrimary => "deposed_primary",
            Self::SessionEnded => "session_ended",
            Self::OutcomeUnknown => "outcome_unknown",
        }
    }

    /// The SQLSTATE that the client gets.
    pub const fn sqlstate(self) -> &'static str {
        match self {
            Self::StaleToken | Self::SessionEnded => "PF001",
            Self::NoToken => "PF002",
            Self::InvalidToken => "PF003",
            Self::AuthorityUnavailable => "PF004",
            Self::Policy => "PF005",
            Self::TakeoverIncomplete => "PF006",
            Self::DeposedPrimary => "PF007",
            Self::OutcomeUnknown => "08007",
        }
    }
}

/// Whether a refusal was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforcement {
    /// It was: the client got the error.
    Refused,
    /// It was only recorded, as a policy in observe mode asks for. The client noticed nothing.
    Observed,
}

/// What is kept about a rejection. The SQLSTATE follows from the kind.
#[derive(Debug, Clone)]
pub struct RejectionRecord {
    /// When it was refused, by this machine's clock. For reading only: nothing is decided by it.
    pub time: SystemTime,
    /// Why.
    pub kind: RejectionKind,
    /// Scope of the tokens.
    pub scope: Option<String>,
    /// The session's token, where it has one.
    pub token: Option<u64>,
    /// The highest token of the scope, where known.
    pub mark: Option<u64>,
    /// When the mark was raised.
    pub raised_at: Option<SystemTime>,
    /// By whom.
    pub raised_by: Option<String>,
    /// Who was refused.
    pub session: SessionLabel,
    /// Class of the statement in the words of the policy; `None` where no statement was refused.
    pub statement_class: Option<Cow<'static, str>>,
    /// Its text, made fit by [`super::RejectionLog::statement`].
    pub statement: Option<StatementText>,
    /// Whether it was carried out.
    pub enforced: Enforcement,
}

/// How a session is named in records.
#[derive(Debug, Clone)]
pub struct SessionLabel {
    /// User of the startup packet.
    pub user: String,
    /// Database of the startup packet.
    pub database: String,
    /// application_name, where the client gave one.
    pub application_name: Option<String>,
    /// Address of the client.
    pub client_addr: SocketAddr,
    /// Process id of its backend, once PostgreSQL has authenticated the client.
    pub backend_pid: Option<i32>,
}

impl SessionLabel {
    /// Whether the user is who it says. Before that anybody can write any name.
    pub const fn is_authenticated(&self) -> bool {
        self.backend_pid.is_some()
    }
}

impl RejectionRecord {
    /// The JSON object, without a line end. Line ends inside of values are escaped, so it is one line.
    pub fn to_json_line(&self) -> String {
        // It can only fail for maps with keys that are no strings, or for a failing writer: neither is here.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Serialize for RejectionRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let session = &self.session;
        let mut line = serializer.serialize_struct("RejectionRecord", 17)?;
        line.serialize_field("time", &rfc3339(self.time))?;
        line.serialize_field("kind", self.kind.as_str())?;
        line.serialize_field("sqlstate", self.kind.sqlstate())?;
        line.serialize_field("scope", &self.scope.as_deref().map(clip))?;
        line.serialize_field("token", &self.token)?;
        line.serialize_field("mark", &self.mark)?;
        line.serialize_field("raised_at", &self.raised_at.map(rfc3339))?;
        line.serialize_field("raised_by", &self.raised_by.as_deref().map(clip))?;
        line.serialize_field("user", clip(&session.user))?;
        line.serialize_field("database", clip(&session.database))?;
        line.serialize_field(
            "application_name",
            &session.application_name.as_deref().map(clip),
        )?;
        line.serialize_field("client_addr", &session.client_addr)?;
        line.serialize_field("backend_pid", &session.backend_pid)?;
        line.serialize_field("authenticated", &session.is_authenticated())?;
        line.serialize_field("statement_class", &self.statement_class)?;
        line.serialize_field(
            "statement",
            &self.statement.as_ref().map(StatementText::as_str),
        )?;
        line.serialize_field("enforced", &(self.enforced == Enforcement::Refused))?;
        line.end()
    }
}

/// RFC 3339 in UTC with microseconds, as PostgreSQL's own clock counts them.
pub(super) fn rfc3339(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time)
        .map_or_else(|_| String::from("unknown"), |time| format!("{time:.6}"))
}

/// A name that a client has chosen, fit for a text that others read: no longer than PostgreSQL's own names, and
/// without what a terminal obeys.
pub(crate) fn readable(name: &str) -> String {
    let shown: String = name.chars().take(SHOWN_NAME).collect();
    without_controls(&shown)
}

/// The text without control characters and without those that change the direction of what follows.
pub(crate) fn without_controls(text: &str) -> String {
    let visible = |c: char| match c {
        '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}' => '?',
        c if c.is_control() => '?',
        c => c,
    };
    text.chars().map(visible).collect()
}

pub(super) fn clip(name: &str) -> &str {
    name.get(..boundary_at_most(name, MAX_NAME))
        .unwrap_or_default()
}
