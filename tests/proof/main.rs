//! The proof under faults, in short.
//!
//! `PGPALISADE_SEED` repeats the choices of a failed run. Its history is kept, and the failure says where.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pgpalisade_judges::proof::checker::Rule;
use pgpalisade_judges::proof::listeners::Source;
use pgpalisade_judges::proof::plan::{Faults, Plan, Pooler, Route};
use pgpalisade_judges::proof::run::{Outcome, run};
use pgpalisade_judges::proof::store::StoreKind;
use pgpalisade_test_servers::machine::{profile_dir, seed};

/// A run needs the whole machine. `cargo test` would start all of them at once; nextest's configuration prevents it.
static MACHINE: Mutex<()> = Mutex::new(());

fn run_alone(name: &str, route: Route, seconds: u64, change: impl FnOnce(&mut Plan)) -> Outcome {
    let _turn = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut plan = Plan::new(seed(), route, Duration::from_secs(seconds));
    change(&mut plan);
    let outcome = run(&plan, &dir(name));
    println!("{}", outcome.report);
    outcome
}

fn dir(name: &str) -> PathBuf {
    let target = profile_dir();
    target.parent().unwrap().join("proof").join(name)
}

/// The report is already on the output.
#[track_caller]
fn assert_holds(outcome: &Outcome) {
    assert!(
        outcome.report.violations.is_empty(),
        "the guarantee is violated, see {}",
        outcome.history.display()
    );
}

/// A run in which nothing happens proves nothing.
#[track_caller]
fn assert_at_least(what: &str, least: usize, count: usize) {
    assert!(count >= least, "only {count} {what}");
}

/// G1 to G6, and the shared row, with all faults.
#[test]
fn leaders_under_faults() {
    let outcome = run_alone("leaders", Route::Proxied(StoreKind::Etcd), 45, |_| {});
    assert_holds(&outcome);
    let counts = &outcome.report.counts;
    assert_at_least("takeovers", 15, counts.takeovers);
    assert_at_least("commits", 200, counts.commits);
    assert_at_least("refused writes", 1, counts.refused);
    assert_at_least("kinds of faults", 10, counts.faults.len());
}

/// Two leaders append to one row by read-modify-write, each with its own consecutive numbers. Proxies are paused and
/// killed and networks fail, but no number may be missing.
#[test]
fn two_writers_on_one_row() {
    let outcome = run_alone("row", Route::Proxied(StoreKind::Postgres), 25, |plan| {
        plan.scopes = 0;
        plan.faults = Faults::Partitions;
    });
    assert_holds(&outcome);
    let counts = &outcome.report.counts;
    assert_at_least("takeovers", 10, counts.takeovers);
    assert_at_least("numbers", 30, counts.appended);
    assert_at_least("kinds of faults", 5, counts.faults.len());
}

/// Programs that declare nothing, behind listeners whose proxies stop one after the other.
#[test]
fn programs_behind_listeners() {
    let outcome = run_alone("led", Route::Proxied(StoreKind::Etcd), 30, |plan| {
        plan.scopes = 0;
        plan.faults = Faults::Handovers;
        plan.listener = Some(Source::Hold);
    });
    assert_holds(&outcome);
    let counts = &outcome.report.counts;
    assert_at_least("terms", 2, counts.terms);
    assert_at_least("confirmed writes", 50, counts.confirmed);
}

/// Leaders that share the connections of a PgBouncer, each transaction with its own token.
#[test]
fn leaders_behind_a_pooler() {
    let route = Route::Proxied(StoreKind::Etcd);
    let outcome = run_alone("pooler", route, 20, |plan| {
        plan.pooler = Some(Pooler::Transaction)
    });
    assert_holds(&outcome);
    let counts = &outcome.report.counts;
    assert_at_least("takeovers", 5, counts.takeovers);
    assert_at_least("commits", 50, counts.commits);
}

/// The same with SET: the token of one is that of the next. A run may be lucky, three are not.
#[test]
fn behind_a_pooler_set_is_unsafe() {
    let is_violated = |_| {
        let route = Route::Proxied(StoreKind::Etcd);
        let outcome = run_alone("careless", route, 12, |plan| {
            plan.pooler = Some(Pooler::Careless)
        });
        let of = |rule| outcome.report.of(rule);
        of(Rule::G1) + of(Rule::G2) + of(Rule::Row) > 0
    };
    assert!((0..3).any(is_violated), "no violation");
}

/// If this passes, the tests above test nothing.
#[test]
fn without_the_proxy_it_is_violated() {
    let outcome = run_alone("direct", Route::Direct, 12, |_| {});
    for rule in [Rule::G1, Rule::G2, Rule::Row] {
        assert_at_least(
            &format!("violations of {rule:?}"),
            1,
            outcome.report.of(rule),
        );
    }
    // The rules not about fencing hold there too: the history is consistent, and no confirmed write is lost.
    for rule in [Rule::History, Rule::G4, Rule::G5, Rule::G6] {
        assert_eq!(outcome.report.of(rule), 0, "{rule:?}");
    }
}
