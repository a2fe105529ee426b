//! What is measured. Each case does what the proxy does for one message of a client, and nothing around it.

use std::hint::black_box;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pgpalisade::config::Literals;
use pgpalisade::fence::scope_cell::ScopeCells;
use pgpalisade::fence::{Binding, Fence, Footing, Holding};
use pgpalisade::rejection::{Needs, Rejection};
use pgpalisade::rejection_log::{Enforcement, RejectionLog, SessionLabel};
use pgpalisade_authority::{Mark, Scope, Token};
use pgpalisade_policies::scan::{self, NeedsParse};
use pgpalisade_policies::{
    Class, Effects, Mode, Policy, SearchPath, SessionPolicy, TextEncoding, VerdictCache, Who,
    classify,
};

use crate::Error;
use crate::timing::Run;

/// One row of the table.
pub(crate) struct Case {
    /// Short, for flags.
    pub(crate) name: &'static str,
    /// What a call does.
    pub(crate) what: &'static str,
    /// What a call may take, in nanoseconds.
    pub(crate) goal_ns: Option<f64>,
    pub(crate) run: Run,
}

/// 100 bytes, as an application sends them.
const INSERT: &str = "INSERT INTO job_result (job_id, worker, finished_at, result) \
    VALUES ($1, $2, now(), $3) RETURNING id";
const _: () = assert!(INSERT.len() == 100);

/// What pgbench -S sends.
const POINT_SELECT: &str = "SELECT abalance FROM pgbench_accounts WHERE aid = $1";

/// Texts in turn, so that not all of them are in the processor's cache.
const TEXTS: usize = 4_096;

/// A record that waits has a place in a queue of 4,096: so many at once, and then a pause for the writer.
const RECORDS: u64 = 1_000;

const SAFE: TextEncoding = TextEncoding::AsciiSafe;

/// All of them, in the order of the table.
pub(crate) fn cases() -> Result<Vec<Case>, Error> {
    Ok(vec![
        fast_path()?,
        scan_of_a_read(),
        cached(),
        cached_of_many(),
        first_parse(
            "first-parse",
            "classify a SELECT by primary key, 52 bytes",
            POINT_SELECT,
            Some(20_000.0),
        ),
        first_parse(
            "first-parse-insert",
            "classify an INSERT, 100 bytes",
            INSERT,
            None,
        ),
        requirement(
            "requirement",
            "what the default policy asks for an INSERT",
            &session(Policy::default()),
        ),
        requirement(
            "requirement-20",
            "the same, where 20 scopes list three patterns of tables each",
            &session(policy_of_scopes()?),
        ),
        record()?,
    ])
}

fn case(
    name: &'static str,
    what: &'static str,
    goal_ns: Option<f64>,
    mut call: impl FnMut() + 'static,
) -> Case {
    Case {
        name,
        what,
        goal_ns,
        run: Box::new(move |calls| {
            let start = Instant::now();
            for _ in 0..calls {
                call();
            }
            start.elapsed()
        }),
    }
}

/// As `relay/judgement.rs` does it for a session that holds the current token.
fn fast_path() -> Result<Case, Error> {
    let because = |error: &dyn std::fmt::Display| Error::Case {
        case: "fast-path",
        why: error.to_string(),
    };
    let scope = Scope::from_str("default").map_err(|error| because(&error))?;
    let token = Token::new(34).map_err(|error| because(&error))?;
    let cells = Arc::new(ScopeCells::default());
    let cell = cells.cell(&scope);
    cell.raise(&Mark::new(token, 0, "bench".to_owned()));
    let holding = Arc::new(Holding::new(Box::new([Binding {
        cell,
        token,
        timeline: 1,
        footing: Footing::Registered,
    }])));
    let fence = Fence::new(Policy::default(), cells, Mode::Enforce);
    let fence = Arc::new(fence.map_err(|error| because(&error))?).for_session(&Who {
        user: "app",
        database: "shop",
        application_name: None,
        client: None,
    });
    let admit = move || match scan::needs_parse(black_box(INSERT.as_bytes())) {
        NeedsParse::Yes => None,
        NeedsParse::No => fence.admit_any(black_box(Some(&holding))),
    };
    if admit().is_none() {
        return Err(because(&"the session is not admitted"));
    }
    let what = "scan an INSERT of 100 bytes, and admit it by its token";
    Ok(case("fast-path", what, Some(60.0), move || {
        black_box(admit());
    }))
}

