//! Cost of classifying a text: `make bench-micro`.

use std::sync::Arc;

use divan::Bencher;
use pgpalisade_policies::{Class, TextEncoding, VerdictCache, Weight, classify, scan, weigh};

/// 100 bytes, as an application sends them.
const INSERT: &str = "INSERT INTO job_result (job_id, worker, finished_at, result) \
    VALUES ($1, $2, now(), $3) RETURNING id";

const POINT_SELECT: &str = "SELECT abalance FROM pgbench_accounts WHERE aid = $1";

const SAFE: TextEncoding = TextEncoding::Utf8;

const CONSTANTS: &str = "SELECT id FROM job WHERE kind = 'mail' AND id = 00000001 ORDER BY x";

const CACHE: usize = 16 << 20;

/// Almost the most tokens that the session's thread classifies, and that are classified at all.
const LIGHT_ITEMS: usize = 2_040;
const ITEMS: usize = 32_760;

#[divan::bench(args = [POINT_SELECT, INSERT])]
fn scan_without_grammar(text: &str) {
    divan::black_box(scan::needs_parse(text.as_bytes()));
}

fn cache_with(text: &str) -> VerdictCache {
    let mut cache = VerdictCache::new(CACHE);
    let verdict = Arc::new(classify(text.as_bytes(), SAFE));
    cache.keep(text.as_bytes(), SAFE, &verdict);
    cache
}

#[divan::bench(args = [INSERT, CONSTANTS])]
fn cached(bencher: Bencher<'_, '_>, text: &str) {
    let mut cache = cache_with(text);
    bencher.bench_local(|| cache.find(divan::black_box(text.as_bytes()), SAFE));
}

/// Each text has another number.
#[divan::bench]
fn cached_with_other_constants(bencher: Bencher<'_, '_>) {
    let mut cache = cache_with(CONSTANTS);
    let mut number = 0;
    bencher
        .with_inputs(|| {
            number += 1;
            CONSTANTS.replace("00000001", &format!("{number:08}"))
        })
        .bench_local_values(|text| cache.find(text.as_bytes(), SAFE));
}

#[divan::bench]
fn not_cached(bencher: Bencher<'_, '_>) {
    let mut cache = VerdictCache::new(CACHE);
    bencher.bench_local(|| {
        cache
            .find(divan::black_box(CONSTANTS.as_bytes()), SAFE)
            .is_some()
    });
}

#[divan::bench(args = [POINT_SELECT, INSERT])]
fn classified(text: &str) {
    divan::black_box(classify(text.as_bytes(), SAFE));
}

/// The most work in the session's thread, and the most in a separate thread.
#[divan::bench(args = [LIGHT_ITEMS, ITEMS], sample_count = 10)]
fn classified_at_most(bencher: Bencher<'_, '_>, items: usize) {
    let text = heaviest(items);
    let verdict = classify(text.as_bytes(), SAFE);
    let is_understood = verdict.kind() != "unparsed" && verdict.class() == Class::Read;
    assert!(is_understood, "{verdict:?}");
    assert_eq!(
        weigh(text.as_bytes()) == Weight::Light,
        items == LIGHT_ITEMS
    );
    bencher.bench(|| classify(divan::black_box(text.as_bytes()), SAFE));
}

/// Of two tokens, a star in a list takes longest: it is a column, a list of fields and a field. With a backslash in a
/// string, the whole text is read twice.
fn heaviest(items: usize) -> String {
    format!(r"select e'\\'{}", ",*".repeat(items))
}

fn main() {
    divan::main();
}
