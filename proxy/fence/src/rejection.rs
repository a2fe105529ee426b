//! Refusal by the fence, as the client sees it and as it is recorded.

mod bound;
mod declaring;
mod elected;
mod ending;
mod kind;
mod needs;

use std::fmt;

use bytes::BytesMut;
use pgpalisade_authority::{Mark, Scope, Token, utc};
use pgpalisade_policies::Class;

use crate::TokenValueError;
use crate::readable::{sentence, without_controls};
use crate::wire::encode::{self, ErrorFields, ErrorResponse, Severity};

/// Next step of a deposed leader.
const DEPOSED: &str = "This process is no longer the leader. Stop acting as leader. Win a new election before \
    declaring again.";

pub use bound::Bound;
pub use kind::{Enforcement, OpenTransaction, RejectionKind};
pub use needs::Needs;
pub(crate) use needs::WhyWrite;

/// A refusal with everything that the client and the log are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Kind of the refusal.
    pub kind: RejectionKind,
    /// Primary message, without the code that comes before it when it is sent.
    pub message: String,
    /// Known facts: scope, token, mark, when and by whom it was raised.
    pub detail: String,
    /// The next step.
    pub hint: String,
    /// Scope that it is about.
    pub scope: Option<Scope>,
    /// The session's token in the scope.
    pub token: Option<Token>,
    /// Mark of the scope that makes the token stale.
    pub mark: Option<Mark>,
    /// Class of the statement that lacked a token; `None` for other refusals.
    pub needs: Option<Class>,
    /// Fate of the transaction if a takeover ended the session.
    pub transaction: Option<OpenTransaction>,
}

