//! From a message to a permit, or to a refusal.

use std::error::Error;
use std::hint::black_box;
use std::str::FromStr;
use std::sync::Arc;

use pgpalisade::fence::scope_cell::ScopeCells;
use pgpalisade::fence::{
    Binding, Confirmed, Fence, Footing, Guard, Holding, Plan, SessionFence, Situation,
};
use pgpalisade::session::Pipeline;
use pgpalisade::session::ledger::Ledger;
use pgpalisade::session::names::Names;
use pgpalisade::session::settings::Settings;
use pgpalisade::wire::backend::TransactionStatus;
use pgpalisade_authority::{Mark, Scope, Token};
use pgpalisade_policies::scan::{self, NeedsParse};
use pgpalisade_policies::{Mode, Policy, Verdict, VerdictCache};

use super::requirement::{PATH, WHO, insert_into, policy_of};
use super::{Case, INSERT, Made, POINT_SELECT, SAFE, repeat};

const BOUND: &str = "a session with the token of one scope of N: whether it may write, the cached \
                     verdict of an INSERT, its permit";
const START: &str = "what holds for a session that logs in, in a policy of N scopes";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "admit-token",
            "scan an INSERT of 100 bytes, and admit it by the token of its session",
            fast_path,
        )
        .goal(60.0),
        Case::new(
            "admit-read",
            "a session without a token: the cached verdict of a SELECT, and its permit",
            || planned(Session::new(Policy::default(), None)?, POINT_SELECT),
        ),
        Case::new(
            "admit-write",
            "a session with the token: the cached verdict of an INSERT, and its permit",
            || planned(default_session(34)?, INSERT),
        ),
        Case::new(
            "admit-copy-data",
            "a message of COPY data of a session with the token",
            copy_data,
        ),
        Case::new(
            "refuse-stale",
            "the same INSERT of a session whose token is stale, up to the words of the refusal",
            || refused(default_session(33)?),
        ),
        Case::new("admit-write-1", BOUND, || bound(1)),
        Case::new("admit-write-100", BOUND, || bound(100)),
        Case::new("admit-write-10000", BOUND, || bound(10_000)),
        Case::new("session-1", START, || start(1)),
        Case::new("session-100", START, || start(100)),
        Case::new("session-10000", START, || start(10_000)),
    ]
}

/// One session, and what is known of it.
struct Session {
    fence: SessionFence,
    settings: Settings<Arc<Holding>>,
    names: Names,
    ledger: Ledger,
    verdicts: VerdictCache,
}

fn fence(policy: Policy) -> Result<Arc<Fence>, Box<dyn Error>> {
    let fence = Fence::new(policy, Arc::new(ScopeCells::default()), Mode::Enforce)?;
    Ok(Arc::new(fence))
}

impl Session {
    /// With a token of a scope, whose mark is 34, or without one.
    fn new(policy: Policy, token: Option<(&str, u64)>) -> Result<Self, Box<dyn Error>> {
        let fence = fence(policy)?.for_session(&WHO);
        let holding = match token {
            None => None,
            Some((scope, token)) => {
                let cell = fence.fence().cell(&Scope::from_str(scope)?);
                cell.raise(&Mark::new(Token::new(34)?, 0, "bench".to_owned()));
                Some(Arc::new(Holding::new(Box::new([Binding {
                    cell,
                    token: Token::new(token)?,
                    timeline: 1,
                    footing: Footing::Registered,
                }]))))
            }
        };
        Ok(Self {
            fence,
            settings: Settings::new(holding, None),
            names: Names::default(),
            ledger: Ledger::default(),
            verdicts: VerdictCache::new(16 << 20),
        })
    }

    fn verdict(&mut self, text: &str) -> Arc<Verdict> {
        self.verdicts.get_or_classify(text.as_bytes(), SAFE)
    }

    /// As `relay/judgement.rs` asks for a text, idle and outside of a transaction.
    fn plan(&self, verdict: &Verdict) -> Plan {
        let confirmed = |settled| Confirmed::new(settled, &self.names, &self.ledger, Guard::Sure);
        let situation = Situation {
            settings: &self.settings,
            accepted: &[],
            status: TransactionStatus::Idle,
            wrote: self.ledger.wrote(),
            pipeline: Pipeline::Closed,
            path: PATH,
            confirmed: self.ledger.settled().map(confirmed),
        };
        self.fence.plan(verdict, &situation)
    }
}

fn default_session(token: u64) -> Result<Session, Box<dyn Error>> {
    Session::new(Policy::default(), Some(("default", token)))
}

/// As `relay/judgement.rs` does it for a session that holds the current token.
fn fast_path() -> Made {
    let session = default_session(34)?;
    let admit = move || match scan::needs_parse(black_box(INSERT.as_bytes())) {
        NeedsParse::Yes => None,
        NeedsParse::No => session.fence.admit_any(black_box(session.settings.token())),
    };
    let _ = admit().ok_or("the session is not admitted")?;
    Ok(repeat(move || {
        black_box(admit());
    }))
}

fn planned(mut session: Session, text: &'static str) -> Made {
    let mut plan = move || {
        let verdict = session.verdict(black_box(text));
        session.plan(&verdict)
    };
    match plan() {
        Plan::Admit(_, None) => Ok(repeat(move || {
            black_box(plan());
        })),
        other => Err(format!("it is not admitted but {other:?}").into()),
    }
}

fn refused(mut session: Session) -> Made {
    let mut plan = move || {
        let verdict = session.verdict(black_box(INSERT));
        session.plan(&verdict)
    };
    match plan() {
        Plan::Refuse(_) => Ok(repeat(move || {
            black_box(plan());
        })),
        other => Err(format!("it is not refused but {other:?}").into()),
    }
}

fn copy_data() -> Made {
    let session = default_session(34)?;
    let admit = move || {
        let token = black_box(session.settings.token());
        session.fence.admit_copy_data(token)
    };
    let _ = admit().map_err(|rejection| rejection.message)?;
    Ok(repeat(move || {
        let _ = black_box(admit());
    }))
}

fn bound(scopes: u32) -> Made {
    let scope = format!("tenant-{}", scopes / 2);
    let mut session = Session::new(policy_of(scopes)?, Some((&scope, 34)))?;
    let text = insert_into(scopes / 2);
    let mut plan = move || {
        let token = black_box(session.settings.token());
        let may_write = session.fence.may_write(token);
        let any = session.fence.admit_any(token);
        let verdict = session.verdict(black_box(&text));
        (may_write, any, session.plan(&verdict))
    };
    match plan() {
        (true, _, Plan::Admit(_, None)) => Ok(repeat(move || {
            black_box(plan());
        })),
        other => Err(format!("it is not admitted but {other:?}").into()),
    }
}

fn start(scopes: u32) -> Made {
    let fence = fence(policy_of(scopes)?)?;
    Ok(repeat(move || {
        black_box(fence.for_session(black_box(&WHO)));
    }))
}
