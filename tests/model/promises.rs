//! Promises of every state, and situations that must be reachable for the model to prove anything.

use stateright::Property;

use crate::Play;
use crate::registry::{Answer, LATER, Purpose};
use crate::world::{
    Backend, Backup, Barrier, Broken, Declaring, Link, Mode, ProxyLife, Reach, Reaper, Release,
    Stray, Work, World,
};

type Holds = fn(&Play, &World) -> bool;

/// G1: after a declaration of n was answered with success, no session bound to less than n commits.
pub(crate) const NO_LATE_COMMIT: &str = "G1: no commit of a lower token after the answer";
/// G2: a snapshot taken at that answer has every commit of a lower token that there will ever be. A commit that is
/// durable before the answer and visible only after it keeps G1 and breaks this.
pub(crate) const NO_LATE_SIGHT: &str = "G2: a snapshot at the answer has all lower commits";
/// G5: a session whose token is the mark is not refused, whether the authority is up or down.
pub(crate) const NOT_SELF_FENCED: &str = "G5: no session at the mark is refused";
/// G5: nor does a takeover end it.
pub(crate) const CURRENT_NOT_ENDED: &str = "G5: no session at the mark is ended";
/// A takeover terminates only sessions that the authority listed.
pub(crate) const STRANGERS_SPARED: &str = "only old sessions are ended";
/// G6: nor does it wait for any other.
pub(crate) const STRANGERS_NOT_AWAITED: &str = "only old sessions are waited for";
/// Two that believe in their lock never get the same token.
pub(crate) const NO_TOKEN_SHARED: &str = "no token is taken twice";
/// A take that is repeated after a lost answer is not refused because of itself.
pub(crate) const NOT_REFUSED_BY_ITSELF: &str = "no take is refused by itself";

const PROMISES: [(&str, Holds); 8] = [
    (NO_LATE_COMMIT, |_, w| w.broken != Some(Broken::LateCommit)),
    (NO_LATE_SIGHT, |_, w| w.broken != Some(Broken::LateSight)),
    (NOT_SELF_FENCED, |_, w| w.broken != Some(Broken::SelfFenced)),
    (CURRENT_NOT_ENDED, |_, w| {
        w.broken != Some(Broken::CurrentEnded)
    }),
    (STRANGERS_SPARED, |_, w| {
        w.broken != Some(Broken::StrangerEnded)
    }),
    (STRANGERS_NOT_AWAITED, |_, w| {
        w.broken != Some(Broken::StrangerAwaited)
    }),
    (NO_TOKEN_SHARED, |_, w| {
        w.broken != Some(Broken::TokenShared)
    }),
    (NOT_REFUSED_BY_ITSELF, |_, w| {
        w.broken != Some(Broken::RefusedByItself)
    }),
];

pub(crate) fn promises() -> Vec<Property<Play>> {
    let all = PROMISES.into_iter();
    all.map(|(name, holds)| Property::always(name, holds))
        .collect()
}

/// Situations that a scene must reach.
pub(crate) type Reaches = &'static [(&'static str, Holds)];

pub(crate) const TWO_PROXIES: Reaches = &[
    ("a takeover ends a session that lives", |_, w| {
        let old = &w.sessions[0];
        w.answered == 2 && old.bound == 1 && old.link == Link::Open && old.backend == Backend::Gone
    }),
    (
        "a killed proxy's statement commits, the takeover waits for it",
        |_, w| {
            let waits = matches!(w.proxies[1].barriers[2], Barrier::Looking { old } if old.has(0));
            waits && w.proxies[0].life == ProxyLife::Dead && w.sessions[0].work == Work::Durable
        },
    ),
    (
        "a takeover ends after the proxy of an old session was killed",
        |_, w| w.answered == 2 && w.proxies[0].life == ProxyLife::Dead && w.sessions[0].pid > 0,
    ),
    ("a session that was told to end commits first", |_, w| {
        let old = &w.sessions[1];
        old.backend == Backend::Signalled && old.work == Work::Durable
    }),
    (
        "a permitted write waits in its proxy while the takeover ends",
        |_, w| w.answered == 2 && w.sessions[0].work == Work::Permitted && w.sessions[0].bound == 1,
    ),
    ("a stale declaration is refused by the authority", |_, w| {
        matches!(
            w.sessions[0].declaring,
            Declaring::Answered(1, Answer::Stale { mark: 2 })
        )
    }),
    ("a stale write is refused by the cache", |_, w| {
        let old = &w.sessions[1];
        old.is_ready() && old.bound == 1 && w.proxies[1].cache == 2
    }),
    (
        "a pid comes back while its old session is on the register",
        |_, w| {
            let [old, _, new] = &w.sessions;
            let is_reused = old.pid == new.pid && old.backend == Backend::Gone && new.is_living();
            is_reused && w.authority.now.records[0] == 1
        },
    ),
    (
        "the reaper forgets a session",
        |_, w| matches!(w.proxies[1].reaper, Reaper::Gone { records } if records.has(0)),
    ),
    ("a client leaves in the middle of a statement", |_, w| {
        w.sessions[0].link == Link::LeavingBusy && w.sessions[0].work == Work::InFlight
    }),
];