impl Rejection {
    fn new(
        kind: RejectionKind,
        message: impl Into<String>,
        detail: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            message: message.into(),
            detail: detail.into(),
            hint: hint.into(),
            scope: None,
            token: None,
            mark: None,
            needs: None,
            transaction: None,
        }
    }

    fn about(mut self, scope: &Scope, token: Option<Token>, mark: Option<Mark>) -> Self {
        self.scope = Some(scope.clone());
        self.token = token;
        self.mark = mark;
        self
    }

    fn about_any(mut self, scope: Option<&Scope>) -> Self {
        self.scope = scope.cloned();
        self
    }

    /// The session's token is below the mark.
    #[must_use]
    pub(crate) fn stale(scope: &Scope, token: Token, mark: Mark) -> Self {
        let message = format!(
            "fencing token {token} is stale: scope \"{scope}\" is at {}",
            mark.token
        );
        let detail = raised(scope, token, &mark);
        let hint = format!(
            "{DEPOSED} If every election gives a token below the mark, an operator can correct the mark with \
                \"pgpalisade scope repair\"."
        );
        let rejection = Self::new(RejectionKind::StaleToken, message, detail, hint);
        rejection.about(scope, Some(token), Some(mark))
    }

    /// The value of `fencing.token` or `fencing.scope` is invalid.
    #[must_use]
    pub fn invalid_value(setting: &str, value: &str, why: impl Into<TokenValueError>) -> Self {
        let why = why.into();
        let shown: String = value.chars().take(100).collect();
        let message = format!("invalid value for {setting}: \"{shown}\"");
        let detail = sentence(&why);
        Self::new(RejectionKind::InvalidToken, message, detail, why.hint())
    }

    /// The transaction has written under one token, or a function in it may have, and would go on under another.
    #[must_use]
    pub fn token_change_after_write() -> Self {
        Self::new(
            RejectionKind::InvalidToken,
            "cannot change the fencing token of a transaction that may have written",
            "What a transaction writes belongs to one token. A function that it called may have written.",
            "COMMIT or ROLLBACK first, then set the token. All statements of one query string are one transaction.",
        )
    }

    /// The token was declared too late for the open transaction, which began read-only.
    #[must_use]
    pub fn declared_too_late() -> Self {
        Self::new(
            RejectionKind::InvalidToken,
            "cannot declare a fencing token after the first query or savepoint of a transaction",
            "The transaction began without a token, so it is read-only, and PostgreSQL does not allow that to change \
                after the first query or in a savepoint. The mark may have been raised nevertheless.",
            "Declare the token right after BEGIN, or outside a transaction.",
        )
    }

    /// The authority did not accept the declaration.
    #[must_use]
    pub fn authority_unavailable(scope: Option<&Scope>, why: &dyn fmt::Display) -> Self {
        let rejection = Self::new(
            RejectionKind::AuthorityUnavailable,
            "the fencing token could not be accepted: the token authority is not available",
            sentence(why),
            "Try again. If DETAIL says that the store is missing, or was replaced or restored, an operator has to \
                repair it first. Sessions that hold a token can still write; only new declarations need the authority.",
        );
        rejection.about_any(scope)
    }

    /// The authority did not tell how the last takeovers went.
    #[must_use]
    pub fn history_unavailable(why: &dyn fmt::Display) -> Self {
        Self::new(
            RejectionKind::AuthorityUnavailable,
            "cannot read the history of takeovers: the token authority is not available",
            sentence(why),
            "Try again. The tokens of the session are not affected.",
        )
    }

    /// Turns a refused declaration into the end of the session, which cannot go on under its older token.
    #[must_use]
    pub fn ending_the_session(self) -> Self {
        Self {
            message: format!("terminating connection: {}", self.message),
            detail: format!(
                "{} The declaration may have been accepted, so the session cannot go on under its older token.",
                self.detail
            ),
            hint: "Connect again, and declare the token of your election.".to_owned(),
            ..self
        }
    }

    /// Older sessions could not be confirmed gone in time.
    #[must_use]
    pub fn takeover_incomplete(scope: Option<&Scope>, why: &dyn fmt::Display) -> Self {
        let rejection = Self::new(
            RejectionKind::TakeoverIncomplete,
            "the takeover is not complete: sessions with lower tokens may be left",
            sentence(why),
            "Declare the same token again; if next or lease has taken it, that is the number in DETAIL. If it keeps \
                failing, remove the cause that DETAIL names; the proxy's log has more.",
        );
        rejection.about_any(scope)
    }

    /// The old sessions are gone, but the cluster did not take the copy of the mark.
    #[must_use]
    pub fn mark_not_copied(scope: Option<&Scope>, why: &dyn fmt::Display) -> Self {
        let rejection = Self::new(
            RejectionKind::TakeoverIncomplete,
            "the takeover is not complete: the mark could not be copied into the cluster",
            sentence(why),
            "Declare the same token again; if next or lease has taken it, that is the number in DETAIL. If it keeps \
                failing, look at \
                the table pgpalisade.mark in the control connection's database: it may be locked, or the disk may be \
                full.",
        );
        rejection.about_any(scope)
    }

    /// The session's server process cannot be watched, so no takeover could end it.
    #[must_use]
    pub fn backend_unknown(why: &dyn fmt::Display) -> Self {
        Self::new(
            RejectionKind::TakeoverIncomplete,
            "the fencing token cannot be accepted: the session's server process cannot be \
                identified",
            sentence(why),
            "Connect pgpalisade to PostgreSQL directly, and GRANT pg_monitor, pg_signal_backend to its control role.",
        )
    }

    /// The session must be read-only, but its server process has not confirmed it.
    #[must_use]
    pub fn not_guarded() -> Self {
        Self::new(
            RejectionKind::TakeoverIncomplete,
            "the session cannot be guarded: default_transaction_read_only does not hold in its server process",
            "The proxy set it to \"on\", but the server process of the login has not confirmed it.",
            "Connect pgpalisade directly to PostgreSQL 14 or later: a pooler in between moves the session to other \
                server processes.",
        )
    }

    /// The session is on a primary that a failover has deposed. What it would write is lost or, worse, believed.
    #[must_use]
    pub(crate) fn deposed_primary(scope: &Scope, token: Token) -> Self {
        Self::new(
            RejectionKind::DeposedPrimary,
            "this server is no longer the primary: it was deposed by a failover",
            "The token authority has a newer timeline of the cluster on record than this session's.",
            "Connect again. If it keeps failing, point the proxy's upstream and control connection to the new primary.",
        )
        .about(scope, Some(token), None)
    }

    /// The session ends because its server is no longer the primary. No request of the client was in flight.
    #[must_use]
    pub fn ended_with_its_server() -> Self {
        Self::new(
            RejectionKind::DeposedPrimary,
            "terminating connection: this server is no longer the primary",
            "Another server became the primary, or this one was restarted. What this session had not committed is \
                rolled back.",
            "Connect again.",
        )
    }

    /// Like [`Self::ended_with_its_server`], with work in flight that may have been committed.
    #[must_use]
    pub fn lost_with_its_server() -> Self {
        Self::new(
            RejectionKind::OutcomeUnknown,
            "terminating connection: this server is no longer the primary, and it is not known whether the last \
                statement was committed",
            "Another server became the primary, or this one was restarted. The primary keeps what it received before \
                that.",
            "Connect again, and read the data to find out.",
        )
    }

    /// The session that declares is on another cluster or timeline than the one on record.
    #[must_use]
    pub fn wrong_cluster(scope: Option<&Scope>, why: &dyn fmt::Display) -> Self {
        let rejection = Self::new(
            RejectionKind::DeposedPrimary,
            "the fencing token cannot be accepted: this server is not the primary on record",
            sentence(why),
            "Connect again. If it keeps failing, point the proxy's upstream and control connection to the new primary; \
                if this server is the right one, run \"pgpalisade recover\".",
        );
        rejection.about_any(scope)
    }

    /// The policy refuses it, whatever the session holds.
    #[must_use]
    pub(crate) fn policy(reason: &dyn fmt::Display) -> Self {
        Self::new(
            RejectionKind::Policy,
            "refused by the fencing policy",
            format!("{reason}."),
            "The policy of the proxy decides this; \"pgpalisade explain\" names the rule.",
        )
    }

    /// The policy does not allow the replication connection.
    #[must_use]
    pub(crate) fn replication(reason: &dyn fmt::Display) -> Self {
        Self::new(
            RejectionKind::Policy,
            "refused by the fencing policy",
            format!("A replication connection is not fenced. {reason}."),
            "Connect to PostgreSQL directly for this, or let the policy allow replication for this user.",
        )
    }

    /// The replication connection declares a token.
    #[must_use]
    pub(crate) fn token_for_replication() -> Self {
        Self::new(
            RejectionKind::InvalidToken,
            "a replication connection cannot hold a fencing token",
            "A replication connection is not fenced: no takeover would end it.",
            "Remove fencing.token from the connection string and from PGOPTIONS.",
        )
    }

    /// The name stands for a statement that changes the session, or may do so.
    #[must_use]
    pub fn changes_by_name() -> Self {
        Self::new(
            RejectionKind::Policy,
            "cannot run by name a statement that may change the session",
            "The name stands for a statement that changes a setting, declares a token or ends a transaction, or that \
                may do so.",
            "Send the statement itself. A prepared statement that changes the session needs a name of ASCII letters, \
                and cannot be run by EXECUTE or FETCH.",
        )
    }

    /// Appends the ErrorResponse.
    pub fn encode(&self, severity: Severity, out: &mut BytesMut) {
        let sqlstate = self.kind.sqlstate();
        let fields = ErrorFields {
            severity,
            sqlstate,
            message: &encode::with_code(sqlstate, &self.message),
            detail: &self.detail,
            hint: &self.hint,
        };
        encode::put(out, &ErrorResponse::from(&fields));
    }
}

fn raised(scope: &Scope, token: Token, mark: &Mark) -> String {
    if mark.token <= token {
        let by = without_controls(&mark.raised_by);
        // Only an operator can do that, by a repair.
        return format!(
            "The token was declared before the scope was repaired: the mark of scope \"{scope}\" was \
                set to {} at {} by {by}.",
            mark.token,
            utc(mark.raised_at)
        );
    }
    raised_to(scope, mark)
}

fn raised_to(scope: &Scope, mark: &Mark) -> String {
    // A mark of an older version may have characters that a terminal obeys.
    let by = without_controls(&mark.raised_by);
    format!(
        "The mark of scope \"{scope}\" was raised to {} at {} by {by}.",
        mark.token,
        utc(mark.raised_at)
    )
}
