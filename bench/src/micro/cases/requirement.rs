//! What a policy asks for a statement, with few scopes and with many.

use std::error::Error;
use std::hint::black_box;
use std::str::FromStr;
use std::sync::Arc;

use pgpalisade_authority::Scope;
use pgpalisade_policies::{Effects, Policy, Requirement, SearchPath, SessionPolicy, Who, classify};

use super::{Case, INSERT, Made, POINT_SELECT, SAFE, repeat};

pub(super) const WHO: Who<'static> = Who {
    user: "app",
    database: "shop",
    application_name: Some("worker"),
    client: None,
};

const READ: &str = "what it asks for a SELECT, in a policy of N scopes with a table each: nothing";
const WRITE: &str = "what it asks for an INSERT into the table of one of them: its token";

const FILE: &str = "a scope with a table in a policy file of N that is read and worked out";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "require-default",
            "what the default policy asks for an INSERT",
            || Ok(required(Policy::default(), INSERT)),
        ),
        Case::new(
            "require-patterns",
            "the same, where 20 scopes list three patterns each, one of them *.outbox_N_*",
            || Ok(required(policy_of_patterns()?, INSERT)),
        ),
        Case::new("require-read-1", READ, || read(1)),
        Case::new("require-read-100", READ, || read(100)),
        Case::new("require-read-10000", READ, || read(10_000)),
        Case::new("require-write-1", WRITE, || write(1)),
        Case::new("require-write-100", WRITE, || write(100)),
        Case::new("require-write-10000", WRITE, || write(10_000)),
        Case::new("require-write-100000", WRITE, || write(100_000)),
        Case::new("policy-1000", FILE, || file(1_000))
            .times(1_000)
            .large(),
        Case::new("policy-100000", FILE, || file(100_000))
            .times(100_000)
            .large(),
    ]
}

fn read(scopes: u32) -> Made {
    Ok(required(policy_of(scopes)?, POINT_SELECT))
}

fn write(scopes: u32) -> Made {
    let policy = Arc::new(policy_of(scopes)?).for_session(&WHO);
    let effects = effects_of(&insert_into(scopes / 2));
    let needed = match policy.requirement(&effects, PATH) {
        Requirement::Current(scopes) => scopes,
        other => return Err(format!("the policy asks for {other:?}").into()),
    };
    match needed.as_slice() {
        [_] => Ok(asked(policy, effects)),
        several => Err(format!("the policy asks for {} scopes", several.len()).into()),
    }
}

/// Where the names of the texts here are looked up.
pub(super) const PATH: SearchPath<'static> = SearchPath::Unknown;

pub(super) fn insert_into(scope: u32) -> String {
    format!("INSERT INTO public.job_{scope} (job_id, worker) VALUES ($1, $2)")
}

fn required(policy: Policy, text: &str) -> crate::timing::Run {
    asked(Arc::new(policy).for_session(&WHO), effects_of(text))
}

fn asked(policy: SessionPolicy, effects: Effects) -> crate::timing::Run {
    let path = ["app".into(), "public".into()];
    repeat(move || {
        let path = SearchPath::Known(black_box(&path));
        black_box(policy.requirement(black_box(&effects), path));
    })
}

fn effects_of(text: &str) -> Effects {
    let verdict = classify(text.as_bytes(), SAFE);
    let first = verdict.statements.first();
    first.map_or_else(Effects::none, |statement| statement.effects.clone())
}

/// A shard in each scope, as `policies/examples/sharded-scheduler.toml` has them.
fn policy_of_patterns() -> Result<Policy, Box<dyn Error>> {
    let scope = |n: u32| {
        format!(
            "[scope.shard-{n}]\ntables = [\"shard_{n}.*\", \"public.lock_{n}\", \"*.outbox_{n}_*\"]\n"
        )
    };
    parse(&(1..=20).map(scope).collect::<String>())
}

/// A table in each scope, all of one schema: what is slow where patterns are gone through one by one.
pub(super) fn policy_of(scopes: u32) -> Result<Policy, Box<dyn Error>> {
    parse(&text_of(scopes))
}

fn text_of(scopes: u32) -> String {
    let scope = |n: u32| format!("[scope.tenant-{n}]\ntables = \"public.job_{n}\"\n");
    (0..scopes).map(scope).collect()
}

fn file(scopes: u32) -> Made {
    let text = text_of(scopes);
    Ok(repeat(move || {
        let _ = black_box(parse(black_box(&text)));
    }))
}

fn parse(text: &str) -> Result<Policy, Box<dyn Error>> {
    let check_scope = |name: &str| {
        let scope = Scope::from_str(name);
        scope.map(|_| ()).map_err(|error| error.to_string())
    };
    Ok(Policy::parse(text, &check_scope)?)
}