pub(crate) const MOVERS: Reaches = &[
    (
        "a session at the mark commits while the authority is down",
        |_, w| {
            let bound = w.sessions[0].bound;
            let durable = w.sessions[0].work == Work::Durable;
            w.authority.reach == Reach::Down && durable && bound == 2 && w.authority.now.mark == 2
        },
    ),
    ("a session moves up", |_, w| {
        w.sessions[0].bound == 2 && w.sessions[0].earlier == 1
    }),
    ("a session that has moved up falls back", |_, w| {
        w.sessions[0].bound == 1 && w.authority.now.records[0] == 2
    }),
    (
        "the authority moves a session up and is not heard",
        |_, w| {
            let moved = &w.sessions[0];
            let ended = moved.link == Link::Closed && moved.is_living();
            ended && w.authority.now.records[0] == 2 && w.proxies[0].cache < 2
        },
    ),
    (
        "a session takes up again a token that it laid down",
        |_, w| {
            let again = &w.sessions[0];
            let clear = matches!(again.declaring, Declaring::Cleared(1));
            clear && again.bound == 0 && again.accepted.has(1)
        },
    ),
];

pub(crate) const THREE_TOKENS: Reaches = &[
    ("a takeover is overtaken by another", |_, w| {
        let overtaken = w.proxies[1].barriers[2] != Barrier::None;
        overtaken && w.authority.now.mark == 3
    }),
    (
        "the highest token is answered while the barrier of a lower one runs",
        |_, w| w.answered == 3 && w.proxies[1].barriers[2] != Barrier::None,
    ),
    ("three tokens, one after the other", |_, w| {
        w.answered == 3 && w.sessions[0].backend == Backend::Gone && w.sessions[1].bound == 2
    }),
];

pub(crate) const THREE_PROXIES: Reaches = &[
    ("two proxies wait for the same sessions", |_, w| {
        let waits = |proxy: usize| matches!(w.proxies[proxy].barriers[2], Barrier::Looking { .. });
        waits(1) && waits(2)
    }),
    (
        "a proxy dies in its takeover and another completes it",
        |_, w| {
            w.proxies[1].life == ProxyLife::Dead
                && w.authority.now.records[1] == 2
                && w.answered == 2
        },
    ),
];

pub(crate) const REUSED_PIDS: Reaches = &[
    ("two declarations wait for one barrier", |_, w| {
        let waits = |id: usize| w.sessions[id].declaring == Declaring::Waiting(2);
        waits(1) && waits(2)
    }),
    (
        "a session ends while it declares, and another has its pid",
        |_, w| {
            let [_, gone, new] = &w.sessions;
            let asks = gone.declaring == Declaring::Asked(2) && gone.backend == Backend::Gone;
            asks && new.is_living() && new.pid == gone.pid
        },
    ),
];

pub(crate) const LATE_MESSAGES: Reaches = &[
    (
        "a declaration reaches the authority after its session has ended",
        |_, w| {
            let gone = w.sessions[0].backend == Backend::Gone;
            gone && matches!(w.stray, Some(Stray::Declare(sent)) if sent.id == 0)
        },
    ),
    (
        "the news that a session is gone comes after its release was answered",
        |_, w| {
            let released = w.sessions[0].release == Release::No;
            released && matches!(w.stray, Some(Stray::Forget(gone)) if gone.has(0))
        },
    ),
    ("the news that a barrier is through comes twice", |_, w| {
        matches!(w.stray, Some(Stray::Drained { token: 2, .. })) && w.answered == 2
    }),
];

