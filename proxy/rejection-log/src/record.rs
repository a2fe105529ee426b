//! One refused statement or ended session, and its JSON line.

use std::borrow::Cow;
use std::hash::Hash;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pgpalisade_authority::Token;
use pgpalisade_policies::Class;
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::client_addr::ClientAddr;
use pgpalisade_fence::readable::escaped;
use pgpalisade_fence::rejection::{Enforcement, OpenTransaction, Rejection, RejectionKind};
use pgpalisade_fence::statement_text::{Literals, StatementText, boundary_at_most};
use pgpalisade_fence::traceparent::Traceparent;
use pgpalisade_session::action::JudgedText;

/// Longest name in a record. PostgreSQL's own names have at most 63 bytes; a client may send more before it is told so.
const MAX_NAME: usize = 256;

/// Longest reason. An authority's error may quote what another server said.
const MAX_REASON: usize = 1024;

/// What a statement needs a token for.
pub(super) const READ: &str = "read";
pub(super) const WRITE: &str = "write";

/// What is kept about a rejection. The SQLSTATE follows from the kind.
#[derive(Debug, Clone)]
pub struct RejectionRecord {
    /// When it was refused, by this machine's clock. For reading only: nothing is decided by it.
    pub(crate) time: SystemTime,
    /// Why.
    pub(crate) kind: RejectionKind,
    /// Scope of the tokens.
    pub(crate) scope: Option<String>,
    /// The session's token, where it has one.
    pub(crate) token: Option<u64>,
    /// The highest token of the scope, where known.
    pub(crate) mark: Option<u64>,
    /// When the mark was raised.
    pub(crate) raised_at: Option<SystemTime>,
    /// By whom.
    pub(crate) raised_by: Option<String>,
    /// Who was refused.
    pub(crate) session: SessionLabel,
    /// What is known of the statement that was refused.
    pub(crate) statement: RecordedStatement,
    /// Why, where no other field tells.
    pub(crate) reason: Option<String>,
    /// What was to be done that needs a token, where there was none.
    pub(crate) needs: Option<Class>,
    /// What became of the transaction of a session that was ended.
    pub(crate) transaction: Option<OpenTransaction>,
    /// Whether it was carried out.
    pub(crate) enforced: Enforcement,
    /// How many refusals it stands for: more than one, where they repeat and are not recorded each.
    pub(crate) count: u64,
}

/// What is kept of a statement.
#[derive(Debug, Clone, Default)]
pub struct RecordedStatement {
    /// Its class in the words of the policy; `None` where no statement was refused.
    pub(crate) class: Option<Cow<'static, str>>,
    /// Its text, shortened, and without literals unless configured.
    pub(crate) text: Option<StatementText>,
    /// The trace that it is a part of, where the client has said so.
    pub(crate) traceparent: Option<Traceparent>,
}

impl RecordedStatement {
    /// Makes what the client sent fit for a record.
    pub(super) fn new(judged: &JudgedText, literals: Literals) -> Self {
        let text = &judged.text;
        Self {
            class: Some(judged.class.into()),
            text: (!text.is_empty()).then(|| StatementText::new(text, literals)),
            traceparent: judged.traceparent,
        }
    }
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
    /// Common name of the client's certificate, where it has shown one.
    pub common_name: Option<String>,
    /// Address of the client.
    pub client_addr: ClientAddr,
    /// Process id of its backend, once PostgreSQL has authenticated the client.
    pub backend_pid: Option<i32>,
}

impl SessionLabel {
    /// Whether the user is who it says. Before that anybody can write any name.
    pub const fn is_authenticated(&self) -> bool {
        self.backend_pid.is_some()
    }

    /// With names that are no longer than a record keeps.
    fn clipped(&self) -> Self {
        let name = |name: &String| clip(name).to_owned();
        Self {
            user: name(&self.user),
            database: name(&self.database),
            application_name: self.application_name.as_ref().map(name),
            common_name: self.common_name.as_ref().map(name),
            ..*self
        }
    }
}

impl RejectionRecord {
    /// The record of a refusal.
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
            session: session.clipped(),
            needs: rejection.needs,
            transaction: rejection.transaction,
            enforced: enforcement,
            statement,
            reason: reason(rejection).map(|reason| clip_to(reason, MAX_REASON).to_owned()),
            count: 1,
        }
    }

    /// What was to be done that needs a token, in a word.
    fn needs_as_str(&self) -> Option<&'static str> {
        self.needs.map(|needs| match needs {
            Class::Read => READ,
            Class::Write => WRITE,
        })
    }

    /// The JSON object, without a line end. What would steer a terminal is escaped, line ends too, so it is one line.
    pub(crate) fn to_json_line(&self) -> String {
        // It can only fail for maps with keys that are no strings, or for a failing writer: neither is here.
        let line = serde_json::to_string(self).unwrap_or_default();
        escaped(&line).into_owned()
    }

    /// What is the same in refusals that repeat. A client that connects anew for each is another process and port.
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
}

/// What only DETAIL says. Of a token that is missing or stale the fields tell.
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
        line.serialize_field("client_addr", &session.client_addr)?;
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
        line.serialize_field("needs", &self.needs_as_str())?;
        let transaction = self.transaction.map(OpenTransaction::as_str);
        line.serialize_field("transaction", &transaction)?;
        line.serialize_field("reason", &self.reason)?;
        line.serialize_field("enforced", &(self.enforced == Enforcement::Refused))?;
        line.serialize_field("count", &self.count)?;
        line.end()
    }
}

/// Microseconds since the Unix epoch, where they are a time.
pub fn moment(us: i64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_micros(u64::try_from(us).ok()?))
}

/// RFC 3339 in UTC with microseconds, as PostgreSQL's own clock counts them.
pub fn rfc3339(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time)
        .map_or_else(|_| String::from("unknown"), |time| format!("{time:.6}"))
}

pub(super) fn clip(name: &str) -> &str {
    clip_to(name, MAX_NAME)
}

fn clip_to(text: &str, limit: usize) -> &str {
    text.get(..boundary_at_most(text, limit))
        .unwrap_or_default()
}
