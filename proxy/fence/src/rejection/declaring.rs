//! Refusals of declarations, and of statements that only look like one.

use std::fmt;

use pgpalisade_authority::{Claim, LEASE_IS_ANOTHERS, Mark, Scope, Token};
use pgpalisade_policies::{MayNotDeclare, Mistake, nearest};

use super::RejectionKind;
use super::{Bound, Rejection, raised_to};
use crate::readable::sentence;

impl Rejection {
    /// The token exceeds a limit of the policy.
    #[must_use]
    pub fn out_of_bounds(scope: &Scope, claim: Claim, mark: Option<Mark>, bound: Bound) -> Self {
        let after = || mark.as_ref().and_then(|mark| mark.token.next());
        let token = claim.token().or_else(after);
        match bound {
            Bound::MaxScopes(most) => return Self::too_many_scopes(scope, token, most),
            Bound::Last => return Self::no_token_left(scope, claim, mark),
            _ => {}
        }
        // A take that was not judged has no number yet.
        let number = token.map_or_else(|| format!("\"{claim}\""), |token| token.to_string());
        let message = format!("fencing token {number} is out of bounds for scope \"{scope}\"");
        let at = match &mark {
            Some(mark) => format!("the mark is {}", mark.rank()),
            None => "no mark is known".to_owned(),
        };
        let limit = match bound {
            Bound::MaxToken(most) => format!("max_token of scope \"{scope}\" is {most}"),
            Bound::MaxStep(most) => format!(
                "max_step of scope \"{scope}\" allows one declaration to raise it by {most}"
            ),
            Bound::Issued => format!(
                "numbers of scope \"{scope}\" admits only tokens that pgpalisade has issued"
            ),
            Bound::Pace(most, within) => format!(
                "max_step of scope \"{scope}\" allows all declarations through one proxy in {} s together to raise it \
                    by {most}",
                within.as_secs()
            ),
            Bound::MaxScopes(_) | Bound::Last | Bound::Reserved => bound.to_string(),
        };
        let detail =
            format!("The declared token is {number}, {at}, and {limit}. Nothing was changed.");
        if bound == Bound::Issued {
            let hint = "Let pgpalisade issue the token: SET fencing.token = 'lease', or 'next', or 'after:' followed \
                by the mark. To admit the numbers of an election, an operator can set numbers = \"any\" in the policy.";
            let rejection = Self::new(RejectionKind::InvalidToken, message, detail, hint);
            return rejection.about(scope, token, mark);
        }
        let hint = "Check where the token comes from: it is not the next one of this election. If the election has \
            really come this far, raise the bound in the policy; if the mark is wrong, an operator can set it with \
            \"pgpalisade scope repair\".";
        Self::new(RejectionKind::InvalidToken, message, detail, hint).about(scope, token, mark)
    }

    /// The mark is the highest token, so no other follows it.
    fn no_token_left(scope: &Scope, claim: Claim, mark: Option<Mark>) -> Self {
        let message = format!("no fencing token is left in scope \"{scope}\"");
        let raised = mark.as_ref().map(|mark| raised_to(scope, mark));
        let detail = format!(
            "The session claims \"{claim}\". {} No token is higher than {}. Nothing was changed.",
            raised.unwrap_or_default(),
            Token::MAX
        );
        let hint = "Find out who declared it, and have an operator set the mark with \"pgpalisade scope repair\".";
        let rejection = Self::new(RejectionKind::InvalidToken, message, detail, hint);
        rejection.about(scope, None, mark)
    }

    /// The mark is above what a session claims.
    #[must_use]
    pub fn behind(scope: &Scope, claim: Claim, mark: Mark) -> Self {
        match claim {
            Claim::Token(token) => Self::stale(scope, token, mark),
            Claim::After(_) | Claim::Next | Claim::Lease(_) => Self::taken(scope, claim, mark),
        }
    }

