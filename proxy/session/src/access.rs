//! The backstop: a session that may not write runs with `default_transaction_read_only = on`, so that
//! PostgreSQL itself refuses a write that no parser can see. This file follows the setting, decides
//! when it must be changed, and what the client may see of it.
//!
//! Source: <https://www.postgresql.org/docs/current/runtime-config-client.html#GUC-DEFAULT-TRANSACTION-READ-ONLY>

use pgpalisade_policies::{Access, AccessShow, Chain, Control};

/// The name of the setting.
pub const DEFAULT_READ_ONLY: &str = "default_transaction_read_only";

/// What the server reports from PostgreSQL 14 on, of its own accord: a standby's transactions are all read-only.
pub const IN_HOT_STANDBY: &str = "in_hot_standby";

/// Whether a session's tokens let it write at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteAccess {
    /// It holds a current token.
    MayWrite,
    /// It holds none, or a stale one.
    MayNotWrite,
}

/// A change of the setting, or of the open transaction, that the proxy has to make now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adjustment {
    /// Outside of a transaction: for all that follow.
    Default(Access),
    /// Inside of one that began read-only: it may write from now on.
    SetReadWrite,
    /// Inside of one that began read-write: it may not write any more.
    SetReadOnly,
}

/// Where a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Idle, everything answered, no pipeline open.
    Outside,
    /// In a transaction block, or in a pipeline, which is a transaction too.
    Inside,
}

/// Whether the server is one on which every transaction is read-only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// It has not said: PostgreSQL before 14, or something in between that keeps the report back.
    Unknown,
    /// A primary.
    No,
    /// A hot standby.
    Yes,
}

impl Recovery {
    /// Reads the value of [`IN_HOT_STANDBY`].
    #[must_use]
    pub const fn reported(value: &[u8]) -> Self {
        match value {
            b"on" => Self::Yes,
            b"off" => Self::No,
            _ => Self::Unknown,
        }
    }
}

/// The defaults as they were when the open transaction began.
#[derive(Debug, Clone, Copy)]
struct Defaults {
    shown: Access,
    actual: Access,
}

/// What the open transaction may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    /// What the default allowed when it began.
    AsBegun,
    /// It was changed since.
    Changed(Access),
    /// A rollback may have undone a change.
    Unknown,
}

/// Whether all that the client did to the access mode is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sight {
    Clear,
    /// Something in the open transaction may have changed it out of sight.
    Blurred,
}

/// What a session's transactions may do, on the server and in the client's eyes.
#[derive(Debug)]
pub struct AccessMode {
    /// What the client asked for in its startup packet: what a RESET returns to in its eyes.
    asked: Access,
    /// The setting that the server was sent at the start: what a RESET really returns to.
    startup: Access,
    /// What the setting is as far as the client is concerned.
    shown: Access,
    /// What the client was last told of it.
    told: Access,
    /// What the proxy has last set it to.
    imposed: Access,
    /// What the server has, as far as is known between two reports.
    actual: Access,
    /// What the server has last reported.
    reported: Access,
    /// What the open transaction may do.
    open: Open,
    /// What the client itself asked for, for the open transaction.
    requested: Option<Access>,
    /// The defaults before the open transaction's first change of them.
    before: Option<Defaults>,
    sight: Sight,
    recovery: Recovery,
    /// A RESET has completed since the last report.
    reset: bool,
}

impl AccessMode {
    /// A session whose startup packet asked for `asked` and was sent to the server with `startup`.
    #[must_use]
    pub const fn new(asked: Access, startup: Access) -> Self {
        Self {
            asked,
            startup,
            shown: asked,
            told: asked,
            imposed: startup,
            actual: startup,
            reported: startup,
            open: Open::AsBegun,
            requested: None,
            before: None,
            sight: Sight::Clear,
            recovery: Recovery::Unknown,
            reset: false,
        }
    }

    /// What a RESET returns to on the server.
    #[must_use]
    pub(crate) const fn startup(&self) -> Access {
        self.startup
    }

