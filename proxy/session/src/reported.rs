//! Settings that the server reports or shows, and what the client gets to see of them.

use std::sync::Arc;

use pgpalisade_policies::{Access, Leftover};

use super::Session;
use super::access_mode::{self, DEFAULT_READ_ONLY, IN_HOT_STANDBY, value};
use super::action::Disposition;
use super::greeting::is_of_guard;
use super::in_flight::InFlight;
use super::read_only::WriteAccess;
use super::text_settings::decides_meaning;
use super::unserved::Block;
use crate::fence::TransactionAccess;
use crate::wire::backend::{self, first_column};
use crate::wire::encode::{self, ParameterStatus};

impl Session {
    /// Replaces a row with an access mode if the client must see another value. Returns whether it did.
    pub(super) fn hides_access(&mut self, row: &[u8]) -> bool {
        let Some(show) = self.server.ledger.shown_access() else {
            return false;
        };
        let front = self.server.ledger.front();
        let transaction = front.map_or(TransactionAccess::Open, InFlight::transaction);
        let guard = &self.server.read_only;
        let told = self.client.told_access;
        let shown = first_column(row)
            .and_then(access_mode::parse)
            .and_then(|server| guard.shown_for(show, transaction, server, told));
        if let Some(shown) = shown {
            let row = encode::data_row([Some(value(shown))]);
            encode::put(&mut self.output.to_client, &row);
        }
        shown.is_some()
    }

    pub(super) fn on_parameter_status(&mut self, body: &[u8]) -> Disposition {
        let Some((name, reported)) = backend::parameter_status(body) else {
            return Disposition::Relay;
        };
        self.server.text_settings.on_report(name, reported);
        let is_told = is_of_guard(name);
        if !is_told && matches!(self.client.block, Block::Entering(_)) {
            // A BEGIN sets nothing: the server has read its configuration again.
            self.server.reported.note_default(name, body);
            self.client.told = Arc::clone(self.server.greeting());
            return Disposition::Relay;
        }
        if !is_told && self.is_own_query() {
            // This client has never known what another has changed.
            self.server.reported.note_own(body);
            return Disposition::Drop;
        }
        if !is_told && self.is_lent() {
            self.on_setting_reported(name, body);
        }
        if name == IN_HOT_STANDBY.as_bytes() {
            self.server.read_only.on_standby_report(reported);
        }
        if name != DEFAULT_READ_ONLY.as_bytes() {
            return Disposition::Relay;
        }
        // Any value but a clear "on" leaves the guard in doubt, so it is set again.
        let reported = access_mode::parse(reported).unwrap_or(Access::ReadWrite);
        // The client may have known another value than the one that the proxy has changed.
        let access = if self.is_own_reply() {
            WriteAccess::MayNotWrite
        } else {
            self.write_access()
        };
        let is_news = self.client.told_access != Some(reported);
        if self.server.read_only.on_report(reported, access) && is_news {
            self.client.told_access = Some(reported);
            Disposition::Relay
        } else {
            Disposition::Drop
        }
    }

    /// Notes a report of a setting. Its client must not find another value in its next connection.
    pub(super) fn on_setting_reported(&mut self, name: &[u8], body: &[u8]) {
        if !self.client.settings.awaits(name) {
            self.server.has_run_more_than_reads = true;
            if decides_meaning(&String::from_utf8_lossy(name).to_ascii_lowercase()) {
                self.server.text_settings.on_change();
                self.keep_parses_in_flight();
            }
        }
        self.server.reported.note(name, body);
    }

    /// Notes the end of a transaction. What SET LOCAL has set, or a rollback undoes, was reported again by now.
    /// Anything else keeps the connection, unless the client takes it along.
    #[inline]
    pub(super) fn settle_reported(&mut self) {
        if self.server.reported.settle() {
            self.server.keep(Leftover::Setting);
        }
    }

    /// Whether the next reply is to a Query of the proxy's own: a reset, or settings that are set again.
    pub(super) fn is_own_query(&self) -> bool {
        self.is_resetting() && !matches!(self.client.block, Block::Entering(_))
    }

    /// Notes the ReadyForQuery of a Query. A reset has reported all that differs by then.
    #[inline]
    pub(super) fn on_own_query_ready(&mut self) {
        if self.is_own_query() && self.server.applied.is_none() {
            self.server.reported.end_reset();
            self.tell_news();
        }
    }

    /// Tells the client what differs from what it knows of its last server connection.
    pub(super) fn tell_news(&mut self) {
        let (client, greeting) = (&mut self.client, self.server.greeting());
        if !Arc::ptr_eq(greeting, &client.told) {
            let is_own = |name: &[u8]| client.settings.has_own(name);
            greeting.put_news(&client.told, is_own, &mut self.output.to_client);
            client.told = Arc::clone(greeting);
        }
    }

    /// Reports the default access mode to the client, if it may know it and does not yet.
    #[cold]
    pub(super) fn tell_default_access(&mut self) {
        let access = self.write_access();
        if let Some(told) = self.server.read_only.tell(access, self.client.told_access) {
            self.client.told_access = Some(told);
            let out = &mut self.output.to_client;
            let status = ParameterStatus::new(DEFAULT_READ_ONLY.into(), value(told).into());
            encode::put(out, &status);
        }
    }
}
