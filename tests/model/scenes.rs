//! The scenes of the model: few enough participants to try every order of their steps.

use crate::promises;
use crate::world::{Part, Role, Scene, Trouble};

const ABSENT: Part = Part {
    proxy: 0,
    tokens: &[],
    role: Role::Holder,
};

/// An old holder with a session on each of two proxies, one of which may be killed, and the new holder.
pub(crate) const TWO_PROXIES: Scene = Scene {
    name: "two proxies",
    parts: [
        Part {
            proxy: 0,
            tokens: &[1],
            role: Role::Holder,
        },
        Part {
            proxy: 1,
            tokens: &[1],
            role: Role::Holder,
        },
        Part {
            proxy: 1,
            tokens: &[2],
            role: Role::Successor,
        },
    ],
    mortal: Some(0),
    reaper: Some(1),
    copy: None,
    troubles: &[],
    reaches: promises::TWO_PROXIES,
};

/// The old holder also becomes the new one, on its existing session; answers get lost, clients clear their token.
pub(crate) const MOVERS: Scene = Scene {
    name: "movers",
    parts: [
        Part {
            proxy: 0,
            tokens: &[1, 2],
            role: Role::Holder,
        },
        Part {
            proxy: 1,
            tokens: &[2],
            role: Role::Holder,
        },
        ABSENT,
    ],
    mortal: None,
    reaper: None,
    copy: None,
    troubles: &[Trouble::Outages, Trouble::LayingDown, Trouble::Timeouts],
    reaches: promises::MOVERS,
};

/// One session for each of three tokens.
pub(crate) const THREE_TOKENS: Scene = Scene {
    name: "three tokens",
    parts: [
        Part {
            proxy: 0,
            tokens: &[1],
            role: Role::Holder,
        },
        Part {
            proxy: 1,
            tokens: &[2],
            role: Role::Holder,
        },
        Part {
            proxy: 0,
            tokens: &[3],
            role: Role::Successor,
        },
    ],
    mortal: None,
    reaper: None,
    copy: None,
    troubles: &[Trouble::Timeouts],
    reaches: promises::THREE_TOKENS,
};

/// A proxy for each session: two of them take over at once, each with its own barrier.
pub(crate) const THREE_PROXIES: Scene = Scene {
    name: "three proxies",
    parts: [
        Part {
            proxy: 0,
            tokens: &[1],
            role: Role::Holder,
        },
        Part {
            proxy: 1,
            tokens: &[2],
            role: Role::Holder,
        },
        Part {
            proxy: 2,
            tokens: &[2],
            role: Role::Successor,
        },
    ],
    mortal: Some(1),
    reaper: None,
    copy: None,
    troubles: &[],
    reaches: promises::THREE_PROXIES,
};

/// Sessions end for other reasons, so that a pid is reused while its last owner is still declaring.
pub(crate) const REUSED_PIDS: Scene = Scene {
    name: "reused pids",
    parts: [
        Part {
            proxy: 0,
            tokens: &[1],
            role: Role::Holder,
        },
        Part {
            proxy: 1,
            tokens: &[2],
            role: Role::Holder,
        },
        Part {
            proxy: 1,
            tokens: &[2],
            role: Role::Successor,
        },
    ],
    mortal: None,
    reaper: None,
    copy: None,
    troubles: &[Trouble::Outsider(1)],
    reaches: promises::REUSED_PIDS,
};

/// As [`MOVERS`], with messages duplicated and late.
pub(crate) const LATE_MESSAGES: Scene = Scene {
    name: "late messages",
    parts: [
        MOVERS.parts[0],
        Part {
            role: Role::Successor,
            ..MOVERS.parts[1]
        },
        ABSENT,
    ],
    troubles: &[Trouble::Outages, Trouble::LayingDown, Trouble::Strays],
    reaches: promises::LATE_MESSAGES,
    ..MOVERS
};

/// A holder's token is stale, which is first observed and then enforced.
pub(crate) const OBSERVED: Scene = Scene {
    name: "observed",
    parts: [
        Part {
            proxy: 0,
            tokens: &[1],
            role: Role::Holder,
        },
        Part {
            proxy: 1,
            tokens: &[2],
            role: Role::Successor,
        },
        Part {
            proxy: 2,
            tokens: &[2],
            role: Role::Successor,
        },
    ],
    mortal: None,
    reaper: None,
    copy: None,
    troubles: &[Trouble::Observing],
    reaches: promises::OBSERVED,
};

/// A proxy serves a copy of the cluster's storage with the same authority.
pub(crate) const COPIED: Scene = Scene {
    name: "copied cluster",
    parts: [
        Part {
            proxy: 0,
            tokens: &[1],
            role: Role::Holder,
        },
        Part {
            proxy: 1,
            tokens: &[2],
            role: Role::Successor,
        },
        ABSENT,
    ],
    mortal: Some(0),
    reaper: Some(2),
    copy: Some(2),
    troubles: &[Trouble::Timeouts],
    reaches: promises::COPIED,
};

/// A failover: another server has the address. One proxy knows, another continues with the old server.
pub(crate) const REPLACED: Scene = Scene {
    name: "replaced server",
    parts: [
        Part {
            proxy: 1,
            tokens: &[1],
            role: Role::Holder,
        },
        Part {
            proxy: 1,
            tokens: &[2],
            role: Role::Successor,
        },
        ABSENT,
    ],
    mortal: None,
    reaper: Some(0),
    copy: None,
    troubles: &[Trouble::Replacement, Trouble::Timeouts],
    reaches: promises::REPLACED,
};

/// As [`OBSERVED`], with outages of the authority.
pub(crate) const OBSERVED_UNHEARD: Scene = Scene {
    name: "observed without an answer",
    troubles: &[Trouble::Observing, Trouble::Outages],
    ..OBSERVED
};

/// Two candidates with a numberless lock. Both read the mark and take the token after it, at any time later.
pub(crate) const TAKERS: Scene = Scene {
    name: "takers",
    parts: [
        Part {
            proxy: 0,
            tokens: &[1, 2],
            role: Role::Taker,
        },
        Part {
            proxy: 1,
            tokens: &[1, 2],
            role: Role::Taker,
        },
        ABSENT,
    ],
    mortal: None,
    reaper: None,
    copy: None,
    troubles: &[Trouble::Outages, Trouble::Strays],
    reaches: promises::TAKERS,
};

/// The authority is restored to a copy with the same mark and fewer sessions.
pub(crate) const RESTORED: Scene = Scene {
    name: "restored authority",
    parts: [
        Part {
            proxy: 0,
            tokens: &[1],
            role: Role::Successor,
        },
        Part {
            proxy: 0,
            tokens: &[1],
            role: Role::Holder,
        },
        Part {
            proxy: 1,
            tokens: &[2],
            role: Role::Successor,
        },
    ],
    mortal: Some(0),
    reaper: None,
    copy: None,
    troubles: &[Trouble::Restores],
    reaches: promises::RESTORED,
};