    /// What the proxy must change before the session's next statement, if anything.
    #[inline]
    #[must_use]
    pub(crate) fn adjustment(&self, standing: WriteAccess, place: Place) -> Option<Adjustment> {
        // A change of the default is for later transactions.
        let began = self.before.unwrap_or(self.defaults());
        let open = match self.open {
            Open::AsBegun => Some(began.actual),
            Open::Changed(access) => Some(access),
            Open::Unknown => None,
        };
        match (place, standing) {
            (Place::Outside, WriteAccess::MayWrite) if self.actual != self.shown => {
                Some(Adjustment::Default(self.shown))
            }
            (Place::Outside, WriteAccess::MayNotWrite) if self.actual == Access::ReadWrite => {
                Some(Adjustment::Default(Access::ReadOnly))
            }
            (Place::Inside, WriteAccess::MayWrite)
                if open != Some(Access::ReadWrite)
                    && began.shown == Access::ReadWrite
                    && self.requested != Some(Access::ReadOnly) =>
            {
                Some(Adjustment::SetReadWrite)
            }
            (Place::Inside, WriteAccess::MayNotWrite) if open != Some(Access::ReadOnly) => {
                Some(Adjustment::SetReadOnly)
            }
            _ => None,
        }
    }

    /// The proxy has made a change.
    pub(crate) const fn adjust(&mut self, adjustment: Adjustment) {
        match adjustment {
            Adjustment::Default(access) => {
                self.actual = access;
                self.imposed = access;
            }
            Adjustment::SetReadWrite => self.open = Open::Changed(Access::ReadWrite),
            Adjustment::SetReadOnly => self.open = Open::Changed(Access::ReadOnly),
        }
    }

    /// A statement of the client has completed.
    pub(crate) fn on_control(&mut self, control: &Control) {
        match control {
            Control::Begin {
                access: Some(access),
            }
            | Control::SetTransactionAccess(access) => self.on_transaction_access(*access),
            Control::Commit { chain: Chain::Yes } => self.on_chain(),
            Control::Rollback { chain: Chain::Yes } => self.on_rollback_and_chain(),
            Control::Rollback { chain: Chain::No } => {
                self.on_rollback();
                self.end_transaction();
            }
            Control::Commit { chain: Chain::No } | Control::PrepareTransaction => {
                self.on_commit();
                self.end_transaction();
            }
            Control::RollbackTo(_) => self.on_rollback_to(),
            Control::SetDefaultAccess(access) => self.on_default_access(*access),
            Control::ResetDefaultAccess | Control::ResetAll => self.on_reset(),
            Control::DiscardAll => {
                self.on_reset();
                // It is committed at once, in a pipeline too: what follows begins with what it has brought back.
                self.end_transaction();
            }
            _ => {}
        }
    }

    /// The client has asked for the mode of its transaction.
    const fn on_transaction_access(&mut self, access: Access) {
        self.requested = Some(access);
        self.open = Open::Changed(access);
    }

    /// The client has set the default itself.
    fn on_default_access(&mut self, access: Access) {
        self.keep_defaults();
        self.shown = access;
        self.actual = access;
    }

    /// The client has set the default back to the value of the session's start.
    fn on_reset(&mut self) {
        self.keep_defaults();
        self.reset = true;
        self.shown = self.asked;
        self.actual = self.startup;
    }

    /// A statement may have changed the mode, and its text does not say how.
    pub(crate) const fn on_unseen_change(&mut self) {
        self.sight = Sight::Blurred;
    }

    /// ReadyForQuery: before it the server has reported what differs from its last report. Where it was silent, that
    /// report still holds, and what was done since was undone: by a function, or by a ROLLBACK TO.
    /// <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-ASYNC>
    #[inline]
    pub(crate) fn on_ready(&mut self) {
        if self.actual != self.reported {
            self.actual = self.reported;
            self.shown = self.told;
        }
    }

    /// The server has said what it is.
    pub const fn on_recovery(&mut self, recovery: Recovery) {
        self.recovery = recovery;
    }

    /// ROLLBACK TO may have undone a lowering, and a SET. A lift is never undone: PostgreSQL allows none
    /// behind a savepoint.
    fn on_rollback_to(&mut self) {
        if self.open == Open::Changed(Access::ReadOnly) {
            self.open = Open::Changed(Access::ReadWrite);
        }
        if self.before.is_some() {
            self.sight = Sight::Blurred;
        }
    }

    /// The open transaction is rolled back: its changes of the default are undone.
    pub(crate) const fn on_rollback(&mut self) {
        if let Some(before) = self.before.take() {
            self.reset = false;
            self.shown = before.shown;
            // A part of it may have been committed by then. What is taken for read-write is made read-only again where
            // that is due; the other way round the backstop would be missing.
            if matches!(before.actual, Access::ReadWrite) {
                self.actual = Access::ReadWrite;
            }
        }
    }

