//! A client's session without the proxy, and what the client has done to it.

use super::conversation::{Cycle, Kind, token};
use pgpalisade_test_servers::wire::{Message, Wire, errors};

#[derive(Debug)]
pub(super) struct Twin {
    pub(super) wire: Wire,
    pub(super) status: u8,
    pub(super) has_hidden: bool,
    pub(super) is_unsettled: bool,
    /// Whether its seed may be gone.
    pub(super) is_reseeded: bool,
    pub(super) token: Option<u64>,
    pub(super) local_token: Option<u64>,
    /// Whether its transaction, with its savepoints, may be lost.
    pub(super) may_be_lost: bool,
    /// A library.
    pub(super) has_loaded: bool,
}

impl Twin {
    pub(super) const fn new(wire: Wire, token: Option<u64>) -> Self {
        Self {
            wire,
            status: b'I',
            has_hidden: false,
            is_unsettled: false,
            is_reseeded: false,
            token,
            local_token: None,
            may_be_lost: false,
            has_loaded: false,
        }
    }

    /// Whether a statement may be unknown to the proxy's session that is known here.
    pub(super) const fn may_not_know(&self) -> bool {
        self.is_unsettled || self.has_hidden
    }

    /// Notes what a request has changed.
    pub(super) fn note(
        &mut self,
        cycle: &Cycle,
        heard: &[Message],
        startup: Option<&str>,
        number: u64,
    ) {
        let failed = !errors(heard).is_empty();
        let of_startup = startup.map(|relative| token(relative, number));
        match cycle.kind {
            Kind::Hidden => {
                self.has_hidden = true;
                self.is_reseeded = true;
            }
            Kind::Unsettling => self.is_unsettled = true,
            Kind::Resets => {
                self.is_unsettled = true;
                // Refused if the token of the startup packet is stale.
                if !failed {
                    self.token = of_startup;
                }
            }
            Kind::Loads => self.has_loaded = true,
            Kind::Discards if !failed => {
                self.has_hidden = false;
                self.is_reseeded = true;
                self.is_unsettled = false;
                self.token = of_startup;
            }
            Kind::Declares(relative) if !failed => {
                self.token = relative.map(|relative| token(relative, number));
            }
            Kind::DeclaresLocally(relative) if !failed => {
                self.local_token = Some(token(relative, number));
            }
            _ => {}
        }
        if heard.last().is_some_and(|ready| ready.body == b"I") {
            self.local_token = None;
            self.may_be_lost = false;
        }
    }
}
