//! The epoch: a mark of the proxies' own, which rises at each start of a proxy, and after sessions were registered.
//!
//! A restored authority may have every mark, but lack a session that joined at one of them since the backup. Only a
//! number that has risen since shows this. As a mark, the epoch is in every store and in the witness, compared and
//! recovered like any other.

use pgpalisade_authority::{AuthorityError, Cluster, Declaration, Declared, Mark, Scope, Token};

use super::machine::{Event, Request, Step};
use super::plan::NOBODY;

/// One raise of the epoch: in the authority, then in the witness.
#[derive(Debug)]
pub(super) struct Raise<'a> {
    declared_by: &'a str,
    cluster: Option<Cluster>,
}

impl<'a> Raise<'a> {
    pub(super) const fn new(declared_by: &'a str) -> Self {
        Self {
            declared_by,
            cluster: None,
        }
    }

    pub(super) fn handle(&mut self, event: Event) -> Step {
        match (event, self.cluster) {
            (Event::Begin, _) => Step::ask(Request::HasWitness),
            (Event::HasWitness(false, _) | Event::Done, _) => Step::End(Ok(())),
            (Event::HasWitness(true, cluster), _) => {
                self.cluster = Some(cluster);
                Step::ask(Request::Mark(Scope::epoch()))
            }
            (Event::Mark(mark), Some(cluster)) => {
                Step::ask(Request::Declare(self.above(mark, cluster)))
            }
            // Another proxy may have been faster; the epoch has risen all the same.
            (Event::Declared(Declared::Accepted { mark, .. } | Declared::Stale { mark }), _) => {
                Step::ask(Request::Witness(Scope::epoch(), mark))
            }
            (Event::Declared(_), _) => {
                let why = "another cluster is on record".to_owned();
                Step::End(Err(AuthorityError::Unavailable(why).into()))
            }
            (other, _) => Step::End(Err(other.into_error())),
        }
    }

    fn above(&self, mark: Option<Mark>, cluster: Cluster) -> Declaration {
        let token = match mark {
            None => Token::MIN,
            Some(mark) => mark.token.next().unwrap_or(mark.token),
        };
        Declaration::new(&Scope::epoch(), token, NOBODY, cluster, self.declared_by)
    }
}

#[cfg(test)]
mod tests {
    use pgpalisade_authority::DeclareOutcome;

    use super::super::error::DeclareError;
    use super::super::machine::tests::{OURS, mark, token};
    use super::*;

    /// The next request; empty at the end.
    fn ask(raise: &mut Raise<'_>, event: Event) -> String {
        match raise.handle(event) {
            Step::Ask(_, request) => format!("{request:?}"),
            Step::End(end) => end.map_or_else(|error| panic!("{error}"), |()| String::new()),
        }
    }

    fn is(request: Request) -> String {
        format!("{request:?}")
    }

    #[test]
    fn rises_in_the_authority_and_then_in_the_witness() {
        let epoch = Scope::epoch;
        for (before, after) in [(None, 1), (Some(4), 5), (Some(Token::MAX), Token::MAX)] {
            let mut raise = Raise::new("us");
            assert_eq!(ask(&mut raise, Event::Begin), is(Request::HasWitness));
            let usable = Event::HasWitness(true, OURS);
            assert_eq!(ask(&mut raise, usable), is(Request::Mark(epoch())));
            let token = token(after);
            let declaration = Declaration::new(&epoch(), token, NOBODY, OURS, "us");
            let declared = ask(&mut raise, Event::Mark(before.map(mark)));
            assert_eq!(declared, is(Request::Declare(declaration)));
            let (outcome, lower) = (DeclareOutcome::Raised, Vec::new());
            let mark = mark(after);
            let accepted = Declared::Accepted {
                mark: mark.clone(),
                outcome,
                lower,
            };
            let faster = Declared::Stale { mark: mark.clone() };
            for declared in [accepted, faster] {
                let written = ask(&mut raise, Event::Declared(declared));
                assert_eq!(written, is(Request::Witness(epoch(), mark.clone())));
            }
            assert_eq!(ask(&mut raise, Event::Done), "");
        }
    }

    #[test]
    fn without_a_witness_it_stays() {
        let missing = Event::HasWitness(false, OURS);
        assert_eq!(ask(&mut Raise::new("us"), missing), "");
    }

    #[test]
    fn what_is_refused_or_unexpected_is_an_error() {
        let refused = Declared::OtherCluster { recorded: None };
        for event in [
            Event::Declared(refused),
            Event::Mark(None),
            Event::Recorded(None),
            Event::Failed(DeclareError::MarkIsLower { mark: None }),
        ] {
            let step = Raise::new("us").handle(event);
            assert!(matches!(step, Step::End(Err(_))), "{step:?}");
        }
    }
}
