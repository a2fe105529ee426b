//! The read-only guard: a session that may not write runs with `default_transaction_read_only = on`, so PostgreSQL
//! itself refuses a write that no parser can see.
//!
//! Nothing is followed. The proxy states the setting when a session begins to be one that may not write, and gives it
//! back to the client when it may; in between it belongs to the client. Whether the guard holds is what the server has
//! reported with ReadyForQuery while no transaction was open.
//!
//! Source: <https://www.postgresql.org/docs/current/runtime-config-client.html#GUC-DEFAULT-TRANSACTION-READ-ONLY>

use pgpalisade_policies::{Access, AccessShow, Lifetime, Statement};

use crate::fence::{Guard, TransactionAccess};
use crate::wire::backend::TransactionStatus;

/// The name of the setting. PostgreSQL reports it from version 14 on.
pub const DEFAULT_READ_ONLY: &str = "default_transaction_read_only";

/// Reported from PostgreSQL 14 on: a standby's transactions are all read-only.
pub const IN_HOT_STANDBY: &str = "in_hot_standby";

/// Whether a session's tokens let it write at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteAccess {
    /// It holds a current token, or needs none.
    MayWrite,
    /// It holds none, or a stale one.
    MayNotWrite,
}

/// What the proxy states about the access mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adjustment {
    /// Transactions are read-only by default.
    Guard,
    /// The default is the client's again, as it was at login.
    Release,
    /// The open transaction may write, and the default is the client's for as long as its token lasts.
    Lift(Lifetime),
}

/// Who has stated the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Proxy,
    Client,
    /// The client up to the end of the open transaction, then the proxy.
    ClientForTransaction,
}

/// What a token that was declared in a transaction does to its mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lift {
    NotDue,
    Due,
    Done,
    /// An error has undone it, unless a savepoint stands between.
    Undone,
}

/// The two settings that the server reports of its own accord.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reported {
    /// [`DEFAULT_READ_ONLY`]; `None`: not reported.
    default: Option<Access>,
    /// [`IN_HOT_STANDBY`], as an access mode: a standby reads only.
    server: Option<Access>,
}

impl Reported {
    /// Takes note of a report.
    pub fn note(&mut self, name: &[u8], value: &[u8]) {
        if name == DEFAULT_READ_ONLY.as_bytes() {
            self.default = parse(value);
        } else if name == IN_HOT_STANDBY.as_bytes() {
            self.server = parse(value);
        }
    }
}

/// Whether a statement that was cancelled is made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    Yes,
    No,
}

/// What became of the guard that was stated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guarded {
    Yes,
    No,
    /// It has to be stated again.
    NotYet,
}

/// Whether the client has got a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    Now,
    /// The session tells it before ReadyForQuery, if it is to know.
    NotYet,
}

/// Whether the client has set the default itself since the proxy has. Then nothing is hidden from it: what became of
/// its own value is not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    NotStated,
    Stated,
}

/// The read-only guard of a session.
#[derive(Debug)]
pub(super) struct ReadOnlyGuard {
    owner: Owner,
    reported: Reported,
    /// What the client knows of the default.
    told: Option<Access>,
    wish: Wish,
    guard: Guard,
    lift: Lift,
    process: Process,
}

/// Whether the process that the guard was stated to is the one of the login. Behind a pooler it is any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Process {
    /// It is asked.
    Asked,
    /// The client's cancel request has met what was stated or asked.
    Cancelled,
    /// It has said its id.
    Told(Option<i32>),
    /// It is.
    Confirmed,
}

impl ReadOnlyGuard {
    /// That of a session whose login has told the client what it has reported.
    pub(super) const fn new(reported: Reported) -> Self {
        Self {
            owner: Owner::Client,
            reported,
            told: reported.default,
            wish: Wish::NotStated,
            guard: Guard::IN_DOUBT,
            lift: Lift::NotDue,
            process: Process::Told(None),
        }
    }

    /// The guard where the next message arrives.
    #[inline]
    pub(super) const fn guard(&self) -> Guard {
        self.guard
    }

    /// What must be stated while no transaction is open.
    #[inline]
    pub(super) fn due_outside(&self, access: WriteAccess) -> Option<Adjustment> {
        match (access, self.owner) {
            (WriteAccess::MayWrite, Owner::Client) => None,
            (WriteAccess::MayWrite, _) => Some(Adjustment::Release),
            (WriteAccess::MayNotWrite, Owner::Proxy) if self.guard.in_doubt().is_none() => None,
            (WriteAccess::MayNotWrite, _) => Some(Adjustment::Guard),
        }
    }

