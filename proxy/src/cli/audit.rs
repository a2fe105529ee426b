//! `pgpalisade audit`: rows that were written around the proxy.

use std::fmt::Write as _;
use std::time::Duration;

use pgpalisade_authority::Scope;

use super::text::{print, shown, table};
use super::{Failure, failed, run_to_end};
use crate::config::{Environment, parse_dsn, parse_time};
use crate::inspect::audit::{self, Audit, AuditedTable, LateRow};

const APPLICATION_NAME: &str = "pgpalisade audit";

/// List the rows of a deposed leader, which can only have come around the proxy
///
/// For a table that keeps each row's fencing token and time, as "The token as a column" in docs/elections.md has it. A
/// row whose token is below the mark of its time was written after a takeover by somebody who led before. Reads the
/// table once and changes nothing. Judges by the takeovers that the authority keeps, the last 16 of the scope. Ends
/// with 1 where there is such a row.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    pgpalisade audit outbox --token token --time written_at --proxied postgres://auditor@db:6432/app")]
pub(super) struct AuditArgs {
    /// The table, with its schema where the search path does not have it
    table: String,
    /// The column with the token, an integer
    #[arg(long, value_name = "COLUMN", default_value = "token")]
    token: String,
    /// The column with the time of the write, a timestamptz: best with DEFAULT clock_timestamp()
    #[arg(long, value_name = "COLUMN", default_value = "written_at")]
    time: String,
    /// What the token is for: the scope of the policy
    #[arg(long, value_name = "NAME", default_value = "default")]
    scope: Scope,
    /// The database through pgpalisade; the rest comes from PGHOST and the like
    #[arg(long, value_name = "DSN")]
    proxied: Option<String>,
    /// How far the clocks of the database and of the proxies may be apart
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    clocks_within: Duration,
    /// Rows that are shown
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    limit: u32,
}

/// Audits, and tells.
pub(super) fn run(args: &AuditArgs) -> Result<(), Failure> {
    let dsn = args.proxied.as_deref().unwrap_or_default();
    let login = parse_dsn(dsn, APPLICATION_NAME, &Environment::of_this_process())
        .map_err(|why| Failure::Usage(format!("pgpalisade: --proxied {why}")))?;
    let audited = AuditedTable {
        scope: args.scope.clone(),
        table: args.table.clone(),
        token_column: args.token.clone(),
        time_column: args.time.clone(),
        clocks_within: args.clocks_within,
        limit: args.limit,
    };
    let found = run_to_end(audit::audit(&login, &audited))?.map_err(failed)?;
    let told = describe(&found, &audited);
    print(&told).map_err(failed)?;
    match found.late {
        0 => Ok(()),
        _ => Err(Failure::Told),
    }
}

fn describe(found: &Audit, of: &AuditedTable) -> String {
    let AuditedTable {
        scope, table: name, ..
    } = of;
    let Some(since) = &found.since else {
        return format!(
            "No completed takeover of scope \"{scope}\" is known: there is nothing to judge by.\n"
        );
    };
    let mut text = format!(
        "{name}: {} of {} rows since {since} are below the mark of their time ({} takeovers of scope \"{scope}\")\n",
        found.late, found.judged, found.takeovers
    );
    // Writing to a String cannot fail.
    if found.without_token > 0 {
        let _ = writeln!(text, "{} of these rows have no token.", found.without_token);
    }
    if found.not_judged > 0 {
        let _ = writeln!(
            text,
            "{} rows are not judged: they are older, or have no time.",
            found.not_judged
        );
    }
    if found.late > 0 {
        text.push_str(
            "\nThe writer of such a row had been deposed, and came around pgpalisade, or where it only observes.\n\n",
        );
        text.push_str(&table(
            ["WRITTEN", "TOKEN", "MARK", "SINCE", "ROW"],
            &found.shown.iter().map(row).collect::<Vec<_>>(),
        ));
    }
    text
}

fn row(late: &LateRow) -> [String; 5] {
    let LateRow {
        written_at,
        token,
        mark,
        since,
        row,
    } = late;
    [
        written_at.clone(),
        token.to_string(),
        mark.to_string(),
        since.clone(),
        shown(row),
    ]
}