fn scan_of_a_read() -> Case {
    case("scan-select", "scan a SELECT of 52 bytes", None, || {
        black_box(scan::needs_parse(black_box(POINT_SELECT.as_bytes())));
    })
}

fn cached() -> Case {
    let mut cache = VerdictCache::new(16 << 20);
    let what = "the cached verdict of a text of 100 bytes";
    case("cached", what, Some(150.0), move || {
        black_box(cache.get_or_classify(black_box(INSERT.as_bytes()), SAFE));
    })
}

fn cached_of_many() -> Case {
    let texts: Vec<String> = (0..TEXTS)
        .map(|number| {
            format!("{POINT_SELECT} AND bid = {number:04} AND filler <> '..................'")
        })
        .collect();
    let mut cache = VerdictCache::new(16 << 20);
    for text in &texts {
        cache.get_or_classify(text.as_bytes(), SAFE);
    }
    let mut next = 0;
    let what = "the same, of 4,096 texts in turn";
    case("cached-4096", what, None, move || {
        let text = texts.get(next % TEXTS).map_or("", String::as_str);
        next += 1;
        black_box(cache.get_or_classify(black_box(text.as_bytes()), SAFE));
    })
}

fn first_parse(
    name: &'static str,
    what: &'static str,
    text: &'static str,
    goal_ns: Option<f64>,
) -> Case {
    case(name, what, goal_ns, move || {
        black_box(classify(black_box(text.as_bytes()), SAFE));
    })
}

/// A shard in each scope, as `policies/examples/sharded-scheduler.toml` has them.
fn policy_of_scopes() -> Result<Policy, Error> {
    let scope = |n: u32| {
        format!(
            "[scope.shard-{n}]\ntables = [\"shard_{n}.*\", \"public.lock_{n}\", \"*.outbox_{n}_*\"]\n"
        )
    };
    let text: String = (1..=20).map(scope).collect();
    let check_scope = |name: &str| {
        let scope = Scope::from_str(name);
        scope.map(|_| ()).map_err(|error| error.to_string())
    };
    Policy::parse(&text, &check_scope).map_err(|errors| Error::Case {
        case: "requirement-20",
        why: errors.to_string(),
    })
}

fn session(policy: Policy) -> SessionPolicy {
    Arc::new(policy).for_session(&Who {
        user: "app",
        database: "shop",
        application_name: Some("worker"),
        client: None,
    })
}

fn requirement(name: &'static str, what: &'static str, policy: &SessionPolicy) -> Case {
    let policy = policy.clone();
    let effects = effects_of(INSERT);
    let path = ["app".into(), "public".into()];
    case(name, what, None, move || {
        let path = SearchPath::Known(black_box(&path));
        black_box(policy.requirement(black_box(&effects), path));
    })
}

fn effects_of(text: &str) -> Effects {
    let verdict = classify(text.as_bytes(), SAFE);
    let first = verdict.statements.first();
    first.map_or_else(Effects::none, |statement| statement.effects.clone())
}

/// What a refusal costs the session's thread: the error, the text without literals, and a place in the queue.
fn record() -> Result<Case, Error> {
    let because = |error: &dyn std::fmt::Display| Error::Case {
        case: "record",
        why: error.to_string(),
    };
    let scope = Scope::from_str("default").map_err(|error| because(&error))?;
    let client_addr = "10.0.0.1:5000".parse().map_err(|error| because(&error))?;
    let log = RejectionLog::open(None, Literals::Remove).map_err(|error| because(&error))?;
    let label = SessionLabel {
        user: "app".to_owned(),
        database: "shop".to_owned(),
        application_name: Some("worker".to_owned()),
        client_addr,
        backend_pid: Some(77),
    };
    let one = move || {
        let needs = Needs {
            class: Class::Write,
            scopes: &[&scope],
            session_scope: &scope,
            why_write: None,
        };
        let rejection = Rejection::no_token(black_box(&scope), &needs);
        let text = log.statement(black_box(INSERT.as_bytes()));
        log.record(rejection.record(&label, Some("INSERT"), Some(text), Enforcement::Refused));
    };
    Ok(Case {
        name: "record",
        what: "refuse an INSERT of 100 bytes and hand the record to the writer",
        goal_ns: None,
        run: Box::new(move |calls| {
            let mut took = Duration::ZERO;
            for burst in 0..calls.div_ceil(RECORDS) {
                let start = Instant::now();
                for _ in 0..RECORDS.min(calls - burst * RECORDS) {
                    one();
                }
                took += start.elapsed();
                std::thread::sleep(Duration::from_millis(2));
            }
            took
        }),
    })
}
