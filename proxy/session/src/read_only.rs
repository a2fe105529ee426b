//! Read-only guard: a session that may not write runs with `default_transaction_read_only = on`, so PostgreSQL itself
//! refuses a write that no parser can see.
//!
//! The client's changes of the setting are not tracked. The proxy sets it when the session may not write, and returns
//! it to the client when the session may. The guard holds if the server reported so with the last ReadyForQuery
//! outside a transaction.
//!
//! Source: <https://www.postgresql.org/docs/current/runtime-config-client.html#GUC-DEFAULT-TRANSACTION-READ-ONLY>

use pgpalisade_policies::{Access, AccessShow, Control, Lifetime, Statement};

use super::access_mode::{IN_HOT_STANDBY, Reported};
use crate::fence::{Guard, Leave, TransactionAccess, ends_transaction};
use crate::wire::backend::TransactionStatus;

/// Whether a session's tokens let it write at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteAccess {
    /// The session holds a current token, or needs none.
    MayWrite,
    /// The session holds no token, or a stale one.
    MayNotWrite,
}

/// Change of the access mode by the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessChange {
    /// Makes transactions read-only by default.
    Guard,
    /// Returns the default to the client, as it was at login.
    Release,
    /// Makes the open transaction read-write, and returns the default to the client while its token lasts.
    ReadWrite(Lifetime),
}

/// Owner of the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Proxy,
    Client,
    /// The client until the open transaction ends, then the proxy.
    ClientForTransaction,
    /// The proxy, if a rollback has undone its change to read-write.
    Returned,
    /// The client, if its reset of the setting is committed.
    Reset,
}

/// Change of a transaction's mode after a declaration in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadWriteChange {
    NotDue,
    Due,
    Done,
    /// Its transaction is being committed, unless an error comes first.
    Committed,
    /// An error has undone it, unless a savepoint or a commit came after it.
    Undone,
}

/// The read-only guard of a session.
#[derive(Debug)]
pub(super) struct ReadOnlyGuard {
    owner: Owner,
    reported: Reported,
    /// Whether the client has set the default since the proxy did. Then nothing is hidden from it, because its own
    /// value is not tracked.
    is_stated: bool,
    guard: Guard,
    read_write: ReadWriteChange,
    process: Process,
}

/// Whether the guard was set in the server process of the login. A pooler may use any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Process {
    /// Its id was asked for.
    Asked,
    /// The client's cancel request hit the guard or the question.
    Cancelled,
    /// It has answered with its id.
    Told(Option<i32>),
    /// It is the process of the login.
    Confirmed,
}

impl ReadOnlyGuard {
    /// Guard of a session whose login has relayed the server's reports.
    pub(super) const fn new(reported: Reported) -> Self {
        Self {
            owner: Owner::Client,
            reported,
            is_stated: false,
            guard: Guard::IN_DOUBT,
            read_write: ReadWriteChange::NotDue,
            process: Process::Told(None),
        }
    }

    /// Guard when the next message arrives.
    #[inline]
    pub(super) const fn guard(&self) -> Guard {
        self.guard
    }

    /// Change that is due while no transaction is open.
    #[inline]
    pub(super) fn due_outside(&self, access: WriteAccess) -> Option<AccessChange> {
        match (access, self.owner) {
            (WriteAccess::MayWrite, Owner::Client) => None,
            (WriteAccess::MayWrite, _) => Some(AccessChange::Release),
            (WriteAccess::MayNotWrite, Owner::Proxy) if self.guard.in_doubt().is_none() => None,
            (WriteAccess::MayNotWrite, _) => Some(AccessChange::Guard),
        }
    }

    /// Change that is due before a token counts in the open transaction, if the guard is what makes it read-only.
    pub(super) fn due_inside(&self, lifetime: Lifetime) -> Option<AccessChange> {
        let is_guarded = match self.guard.transaction() {
            TransactionAccess::Guarded => true,
            TransactionAccess::Asked => false,
            // It began in a pipeline, after another had ended.
            TransactionAccess::Open => {
                !matches!(self.owner, Owner::Client | Owner::ClientForTransaction)
            }
        };
        is_guarded.then_some(AccessChange::ReadWrite(lifetime))
    }

    /// Whether the transaction that begins after the end of the open one may be read-only because of the proxy.
    pub(super) fn guards_after(&self, end: &Control) -> bool {
        match (self.owner, self.read_write) {
            (
                Owner::Client,
                ReadWriteChange::NotDue | ReadWriteChange::Due | ReadWriteChange::Committed,
            ) => false,
            (Owner::Client, ReadWriteChange::Done) => matches!(end, Control::Rollback { .. }),
            _ => true,
        }
    }