    /// What must be stated before a token counts in the open transaction: only one that is read-only because of the
    /// guard is lifted.
    pub(super) fn due_inside(&self, lifetime: Lifetime) -> Option<Adjustment> {
        let is_guarded = match self.guard.transaction() {
            TransactionAccess::Guarded => true,
            TransactionAccess::Asked => false,
            // It has begun in a pipeline, after the end of another.
            TransactionAccess::Open => self.owner == Owner::Proxy,
        };
        is_guarded.then_some(Adjustment::Lift(lifetime))
    }

    /// A token was declared in a pipeline: what follows in it may write.
    pub(super) const fn lift_later(&mut self) {
        self.lift = Lift::Due;
    }

    /// What a token of the same pipeline has left due.
    #[inline]
    pub(super) fn due_later(&self, lifetime: Lifetime) -> Option<Adjustment> {
        match self.lift {
            Lift::NotDue | Lift::Done | Lift::Undone => None,
            Lift::Due => self.due_inside(lifetime),
        }
    }

    /// The proxy states something.
    pub(super) const fn on_adjusting(&mut self, adjustment: Adjustment) {
        self.owner = match adjustment {
            Adjustment::Guard => Owner::Proxy,
            Adjustment::Release | Adjustment::Lift(Lifetime::Session) => Owner::Client,
            Adjustment::Lift(Lifetime::Local) => Owner::ClientForTransaction,
        };
        if matches!(adjustment, Adjustment::Guard) {
            self.process = Process::Asked;
        } else {
            self.guard = self.guard.of(TransactionAccess::Open);
            self.lift = match adjustment {
                Adjustment::Lift(_) => Lift::Done,
                Adjustment::Guard | Adjustment::Release => Lift::NotDue,
            };
        }
        self.wish = Wish::NotStated;
    }

    /// Whether the next row answers the proxy.
    #[inline]
    pub(super) const fn is_asking(&self) -> bool {
        matches!(self.process, Process::Asked)
    }

    /// The process has said its id.
    pub(super) fn on_answer(&mut self, pid: &[u8]) {
        let pid = str::from_utf8(pid).ok().and_then(|pid| pid.parse().ok());
        self.process = Process::Told(pid);
    }

    /// What the proxy stated was answered. Says whether it holds, in the process of the login.
    pub(super) fn confirm(&mut self, pid: i32) -> Guarded {
        match (self.reported.default, self.process) {
            (Some(Access::ReadOnly), Process::Told(Some(told))) if told == pid => {
                self.process = Process::Confirmed;
                self.on_idle();
                Guarded::Yes
            }
            (_, Process::Cancelled) => Guarded::NotYet,
            _ => Guarded::No,
        }
    }

    /// A statement of the proxy was cancelled. Says whether it can be made again.
    pub(super) const fn on_cancelled(&mut self) -> Again {
        match self.process {
            Process::Asked | Process::Cancelled => {
                self.process = Process::Cancelled;
                Again::Yes
            }
            Process::Told(_) | Process::Confirmed => Again::No,
        }
    }

    /// A text is sent.
    pub(super) fn on_sent(&mut self, statements: &[Statement]) {
        self.guard = statements.iter().fold(self.guard, Guard::after);
        // It may be the value of a file now, which a reload changes before the server reports it.
        if statements.iter().any(Statement::may_reset_default_access) {
            self.owner = Owner::Client;
        }
    }

    /// The server has reported an error.
    pub(super) const fn on_error(&mut self) {
        if matches!(self.lift, Lift::Done) {
            self.lift = Lift::Undone;
        }
    }

    /// A statement of the client has completed.
    #[inline]
    pub(super) fn on_ran(&mut self, statement: &Statement) {
        if statement.may_state_default_access() {
            self.wish = Wish::Stated;
        }
    }

    /// A report of the server. Says whether the client gets it where it stands: whoever may write has the setting to
    /// itself.
    pub(super) fn on_report(&mut self, reported: Access, access: WriteAccess) -> Told {
        self.reported.default = Some(reported);
        if self.lift == Lift::Undone && reported == Access::ReadOnly {
            self.owner = Owner::Proxy;
            return Told::NotYet;
        }
        match access {
            WriteAccess::MayWrite => {
                self.told = Some(reported);
                Told::Now
            }
            WriteAccess::MayNotWrite => Told::NotYet,
        }
    }

