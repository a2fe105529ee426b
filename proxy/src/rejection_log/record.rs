//! One refused statement or ended session, and its JSON line.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pgpalisade_authority::Token;
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::fence::statement_text::{StatementText, boundary_at_most};
use crate::rejection::{Enforcement, Rejection, RejectionKind};

/// Longest name in a record. PostgreSQL's own names have at most 63 bytes; a client may send more before it is told so.
const MAX_NAME: usize = 256;

/// What is kept about a rejection. The SQLSTATE follows from the kind.
#[derive(Debug, Clone)]
pub(crate) struct RejectionRecord {
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
pub(crate) struct SessionLabel {
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
    pub(crate) const fn is_authenticated(&self) -> bool {
        self.backend_pid.is_some()
    }
}

impl RejectionRecord {
    /// The record of a refusal.
    #[must_use]
    pub(crate) fn new(
        rejection: &Rejection,
        session: &SessionLabel,
        statement_class: Option<&'static str>,
        statement: Option<StatementText>,
        enforcement: Enforcement,
    ) -> Self {
        let mark = rejection.mark.as_ref();
        Self {
            time: SystemTime::now(),
            kind: rejection.kind,
            scope: rejection.scope.as_ref().map(ToString::to_string),
            token: rejection.token.map(Token::get),
            mark: mark.map(|mark| mark.token.get()),
            raised_at: mark.and_then(|mark| {
                let since_epoch = Duration::from_micros(u64::try_from(mark.raised_at).ok()?);
                UNIX_EPOCH.checked_add(since_epoch)
            }),
            raised_by: mark.map(|mark| mark.raised_by.clone()),
            session: session.clone(),
            enforced: enforcement,
            statement_class: statement_class.map(Into::into),
            statement,
        }
    }

    /// The JSON object, without a line end. Line ends inside of values are escaped, so it is one line.
    pub(crate) fn to_json_line(&self) -> String {
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

pub(super) fn clip(name: &str) -> &str {
    name.get(..boundary_at_most(name, MAX_NAME))
        .unwrap_or_default()
}