pub(crate) const OBSERVED: Reaches = &[
    (
        "a stale session writes while that is only observed",
        |_, w| {
            let stale = w.sessions[0].bound < w.authority.now.mark;
            stale && w.mode == Mode::Observe && w.sessions[0].work == Work::InFlight
        },
    ),
    (
        "its write is in flight while the policy is enforced",
        |_, w| {
            let noted = w.sessions[0].grant == Purpose::Observe;
            noted && w.mode == Mode::Enforce && w.sessions[0].work == Work::InFlight
        },
    ),
    ("a takeover ends what was only observed", |_, w| {
        let ended = w.sessions[0].backend == Backend::Gone;
        ended && w.answered > 0 && w.sessions[0].link == Link::Open
    }),
];

pub(crate) const COPIED: Reaches = &[
    ("the copy takes the place of the cluster", |_, w| {
        w.authority.now.postmaster == LATER && w.sessions[0].bound == 1
    }),
    (
        "the proxy of the copy forgets a session that lives",
        |_, w| {
            let lives = w.sessions[0].is_living() && w.sessions[0].bound == 1;
            lives && w.authority.now.postmaster == LATER && w.authority.now.records[0] == 0
        },
    ),
    ("a takeover on the cluster", |_, w| w.answered == 2),
];

pub(crate) const REPLACED: Reaches = &[
    (
        "the reaper of the server of before finds a session that lives on the other",
        |_, w| {
            let asked =
                matches!(w.proxies[0].reaper, Reaper::Asked { records, .. } if records.has(0));
            let [old, ..] = &w.sessions;
            asked && old.is_living() && old.server != w.proxies[0].control
        },
    ),
    (
        "a takeover waits, and its control connection leads elsewhere",
        |_, w| {
            let [old, new, _] = &w.sessions;
            let moved = w.proxies[1].control != new.server;
            moved && new.declaring == Declaring::Waiting(2) && old.work == Work::InFlight
        },
    ),
    (
        "a takeover on the new server ends a session there",
        |_, w| {
            let [old, ..] = &w.sessions;
            w.owed[usize::from(LATER)] == 2 && old.server == LATER && old.bound == 1
        },
    ),
];

pub(crate) const TAKERS: Reaches = &[
    ("both have read the mark, one has taken", |_, w| {
        let [one, other, _] = &w.sessions;
        one.bound == 1 && other.read == Some(0) && other.bound == 0
    }),
    ("who slept is refused", |_, w| {
        let refused = Declaring::Answered(1, Answer::Stale { mark: 1 });
        w.sessions[0].bound == 1 && w.sessions[1].declaring == refused
    }),
    ("the mark is taken and nobody knows", |_, w| {
        let unheard = w.sessions[0].declaring == Declaring::No && w.sessions[0].takes == 0;
        unheard && w.sessions[0].unanswered == 1 && w.authority.now.taken == Some((0, 0))
    }),
    ("a take is made again and gets its token", |_, w| {
        w.sessions[0].bound == 1 && w.sessions[0].unanswered == 1
    }),
    ("they lead one after the other", |_, w| {
        w.given[1] == Some((0, 0)) && w.given[2] == Some((1, 0))
    }),
    ("a session takes twice", |_, w| w.given[2] == Some((0, 1))),
    ("a copy of a take comes after the next", |_, w| {
        let copy = matches!(w.stray, Some(Stray::Declare(late)) if late.token == 1);
        copy && w.answered == 2
    }),
];

pub(crate) const RESTORED: Reaches = &[
    ("the authority has the mark, and not the session", |_, w| {
        let restored = w.backup == Backup::Restored && w.authority.now.mark == 1;
        restored && w.sessions[1].bound == 1 && w.authority.now.records[1] == 0
    }),
    ("a takeover after a recovery", |_, w| {
        w.backup == Backup::Restored && w.answered == 2 && w.witness.epoch == 2
    }),
    (
        "a takeover after a restore that has lost nothing",
        |_, w| {
            let lives = w.backup == Backup::Restored && w.sessions[0].is_living();
            lives && w.sessions[2].declaring == Declaring::Waiting(2)
        },
    ),
];
