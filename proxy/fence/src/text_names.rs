//! Names of prepared statements inside of one text.

use std::sync::Arc;

use pgpalisade_policies::{Control, Effects};

use crate::prepared::Name;

/// What a text itself has done to names of prepared statements, up to one of its statements.
#[derive(Debug, Default)]
pub(crate) struct TextNames<'a> {
    /// The latest comes last.
    changes: Vec<(Name<'a>, Option<&'a Arc<Effects>>)>,
    others: Others,
}

/// What became of the names that a text does not name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Others {
    #[default]
    AsBefore,
    Gone,
}

/// What a text says that a name stands for.
pub(crate) enum InText<'a> {
    Nothing,
    /// Something that is not known.
    Unknown,
    Effects(&'a Arc<Effects>),
}

impl<'a> TextNames<'a> {
    pub(crate) fn apply(&mut self, control: &'a Control) {
        match control {
            Control::Prepare { name, effects } => {
                let name = Name::statement(name.as_bytes());
                self.changes.push((name, Some(effects)));
            }
            Control::Deallocate { name } => {
                self.changes.push((Name::statement(name.as_bytes()), None));
            }
            Control::DeallocateAll | Control::DiscardAll => {
                self.changes.clear();
                self.others = Others::Gone;
            }
            _ => {}
        }
    }

    pub(crate) fn find(&self, name: Name<'_>) -> InText<'a> {
        let mut latest = self.changes.iter().rev();
        match latest.find(|(changed, _)| changed.may_equal(name)) {
            Some((changed, Some(effects))) if *changed == name => InText::Effects(effects),
            Some(_) => InText::Unknown,
            None if self.others == Others::Gone => InText::Unknown,
            None => InText::Nothing,
        }
    }
}