    /// Notes a token declared in a pipeline: what follows in it may write.
    pub(super) const fn read_write_later(&mut self) {
        self.read_write = ReadWriteChange::Due;
    }

    /// Notes a token declared after an end that [guards](Self::guards_after): what follows it may write.
    pub(super) fn read_write_after_end(&mut self) {
        // The end undoes a change in the open transaction.
        if self.owner == Owner::Client {
            self.owner = Owner::Returned;
        }
        self.read_write_later();
    }

    /// Change that a token declared in the same pipeline has left due.
    #[inline]
    pub(super) fn due_later(&self, lifetime: Lifetime) -> Option<AccessChange> {
        match self.read_write {
            ReadWriteChange::Due => self.due_inside(lifetime),
            _ => None,
        }
    }

    /// Applies a change that is being sent.
    pub(super) const fn on_set_access(&mut self, change: AccessChange) {
        self.owner = match (change, self.owner) {
            (AccessChange::Guard, _) => Owner::Proxy,
            (AccessChange::ReadWrite(Lifetime::Local), Owner::Proxy) => Owner::ClientForTransaction,
            // What was in doubt before the transaction is so after it.
            (AccessChange::ReadWrite(Lifetime::Local), owner) => owner,
            (AccessChange::Release | AccessChange::ReadWrite(Lifetime::Session), _) => {
                Owner::Client
            }
        };
        if matches!(change, AccessChange::Guard) {
            self.process = Process::Asked;
        } else {
            self.guard = self.guard.of(TransactionAccess::Open);
            self.read_write = match change {
                AccessChange::ReadWrite(_) => ReadWriteChange::Done,
                AccessChange::Guard | AccessChange::Release => ReadWriteChange::NotDue,
            };
        }
        self.is_stated = false;
    }

    /// Notes that all settings are being reset. Returns the change to be sent after that: a session that was guarded
    /// stays so. Its process is not asked for again.
    pub(super) fn on_reset(&mut self) -> Option<AccessChange> {
        self.guard = Guard::IN_DOUBT;
        self.is_stated = false;
        if self.process != Process::Confirmed {
            self.owner = Owner::Client;
        }
        (self.owner == Owner::Proxy).then_some(AccessChange::Guard)
    }

    /// Whether the session is read-only, if a reset was to make it so.
    pub(super) fn is_reset(&self) -> bool {
        self.owner != Owner::Proxy || self.guard == Guard::SURE
    }

    /// Whether the next row answers the proxy's query.
    #[inline]
    pub(super) const fn is_asking(&self) -> bool {
        matches!(self.process, Process::Asked)
    }

    /// Notes the process id that was asked for.
    pub(super) fn on_answer(&mut self, pid: &[u8]) {
        let pid = str::from_utf8(pid).ok().and_then(|pid| pid.parse().ok());
        self.process = Process::Told(pid);
    }

    /// Evaluates the answer to the guard: whether it holds, in the process of the login, or was cancelled and must be
    /// set again.
    pub(super) fn confirm(&mut self, pid: i32) -> bool {
        match (self.reported.default, self.process) {
            (Some(Access::ReadOnly), Process::Told(Some(told))) if told == pid => {
                self.process = Process::Confirmed;
                self.on_idle();
                true
            }
            (_, process) => process == Process::Cancelled,
        }
    }

    /// Notes that a statement of the proxy was cancelled, and says whether it can be repeated.
    pub(super) const fn on_cancelled(&mut self) -> bool {
        match self.process {
            Process::Asked | Process::Cancelled => {
                self.process = Process::Cancelled;
                true
            }
            Process::Told(_) | Process::Confirmed => false,
        }
    }

    /// Applies a text that is sent with this permission, and the guard after it.
    pub(super) fn on_sent(&mut self, guard: Guard, statements: &[Statement], leave: Leave) {
        self.guard = guard;
        for control in statements.iter().flat_map(|statement| &statement.controls) {
            if ends_transaction(control) {
                self.on_end(control);
            }
        }
        let resets = || statements.iter().any(Statement::may_reset_default_access);
        // A session that may only read changes the setting by nothing else.
        let changes = || statements.iter().any(Statement::may_change_default_access);
        if resets() || (leave.writes() && changes()) {
            self.on_reset_sent();
        }
    }

