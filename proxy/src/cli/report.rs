//! `pgpalisade report`: a summary of rejection logs.

mod page;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use pgpalisade_authority::Scope;
use pgpalisade_rejection_log::line::Filter;
use pgpalisade_rejection_log::report::Report;

use super::moment::moment;
use super::rejection_file;
use super::text::Output;
use super::{Failure, failed};

/// Sum up a rejection log, and say whether the fence can be switched on
///
/// Says what was refused, or would have been, to whom, and what to do about it. Needs no server. Lines that are not
/// records are counted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    pgpalisade report /var/log/pgpalisade/rejections.jsonl\n  \
    pgpalisade report --since 24h /var/log/pgpalisade/rejections.jsonl*\n  \
    zcat rejections.jsonl.*.gz | pgpalisade report --json -")]
pub(super) struct ReportArgs {
    /// Files to read, rotated ones too, in any order; "-" is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Only records from this time on: 2026-11-21T03:00:00Z, 2026-11-21 (UTC), or 90min, 24h, 7d ago
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<Timestamp>,
    /// Only records of this scope; if there is none, the exit code is 1
    #[arg(long, value_name = "NAME", value_parser = clap::value_parser!(Scope))]
    scope: Option<Scope>,
    /// Rows of each table
    #[arg(long, value_name = "N", default_value = "10")]
    top: NonZeroUsize,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(args: &ReportArgs) -> Result<(), Failure> {
    let mut report = Report::new(Filter {
        since: args.since,
        scope: args.scope.as_ref().map(ToString::to_string),
    });
    for path in &args.files {
        read(path, &mut report).map_err(failed)?;
    }
    let summary = report.summary(args.top.get());
    args.output.print(&summary, page::page)?;
    match &args.scope {
        Some(scope) if !report.has_scope() => Err(failed(rejection_file::no_record(scope))),
        _ => Ok(()),
    }
}

fn read(path: &Path, report: &mut Report) -> Result<(), String> {
    let mut from = rejection_file::open(path, "report")?;
    let is_log = report.read(&mut from);
    if is_log.map_err(|error| rejection_file::unread(path, &error))? {
        Ok(())
    } else {
        Err(rejection_file::no_log(path))
    }
}
