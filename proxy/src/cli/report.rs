//! `pgpalisade report`: what a rejection log says.

mod page;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use pgpalisade_authority::Scope;

use super::text::print_json;
use super::{Failure, failed};
use crate::rejection::Enforcement;
use crate::rejection_log::report::{Filter, Report};

/// Read in large pieces: a log may have gigabytes.
const BUFFER: usize = 256 * 1024;

/// The first bytes of a gzip file. <https://www.rfc-editor.org/rfc/rfc1952#section-2.3.1>
const GZIP: &[u8] = &[0x1f, 0x8b];

/// Sum up a rejection log, and say whether the fence can be switched on
///
/// Counts refused and observed requests by reason, scope, user, application, database, client and shape of the
/// statement, and ends with what would have been refused, to whom, and what to do about it. Reads any number of
/// files once, in bounded memory, and changes nothing; no server is needed. Lines that are not records are counted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    pgpalisade report /var/log/pgpalisade/rejections.jsonl\n  \
    pgpalisade report --observed --since 24h /var/log/pgpalisade/rejections.jsonl*\n  \
    zcat rejections.jsonl.*.gz | pgpalisade report --json -")]
pub(super) struct ReportArgs {
    /// Files to read, rotated ones too, in any order; "-" is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Only records of this time or later: 2026-11-21T03:00:00Z, 2026-11-21 (UTC), or 90min, 24h, 7d ago
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<Timestamp>,
    /// Only records before this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<Timestamp>,
    /// Only records of this scope
    #[arg(long, value_name = "NAME", value_parser = clap::value_parser!(Scope))]
    scope: Option<Scope>,
    /// Only what was recorded and let pass
    #[arg(long, conflicts_with = "refused")]
    observed: bool,
    /// Only what was refused
    #[arg(long)]
    refused: bool,
    /// Rows of each table
    #[arg(long, value_name = "N", default_value = "10")]
    top: NonZeroUsize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
enum ReportError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is compressed: run \"zcat {} | pgpalisade report -\"", path.display(), path.display())]
    Compressed { path: PathBuf },
    #[error("{} is not a rejection log: none of its {lines} lines is a record", path.display())]
    NoLog { path: PathBuf, lines: u64 },
}

/// Reads all files, and tells.
pub(super) fn run(args: &ReportArgs) -> Result<(), Failure> {
    let mut report = Report::new(Filter {
        since: args.since,
        until: args.until,
        scope: args.scope.as_ref().map(ToString::to_string),
        enforced: match (args.observed, args.refused) {
            (true, _) => Some(Enforcement::Observed),
            (false, true) => Some(Enforcement::Refused),
            (false, false) => None,
        },
    });
    for path in &args.files {
        read(path, &mut report).map_err(failed)?;
    }
    let summary = report.summary(args.top.get());
    let told = match args.json {
        true => print_json(&summary),
        false => io::stdout().write_all(page::page(&summary).as_bytes()),
    };
    match told {
        // Who reads it has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        told => told.map_err(failed),
    }
}

fn read(path: &Path, report: &mut Report) -> Result<(), ReportError> {
    let because = |source| ReportError::Read {
        path: path.to_path_buf(),
        source,
    };
    if path == Path::new("-") {
        return read_from(io::stdin().lock(), Path::new("standard input"), report);
    }
    read_from(File::open(path).map_err(because)?, path, report)
}

fn read_from(from: impl io::Read, path: &Path, report: &mut Report) -> Result<(), ReportError> {
    let because = |source| ReportError::Read {
        path: path.to_path_buf(),
        source,
    };
    let mut from = BufReader::with_capacity(BUFFER, from);
    if from.fill_buf().map_err(because)?.starts_with(GZIP) {
        let path = path.to_path_buf();
        return Err(ReportError::Compressed { path });
    }
    let understood = report.read(&mut from).map_err(because)?;
    if understood.foreign_lines > 0 && !understood.is_a_log() {
        return Err(ReportError::NoLog {
            path: path.to_path_buf(),
            lines: understood.foreign_lines,
        });
    }
    Ok(())
}

/// A moment, or how long ago it was.
fn time(text: &str) -> Result<Timestamp, String> {
    let text = text.trim();
    let now = Timestamp::now();
    if let Some(ago) = ago(text) {
        return now
            .checked_sub(ago)
            .map_err(|_| format!("{text} is too long ago"));
    }
    let moment = text.parse::<Timestamp>().or_else(|_| {
        let written = text.parse::<DateTime>()?;
        Ok::<_, jiff::Error>(written.to_zoned(TimeZone::UTC)?.timestamp())
    });
    moment.map_err(|_| {
        "write 2026-11-21T03:00:00Z, 2026-11-21 (midnight, UTC), or how long ago: 90min, 24h, 7d"
            .to_owned()
    })
}

fn ago(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let seconds: u64 = match unit {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    Some(Duration::from_secs(
        number.parse::<u64>().ok()?.checked_mul(seconds)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, expect) in [
            ("2026-11-21T03:00:00Z", "2026-11-21T03:00:00Z"),
            ("2026-11-21T03:00:00.5+02:00", "2026-11-21T01:00:00.5Z"),
            ("2026-11-21 03:00", "2026-11-21T03:00:00Z"),
            ("2026-11-21", "2026-11-21T00:00:00Z"),
        ] {
            assert_eq!(time(text), Ok(expect.parse().unwrap()), "{text}");
        }
        for (text, seconds) in [("90min", 5_400), ("2h", 7_200), ("7d", 604_800)] {
            let then = time(text).unwrap();
            let ago = Timestamp::now().duration_since(then);
            assert!((seconds..seconds + 5).contains(&ago.as_secs()), "{text}");
        }
        for text in [
            "",
            "yesterday",
            "7",
            "7w",
            "99999999999999999999d",
            "2026-13-01",
        ] {
            assert!(time(text).is_err(), "{text}");
        }
        assert!(time("99999999999d").unwrap_err().contains("too long ago"));
    }
}
