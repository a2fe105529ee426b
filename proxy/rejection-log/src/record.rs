//! The record of one refused statement or ended session, and its JSON line.

use std::borrow::Cow;
use std::hash::Hash;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pgpalisade_authority::Token;
use pgpalisade_policies::Class;
use serde::ser::{Serialize, SerializeStruct, Serializer};

use pgpalisade_fence::readable::escaped;
use pgpalisade_fence::rejection::{Enforcement, OpenTransaction, Rejection, RejectionKind};
use pgpalisade_fence::statement_text::{Literals, StatementText};
use pgpalisade_fence::traceparent::Traceparent;
use pgpalisade_logins::SessionLabel;
use pgpalisade_session::action::JudgedText;

/// Longest name in a record. A client may send names beyond PostgreSQL's 63 bytes.
const MAX_NAME: usize = 256;

/// Longest reason. An authority's error may quote another server.
const MAX_REASON: usize = 1024;

/// The record of a rejection. Its SQLSTATE follows from the kind.
#[derive(Debug, Clone)]
pub struct RejectionRecord {
    /// By this machine's clock, only for readers.
    pub(crate) time: SystemTime,
    pub(crate) kind: RejectionKind,
    pub(crate) scope: Option<String>,
    pub(crate) token: Option<u64>,
    pub(crate) mark: Option<u64>,
    pub(crate) raised_at: Option<SystemTime>,
    pub(crate) raised_by: Option<String>,
    pub(crate) session: SessionLabel,
    pub(crate) statement: RecordedStatement,
    pub(crate) reason: Option<String>,
    pub(crate) needs: Option<Class>,
    /// Fate of an ended session's transaction.
    pub(crate) transaction: Option<OpenTransaction>,
    pub(crate) enforced: Enforcement,
    pub(crate) count: u64,
}

#[derive(Debug, Clone, Default)]
pub struct RecordedStatement {
    /// In the words of the policy; `None` if no statement was refused.
    pub(crate) class: Option<Cow<'static, str>>,
    /// Shortened, and without literals unless configured.
    pub(crate) text: Option<StatementText>,
    /// The client's trace of the statement.
    pub(crate) traceparent: Option<Traceparent>,
}

impl RecordedStatement {
    pub(super) fn new(judged: &JudgedText, literals: Literals) -> Self {
        let text = &judged.text;
        Self {
            class: Some(judged.class.into()),
            text: (!text.is_empty()).then(|| StatementText::new(text, literals)),
            traceparent: judged.traceparent,
        }
    }
}

/// Cuts the names to the lengths that a record keeps.
fn clipped(session: &SessionLabel) -> SessionLabel {
    let name = |name: &String| clip(name).to_owned();
    SessionLabel {
        user: name(&session.user),
        database: name(&session.database),
        application_name: session.application_name.as_ref().map(name),
        common_name: session.common_name.as_ref().map(name),
        ..*session
    }
}

impl RejectionRecord {
    #[must_use]
    pub fn new(
        rejection: &Rejection,
        session: &SessionLabel,
        statement: RecordedStatement,
        enforcement: Enforcement,
    ) -> Self {
        let mark = rejection.mark.as_ref();
        Self {
            time: SystemTime::now(),
            kind: rejection.kind,
            scope: rejection.scope.as_ref().map(ToString::to_string),
            token: rejection.token.map(Token::get),
            mark: mark.map(|mark| mark.token.get()),
            raised_at: mark.and_then(|mark| moment(mark.raised_at)),
            raised_by: mark.map(|mark| clip(&mark.raised_by).to_owned()),
            session: clipped(session),
            needs: rejection.needs,
            transaction: rejection.transaction,
            enforced: enforcement,
            statement,
            reason: reason(rejection).map(|reason| clip_to(reason, MAX_REASON).to_owned()),
            count: 1,
        }
    }

