//! Checks that a session holds what a statement needs.

use std::sync::Arc;

use pgpalisade_authority::Scope;
use pgpalisade_policies::{
    Class, Effects, Lifetime, MayNotDeclare, Mode, ObjectName, Requirement, ScopeId, ScopeSet,
};

use super::permit::{Admitted, Basis, Grounds};
use crate::guard::Unguarded;
use crate::rejection::{Needs, Rejection, WhyWrite};
use crate::wire::header::Header;
use crate::{HeldTokens, SCOPES_MAX, SessionFence, TokenStatus, TokenValue};

/// Reason why a request does not just pass.
#[derive(Debug)]
pub enum Unmet {
    /// These tokens must be accepted for the session first.
    Declare(TokenValue),
    /// It is refused.
    Refuse(Box<Rejection>),
}

impl From<Box<Rejection>> for Unmet {
    fn from(rejection: Box<Rejection>) -> Self {
        Self::Refuse(rejection)
    }
}

/// Decision on a request.
pub type Decision = Result<Admitted, Unmet>;

/// Scopes of the tokens that a session holds.
fn scopes_of(held: Option<&Arc<HeldTokens>>) -> Vec<&Scope> {
    let tokens = held.map_or(&[][..], |held| held.tokens());
    tokens.iter().map(|one| one.mark.scope()).collect()
}

impl SessionFence {
    /// Decides a request of which only the effects are known.
    ///
    /// # Errors
    ///
    /// [`Unmet`].
    pub fn admit_effects(
        &self,
        message: Header,
        effects: &Effects,
        held: Option<&Arc<HeldTokens>>,
    ) -> Decision {
        let mut grounds = Grounds::none();
        self.check(&mut grounds, effects, None, held)?;
        Ok(grounds.admitted(message))
    }

    /// Returns a refusal that is enforced. Of those that are only observed, it keeps the first.
    pub(super) fn refuse_or_observe(
        &self,
        grounds: &mut Grounds,
        rejection: Box<Rejection>,
    ) -> Result<(), Box<Rejection>> {
        match self.mode_of(&rejection) {
            Mode::Enforce => Err(rejection),
            Mode::Observe => {
                grounds.observed.get_or_insert(rejection);
                Ok(())
            }
        }
    }

    /// Checks that a session with these tokens may do this, and returns the basis of its permit.
    pub(super) fn check(
        &self,
        grounds: &mut Grounds,
        effects: &Effects,
        why_write: Option<WhyWrite<'_>>,
        held: Option<&Arc<HeldTokens>>,
    ) -> Result<Basis, Unmet> {
        let is_read = effects.class == Class::Read;
        let scopes = match self.rules().requirement(effects) {
            Requirement::Free if is_read => return Ok(Basis::NotRequired),
            // A session that has declared a token is held to it, even if none is needed.
            Requirement::Free => None,
            Requirement::Current(scopes) => Some(scopes),
            Requirement::Refuse(reason) => {
                self.refuse_or_observe(grounds, Box::new(Rejection::policy(&reason)))?;
                None
            }
        };
        self.check_status(grounds, held)?;
        if let Some(scopes) = &scopes {
            self.check_scopes(grounds, effects, scopes, why_write, held)?;
        }
        self.check_accepted(held)?;
        let basis = match (is_read, &scopes, &grounds.observed) {
            (true, ..) => return Ok(Basis::NotRequired),
            (false, Some(_), None) => Basis::Token,
            _ => Basis::Exempt,
        };
        grounds.basis = basis;
        Ok(basis)
    }

    /// Checks that a session that was allowed to write may end what it has begun.
    pub(super) fn check_goes_on(
        &self,
        grounds: &mut Grounds,
        held: Option<&Arc<HeldTokens>>,
    ) -> Result<(), Unmet> {
        // Read first: a mark that rises meanwhile is then reported as a stale token, not as a missing one.
        let may_write = self.may_write(held);
        self.check_status(grounds, held)?;
        self.check_accepted(held)?;
        if !may_write {
            let missing = self.missing(None, held);
            self.refuse_or_observe(grounds, Box::new(missing))?;
        }
        grounds.basis = match held {
            Some(_) if grounds.observed.is_none() => Basis::Token,
            _ => Basis::Exempt,
        };
        Ok(())
    }

    /// Asks for a new declaration if tokens that were only observed are now enforced.
    fn check_accepted(&self, held: Option<&Arc<HeldTokens>>) -> Result<(), Unmet> {
        match held {
            Some(held) if !held.tokens().iter().all(|one| self.is_accepted(one)) => {
                let value = held.value();
                self.may_declare_all(&value, Lifetime::Local)?;
                Err(Unmet::Declare(value))
            }
            _ => Ok(()),
        }
    }