    /// The open transaction is committed. A default that was set for it alone is taken back, which the server tells
    /// only with ReadyForQuery: until then the session is taken for what it was before, where that is read-write.
    const fn on_commit(&mut self) {
        if let Some(before) = self.before
            && matches!(before.actual, Access::ReadWrite)
        {
            self.actual = Access::ReadWrite;
        }
    }

    /// COMMIT AND CHAIN: the next transaction begins with the modes of the one that has ended.
    fn on_chain(&mut self) {
        if let Some(before) = self.before.take() {
            self.sight = Sight::Blurred;
            if self.open == Open::AsBegun {
                self.open = Open::Changed(before.actual);
            }
        }
    }

    /// ROLLBACK AND CHAIN: changes in a subtransaction, or in a transaction that had failed, were undone before the
    /// modes were kept for the next. `CommitTransactionCommand` in PostgreSQL's source.
    fn on_rollback_and_chain(&mut self) {
        match (self.open, self.before) {
            (Open::AsBegun, None) => {}
            (Open::AsBegun, Some(before)) => self.open = Open::Changed(before.actual),
            (Open::Changed(_) | Open::Unknown, _) => {
                self.open = Open::Unknown;
                self.sight = Sight::Blurred;
            }
        }
        self.on_rollback();
    }

    /// The transaction has ended, and no other has begun with its modes.
    #[inline]
    pub(crate) const fn end_transaction(&mut self) {
        self.open = Open::AsBegun;
        self.requested = None;
        self.before = None;
        self.sight = Sight::Clear;
    }

    /// What SHOW is to say in the place of what the server says, if anything. Only what is known to be the proxy's own
    /// doing is hidden.
    #[must_use]
    pub(crate) fn shown_for(&self, show: AccessShow, server: Access) -> Option<Access> {
        if server == Access::ReadWrite || self.sight == Sight::Blurred {
            return None;
        }
        let now = self.defaults();
        let began = self.before.unwrap_or(now);
        let is_ours = match show {
            AccessShow::Default => now.shown == Access::ReadWrite && now.actual == Access::ReadOnly,
            AccessShow::Transaction => {
                let open = match self.open {
                    Open::Changed(access) => access,
                    Open::AsBegun | Open::Unknown => began.actual,
                };
                self.requested.unwrap_or(began.shown) == Access::ReadWrite
                    && open == Access::ReadOnly
                    && self.recovery == Recovery::No
            }
        };
        is_ours.then_some(Access::ReadWrite)
    }

    const fn defaults(&self) -> Defaults {
        Defaults {
            shown: self.shown,
            actual: self.actual,
        }
    }

    fn keep_defaults(&mut self) {
        let defaults = self.defaults();
        self.before.get_or_insert(defaults);
    }

    /// Whether the open transaction is read-only since its start: no rollback of a part of it makes it read-write.
    #[must_use]
    pub(crate) fn has_begun_read_only(&self) -> bool {
        let began = self.before.unwrap_or(self.defaults());
        self.open == Open::AsBegun && began.actual == Access::ReadOnly
    }

    /// Whether the server's setting keeps a session that may not write from writing.
    #[must_use]
    pub(crate) const fn is_read_only(&self) -> bool {
        matches!(self.actual, Access::ReadOnly)
    }

    /// The server reports the setting after a statement of the proxy's own.
    pub(crate) const fn on_own_report(&mut self, actual: Access) {
        self.reported = actual;
    }

    /// The server reports the setting after a statement of the client. Says what the client is to be
    /// told, if anything.
    pub(crate) fn on_report(&mut self, actual: Access) -> Option<Access> {
        if self.actual != actual {
            self.keep_defaults();
        }
        self.actual = actual;
        self.reported = actual;
        if std::mem::take(&mut self.reset) {
            self.shown = self.asked;
        } else if actual != self.imposed {
            self.shown = actual;
        }
        // Otherwise a rollback has brought back what the proxy had set, which is not the client's affair.
        let shown = self.shown;
        (std::mem::replace(&mut self.told, shown) != shown).then_some(shown)
    }
}