    /// The server says whether it is a standby.
    pub(super) fn on_standby_report(&mut self, value: &[u8]) {
        self.reported.note(IN_HOT_STANDBY.as_bytes(), value);
    }

    /// ReadyForQuery. Before it the server has reported what has changed:
    /// <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-ASYNC>
    #[inline]
    pub(super) fn on_ready(&mut self, status: TransactionStatus) {
        self.guard = self.guard.answered();
        match status {
            TransactionStatus::Idle => self.on_idle(),
            TransactionStatus::InTransaction if self.lift == Lift::Undone => {
                self.lift = Lift::Done;
            }
            TransactionStatus::InTransaction | TransactionStatus::Failed => {}
        }
    }

    /// Whether the client does not know the default as the server has it.
    #[inline]
    pub(super) fn is_untold(&self) -> bool {
        self.told != self.reported.default
    }

    /// What the client is to be told of the default. A session that may not write is not shown the guard.
    pub(super) fn tell(&mut self, access: WriteAccess) -> Option<Access> {
        let is_ours = access == WriteAccess::MayNotWrite || self.owner == Owner::Proxy;
        let hides = is_ours && self.wish == Wish::NotStated;
        if hides || !self.is_untold() {
            return None;
        }
        self.told = self.reported.default;
        self.told
    }

    #[inline]
    fn on_idle(&mut self) {
        self.lift = Lift::NotDue;
        if self.owner == Owner::ClientForTransaction {
            self.owner = Owner::Proxy;
        }
        let transaction = match (self.owner, self.process, self.reported.default) {
            (Owner::Proxy, Process::Confirmed, Some(Access::ReadOnly)) => {
                TransactionAccess::Guarded
            }
            _ => TransactionAccess::Open,
        };
        self.guard = self.guard.of(transaction);
    }