    /// The JSON object, without a line end. Control characters are escaped, line ends too.
    pub(crate) fn to_json_line(&self) -> String {
        // Serialization fails only for maps with other keys, or a failing writer.
        let line = serde_json::to_string(self).unwrap_or_default();
        escaped(&line).into_owned()
    }

    /// The fields that are equal in repeated refusals. Process and port differ after a reconnect.
    pub(super) fn likeness(&self) -> impl Hash + '_ {
        let session = &self.session;
        (
            (self.kind.as_str(), self.enforced == Enforcement::Refused),
            (&self.scope, self.token, self.mark, &self.reason),
            (&session.user, &session.database, &session.application_name),
            (&session.common_name, session.client_addr.ip()),
            &self.statement.class,
            self.statement.text.as_ref().map(StatementText::as_str),
            self.transaction,
        )
    }

    pub(super) fn rough_likeness(&self) -> impl Hash + '_ {
        let is_refused = self.enforced == Enforcement::Refused;
        (self.kind.as_str(), is_refused, &self.session.user)
    }
}

/// The reason that only DETAIL gives.
fn reason(rejection: &Rejection) -> Option<&str> {
    match rejection.kind {
        RejectionKind::StaleToken
        | RejectionKind::NoToken
        | RejectionKind::LeaseHeld
        | RejectionKind::SessionEnded
        | RejectionKind::OutcomeUnknown => None,
        RejectionKind::InvalidToken
        | RejectionKind::AuthorityUnavailable
        | RejectionKind::Policy
        | RejectionKind::TakeoverIncomplete
        | RejectionKind::DeposedPrimary => Some(&rejection.detail),
    }
}

impl Serialize for RejectionRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let session = &self.session;
        let statement = &self.statement;
        let mut line = serializer.serialize_struct("RejectionRecord", 22)?;
        line.serialize_field("time", &rfc3339(self.time))?;
        line.serialize_field("kind", self.kind.as_str())?;
        line.serialize_field("sqlstate", self.kind.sqlstate())?;
        line.serialize_field("scope", &self.scope)?;
        line.serialize_field("token", &self.token)?;
        line.serialize_field("mark", &self.mark)?;
        line.serialize_field("raised_at", &self.raised_at.map(rfc3339))?;
        line.serialize_field("raised_by", &self.raised_by)?;
        line.serialize_field("user", &session.user)?;
        line.serialize_field("database", &session.database)?;
        line.serialize_field("application_name", &session.application_name)?;
        line.serialize_field("client_addr", &session.client_addr.to_string())?;
        line.serialize_field("backend_pid", &session.backend_pid)?;
        line.serialize_field("authenticated", &session.is_authenticated())?;
        line.serialize_field("statement_class", &statement.class)?;
        line.serialize_field(
            "statement",
            &statement.text.as_ref().map(StatementText::as_str),
        )?;
        line.serialize_field(
            "traceparent",
            &statement.traceparent.as_ref().map(Traceparent::as_str),
        )?;
        line.serialize_field("needs", &self.needs.map(<&str>::from))?;
        let transaction = self.transaction.map(OpenTransaction::as_str);
        line.serialize_field("transaction", &transaction)?;
        line.serialize_field("reason", &self.reason)?;
        line.serialize_field("enforced", &(self.enforced == Enforcement::Refused))?;
        line.serialize_field("count", &self.count)?;
        line.end()
    }
}

/// Microseconds since the Unix epoch as a time; `None` if out of range.
pub fn moment(us: i64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_micros(u64::try_from(us).ok()?))
}

/// RFC 3339 in UTC with microseconds, as PostgreSQL's clock counts them.
pub fn rfc3339(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time)
        .map_or_else(|_| String::from("unknown"), |time| format!("{time:.6}"))
}

fn clip(name: &str) -> &str {
    clip_to(name, MAX_NAME)
}

fn clip_to(text: &str, limit: usize) -> &str {
    text.get(..text.floor_char_boundary(limit))
        .unwrap_or_default()
}