/// The value as PostgreSQL writes it.
#[must_use]
pub const fn value(access: Access) -> &'static str {
    match access {
        Access::ReadOnly => "on",
        Access::ReadWrite => "off",
    }
}

/// Reads a value as PostgreSQL reads a Boolean: any unambiguous prefix of the words, in any case.
#[must_use]
pub fn parse(value: &[u8]) -> Option<Access> {
    let value = value.trim_ascii().to_ascii_lowercase();
    let prefix_of = |word: &[u8], least: usize| value.len() >= least && word.starts_with(&value);
    if prefix_of(b"true", 1) || prefix_of(b"yes", 1) || prefix_of(b"on", 2) || value == b"1" {
        Some(Access::ReadOnly)
    } else if prefix_of(b"false", 1) || prefix_of(b"no", 1) || prefix_of(b"off", 2) || value == b"0"
    {
        Some(Access::ReadWrite)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Access::{ReadOnly, ReadWrite};
    use Adjustment::{Default, SetReadOnly, SetReadWrite};
    use Place::{Inside, Outside};
    use WriteAccess::{MayNotWrite, MayWrite};

    #[track_caller]
    fn check(mode: &AccessMode, standing: WriteAccess, place: Place, expect: Option<Adjustment>) {
        assert_eq!(mode.adjustment(standing, place), expect, "{mode:?}");
    }

    #[test]
    fn a_session_without_a_token_stays_read_only_until_it_has_one() {
        let mut mode = AccessMode::new(ReadWrite, ReadOnly);
        check(&mode, MayNotWrite, Outside, None);
        check(&mode, MayNotWrite, Inside, None);
        check(&mode, MayWrite, Inside, Some(SetReadWrite));
        check(&mode, MayWrite, Outside, Some(Default(ReadWrite)));
        mode.adjust(Default(ReadWrite));
        check(&mode, MayWrite, Outside, None);
        check(&mode, MayWrite, Inside, None);
        // The token is lost again.
        check(&mode, MayNotWrite, Outside, Some(Default(ReadOnly)));
        check(&mode, MayNotWrite, Inside, Some(SetReadOnly));
    }

    /// A change of the default leaves the open transaction as it began, and so does AND CHAIN.
    #[test]
    fn a_default_is_for_later_transactions() {
        let holder = || {
            let mut mode = AccessMode::new(ReadWrite, ReadOnly);
            mode.adjust(Default(ReadWrite));
            mode
        };
        let reset = |mode: &mut AccessMode| mode.on_reset();
        let set = |mode: &mut AccessMode| mode.on_default_access(ReadOnly);
        for change in [reset, set] {
            let mut mode = holder();
            change(&mut mode);
            check(&mode, MayWrite, Inside, None);
            check(&mode, MayNotWrite, Inside, Some(SetReadOnly));
            mode.on_control(&Control::Commit { chain: Chain::Yes });
            check(&mode, MayNotWrite, Inside, Some(SetReadOnly));
            mode.end_transaction();
            check(&mode, MayNotWrite, Inside, None);
        }
        // The client's own default was on when the transaction began.
        let mut mode = AccessMode::new(ReadOnly, ReadOnly);
        mode.on_default_access(ReadWrite);
        check(&mode, MayWrite, Inside, None);
    }

    #[test]
    fn what_the_client_asked_for_is_respected() {
        let mut mode = AccessMode::new(ReadOnly, ReadOnly);
        check(&mode, MayWrite, Outside, None);
        check(&mode, MayWrite, Inside, None);
        mode = AccessMode::new(ReadWrite, ReadOnly);
        mode.on_transaction_access(ReadOnly);
        check(&mode, MayWrite, Inside, None);
        mode.end_transaction();
        check(&mode, MayWrite, Inside, Some(SetReadWrite));
        mode.on_default_access(ReadOnly);
        check(&mode, MayWrite, Outside, None);
    }

    #[test]
    fn the_client_is_told_its_own_changes_only() {
        let mut mode = AccessMode::new(ReadWrite, ReadOnly);
        mode.adjust(Default(ReadWrite));
        // DISCARD ALL: the server goes back to the injected value; in the client's eyes nothing changed.
        mode.on_reset();
        assert_eq!(mode.on_report(ReadOnly), None);
        mode.adjust(Default(ReadWrite));
        mode.on_default_access(ReadOnly);
        assert!(mode.is_read_only());
        let mut mode = AccessMode::new(ReadWrite, ReadWrite);
        mode.on_default_access(ReadOnly);
        assert_eq!(mode.on_report(ReadOnly), Some(ReadOnly));
        assert_eq!(mode.on_report(ReadOnly), None);
        // A RESET that is rolled back brings the proxy's own value back.
        let mut mode = AccessMode::new(ReadWrite, ReadWrite);
        mode.adjust(Default(ReadOnly));
        mode.on_reset();
        assert_eq!(mode.on_report(ReadWrite), None);
        assert_eq!(mode.on_report(ReadOnly), None);
    }

    #[test]
    fn a_rollback_to_a_savepoint_may_undo_a_lowering() {
        let mut mode = AccessMode::new(ReadWrite, ReadWrite);
        mode.adjust(SetReadOnly);
        check(&mode, MayNotWrite, Inside, None);
        mode.on_rollback_to();
        check(&mode, MayNotWrite, Inside, Some(SetReadOnly));
    }

    #[test]
    fn a_rollback_and_chain_may_undo_any_change() {
        let chain = Control::Rollback { chain: Chain::Yes };
        // A holder that changed nothing goes on as it began.
        let mut mode = AccessMode::new(ReadWrite, ReadWrite);
        mode.on_control(&chain);
        check(&mode, MayWrite, Inside, None);
        check(&mode, MayNotWrite, Inside, Some(SetReadOnly));
        for (startup, adjustment) in [(ReadWrite, SetReadOnly), (ReadOnly, SetReadWrite)] {
            let mut mode = AccessMode::new(ReadWrite, startup);
            mode.adjust(adjustment);
            mode.on_control(&chain);
            check(&mode, MayWrite, Inside, Some(SetReadWrite));
            check(&mode, MayNotWrite, Inside, Some(SetReadOnly));
        }
    }

    /// What SHOW says of the open transaction and of the default, where the server says "on" of both.
    #[track_caller]
    fn check_shown(mode: &AccessMode, transaction: Access, default: Access) {
        for (show, expect) in [
            (AccessShow::Transaction, transaction),
            (AccessShow::Default, default),
        ] {
            let shown = mode.shown_for(show, ReadOnly).unwrap_or(ReadOnly);
            assert_eq!(shown, expect, "{show:?}: {mode:?}");
            // Only a server that refuses writes is given another voice.
            assert_eq!(mode.shown_for(show, ReadWrite), None);
        }
    }

    /// A session that asked for nothing, and has no token.
    fn imposed() -> AccessMode {
        let mut mode = AccessMode::new(ReadWrite, ReadOnly);
        mode.on_recovery(Recovery::No);
        mode
    }

    #[test]
    fn what_the_proxy_imposes_is_hidden() {
        let mut mode = imposed();
        check_shown(&mode, ReadWrite, ReadWrite);
        mode.on_transaction_access(ReadOnly);
        check_shown(&mode, ReadOnly, ReadWrite);
        mode.end_transaction();
        check_shown(&mode, ReadWrite, ReadWrite);
        // A token, and its loss inside of a transaction.
        mode.adjust(Default(ReadWrite));
        check_shown(&mode, ReadOnly, ReadOnly);
        mode.adjust(SetReadOnly);
        check_shown(&mode, ReadWrite, ReadOnly);
        mode.on_rollback_to();
        check_shown(&mode, ReadOnly, ReadOnly);
        // A token inside of a transaction: only the default is still the proxy's.
        mode = imposed();
        mode.adjust(SetReadWrite);
        check_shown(&mode, ReadOnly, ReadWrite);
    }

    #[test]
    fn what_the_client_asked_for_is_shown() {
        let mut mode = AccessMode::new(ReadOnly, ReadOnly);
        mode.on_recovery(Recovery::No);
        check_shown(&mode, ReadOnly, ReadOnly);
        // Its own default is for later transactions.
        mode = imposed();
        mode.on_default_access(ReadOnly);
        check_shown(&mode, ReadWrite, ReadOnly);
        mode.end_transaction();
        check_shown(&mode, ReadOnly, ReadOnly);
        mode.on_reset();
        check_shown(&mode, ReadOnly, ReadWrite);
        mode.end_transaction();
        check_shown(&mode, ReadWrite, ReadWrite);
    }

    #[test]
    fn in_doubt_the_server_is_right() {
        let mut mode = imposed();
        mode.on_unseen_change();
        check_shown(&mode, ReadOnly, ReadOnly);
        mode.end_transaction();
        check_shown(&mode, ReadWrite, ReadWrite);
        for recovery in [Recovery::Yes, Recovery::Unknown] {
            mode.on_recovery(recovery);
            check_shown(&mode, ReadOnly, ReadWrite);
        }
        // ROLLBACK TO and AND CHAIN, where the transaction has changed the default.
        mode = imposed();
        mode.on_rollback_to();
        mode.on_chain();
        check_shown(&mode, ReadWrite, ReadWrite);
        for unclear in [AccessMode::on_rollback_to, AccessMode::on_chain] {
            mode = imposed();
            mode.on_default_access(ReadOnly);
            mode.on_reset();
            unclear(&mut mode);
            check_shown(&mode, ReadOnly, ReadOnly);
        }
    }

    #[test]
    fn a_rollback_brings_the_default_back() {
        let mut mode = imposed();
        mode.on_default_access(ReadOnly);
        mode.on_rollback();
        mode.end_transaction();
        check_shown(&mode, ReadWrite, ReadWrite);
        check(&mode, MayWrite, Outside, Some(Default(ReadWrite)));
        // A session with a token, whose own default was read-only: what may be read-write is taken for that.
        mode = AccessMode::new(ReadOnly, ReadOnly);
        mode.on_default_access(ReadWrite);
        mode.on_rollback();
        mode.end_transaction();
        check(&mode, MayNotWrite, Outside, Some(Default(ReadOnly)));
        // A RESET that was rolled back is no reason to take the next report for one.
        mode = AccessMode::new(ReadWrite, ReadWrite);
        mode.on_reset();
        mode.on_rollback();
        mode.end_transaction();
        mode.on_default_access(ReadOnly);
        assert_eq!(mode.on_report(ReadOnly), Some(ReadOnly));
    }

    #[test]
    fn a_rollback_brings_read_write_back_too() {
        let mut mode = imposed();
        mode.adjust(Default(ReadWrite));
        mode.on_default_access(ReadOnly);
        mode.on_rollback();
        mode.end_transaction();
        check(&mode, MayNotWrite, Outside, Some(Default(ReadOnly)));
        // What was in force before the first of several changes.
        mode = imposed();
        mode.on_default_access(ReadOnly);
        mode.on_default_access(ReadOnly);
        mode.on_rollback();
        mode.end_transaction();
        check_shown(&mode, ReadWrite, ReadWrite);
    }

    /// The open transaction has the mode that was the default when it began.
    #[test]
    fn a_later_default_is_not_that_of_the_open_transaction() {
        let mut mode = imposed();
        mode.adjust(Default(ReadWrite));
        mode.on_default_access(ReadOnly);
        check_shown(&mode, ReadOnly, ReadOnly);
        mode = imposed();
        mode.on_default_access(ReadWrite);
        check_shown(&mode, ReadWrite, ReadOnly);
    }

    /// What only a report tells, such as a change by a function, is undone by a rollback as well.
    #[test]
    fn a_reported_change_is_rolled_back() {
        let mut mode = imposed();
        mode.adjust(Default(ReadWrite));
        assert_eq!(mode.on_report(ReadOnly), Some(ReadOnly));
        mode.on_rollback();
        mode.end_transaction();
        assert_eq!(mode.on_report(ReadWrite), Some(ReadWrite));
        // A report that tells nothing new is no change, so a savepoint can undo none.
        mode = imposed();
        assert_eq!(mode.on_report(ReadOnly), None);
        mode.on_rollback_to();
        check_shown(&mode, ReadWrite, ReadWrite);
    }

    #[test]
    fn values_are_read_as_postgresql_reads_them() {
        for yes in ["on", "ON", "t", "true", "yes", "y", "1", "tr"] {
            assert_eq!(parse(yes.as_bytes()), Some(ReadOnly), "{yes}");
        }
        for no in ["off", "of", "f", "false", "n", "no", "0"] {
            assert_eq!(parse(no.as_bytes()), Some(ReadWrite), "{no}");
        }
        for neither in ["", "o", "2", "onn", "perhaps"] {
            assert_eq!(parse(neither.as_bytes()), None, "{neither}");
        }
    }
}
