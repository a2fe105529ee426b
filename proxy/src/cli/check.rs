//! `pgpalisade check`: whether the proxy can serve with this configuration.

use std::io;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;

use super::check_policy;
use super::settings::Settings;
use super::text::{Output, counted, name, plain, print};
use super::{Failure, configuration, failed, run_to_end};
use crate::inspect::{Check, CheckOutcome, Finding, check};

/// Check the set-up: PostgreSQL, the control role, the authority, and whether they fit together
///
/// Changes nothing. Exits with 0 if no check failed, with 1 if one did, with 2 if the configuration is wrong. With
/// --policy it checks only that file.
#[derive(Debug, clap::Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    output: Output,
    /// Exit with 1 if there are warnings, too
    #[arg(long)]
    strict: bool,
    /// Check this policy file only; no other setting is needed and no server is asked
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Serialize)]
struct CheckJson<'a> {
    passed: bool,
    ok: usize,
    warnings: usize,
    failed: usize,
    skipped: usize,
    checks: &'a [Finding],
}

pub(super) fn run(args: &CheckArgs) -> Result<(), Failure> {
    if let Some(path) = &args.policy {
        return check_policy::run(path, &args.output, args.strict);
    }
    let config = configuration(&args.settings)?;
    let mut findings = Vec::new();
    let mut printed = Ok(());
    run_to_end(check::run(&config, &mut |finding| {
        if !args.output.json && printed.is_ok() {
            printed = show(&finding);
        }
        findings.push(finding);
    }))?;
    printed.map_err(failed)?;
    let count = |outcome| {
        findings
            .iter()
            .filter(|f| f.verdict.outcome == outcome)
            .count()
    };
    let (warnings, failures) = (count(CheckOutcome::Warn), count(CheckOutcome::Fail));
    let passed = failures == 0 && !(args.strict && warnings > 0);
    let report = CheckJson {
        passed,
        ok: count(CheckOutcome::Ok),
        warnings,
        failed: failures,
        skipped: count(CheckOutcome::Skip),
        checks: &findings,
    };
    args.output.print(&report, summarize)?;
    if passed { Ok(()) } else { Err(Failure::Told) }
}

fn show(finding: &Finding) -> io::Result<()> {
    let width = Check::value_variants().iter().map(|id| name(id).len());
    let width = width.max().unwrap_or_default();
    let Finding { id, verdict } = finding;
    let outcome = match verdict.outcome {
        CheckOutcome::Ok => "ok",
        CheckOutcome::Warn => "warn",
        CheckOutcome::Fail => "FAIL",
        CheckOutcome::Skip => "skip",
    };
    let mut text = format!(
        "{outcome:<4}  {:<width$}  {}\n",
        name(id),
        plain(&verdict.seen)
    );
    if let Some(advice) = &verdict.advice {
        text.push_str(&format!("      {:<width$}  -> {}\n", "", plain(advice)));
    }
    print(&text)
}

fn summarize(report: &CheckJson<'_>) -> String {
    let warnings = counted(report.warnings, "warning");
    format!(
        "\n{} ok, {warnings}, {} failed, {} skipped\n",
        report.ok, report.failed, report.skipped
    )
}