    /// Checks that no token of the session forbids its writes.
    fn check_status(
        &self,
        grounds: &mut Grounds,
        held: Option<&Arc<HeldTokens>>,
    ) -> Result<(), Box<Rejection>> {
        let tokens = held.map_or(&[][..], |held| held.tokens());
        for one in tokens {
            let scope = one.mark.scope();
            let rejection = match one.status() {
                TokenStatus::Current => continue,
                TokenStatus::Stale(mark) => Rejection::stale(scope, one.token, mark),
                TokenStatus::Deposed => Rejection::deposed_primary(scope, one.token),
            };
            self.refuse_or_observe(grounds, Box::new(rejection))?;
        }
        Ok(())
    }

    /// Refusal of a statement that may hide a write while read-only mode is in doubt; `None` if the session may
    /// write.
    #[must_use]
    pub fn unguarded(&self, held: Option<&Arc<HeldTokens>>, why: Unguarded) -> Option<Rejection> {
        if self.may_write(held) {
            return None;
        }
        let status = self.check_status(&mut Grounds::none(), held);
        Some(match status {
            Err(stale) => *stale,
            Ok(()) => self.missing(Some(WhyWrite::Unguarded(why)), held),
        })
    }

    /// Refusal of an EXECUTE or FETCH that may change the session; `None` if it is only observed.
    #[must_use]
    pub fn changes_by_name(&self) -> Option<Box<Rejection>> {
        let rejection = Box::new(Rejection::changes_by_name());
        self.refuse_or_observe(&mut Grounds::none(), rejection)
            .err()
    }

    /// Refuses what follows a RESET or rollback that brings back a token, unless that is only observed.
    pub(super) fn brought_back_before_others(&self) -> Result<(), Box<Rejection>> {
        let rejection = Box::new(Rejection::brought_back_before_others());
        self.refuse_or_observe(&mut Grounds::none(), rejection)
    }

    /// Refusal of a write for lack of a token of the session's scope.
    fn missing(
        &self,
        why_write: Option<WhyWrite<'_>>,
        held: Option<&Arc<HeldTokens>>,
    ) -> Rejection {
        let scope = self.default_scope();
        let needs = Needs {
            class: Class::Write,
            scopes: &[scope],
            session_scope: scope,
            why_write,
            unqualified: None,
            held: scopes_of(held),
            barred: self.barred_from(scope),
        };
        Rejection::no_token(scope, &needs)
    }

    /// Reason why the session may not declare a token of a scope: not at all, or not for the whole session.
    fn barred_from(&self, scope: &Scope) -> Option<MayNotDeclare> {
        if self.is_given_tokens() {
            return Some(MayNotDeclare {
                why: "Its listener gives it a token, only while this proxy leads, and no other".to_owned(),
                hint: "Connect to the proxy that leads. A program that declares tokens itself connects to an address \
                    of the key \"listen\"."
                    .to_owned(),
            });
        }
        let declares = |lifetime| self.rules().may_declare(scope.as_str(), lifetime).err();
        declares(Lifetime::Local).or_else(|| declares(Lifetime::Session))
    }

    /// Table that a scope may list and that a statement names without its schema.
    fn listed_without_schema<'a>(&self, effects: &'a Effects) -> Option<&'a ObjectName> {
        let mut names = effects.writes.names().iter().chain(effects.reads.names());
        names.find(|name| name.schema.is_none() && self.rules().policy().may_list(name))
    }

    /// Checks that the session has declared tokens of all these scopes.
    fn check_scopes(
        &self,
        grounds: &mut Grounds,
        effects: &Effects,
        scopes: &ScopeSet,
        why_write: Option<WhyWrite<'_>>,
        held: Option<&Arc<HeldTokens>>,
    ) -> Result<(), Unmet> {
        let scope = |id: &ScopeId| self.named(*id).scope();
        for missing in scopes.as_slice().iter().map(scope) {
            if held.is_some_and(|held| held.token_of(missing).is_some()) {
                continue;
            }
            // An observed refusal is on record already, so only enforced scopes still matter.
            if grounds.observed.is_some() && self.mode(Some(missing)) == Mode::Observe {
                continue;
            }
            let needed = scopes.as_slice().iter().map(scope);
            let needed: Vec<&Scope> = needed.take(SCOPES_MAX + 1).collect();
            let needs = Needs {
                class: effects.class,
                scopes: &needed,
                session_scope: self.default_scope(),
                why_write,
                unqualified: self.listed_without_schema(effects),
                held: scopes_of(held),
                barred: self.barred_from(missing),
            };
            let rejection = Box::new(Rejection::no_token(missing, &needs));
            self.refuse_or_observe(grounds, rejection)?;
        }
        Ok(())
    }
}
