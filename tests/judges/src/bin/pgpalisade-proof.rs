//! The proof under faults as a command.
//!
//! It starts itself for each leader, with the first argument `lead`.

#![expect(
    clippy::expect_used,
    reason = "a helper of tests that cannot go on fails them"
)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use pgpalisade_judges::proof::leader::{self, Task};
use pgpalisade_judges::proof::leaders::LEAD;
use pgpalisade_judges::proof::listeners::Source;
use pgpalisade_judges::proof::plan::{Faults, Plan, Pooler, Route};
use pgpalisade_judges::proof::run::run;
use pgpalisade_judges::proof::store::StoreKind;
use pgpalisade_test_servers::machine;

/// Let leaders of several scopes write through several proxies while everything fails at random, and check what was
/// acknowledged and committed
#[derive(Debug, Parser)]
struct Arguments {
    /// Duration, in minutes
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Seed of all choices [default: from the clock]; printed
    #[arg(long)]
    seed: Option<u64>,
    /// Store of the marks
    #[arg(long, value_enum, default_value_t = StoreKind::Etcd)]
    store: StoreKind,
    /// What fails
    #[arg(long, value_enum, default_value_t = Faults::All)]
    faults: Faults,
    /// Number of proxies [default: 2, or 1 with an embedded store]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=8))]
    proxies: Option<u8>,
    /// Number of scopes whose leaders declare their tokens [default: 2, or 0 with a listener]
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=4))]
    scopes: Option<u8>,
    /// Let the clients of each proxy share this number of server connections
    #[arg(long, value_name = "CONNECTIONS", value_parser = clap::value_parser!(u8).range(3..))]
    pool: Option<u8>,
    /// Leaders that declare nothing work behind listeners, which get their token from here
    #[arg(long, value_enum)]
    listener: Option<Source>,
    /// Put a pooler in front of each proxy
    #[arg(long, value_enum)]
    pooler: Option<Pooler>,
    /// Bypass the proxies: the checker must then find violations
    #[arg(long)]
    direct: bool,
    /// Directory of the history [default: a directory under target/proof]
    #[arg(long)]
    history: Option<PathBuf>,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(LEAD) {
        let task = arguments.next().expect("a task");
        let task: Task = serde_json::from_str(&task).expect("a task is JSON");
        std::thread::spawn(end_with_the_run);
        leader::lead(&task);
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::parse();
    let seed = arguments.seed.unwrap_or_else(machine::seed);
    let route = if arguments.direct {
        Route::Direct
    } else {
        Route::Proxied(arguments.store)
    };
    let mut plan = Plan::new(
        seed,
        route,
        Duration::from_secs_f64(arguments.minutes * 60.0),
    );
    plan.proxies = arguments.proxies.map_or(plan.proxies, usize::from);
    plan.listener = arguments.listener;
    plan.pooler = arguments.pooler;
    let scopes = if plan.listener.is_some() { 0 } else { 2 };
    plan.scopes = arguments.scopes.map_or(scopes, usize::from);
    plan.faults = arguments.faults;
    plan.shared = arguments.pool;
    if plan.shared.is_some() || plan.pooler.is_some() {
        plan.slack += plan.wait;
    }
    let target = machine::profile_dir()
        .parent()
        .expect("target")
        .join("proof");
    let dir = arguments
        .history
        .unwrap_or_else(|| target.join(format!("seed-{seed}")));
    println!("seed {seed}, {route}, {} minutes", arguments.minutes);
    let outcome = run(&plan, &dir);
    print!("\nseed           {seed}\n{}", outcome.report);
    println!("history        {}", outcome.history.display());
    if outcome.report.violations.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The run holds the other end of standard input: an orphaned leader would write for ever.
fn end_with_the_run() {
    let _closed = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    std::process::exit(0);
}