    /// Notes that something is sent which may reset the default: the value may then come from a configuration file,
    /// which a reload changes before the server reports it.
    pub(super) fn on_reset_sent(&mut self) {
        if self.owner != Owner::Client {
            self.owner = Owner::Reset;
        }
    }

    /// Notes the end of a transaction, after which the same query or pipeline may go on.
    fn on_end(&mut self, control: &Control) {
        match (self.owner, control, self.read_write) {
            (Owner::ClientForTransaction, ..) => self.owner = Owner::Proxy,
            (_, Control::Rollback { .. }, ReadWriteChange::Done)
            | (_, _, ReadWriteChange::Undone) => self.owner = Owner::Returned,
            (_, Control::Commit { .. } | Control::PrepareTransaction, ReadWriteChange::Done) => {
                self.read_write = ReadWriteChange::Committed;
            }
            _ => {}
        }
    }

    /// Notes an error of the server.
    pub(super) const fn on_error(&mut self) {
        if matches!(
            self.read_write,
            ReadWriteChange::Done | ReadWriteChange::Committed
        ) {
            self.read_write = ReadWriteChange::Undone;
        }
    }

    /// Notes that a statement of the client has completed.
    #[inline]
    pub(super) fn on_ran(&mut self, statement: &Statement) {
        self.is_stated |= statement.may_state_default_access();
    }

    /// Applies a report and says whether the client gets it now: a session that may write owns the setting.
    pub(super) fn on_report(&mut self, reported: Access, access: WriteAccess) -> bool {
        self.reported.default = Some(reported);
        if self.read_write == ReadWriteChange::Undone && reported == Access::ReadOnly {
            self.owner = Owner::Returned;
            return false;
        }
        access == WriteAccess::MayWrite
    }

    /// Notes whether the server is a standby.
    pub(super) fn on_standby_report(&mut self, value: &[u8]) {
        self.reported.note(IN_HOT_STANDBY.as_bytes(), value);
    }

    /// Applies ReadyForQuery. The server has reported changes before it:
    /// <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-ASYNC>
    #[inline]
    pub(super) fn on_ready(&mut self, status: TransactionStatus) {
        self.guard = self.guard.answered();
        match status {
            TransactionStatus::Idle => self.on_idle(),
            TransactionStatus::InTransaction if self.read_write == ReadWriteChange::Undone => {
                self.read_write = ReadWriteChange::Done;
            }
            TransactionStatus::InTransaction | TransactionStatus::Failed => {}
        }
    }

    /// Whether a client that knows of `told` does not know the server's current default.
    #[inline]
    pub(super) fn is_untold(&self, told: Option<Access>) -> bool {
        told != self.reported.default
    }

    /// Default to report to a client that knows of `told`, if any. The guard is hidden from a session that may not
    /// write.
    pub(super) fn tell(&self, access: WriteAccess, told: Option<Access>) -> Option<Access> {
        let is_ours = access == WriteAccess::MayNotWrite || self.is_proxys();
        let hides = is_ours && !self.is_stated;
        let default = self.reported.default;
        default.filter(|_| !hides && self.is_untold(told))
    }

    const fn is_proxys(&self) -> bool {
        matches!(self.owner, Owner::Proxy | Owner::Returned)
    }

    #[inline]
    fn on_idle(&mut self) {
        // Not always reported: in one request cycle the default may have changed and returned.
        let is_undone = self.read_write == ReadWriteChange::Undone;
        self.read_write = ReadWriteChange::NotDue;
        self.owner = match self.owner {
            Owner::ClientForTransaction => Owner::Proxy,
            Owner::Client if is_undone => Owner::Returned,
            owner => owner,
        };
        let transaction = match (self.owner, self.process, self.reported.default) {
            (Owner::Proxy, Process::Confirmed, Some(Access::ReadOnly)) => {
                TransactionAccess::Guarded
            }
            _ => TransactionAccess::Open,
        };
        self.guard = self.guard.of(transaction);
    }

    /// Value that SHOW returns in such a transaction instead of the server's to a client that knows of `told`, if any.
    /// Only the proxy's own change is hidden.
    pub(super) fn shown_for(
        &self,
        show: AccessShow,
        transaction: TransactionAccess,
        server: Access,
        told: Option<Access>,
    ) -> Option<Access> {
        let is_ours = match show {
            AccessShow::Default => self.is_proxys(),
            AccessShow::Transaction => {
                // One that follows an end in the same pipeline may be guarded since.
                let is_guarded = match transaction {
                    TransactionAccess::Open => self.guard.transaction(),
                    known => known,
                };
                is_guarded == TransactionAccess::Guarded
                    && self.reported.server == Some(Access::ReadWrite)
            }
        };
        let hides = is_ours
            && !self.is_stated
            && server == Access::ReadOnly
            && told == Some(Access::ReadWrite);
        hides.then_some(Access::ReadWrite)
    }
}

