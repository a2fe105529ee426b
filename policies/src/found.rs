//! Findings about one statement while it is examined.

use crate::control::{Control, Mistake};
use crate::effects::{Category, Class, Computes, Effects, Tables};
use crate::object_name::ObjectName;
use crate::write_reason::WriteReason;

pub(crate) struct Found {
    /// Reason why it is a write: the first one found.
    pub(crate) why: Option<WriteReason>,
    pub(crate) controls: Vec<Control>,
    /// Better name than that of the node.
    pub(crate) kind: Option<&'static str>,
    /// Category for policies, perhaps in addition to the kind: SELECT INTO is DDL.
    pub(crate) category: Option<Category>,
    pub(crate) writes: Tables,
    pub(crate) reads: Tables,
    pub(crate) functions: Box<[ObjectName]>,
    /// Names of changed settings.
    pub(crate) settings: Vec<Box<str>>,
    /// Part that only seems to declare a token.
    pub(crate) mistake: Option<Mistake>,
    pub(crate) computes: Computes,
}

impl Found {
    /// No effect on data.
    pub(crate) fn nothing() -> Self {
        Self {
            why: None,
            controls: Vec::new(),
            kind: None,
            category: None,
            writes: Tables::none(),
            reads: Tables::none(),
            functions: Box::default(),
            settings: Vec::new(),
            mistake: None,
            computes: Computes::Anything,
        }
    }

    /// A write about which the text says nothing more.
    pub(crate) fn unknown(why: WriteReason) -> Self {
        Self {
            why: Some(why),
            writes: Tables::unknown(),
            reads: Tables::unknown(),
            ..Self::nothing()
        }
    }

    pub(crate) fn control(control: Control) -> Self {
        Self {
            controls: vec![control],
            ..Self::nothing()
        }
    }

    pub(crate) fn because(self, why: Option<WriteReason>) -> Self {
        Self { why, ..self }
    }

    /// Makes it a part of another statement, whose effects on the session are not followed.
    pub(crate) fn inside(self) -> Self {
        let seems = self.controls.iter().find_map(|control| match control {
            Control::SetFencing { variable, .. } => Some(Mistake::DoesNotDeclare(*variable)),
            Control::Mistake(mistake) => Some(mistake.clone()),
            _ => None,
        });
        let mut controls = self.controls;
        controls.retain(|control| matches!(control, Control::Execute { .. }));
        Self {
            mistake: self.mistake.or(seems),
            controls,
            computes: Computes::Anything,
            ..self
        }
    }

    pub(crate) fn named(self, kind: &'static str) -> Self {
        Self {
            kind: Some(kind),
            ..self
        }
    }

    pub(crate) fn in_category(self, category: Category) -> Self {
        Self {
            category: Some(category),
            ..self
        }
    }

    pub(crate) fn changing(self, settings: Vec<Box<str>>) -> Self {
        Self { settings, ..self }
    }

    pub(crate) fn effects(self) -> Effects {
        let class = match self.why {
            Some(_) => Class::Write,
            None => Class::Read,
        };
        let mut settings = self.settings;
        settings.sort_unstable();
        settings.dedup();
        Effects {
            class,
            category: self.category,
            writes: self.writes,
            reads: self.reads,
            functions: self.functions,
            settings: settings.into(),
        }
    }
}