    /// Another session has raised the mark since it was read.
    fn taken(scope: &Scope, claim: Claim, mark: Mark) -> Self {
        let message = format!(
            "the next fencing token of scope \"{scope}\" is taken: its mark is {}",
            mark.token
        );
        let detail = format!(
            "The session claims \"{claim}\". {}",
            raised_to(scope, &mark)
        );
        let hint = "Another process took the lead after the mark was read. Do not act as leader. To try again, read \
            SHOW fencing.mark, check that this process still holds the lock, and declare 'after:' followed by that \
            mark.";
        let rejection = Self::new(RejectionKind::StaleToken, message, detail, hint);
        rejection.about(scope, claim.token(), Some(mark))
    }

    /// The lease was not obtained: another session holds it, or the authority did not answer, for the reason
    /// `unanswered`.
    #[must_use]
    pub fn lease_held(scope: &Scope, claim: Claim, unanswered: Option<&str>) -> Self {
        let (message, detail, hint) = match unanswered {
            None => (
                format!("{LEASE_IS_ANOTHERS} of scope \"{scope}\""),
                format!("The session asked for \"{claim}\". Nothing was changed."),
                "Another process leads. To keep waiting, ask for the lease again.",
            ),
            Some(why) => (
                format!(
                    "the lease of scope \"{scope}\" could not be obtained: the token authority does not answer"
                ),
                format!("The session asked for \"{claim}\": {why}. No token was declared."),
                "Ask for the lease again.",
            ),
        };
        Self::new(RejectionKind::LeaseHeld, message, detail, hint).about(scope, None, None)
    }

    /// The mark has never been as high as the one to follow, or not since a repair.
    #[must_use]
    pub fn nothing_to_follow(scope: &Scope, claim: Claim, mark: Option<Mark>) -> Self {
        let at = match &mark {
            Some(mark) => format!("its mark is {}", mark.rank()),
            None => "it has no mark".to_owned(),
        };
        let message = format!("no fencing token follows the given mark of scope \"{scope}\": {at}");
        let detail = format!(
            "The session claims \"{claim}\". A token can be taken only after the current mark. Nothing was changed."
        );
        let hint = "Read the mark again with SHOW fencing.mark, and declare 'after:' followed by it, or 'after:0' if \
            the scope has no mark.";
        let rejection = Self::new(RejectionKind::InvalidToken, message, detail, hint);
        rejection.about(scope, claim.token(), mark)
    }

    /// The text with the take does more than that.
    #[must_use]
    pub fn taken_beside_others() -> Self {
        Self::new(
            RejectionKind::InvalidToken,
            "cannot take a fencing token in a query that does more",
            "The other statements of the query would run before the number replaces \"after:\", \"next\" or \"lease\" \
                in PostgreSQL.",
            "Send SET fencing.token = 'next', or SELECT set_config('fencing.token', 'next', false), as a query of its \
                own; it may be in a transaction or a pipeline.",
        )
    }

    /// A query ends the open transaction, sets a token, and writes.
    #[must_use]
    pub fn declared_after_an_end() -> Self {
        Self::new(
            RejectionKind::InvalidToken,
            "cannot declare a fencing token and write in a query that ends a transaction first",
            "A token makes the transaction read-write in which its query arrives, and the next one would be read-only.",
            "Send what ends the transaction as a query of its own.",
        )
    }

    /// A query writes with one token, and then sets a higher one.
    #[must_use]
    pub fn deposes_earlier_statements() -> Self {
        Self::new(
            RejectionKind::InvalidToken,
            "cannot declare a higher fencing token in the query that has written with a lower one",
            "The token is declared before the query runs, which would make its first statements stale.",
            "Send SET fencing.token after the transaction, as a query of its own.",
        )
    }

    /// A RESET, DISCARD or rollback brings a token back of which PostgreSQL has not been told yet, and more follows in
    /// its query.
    #[must_use]
    pub fn brought_back_before_others() -> Self {
        Self::new(
            RejectionKind::InvalidToken,
            "cannot go on in a query after a statement that brings back the fencing token of the connection string",
            "RESET, DISCARD or ROLLBACK ends what was set in this server process. PostgreSQL is told the token again \
                after the query, so its other statements would run with another fencing.token.",
            "Send what follows as a query of its own.",
        )
    }

