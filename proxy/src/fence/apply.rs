//! What completed statements do to the settings of a session.

use std::str::FromStr;
use std::sync::Arc;

use pgpalisade_authority::Scope;
use pgpalisade_policies::{Chain, Control, FencingVariable};

use super::plan::find;
use super::{Holding, SessionFence, TokenValue};
use crate::session::settings::Settings;

impl SessionFence {
    /// Applies what a statement has done to the session's settings, once the server has completed it.
    pub fn apply(
        &self,
        control: &Control,
        accepted: &[Arc<Holding>],
        settings: &mut Settings<Arc<Holding>>,
    ) {
        match control {
            Control::Commit { chain } => settings.commit(*chain),
            Control::PrepareTransaction => settings.commit(Chain::No),
            Control::Rollback { chain } => settings.rollback(*chain),
            Control::Savepoint(name) => settings.savepoint(name),
            Control::Release(name) => settings.release(name),
            Control::RollbackTo(name) => settings.rollback_to(name),
            Control::SetFencing {
                variable: FencingVariable::Token,
                value,
                lifetime,
            } => {
                let value = TokenValue::parse(value, self.session_scope(settings))
                    .ok()
                    .flatten();
                let holding =
                    value.and_then(|value| find(accepted, settings.token(), &value).cloned());
                settings.set_token(holding, *lifetime);
            }
            Control::SetFencing {
                variable: FencingVariable::Scope,
                value,
                lifetime,
            } => {
                settings.set_scope(Scope::from_str(value).ok(), *lifetime);
            }
            Control::ResetFencing {
                variable: FencingVariable::Token,
                lifetime,
            } => {
                settings.reset_token(*lifetime);
            }
            Control::ResetFencing {
                variable: FencingVariable::Scope,
                lifetime,
            } => {
                settings.reset_scope(*lifetime);
            }
            Control::ResetAll => settings.reset_all(),
            Control::DiscardAll => {
                settings.reset_all();
                // It cannot run inside a transaction, and commits at once even in a pipeline.
                settings.commit(Chain::No);
            }
            Control::Begin { .. }
            | Control::SetTransactionAccess(_)
            | Control::SetDefaultAccess(_)
            | Control::ResetDefaultAccess
            | Control::Mistake(_)
            | Control::ShowFencing(_)
            | Control::ShowAccess(_)
            | Control::Prepare { .. }
            | Control::Execute { .. }
            | Control::Fetch { .. }
            | Control::Deallocate { .. }
            | Control::DeallocateAll => {}
        }
    }

    /// The scope that a bare number is for.
    #[must_use]
    pub fn session_scope<'a>(&'a self, settings: &'a Settings<Arc<Holding>>) -> &'a Scope {
        settings.scope().unwrap_or_else(|| self.default_scope())
    }
}
