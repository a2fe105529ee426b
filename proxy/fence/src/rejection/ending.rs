//! Errors for a session that a takeover ends.

use pgpalisade_authority::{Mark, Scope, Token};

use super::{DEPOSED, OpenTransaction, Rejection, RejectionKind, raised};

impl Rejection {
    /// A takeover ended the session; nothing of its open work is committed.
    #[must_use]
    pub fn session_ended(
        scope: &Scope,
        token: Token,
        mark: Mark,
        transaction: OpenTransaction,
    ) -> Self {
        let message = format!(
            "terminating connection: fencing token {token} is stale, scope \"{scope}\" is at {}",
            mark.token
        );
        let fate = match transaction {
            OpenTransaction::None => "This session had no transaction open.",
            OpenTransaction::RolledBack => "The transaction of this session is rolled back.",
            OpenTransaction::Unknown => return Self::outcome_unknown(scope, token, mark),
        };
        let detail = format!("{} {fate}", raised(scope, token, &mark));
        Self {
            transaction: Some(transaction),
            ..Self::new(RejectionKind::SessionEnded, message, detail, DEPOSED)
        }
        .about(scope, Some(token), Some(mark))
    }

    /// Like [`Self::session_ended`], in observe mode, where no session is ended.
    #[must_use]
    pub fn session_would_end(scope: &Scope, token: Token, mark: Mark) -> Self {
        Self {
            transaction: None,
            ..Self::session_ended(scope, token, mark, OpenTransaction::None)
        }
    }

    /// The same for a client that stays: only its server connection has ended.
    #[must_use]
    pub fn sparing_the_client(self) -> Self {
        let message = self.message.strip_prefix("terminating connection: ");
        let hint = match self.hint.strip_prefix("Connect again") {
            None => self.hint.clone(),
            Some(".") => "End the transaction, and repeat it.".to_owned(),
            Some(_) => "Read the data to find out.".to_owned(),
        };
        Self {
            message: message.unwrap_or(&self.message).to_owned(),
            hint,
            ..self
        }
    }

    /// A takeover ended the session while work in flight may have been committed.
    fn outcome_unknown(scope: &Scope, token: Token, mark: Mark) -> Self {
        let message = format!(
            "terminating connection: fencing token {token} is stale, and it is not known \
                whether the last statement was committed"
        );
        let detail = raised(scope, token, &mark);
        let hint = "It was committed before the newer leader was admitted, or not at all. Read \
            the data to find out.";
        Self {
            transaction: Some(OpenTransaction::Unknown),
            ..Self::new(RejectionKind::OutcomeUnknown, message, detail, hint)
        }
        .about(scope, Some(token), Some(mark))
    }
}
