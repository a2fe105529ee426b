//! Cost of a permit or a refusal.

use std::str::FromStr;
use std::sync::Arc;

use divan::Bencher;
use pgpalisade_authority::{Mark, Scope, Token};
use pgpalisade_fence::mark_cache::MarkCache;
use pgpalisade_fence::{
    Admitted, CopyIn, Decision, Fence, GrantMode, Guard, HeldToken, HeldTokens, Name, Pipeline,
    PreparedNames, PreparedText, ServerText, SessionFence, SessionState, Situation, Unmet,
};
use pgpalisade_policies::{Analysis, Mode, Policy, VerdictCache, classify};
use pgpalisade_wire::header::Header;

use super::policy::{SCOPES, WHO, insert_into, policy_of};
use super::{INSERT, POINT_SELECT, SAFE};

struct NoNames;

impl PreparedNames for NoNames {
    fn find(&self, _name: Name<'_>) -> Option<&PreparedText> {
        None
    }
}

const QUERY: Header = Header {
    tag: b'Q',
    body_len: INSERT.len() + 1,
};

struct BenchSession {
    fence: SessionFence,
    state: SessionState,
    verdicts: VerdictCache,
}

fn fence(policy: Policy) -> Arc<Fence> {
    let cells = Arc::new(MarkCache::default());
    Arc::new(Fence::new(policy, cells, Mode::Enforce).expect("a fence"))
}

impl BenchSession {
    /// With a token of a scope, whose mark is 34, or without one.
    fn new(policy: Policy, token: Option<(&str, u64)>) -> Self {
        let fence = fence(policy).for_session(&WHO);
        let of = |token: u64| Token::new(token).expect("a token");
        let holding = token.map(|(scope, token)| {
            let mark = fence
                .fence()
                .mark(&Scope::from_str(scope).expect("a scope"));
            mark.raise(&Mark::new(of(34), 0, "bench".to_owned()));
            Arc::new(HeldTokens::new(Box::new([HeldToken {
                mark,
                token: of(token),
                timeline: 1,
                grant: GrantMode::Enforced,
            }])))
        });
        let mut state = SessionState::new(None);
        state.start_with(holding, ServerText::Tokens);
        Self {
            fence,
            state,
            verdicts: VerdictCache::new(16 << 20),
        }
    }

    fn verdict(&mut self, text: &[u8]) -> Arc<Analysis> {
        self.verdicts.find(text, SAFE).unwrap_or_else(|| {
            let verdict = Arc::new(classify(text, SAFE));
            self.verdicts.keep(text, SAFE, &verdict);
            verdict
        })
    }

    /// As `session/judgement.rs` decides a text, outside a transaction.
    fn plan(&mut self, text: &str) -> Decision {
        let verdict = self.verdict(text.as_bytes());
        let situation = Situation {
            fence: &self.fence,
            state: &self.state,
            accepted: &[],
            wrote: false,
            pipeline: Pipeline::Closed,
            guard: Guard::SURE,
            names: Some(&NoNames),
        };
        let planned = situation.plan(QUERY, &verdict);
        planned.map(|(admitted, _)| admitted)
    }
}

/// As for a session with the current token: without a verdict.
#[divan::bench]
fn write_by_the_token_alone(bencher: Bencher<'_, '_>) {
    let session = BenchSession::new(Policy::default(), Some(("default", 34)));
    let admit = || {
        let (text, token) = divan::black_box((INSERT.as_bytes(), session.state.token()));
        divan::black_box(session.fence.admit_text(QUERY, text, token)).is_some()
    };
    assert!(admit());
    bencher.bench_local(admit);
}

#[divan::bench]
fn read_without_a_token(bencher: Bencher<'_, '_>) {
    admitted(
        bencher,
        BenchSession::new(Policy::default(), None),
        POINT_SELECT,
    );
}

#[divan::bench(args = SCOPES)]
fn write_in_one_scope_of_many(bencher: Bencher<'_, '_>, scopes: u32) {
    let scope = format!("tenant-{}", scopes / 2);
    let session = BenchSession::new(policy_of(scopes), Some((&scope, 34)));
    admitted(bencher, session, &insert_into(scopes / 2));
}

fn admitted(bencher: Bencher<'_, '_>, mut session: BenchSession, text: &str) {
    let plan = session.plan(text);
    assert!(
        matches!(plan, Ok(Admitted { observed: None, .. })),
        "{plan:?}"
    );
    bencher.bench_local(|| session.plan(divan::black_box(text)));
}

#[divan::bench]
fn refusal_of_a_stale_token(bencher: Bencher<'_, '_>) {
    let mut session = BenchSession::new(Policy::default(), Some(("default", 33)));
    let plan = session.plan(INSERT);
    assert!(matches!(plan, Err(Unmet::Refuse(_))), "{plan:?}");
    bencher.bench_local(|| session.plan(divan::black_box(INSERT)));
}

#[divan::bench]
fn copy_data(bencher: Bencher<'_, '_>) {
    let session = BenchSession::new(Policy::default(), Some(("default", 34)));
    let admit = || {
        let token = divan::black_box(session.state.token());
        divan::black_box(session.fence.admit_copy_data(QUERY, CopyIn::Reading, token)).is_ok()
    };
    assert!(admit());
    bencher.bench_local(admit);
}

#[divan::bench(args = SCOPES)]
fn start_of_a_session(bencher: Bencher<'_, '_>, scopes: u32) {
    let fence = fence(policy_of(scopes));
    bencher.bench_local(|| fence.for_session(divan::black_box(&WHO)));
}