    /// What SHOW is to say in the place of what the server says, if anything. Only what is known to be the proxy's own
    /// doing is hidden.
    pub(super) fn shown_for(&self, show: AccessShow, server: Access) -> Option<Access> {
        let is_ours = match show {
            AccessShow::Default => self.owner == Owner::Proxy,
            AccessShow::Transaction => {
                self.guard.transaction() == TransactionAccess::Guarded
                    && self.reported.server == Some(Access::ReadWrite)
            }
        };
        let hides = is_ours
            && self.wish == Wish::NotStated
            && server == Access::ReadOnly
            && self.told == Some(Access::ReadWrite);
        hides.then_some(Access::ReadWrite)
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
    use pgpalisade_policies::{TextEncoding, classify};

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

    /// The same, after its guard was stated.
    fn guarded() -> ReadOnlyGuard {
        let mut guard = begun();
        state(&mut guard);
        guard
    }

    fn state(guard: &mut ReadOnlyGuard) {
        assert_eq!(guard.due_outside(MayNotWrite), Some(Adjustment::Guard));
        guard.on_adjusting(Adjustment::Guard);
        guard.on_report(ReadOnly, MayNotWrite);
        guard.on_answer(b"7");
        guard.on_ready(Idle);
        assert_eq!(guard.confirm(7), Guarded::Yes);
        assert_eq!(guard.due_outside(MayNotWrite), None);
    }

    fn send(guard: &mut ReadOnlyGuard, text: &str) {
        let verdict = classify(text.as_bytes(), TextEncoding::Utf8);
        guard.on_sent(&verdict.statements);
        for statement in &verdict.statements {
            guard.on_ran(statement);
        }
    }

    #[test]
    fn the_guard_is_stated_once_and_given_back_once() {
        let mut guard = guarded();
        assert_eq!(guard.guard(), Guard::SURE);
        assert_eq!(guard.due_outside(MayWrite), Some(Adjustment::Release));
        guard.on_adjusting(Adjustment::Release);
        guard.on_report(ReadWrite, MayNotWrite);
        guard.on_ready(Idle);
        for own in [ReadOnly, ReadWrite, ReadOnly] {
            assert_eq!(guard.due_outside(MayWrite), None);
            assert_eq!(guard.on_report(own, MayWrite), Told::Now);
            guard.on_ready(Idle);
        }
        // What the client itself has set is not the proxy's statement.
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
    fn only_the_proxy_s_own_doing_is_lifted() {
        let due = |guard: &ReadOnlyGuard| guard.due_inside(Lifetime::Local);
        let lift = Some(Adjustment::Lift(Lifetime::Local));
        assert_eq!(due(&begun()), None);
        let mut guard = guarded();
        send(&mut guard, "BEGIN");
        assert_eq!(due(&guard), lift);
        send(&mut guard, "SET TRANSACTION READ ONLY");
        assert_eq!(due(&guard), None);
        // A pipeline goes on after the end of a transaction.
        send(&mut guard, "COMMIT");
        assert_eq!(due(&guard), lift);
        guard.on_adjusting(Adjustment::Lift(Lifetime::Local));
        assert_eq!(due(&guard), None);
        // With its token the default goes back to the proxy.
        guard.on_ready(Idle);
        assert_eq!(guard.due_outside(MayNotWrite), None);
        guard.on_adjusting(Adjustment::Lift(Lifetime::Session));
        guard.on_ready(Idle);
        assert_eq!(guard.due_outside(MayWrite), None);
        // A rollback brings the guard back, and nobody relies on that.
        assert_eq!(guard.due_outside(MayNotWrite), Some(Adjustment::Guard));
    }

    /// What an error undoes of a declaration is not told: the client's transaction has failed, its setting has not
    /// changed.
    #[test]
    fn an_error_after_a_lift() {
        let mut guard = guarded();
        send(&mut guard, "BEGIN");
        guard.on_adjusting(Adjustment::Lift(Lifetime::Session));
        assert_eq!(guard.on_report(ReadWrite, MayWrite), Told::Now);
        guard.on_error();
        assert_eq!(guard.on_report(ReadOnly, MayWrite), Told::NotYet);
        guard.on_ready(TransactionStatus::Failed);
        assert_eq!(guard.tell(MayWrite), None);
        guard.on_ready(Idle);
        assert_eq!(guard.due_outside(MayNotWrite), None);
        assert_eq!(guard.tell(MayNotWrite), None);
        assert_eq!(
            guard.shown_for(AccessShow::Default, ReadOnly),
            Some(ReadWrite)
        );
    }

    /// The value may be that of a file then.
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
    fn a_lift_waits_for_what_follows_in_a_pipeline() {
        let mut guard = guarded();
        assert_eq!(guard.due_later(Lifetime::Session), None);
        guard.lift_later();
        let lift = Some(Adjustment::Lift(Lifetime::Session));
        assert_eq!(guard.due_later(Lifetime::Session), lift);
        guard.on_ready(Idle);
        assert_eq!(guard.due_later(Lifetime::Session), None);
    }

    #[test]
    fn only_the_proxy_s_own_doing_is_hidden() {
        let shown = |guard: &ReadOnlyGuard, show| guard.shown_for(show, ReadOnly);
        let both = [AccessShow::Transaction, AccessShow::Default];
        let check = |guard: &ReadOnlyGuard, expect: [Option<Access>; 2]| {
            assert_eq!(both.map(|show| shown(guard, show)), expect, "{guard:?}");
            assert_eq!(both.map(|show| guard.shown_for(show, ReadWrite)), [None; 2]);
        };
        let mut guard = guarded();
        check(&guard, [Some(ReadWrite); 2]);
        send(&mut guard, "BEGIN READ ONLY");
        check(&guard, [None, Some(ReadWrite)]);
        guard.on_ready(Idle);
        send(&mut guard, "SET default_transaction_read_only = on");
        check(&guard, [None; 2]);
        assert_eq!(guard.tell(MayNotWrite), Some(ReadOnly));
        let mut standby = guarded();
        standby.on_standby_report(b"on");
        check(&standby, [None, Some(ReadWrite)]);
        let mut holder = guarded();
        holder.on_adjusting(Adjustment::Release);
        check(&holder, [None; 2]);
        // At login it was on.
        let mut asked = ReadOnlyGuard::new(reported("on"));
        state(&mut asked);
        check(&asked, [None; 2]);
        assert_eq!(asked.tell(MayNotWrite), None);
    }

    #[test]
    fn booleans_are_read_as_postgresql_reads_them() {
        for (value, expect) in [
            ("on", Some(ReadOnly)),
            ("TRUE", Some(ReadOnly)),
            (" y ", Some(ReadOnly)),
            ("1", Some(ReadOnly)),
            ("of", Some(ReadWrite)),
            ("n", Some(ReadWrite)),
            ("0", Some(ReadWrite)),
            ("o", None),
            ("", None),
            ("10", None),
        ] {
            assert_eq!(parse(value.as_bytes()), expect, "{value:?}");
        }
    }
}