    /// The statement looks like a declaration, or asks for a setting of the proxy, and is neither.
    #[must_use]
    pub fn mistake(mistake: &Mistake) -> Self {
        const OURS: [&str; 5] = [
            "fencing.token",
            "fencing.scope",
            "fencing.mark",
            "fencing.status",
            "fencing.history",
        ];
        const SETTINGS: &str = "Settings below fencing. are pgpalisade's: fencing.token and fencing.scope can be set \
            and shown, fencing.mark, fencing.status and fencing.history can be shown.";
        const LITERAL: &str = "Write SET fencing.token = 34, or SELECT set_config('fencing.token', '34', false) as \
            the whole statement. Write the number itself, not a parameter such as $1.";
        let (message, detail, hint) = match mistake {
            Mistake::UnknownSetting(name) => {
                let near = nearest(&name.to_ascii_lowercase(), OURS.into_iter());
                let hint = near.map_or_else(
                    || "Write SET fencing.token = 34.".to_owned(),
                    |near| format!("Did you mean {near}?"),
                );
                let shown: String = name.chars().take(100).collect();
                let message = format!("there is no setting \"{shown}\"");
                (message, SETTINGS.to_owned(), hint)
            }
            Mistake::ShowOnly(name) => (
                format!("\"{name}\" cannot be set"),
                SETTINGS.to_owned(),
                format!("Write SHOW {name}."),
            ),
            Mistake::Unreadable(why) => (
                "cannot tell what this query does with the settings of pgpalisade".to_owned(),
                format!("It names one of them, and cannot be judged because {why}."),
                "Send SET fencing.token as a query of its own, in ASCII characters.".to_owned(),
            ),
            Mistake::DoesNotDeclare(variable) => {
                let name = variable.name();
                let detail = format!(
                    "It would set {name} in PostgreSQL only, and the session would hold no token. A token is declared \
                        by a separate statement that contains its value."
                );
                let message =
                    format!("this statement sets {name} without declaring a fencing token");
                (message, detail, LITERAL.to_owned())
            }
        };
        Self::new(RejectionKind::InvalidToken, message, detail, hint)
    }

    /// The policy does not let the session declare the scope, or not for this lifetime.
    #[must_use]
    pub(crate) fn may_not_declare(
        scope: &Scope,
        token: Option<Token>,
        why: &MayNotDeclare,
    ) -> Self {
        let message = format!("this session may not declare scope \"{scope}\" like this");
        let detail = format!("{}.", why.why);
        Self::new(RejectionKind::Policy, message, detail, &why.hint).about(scope, token, None)
    }

    /// The session's listener gives it its token.
    #[must_use]
    pub fn tokens_are_given() -> Self {
        Self::new(
            RejectionKind::Policy,
            "this session may not declare a token: its listener gives it one",
            "Every session of this listener holds the token under which the proxy leads, or none, from its login to \
                its end.",
            "Leave the declaration out. A program that declares tokens itself connects to an address of the key \
                \"listen\".",
        )
    }

    /// The scope is one more than the policy allows.
    fn too_many_scopes(scope: &Scope, token: Option<Token>, most: u64) -> Self {
        let message = format!("scope \"{scope}\" is new, and there are too many scopes");
        let detail = format!("tokens.max_scopes is {most}. Nothing was changed.");
        let hint = "Correct the name, or have an operator add the scope to the policy, or raise tokens.max_scopes.";
        Self::new(RejectionKind::Policy, message, detail, hint).about(scope, token, None)
    }

    /// Prepared transactions of earlier tokens are left, which the policy does not allow after a takeover.
    #[must_use]
    pub fn prepared_transactions_left(scope: &Scope, why: &dyn fmt::Display) -> Self {
        Self::new(
            RejectionKind::TakeoverIncomplete,
            "the takeover is not complete: prepared transactions of earlier leaders are left",
            sentence(why),
            "Finish them with COMMIT PREPARED or ROLLBACK PREPARED, connected to PostgreSQL directly, and declare the \
                token again.",
        )
        .about(scope, None, None)
    }
}