#[cfg(test)]
mod tests {
    use pgpalisade_policies::{TextEncoding, classify};

    use super::super::access_mode::DEFAULT_READ_ONLY;
    use super::*;
    use Access::{ReadOnly, ReadWrite};
    use TransactionStatus::{Idle, InTransaction};
    use WriteAccess::{MayNotWrite, MayWrite};

    fn reported(default: &str) -> Reported {
        let mut reported = Reported::default();
        reported.note(DEFAULT_READ_ONLY.as_bytes(), default.as_bytes());
        reported.note(IN_HOT_STANDBY.as_bytes(), b"off");
        reported
    }

    /// A session as its login leaves it.
    fn begun() -> ReadOnlyGuard {
        ReadOnlyGuard::new(reported("off"))
    }

    /// Such a session, after its guard was set.
    fn guarded() -> ReadOnlyGuard {
        let mut guard = begun();
        state(&mut guard);
        guard
    }

    fn state(guard: &mut ReadOnlyGuard) {
        assert_eq!(guard.due_outside(MayNotWrite), Some(AccessChange::Guard));
        guard.on_set_access(AccessChange::Guard);
        guard.on_report(ReadOnly, MayNotWrite);
        guard.on_answer(b"7");
        guard.on_ready(Idle);
        assert!(guard.confirm(7));
        assert_eq!(guard.due_outside(MayNotWrite), None);
    }

    fn send(guard: &mut ReadOnlyGuard, text: &str) {
        let verdict = classify(text.as_bytes(), TextEncoding::Utf8);
        let after = verdict.statements.iter().fold(guard.guard, Guard::after);
        guard.on_sent(after, &verdict.statements, Leave::Write);
        for statement in &verdict.statements {
            guard.on_ran(statement);
        }
    }

    #[test]
    fn the_guard_is_stated_once_and_given_back_once() {
        let mut guard = guarded();
        assert_eq!(guard.guard(), Guard::SURE);
        assert_eq!(guard.due_outside(MayWrite), Some(AccessChange::Release));
        guard.on_set_access(AccessChange::Release);
        guard.on_report(ReadWrite, MayNotWrite);
        guard.on_ready(Idle);
        for own in [ReadOnly, ReadWrite, ReadOnly] {
            assert_eq!(guard.due_outside(MayWrite), None);
            assert!(guard.on_report(own, MayWrite));
            guard.on_ready(Idle);
        }
        // The client's own changes are not the guard.
        state(&mut guard);
    }

    #[test]
    fn what_switches_the_default_off_is_met_before_the_next_transaction() {
        let mut guard = guarded();
        send(&mut guard, "SELECT f()");
        guard.on_report(ReadWrite, MayNotWrite);
        guard.on_ready(InTransaction);
        assert_eq!(guard.guard(), Guard::SURE);
        guard.on_ready(Idle);
        state(&mut guard);
    }

    #[test]
    fn a_transaction_is_guarded_up_to_its_end() {
        for (text, status, is_sure) in [
            (
                "BEGIN; SAVEPOINT s; ROLLBACK TO s; RELEASE s",
                InTransaction,
                true,
            ),
            ("BEGIN; COMMIT AND CHAIN", InTransaction, true),
            ("BEGIN; ROLLBACK AND CHAIN", InTransaction, true),
            ("COMMIT; BEGIN", InTransaction, false),
            ("ROLLBACK; BEGIN READ ONLY", InTransaction, false),
            ("DISCARD ALL; BEGIN", InTransaction, false),
            ("PREPARE TRANSACTION 'x'; BEGIN", InTransaction, false),
            ("CALL p()", InTransaction, false),
            ("BEGIN READ WRITE", InTransaction, false),
            ("COMMIT", Idle, true),
        ] {
            let mut guard = guarded();
            send(&mut guard, text);
            guard.on_ready(status);
            assert_eq!(guard.guard().in_doubt().is_none(), is_sure, "{text}");
        }
    }

