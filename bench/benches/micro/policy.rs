//! Cost of a policy's decision on a statement, with few and with many scopes.

use std::str::FromStr;
use std::sync::Arc;

use divan::Bencher;
use pgpalisade_authority::Scope;
use pgpalisade_policies::{Effects, Policy, Requirement, Who, classify};

use super::{POINT_SELECT, SAFE};

pub(crate) const SCOPES: [u32; 3] = [1, 100, 10_000];

pub(crate) const WHO: Who<'static> = Who {
    user: "app",
    database: "shop",
    application_name: Some("worker"),
    client: None,
    common_name: None,
};

#[divan::bench(args = SCOPES)]
fn requirement_of_a_read(bencher: Bencher<'_, '_>, scopes: u32) {
    required(bencher, scopes, POINT_SELECT);
}

#[divan::bench(args = SCOPES)]
fn requirement_of_a_write(bencher: Bencher<'_, '_>, scopes: u32) {
    required(bencher, scopes, &insert_into(scopes / 2));
}

#[divan::bench(args = SCOPES, sample_count = 10)]
fn policy_file(bencher: Bencher<'_, '_>, scopes: u32) {
    let text = text_of(scopes);
    bencher.bench(|| parse(divan::black_box(&text)));
}

fn required(bencher: Bencher<'_, '_>, scopes: u32, text: &str) {
    let policy = Arc::new(policy_of(scopes)).for_session(&WHO);
    let verdict = classify(text.as_bytes(), SAFE);
    let first = verdict.statements.first();
    let effects = first.map_or_else(Effects::none, |statement| statement.effects.clone());
    let ask = || policy.requirement(divan::black_box(&effects));
    let is_write = text != POINT_SELECT;
    let needs = ask();
    assert_eq!(
        matches!(needs, Requirement::Current(ref scopes) if scopes.as_slice().len() == 1),
        is_write,
        "{needs:?}"
    );
    bencher.bench_local(ask);
}

pub(crate) fn insert_into(scope: u32) -> String {
    format!("INSERT INTO public.job_{scope} (job_id, worker) VALUES ($1, $2)")
}

/// A table in each scope, all in one schema: slow if patterns are tried one by one.
pub(crate) fn policy_of(scopes: u32) -> Policy {
    parse(&text_of(scopes))
}

fn text_of(scopes: u32) -> String {
    let scope = |n: u32| format!("[scope.tenant-{n}]\ntables = \"public.job_{n}\"\n");
    (0..scopes).map(scope).collect()
}

fn parse(text: &str) -> Policy {
    let check_scope = |name: &str| {
        let scope = Scope::from_str(name);
        scope.map(|_| ()).map_err(|error| error.to_string())
    };
    Policy::parse(text, &check_scope).expect("a policy")
}
