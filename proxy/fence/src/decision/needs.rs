//! Whether a session holds what a statement needs.

use std::sync::Arc;

use pgpalisade_authority::Scope;
use pgpalisade_policies::{
    Class, Effects, Lifetime, MayNotDeclare, Mode, ObjectName, Requirement, ScopeId, ScopeSet,
    Tables,
};

use super::permit::{Admitted, Basis, Grounds};
use crate::guard::Unguarded;
use crate::rejection::{Needs, Rejection, WhyWrite};
use crate::wire::header::Header;
use crate::{HeldTokens, SCOPES_MAX, SessionFence, TokenStatus, TokenValue};

/// Why a request does not just pass.
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

/// Whether a request may be sent.
pub type Decision = Result<Admitted, Unmet>;

/// The scopes of the tokens that a session holds.
fn scopes_of(holding: Option<&Arc<HeldTokens>>) -> Vec<&Scope> {
    let bindings = holding.map_or(&[][..], |holding| holding.bindings());
    bindings
        .iter()
        .map(|binding| binding.cell.scope())
        .collect()
}

impl SessionFence {
    /// Decides a request of which nothing is known but its effects.
    ///
    /// # Errors
    ///
    /// [`Unmet`].
    pub fn admit_effects(
        &self,
        message: Header,
        effects: &Effects,
        holding: Option<&Arc<HeldTokens>>,
    ) -> Decision {
        let mut grounds = Grounds::none();
        self.check(&mut grounds, effects, None, holding)?;
        Ok(grounds.admitted(message))
    }

    /// Carries a refusal out, or keeps it where it is only observed; the first one is kept.
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

    /// Whether a session with these tokens may do this, and what its permit rests on then.
    pub(super) fn check(
        &self,
        grounds: &mut Grounds,
        effects: &Effects,
        why_write: Option<WhyWrite<'_>>,
        holding: Option<&Arc<HeldTokens>>,
    ) -> Result<Basis, Unmet> {
        let is_read = effects.class == Class::Read;
        let scopes = match self.rules().requirement(effects) {
            Requirement::Free if is_read => return Ok(Basis::NotRequired),
            // Whoever has declared a token is held to it, also where none is needed.
            Requirement::Free => None,
            Requirement::Current(scopes) => Some(scopes),
            Requirement::Refuse(reason) => {
                self.refuse_or_observe(grounds, Box::new(Rejection::policy(&reason)))?;
                None
            }
        };
        self.check_standing(grounds, holding)?;
        if let Some(scopes) = &scopes {
            self.check_scopes(grounds, effects, scopes, why_write, holding)?;
        }
        self.check_accepted(holding)?;
        let basis = match (is_read, &scopes, &grounds.observed) {
            (true, ..) => return Ok(Basis::NotRequired),
            (false, Some(_), None) => Basis::Token,
            _ => Basis::Exempt,
        };
        grounds.basis = basis;
        Ok(basis)
    }

    /// Whether a session that has been let write may end what it has begun.
    pub(super) fn check_goes_on(
        &self,
        grounds: &mut Grounds,
        holding: Option<&Arc<HeldTokens>>,
    ) -> Result<(), Unmet> {
        // Looked at first: a mark that rises meanwhile is then told as what it is, not as a token that was never there.
        let may_write = self.may_write(holding);
        self.check_standing(grounds, holding)?;
        self.check_accepted(holding)?;
        if !may_write {
            let missing = self.missing(self.rules().scope(), Class::Write, None, holding);
            self.refuse_or_observe(grounds, Box::new(missing))?;
        }
        grounds.basis = match holding {
            Some(_) if grounds.observed.is_none() => Basis::Token,
            _ => Basis::Exempt,
        };
        Ok(())
    }

    /// What was only observed is declared anew once it is enforced.
    fn check_accepted(&self, holding: Option<&Arc<HeldTokens>>) -> Result<(), Unmet> {
        match holding {
            Some(holding) if !holding.bindings().iter().all(|one| self.is_accepted(one)) => {
                let value = holding.value();
                self.may_declare_all(&value, Lifetime::Local)?;
                Err(Unmet::Declare(value))
            }
            _ => Ok(()),
        }
    }