    #[test]
    fn only_the_guard_is_made_read_write() {
        let due = |guard: &ReadOnlyGuard| guard.due_inside(Lifetime::Local);
        let read_write = Some(AccessChange::ReadWrite(Lifetime::Local));
        assert_eq!(due(&begun()), None);
        let mut guard = guarded();
        send(&mut guard, "BEGIN");
        assert_eq!(due(&guard), read_write);
        send(&mut guard, "SET TRANSACTION READ ONLY");
        assert_eq!(due(&guard), None);
        // A pipeline goes on after the end of a transaction.
        send(&mut guard, "COMMIT");
        assert_eq!(due(&guard), read_write);
        guard.on_set_access(AccessChange::ReadWrite(Lifetime::Local));
        assert_eq!(due(&guard), None);
        // With the end of its token, the default is the proxy's again.
        guard.on_ready(Idle);
        assert_eq!(guard.due_outside(MayNotWrite), None);
        guard.on_set_access(AccessChange::ReadWrite(Lifetime::Session));
        guard.on_ready(Idle);
        assert_eq!(guard.due_outside(MayWrite), None);
        // A rollback restores the guard, but nothing relies on that.
        assert_eq!(guard.due_outside(MayNotWrite), Some(AccessChange::Guard));
    }

    /// A value that an error restores is not reported: the client's transaction has failed, its setting has not
    /// changed.
    #[test]
    fn an_error_after_a_change_to_read_write() {
        let mut guard = guarded();
        send(&mut guard, "BEGIN");
        guard.on_set_access(AccessChange::ReadWrite(Lifetime::Session));
        assert!(guard.on_report(ReadWrite, MayWrite));
        guard.on_error();
        assert!(!guard.on_report(ReadOnly, MayWrite));
        guard.on_ready(TransactionStatus::Failed);
        assert_eq!(guard.tell(MayWrite, Some(ReadWrite)), None);
        guard.on_ready(Idle);
        assert_eq!(
            guard.due_outside(MayNotWrite),
            Some(AccessChange::Guard),
            "a savepoint may have kept the change"
        );
        assert_eq!(guard.tell(MayNotWrite, Some(ReadWrite)), None);
        assert_eq!(
            guard.shown_for(
                AccessShow::Default,
                TransactionAccess::Open,
                ReadOnly,
                Some(ReadWrite)
            ),
            Some(ReadWrite)
        );
    }

    /// Whether the change was undone is not known, so the default is set again, whoever is to have it.
    #[test]
    fn after_a_change_that_may_be_undone_the_default_is_set_again() {
        type Step = fn(&mut ReadOnlyGuard);
        let rolled_back: Step = |guard| send(guard, "ROLLBACK");
        let failed: Step = ReadOnlyGuard::on_error;
        let committed: Step = |guard| send(guard, "COMMIT AND CHAIN");
        for (steps, is_undone) in [
            (&[rolled_back][..], true),
            (&[failed], true),
            (&[committed, failed], true),
            (&[committed], false),
            (&[committed, rolled_back], false),
        ] {
            let mut guard = guarded();
            send(&mut guard, "BEGIN");
            guard.on_set_access(AccessChange::ReadWrite(Lifetime::Session));
            steps.iter().for_each(|step| step(&mut guard));
            guard.on_ready(Idle);
            let release = is_undone.then_some(AccessChange::Release);
            assert_eq!(guard.due_outside(MayWrite), release);
            assert_eq!(guard.due_outside(MayNotWrite), Some(AccessChange::Guard));
        }
        let mut guard = guarded();
        send(&mut guard, "RESET ALL");
        send(&mut guard, "ROLLBACK");
        guard.on_ready(Idle);
        assert_eq!(guard.due_outside(MayWrite), Some(AccessChange::Release));
        // In a chain, it is made read-write again.
        let mut guard = guarded();
        send(&mut guard, "BEGIN");
        guard.on_set_access(AccessChange::ReadWrite(Lifetime::Session));
        guard.on_error();
        send(&mut guard, "COMMIT AND CHAIN");
        guard.on_ready(InTransaction);
        assert!(guard.due_inside(Lifetime::Session).is_some());
    }

    /// The end of a SET LOCAL returns to what was in doubt before it.
    #[test]
    fn a_doubt_outlasts_a_token_of_the_transaction() {
        for (before, is_sure) in [("BEGIN", true), ("BEGIN; RESET ALL", false)] {
            let mut guard = guarded();
            send(&mut guard, before);
            guard.on_set_access(AccessChange::ReadWrite(Lifetime::Local));
            send(&mut guard, "COMMIT");
            guard.on_ready(Idle);
            assert_eq!(
                guard.due_outside(MayNotWrite).is_none(),
                is_sure,
                "{before}"
            );
        }
    }

