//! What EXECUTE and FETCH run: the statement or portal that a name stands for.

use pgpalisade_policies::{Control, Effects, Mistake};

use super::Walk;
use crate::decision::needs::Unmet;
use crate::prepared::{Name, PreparedText};
use crate::rejection::Rejection;
use crate::text_names::InText;

/// Levels of EXECUTE in an EXECUTE that are followed.
pub(super) const DEPTH_MAX: u8 = 4;

impl<'a> Walk<'a> {
    pub(super) fn check_execute(&mut self, name: Name<'_>, depth: u8) -> Result<(), Unmet> {
        match self.in_text.find(name) {
            InText::Effects(effects) => self.check(effects, None),
            InText::Unknown => self.check(&Effects::without_text(), None),
            InText::Nothing => {
                let meaning = self.find(name).unwrap_or(&PreparedText::Unknown);
                let verdict = meaning.verdict();
                self.plan.changes_names |=
                    verdict.is_some_and(|verdict| verdict.any_control(Control::changes_statements));
                self.check_meaning(meaning, depth)
            }
        }
    }

    /// What a name stands for, if it is known.
    pub(super) fn find(&self, name: Name<'_>) -> Option<&'a PreparedText> {
        match self.situation.names {
            Some(names) => names.find(name),
            None => Some(&PreparedText::MaySteer),
        }
    }

    /// Checks what EXECUTE or FETCH runs. It may change data as the session may, but not the session: that is noticed
    /// only in protocol messages and in statements of their own.
    pub(super) fn check_meaning(
        &mut self,
        meaning: &'a PreparedText,
        depth: u8,
    ) -> Result<(), Unmet> {
        let Some(verdict) = meaning.verdict() else {
            self.check(&meaning.effects(), None)?;
            return match meaning {
                PreparedText::MaySteer => self.refuse(Rejection::changes_by_name()),
                _ => Ok(()),
            };
        };
        for statement in &verdict.statements {
            self.check(&statement.effects, None)?;
            if statement.is_unread() {
                return self.refuse(Rejection::changes_by_name());
            }
            for control in &statement.controls {
                self.check_named_control(control, depth)?;
            }
        }
        Ok(())
    }

    fn check_named_control(&mut self, control: &'a Control, depth: u8) -> Result<(), Unmet> {
        match control {
            Control::SetFencing { variable, .. } => {
                self.refuse(Rejection::mistake(&Mistake::DoesNotDeclare(*variable)))
            }
            Control::Mistake(mistake) => self.refuse(Rejection::mistake(mistake)),
            Control::ShowFencing(_) | Control::ShowAccess(_) => Ok(()),
            // The portal that it runs is not looked up.
            Control::Fetch { .. } => self.check(&Effects::without_text(), None),
            Control::Execute { name } if depth > 0 => {
                self.plan.changes_names = true;
                self.check_execute(Name::statement(name.as_bytes()), depth - 1)
            }
            // It also resets the session.
            Control::DiscardAll => self.refuse(Rejection::changes_by_name()),
            // Names are not followed here. A session that holds all tokens does not need them, and later they count
            // as unknown.
            control if control.changes_statements() && self.fence.holds_all(self.state.token()) => {
                self.in_text.forget();
                Ok(())
            }
            _ => self.refuse(Rejection::changes_by_name()),
        }
    }
}
