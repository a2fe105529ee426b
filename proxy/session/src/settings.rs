//! Settings that a client has set for its session by texts of its own. They go with it: where they are missing, the
//! texts run again before the client's next message.

use std::sync::Arc;

use pgpalisade_policies::{Analysis, Assignment, Leftover, Statement};

use super::Session;
use super::in_flight::Request;
use super::text_settings::decides_meaning;
use crate::wire::backend::TransactionStatus;

/// Limit for the settings of a client, and in bytes for the text of one. Others keep the connection.
const KEPT_MAX: usize = 64;
const TEXT_MAX: usize = 1024;

/// Name of a change that RESET ALL makes.
const ALL: &str = "*";

type Text = Box<[u8]>;

/// The last text of each setting, with its name, in the order in which they ran: some decide how later ones are read.
pub type Texts = Vec<(Box<str>, Text)>;

/// Settings of a client.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) kept: Option<Arc<Texts>>,
    /// Changes of the open transaction.
    pending: Vec<(Box<str>, Option<Text>)>,
}

impl Settings {
    pub(super) const NONE: Self = Self {
        kept: None,
        pending: Vec::new(),
    };

    /// Notes that a transaction was rolled back, or its server connection lost.
    pub(super) fn drop_pending(&mut self) {
        self.pending.clear();
    }

    fn len(&self) -> usize {
        self.kept.as_ref().map_or(0, |kept| kept.len()) + self.pending.len()
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        let kept = self.kept.iter().flat_map(|kept| kept.iter());
        let kept = kept.map(|(name, _)| &**name);
        kept.chain(self.pending.iter().map(|(name, _)| &**name))
    }

    fn has(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }

    /// Whether one of them decides what a text means.
    fn decide_meaning(&self) -> bool {
        self.names().any(decides_meaning)
    }

    /// Whether a client that changes its server connection takes a value of it along.
    pub(super) fn has_own(&self, reported: &[u8]) -> bool {
        let mut kept = self.kept.iter().flat_map(|kept| kept.iter());
        kept.any(|(name, _)| name.as_bytes().eq_ignore_ascii_case(reported))
    }

    /// Whether a change of it is on its way.
    pub(super) fn awaits(&self, reported: &[u8]) -> bool {
        let is_it = |name: &str| name == ALL || name.as_bytes().eq_ignore_ascii_case(reported);
        self.pending.iter().any(|(name, _)| is_it(name))
    }
}

impl Session {
    /// Notes a text that is sent and does nothing but set settings of the session. `false`: what it leaves keeps the
    /// connection.
    pub(super) fn note_assignments(
        &mut self,
        verdict: &Analysis,
        text: &[u8],
        request: Request,
    ) -> bool {
        // What the client runs beside it could end its transaction unseen.
        let ledger = &self.server.ledger;
        let is_alone = || match request {
            Request::Query => ledger.is_of_proxy(),
            _ => ledger.runs_nothing_of_client(),
        };
        let assigns = |statement: &Statement| statement.assigns.is_some();
        if !verdict.statements.iter().any(assigns)
            || !self.is_lent()
            || self.leftover().is_some()
            || !is_alone()
        {
            return false;
        }
        let before = self.client.settings.pending.len();
        let mut all = verdict.statements.iter();
        let depends = request == Request::Execute && self.new_statement_depends_on_settings();
        let are_noted = all.all(|statement| match &statement.assigns {
            Some(assignment) if depends && decides_meaning(assignment.name()) => false,
            Some(assignment) => self.note_assignment(assignment, text),
            None => statement.kind == "SHOW" && statement.controls.is_empty(),
        });
        let (settings, server) = (&mut self.client.settings, &mut self.server);
        if are_noted {
            let noted = settings.pending.iter().skip(before);
            noted.for_each(|(name, _)| server.on_assignment(name));
        } else {
            settings.pending.truncate(before);
        }
        are_noted
    }

    fn note_assignment(&mut self, assignment: &Assignment, text: &[u8]) -> bool {
        let (settings, server) = (&mut self.client.settings, &self.server);
        let name = assignment.name();
        // What was parsed before it means something else afterwards, and what it was before decides how texts after
        // that are read. DateStyle may keep a part of it.
        let is_late = decides_meaning(name)
            && (server.text_settings.differ()
                || server.names.depend_on_settings()
                || settings.has(name));
        let text = match assignment {
            Assignment::Set { at, .. } => match text.get(at.clone()) {
                // Elsewhere a backslash may be read in another way.
                Some(text) if !text.contains(&b'\\') => Some(text),
                // A text that was not kept with its prepared statement.
                _ => return false,
            },
            // Another function of the name may be meant.
            Assignment::SetByCall { .. } if settings.has("search_path") => return false,
            Assignment::SetByCall { again, .. } => Some(again.as_bytes()),
            Assignment::Reset(_) => None,
            Assignment::Utf8 => return server.text_settings.is_utf8(),
        };
        let is_small = text.is_none_or(|text| text.len() <= TEXT_MAX) && settings.len() < KEPT_MAX;
        if is_late || !is_small {
            return false;
        }
        settings.pending.push((name.into(), text.map(Into::into)));
        true
    }

    /// Applies the changes of a transaction that has been committed.
    #[inline]
    pub(super) fn adopt_settings(&mut self) {
        if !self.client.settings.pending.is_empty() {
            self.adopt_pending();
        }
    }

    fn adopt_pending(&mut self) {
        let settings = &mut self.client.settings;
        self.server.reported.adopt(|name| settings.awaits(name));
        let mut texts = settings
            .kept
            .take()
            .map_or_else(Texts::new, Arc::unwrap_or_clone);
        for (name, text) in settings.pending.drain(..) {
            texts.retain(|(known, _)| *known != name && *name != *ALL);
            texts.extend(text.map(|text| (name, text)));
        }
        settings.kept = (!texts.is_empty()).then(|| Arc::new(texts));
        self.server.applied = settings.kept.clone();
        self.server.text_settings.on_reset();
    }

    /// Notes that part of a transaction was rolled back, or is going to be. Which of the changes are left, only the
    /// server knows.
    #[inline]
    pub(super) fn doubt_settings(&mut self) {
        if !self.client.settings.pending.is_empty() {
            self.client.settings.drop_pending();
            if self.client.state.status() != TransactionStatus::Idle {
                self.server.keep(Leftover::Setting);
            }
        }
    }

    /// Notes RESET ALL, which a rollback may undo.
    pub(super) fn on_reset_all(&mut self) {
        let (settings, server) = (&mut self.client.settings, &mut self.server);
        if settings.decide_meaning() && server.names.depend_on_settings() {
            server.note_setting();
            self.doubt_settings();
        } else if settings.names().last().is_some_and(|last| last != ALL) {
            settings.pending.push((ALL.into(), None));
            server.on_assignment(ALL);
        }
    }
}
