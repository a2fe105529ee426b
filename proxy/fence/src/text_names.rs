//! Names of prepared statements inside one text.

use std::collections::BTreeMap;
use std::sync::Arc;

use pgpalisade_policies::{Control, Effects};

use crate::prepared::Name;

/// Changes of the names of prepared statements by a text itself, up to one of its statements.
#[derive(Debug, Default)]
pub(crate) struct TextNames<'a> {
    changed: BTreeMap<Name<'a>, Option<&'a Arc<Effects>>>,
    /// Name that was changed last. One that cannot be told from others is known only while it is the last.
    latest: Option<Name<'a>>,
    /// Whether the names that are not in `changed` are gone, or one that cannot be told from others was changed.
    is_forgotten: bool,
}

/// What a name stands for by the text itself.
pub(crate) enum InText<'a> {
    Nothing,
    /// Something unknown.
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

    /// Makes every name unknown.
    pub(crate) fn forget(&mut self) {
        self.changed.clear();
        self.is_forgotten = true;
    }

    pub(crate) fn find(&self, name: Name<'_>) -> InText<'a> {
        let is_sure = name.is_comparable() || self.latest == Some(name);
        match self.changed.get(&name) {
            Some(Some(effects)) if is_sure => InText::Effects(effects),
            None if !self.is_forgotten => InText::Nothing,
            _ => InText::Unknown,
        }
    }
}