    /// A SET LOCAL after it counts for its transaction only, and a SET for longer.
    #[test]
    fn a_doubt_ends_with_a_token_of_the_session() {
        for doubt in ["ROLLBACK AND CHAIN", "RESET ALL"] {
            let mut guard = guarded();
            send(&mut guard, "BEGIN");
            if doubt != "RESET ALL" {
                guard.on_set_access(AccessChange::ReadWrite(Lifetime::Session));
            }
            send(&mut guard, doubt);
            guard.on_set_access(AccessChange::ReadWrite(Lifetime::Local));
            let again = guard.due_inside(Lifetime::Session);
            if let Some(change) = again {
                guard.on_set_access(change);
            }
            send(&mut guard, "COMMIT");
            guard.on_ready(Idle);
            let due = guard.due_outside(MayWrite);
            assert!(again.is_some() || due.is_some(), "{doubt}");
        }
    }

    /// The value may then come from a configuration file.
    #[test]
    fn after_a_reset_the_guard_is_stated_again() {
        for text in [
            "RESET ALL",
            "DISCARD ALL",
            "SET default_transaction_read_only TO DEFAULT",
            "SELECT 'a\\'",
        ] {
            let mut guard = guarded();
            send(&mut guard, text);
            guard.on_ready(Idle);
            state(&mut guard);
        }
    }

    #[test]
    fn after_a_reset_by_the_proxy_the_guard_is_set_again() {
        let mut guard = guarded();
        assert_eq!(guard.on_reset(), Some(AccessChange::Guard));
        assert!(guard.guard().in_doubt().is_some());
        // First all settings are reset, then it is set.
        for (reported, is_reset) in [(ReadWrite, false), (ReadOnly, true)] {
            guard.on_report(reported, MayNotWrite);
            guard.on_ready(Idle);
            assert_eq!(guard.is_reset(), is_reset);
        }
        assert_eq!(guard.due_outside(MayNotWrite), None);
        // A session that may write, or was never guarded.
        guard.on_set_access(AccessChange::Release);
        for mut guard in [guard, begun()] {
            assert_eq!(guard.on_reset(), None);
            // The default of the role, which a reload of the configuration may change.
            guard.on_report(ReadOnly, MayNotWrite);
            guard.on_ready(Idle);
            assert!(guard.is_reset());
            state(&mut guard);
        }
    }

    #[test]
    fn read_write_waits_for_what_follows_in_a_pipeline() {
        let mut guard = guarded();
        assert_eq!(guard.due_later(Lifetime::Session), None);
        guard.read_write_later();
        let read_write = Some(AccessChange::ReadWrite(Lifetime::Session));
        assert_eq!(guard.due_later(Lifetime::Session), read_write);
        guard.on_ready(Idle);
        assert_eq!(guard.due_later(Lifetime::Session), None);
    }

    #[test]
    fn only_the_proxy_s_own_doing_is_hidden() {
        let both = [AccessShow::Transaction, AccessShow::Default];
        let shown_as = |guard: &ReadOnlyGuard, server, told: Access| {
            both.map(|show| guard.shown_for(show, guard.guard.transaction(), server, Some(told)))
        };
        let check = |guard: &ReadOnlyGuard, expect: [Option<Access>; 2]| {
            assert_eq!(shown_as(guard, ReadOnly, ReadWrite), expect, "{guard:?}");
            assert_eq!(shown_as(guard, ReadWrite, ReadWrite), [None; 2]);
        };
        let mut guard = guarded();
        check(&guard, [Some(ReadWrite); 2]);
        send(&mut guard, "BEGIN READ ONLY");
        check(&guard, [None, Some(ReadWrite)]);
        guard.on_ready(Idle);
        send(&mut guard, "SET default_transaction_read_only = on");
        check(&guard, [None; 2]);
        assert_eq!(guard.tell(MayNotWrite, Some(ReadWrite)), Some(ReadOnly));
        let mut standby = guarded();
        standby.on_standby_report(b"on");
        check(&standby, [None, Some(ReadWrite)]);
        let mut holder = guarded();
        holder.on_set_access(AccessChange::Release);
        check(&holder, [None; 2]);
        // It was on at login.
        let mut asked = ReadOnlyGuard::new(reported("on"));
        state(&mut asked);
        assert_eq!(shown_as(&asked, ReadOnly, ReadOnly), [None; 2]);
        assert_eq!(asked.tell(MayNotWrite, Some(ReadOnly)), None);
    }
}
