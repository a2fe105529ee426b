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

/// Whether a token was declared in a pipeline, whose transaction is not lifted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lift {
    NotDue,
    Due,
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
    /// It has said its id.
    Told(Option<i32>),
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
            Lift::NotDue => None,
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
            self.lift = Lift::NotDue;
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

    /// Whether what was stated holds, in the process of the login.
    pub(super) fn holds_in(&self, pid: i32) -> bool {
        self.guard.in_doubt().is_none() && self.process == Process::Told(Some(pid))
    }

    /// A text is sent.
    pub(super) fn on_sent(&mut self, statements: &[Statement]) {
        self.guard = statements.iter().fold(self.guard, Guard::after);
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
        if status == TransactionStatus::Idle {
            self.on_idle();
        }
    }

    /// Whether the client does not know the default as the server has it.
    #[inline]
    pub(super) fn is_untold(&self) -> bool {
        self.told != self.reported.default
    }

    /// What the client is to be told of the default. A session that may not write is not shown the guard.
    pub(super) fn tell(&mut self, access: WriteAccess) -> Option<Access> {
        let hides = access == WriteAccess::MayNotWrite && self.wish == Wish::NotStated;
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
        let transaction = match (self.owner, self.reported.default) {
            (Owner::Proxy, Some(Access::ReadOnly)) => TransactionAccess::Guarded,
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