    /// Whether none of the tokens that a session has declared stands against its writes.
    fn check_standing(
        &self,
        grounds: &mut Grounds,
        holding: Option<&Arc<HeldTokens>>,
    ) -> Result<(), Box<Rejection>> {
        let bindings = holding.map_or(&[][..], |holding| holding.bindings());
        for binding in bindings {
            let scope = binding.cell.scope();
            let rejection = match binding.standing() {
                TokenStatus::Current => continue,
                TokenStatus::Stale(mark) => Rejection::stale(scope, binding.token, mark),
                TokenStatus::Deposed => Rejection::deposed_primary(scope, binding.token),
            };
            self.refuse_or_observe(grounds, Box::new(rejection))?;
        }
        Ok(())
    }

    /// Why a session may not run a query behind the end of a transaction, while nobody knows whether read-only mode is
    /// still on; `None` where it needs none.
    #[must_use]
    pub fn unguarded(
        &self,
        holding: Option<&Arc<HeldTokens>>,
        why: Unguarded,
    ) -> Option<Rejection> {
        let scope = self.rules().scope();
        if self.may_write(holding) {
            return None;
        }
        let standing = self.check_standing(&mut Grounds::none(), holding);
        Some(match standing {
            Err(stale) => *stale,
            Ok(()) => {
                let why = WhyWrite::Unguarded(why);
                self.missing(scope, Class::Write, Some(why), holding)
            }
        })
    }

    /// The refusal of running by its name what may change the session; `None` where that is only observed.
    #[must_use]
    pub fn changes_by_name(&self) -> Option<Box<Rejection>> {
        let rejection = Box::new(Rejection::changes_by_name());
        self.refuse_or_observe(&mut Grounds::none(), rejection)
            .err()
    }

    /// The refusal of a token that is taken in front of other statements; `None` where that is only observed.
    #[must_use]
    pub fn taken_beside_others(&self) -> Option<Box<Rejection>> {
        let rejection = Box::new(Rejection::taken_beside_others());
        self.refuse_or_observe(&mut Grounds::none(), rejection)
            .err()
    }

    /// The refusal for want of a token of one scope.
    fn missing(
        &self,
        scope: ScopeId,
        class: Class,
        why_write: Option<WhyWrite<'_>>,
        holding: Option<&Arc<HeldTokens>>,
    ) -> Rejection {
        let scope = self.named(scope).scope();
        let needs = Needs {
            class,
            scopes: &[scope],
            session_scope: self.default_scope(),
            why_write,
            unqualified: None,
            held: scopes_of(holding),
            barred: self.barred_from(scope),
        };
        Rejection::no_token(scope, &needs)
    }

    /// Why the session may not declare a token of a scope, for the session if not at all.
    fn barred_from(&self, scope: &Scope) -> Option<MayNotDeclare> {
        let declares = |lifetime| self.rules().may_declare(scope.as_str(), lifetime).err();
        declares(Lifetime::Local).or_else(|| declares(Lifetime::Session))
    }

    /// A table that a scope lists, maybe, and that a statement names without its schema.
    fn listed_without_schema<'a>(&self, effects: &'a Effects) -> Option<&'a ObjectName> {
        let names = |tables: &'a Tables| match tables {
            Tables::Named(names) => &**names,
            Tables::Unknown => &[],
        };
        let mut names = names(&effects.writes).iter().chain(names(&effects.reads));
        names.find(|name| name.schema.is_none() && self.rules().policy().may_list(name))
    }

    /// Whether the session has declared tokens of all these scopes.
    fn check_scopes(
        &self,
        grounds: &mut Grounds,
        effects: &Effects,
        scopes: &ScopeSet,
        why_write: Option<WhyWrite<'_>>,
        holding: Option<&Arc<HeldTokens>>,
    ) -> Result<(), Unmet> {
        let scope = |id: &ScopeId| self.named(*id).scope();
        for missing in scopes.as_slice().iter().map(scope) {
            if holding.is_some_and(|holding| holding.binding_of(missing).is_some()) {
                continue;
            }
            // One that is observed is on record, so only one that is enforced still matters.
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
                held: scopes_of(holding),
                barred: self.barred_from(missing),
            };
            let rejection = Box::new(Rejection::no_token(missing, &needs));
            self.refuse_or_observe(grounds, rejection)?;
        }
        Ok(())
    }
}
