//! Refusals in scopes whose token is the number of an election.

use pgpalisade_authority::{Claim, Mark, Scope, Token};

use super::{DEPOSED, Rejection, RejectionKind};

impl Rejection {
    /// The token is not the number of the election's leader.
    #[must_use]
    pub fn not_elected(
        scope: &Scope,
        claim: Claim,
        election: &str,
        leader: Option<Token>,
        mark: Option<Mark>,
    ) -> Self {
        let token = claim.token();
        let shown = token.map_or_else(|| claim.to_string(), |token| token.to_string());
        let (kind, message, hint) = match leader {
            None => (
                RejectionKind::StaleToken,
                format!("fencing token {shown} is stale: nobody leads election \"{election}\""),
                DEPOSED,
            ),
            Some(leader) if token < Some(leader) => (
                RejectionKind::StaleToken,
                format!("fencing token {shown} is stale: election \"{election}\" is at {leader}"),
                DEPOSED,
            ),
            Some(leader) => (
                RejectionKind::InvalidToken,
                format!(
                    "fencing token {shown} has not won election \"{election}\": its leader has {leader}"
                ),
                "Wait until your key leads the election, then declare its create revision.",
            ),
        };
        let at = mark.as_ref().map_or_else(
            || "it has no mark yet".to_owned(),
            |mark| format!("its mark is {}", mark.rank()),
        );
        let detail = format!(
            "The declared token is {shown}, and the key numbers of scope \"{scope}\" admits only the number of the \
                leader of this etcd election; {at}. Nothing was changed."
        );
        Self::new(kind, message, detail, hint).about(scope, token, mark)
    }

    /// The take is for a token that an election issues.
    #[must_use]
    pub fn not_taken(scope: &Scope, claim: Claim, election: &str) -> Self {
        let message = format!(
            "the fencing token of scope \"{scope}\" cannot be taken: election \"{election}\" issues it"
        );
        let detail = format!(
            "The session claims \"{claim}\", and the key numbers of scope \"{scope}\" admits only the number of the \
                leader of this etcd election. Nothing was changed."
        );
        let hint = format!(
            "Stand in the election, and declare the create revision of your key once it leads: SET fencing.token = \
                '{scope}=<number>'."
        );
        let rejection = Self::new(RejectionKind::InvalidToken, message, detail, hint);
        rejection.about(scope, claim.token(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_behind_is_stale_and_who_is_ahead_has_not_won() {
        let (scope, token) = (Scope::default(), |value| Token::new(value).unwrap());
        for (leader, sqlstate, words) in [
            (None, "PF001", "is stale: nobody leads election \"/e\""),
            (Some(35), "PF001", "is stale: election \"/e\" is at 35"),
            (
                Some(33),
                "PF003",
                "has not won election \"/e\": its leader has 33",
            ),
        ] {
            let claim = Claim::Token(token(34));
            let refused = Rejection::not_elected(&scope, claim, "/e", leader.map(token), None);
            assert_eq!(refused.kind.sqlstate(), sqlstate);
            assert!(refused.message.contains(words), "{}", refused.message);
            assert!(
                refused.detail.contains("it has no mark yet"),
                "{}",
                refused.detail
            );
        }
    }
}
