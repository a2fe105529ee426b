//! Names of prepared statements inside of one text.

use std::collections::BTreeMap;
use std::sync::Arc;

use pgpalisade_policies::{Control, Effects};

use crate::prepared::Name;

/// What a text itself has done to names of prepared statements, up to one of its statements.
#[derive(Debug, Default)]
pub(crate) struct TextNames<'a> {
    changed: BTreeMap<Name<'a>, Option<&'a Arc<Effects>>>,
    /// Of one that cannot be told from the others only the latest change says something.
    latest: Option<Name<'a>>,
    others: Others,
}

/// What became of the names that are not among the changed ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Others {
    #[default]
    AsBefore,
    /// They are gone, or one of them was changed and cannot be told from the others.
    Unknown,
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
            Control::Prepare { name, effects } => self.change(name, Some(effects)),
            Control::Deallocate { name } => self.change(name, None),
            Control::DeallocateAll | Control::DiscardAll | Control::MayChangeNames => self.forget(),
            _ => {}
        }
    }

    fn change(&mut self, name: &'a str, effects: Option<&'a Arc<Effects>>) {
        let name = Name::statement(name.as_bytes());
        if !name.is_comparable() {
            self.forget();
        }
        self.changed.insert(name, effects);
        self.latest = Some(name);
    }

    /// Nothing is known of any name any more.
    pub(crate) fn forget(&mut self) {
        self.changed.clear();
        self.others = Others::Unknown;
    }

    pub(crate) fn find(&self, name: Name<'_>) -> InText<'a> {
        let is_sure = name.is_comparable() || self.latest == Some(name);
        match self.changed.get(&name) {
            Some(Some(effects)) if is_sure => InText::Effects(effects),
            None if self.others == Others::AsBefore => InText::Nothing,
            _ => InText::Unknown,
        }
    }
}
