//! `pgpalisade scope repair`: sets the mark of a scope.

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use pgpalisade_authority::{Mark, OpenError, Scope, Token, utc};
use pgpalisade_takeover::{RepairError, RepairReport, ScopeRepair, Work};
use serde::Serialize;

use super::settings::Settings;
use super::text::{counted, plain, print_json_line};
use super::{Failure, configuration, failed, leaders_scope, operator, run_to_end, tell};
use crate::config::Config;
use crate::{logging, store};

/// Ample for a healthy cluster to end its sessions.
const WITHIN: Duration = Duration::from_secs(60);
/// Sessions that are listed one by one.
const LISTED: usize = 20;

/// Repair a scope
#[derive(Debug, clap::Args)]
pub(super) struct ScopeArgs {
    #[command(subcommand)]
    command: ScopeCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ScopeCommand {
    Repair(RepairArgs),
}

/// Set the mark of a scope, down or up, and end every earlier session
///
/// For a scope whose mark was raised to a token that no election will ever reach, such as 9223372036854775807, so
/// that every leader is refused. The mark is set in a new incarnation of the scope: everything accepted before is
/// below it, and every session registered in the scope is ended before the command reports success. The repair is
/// recorded in the authority, where "status" shows it, and one line of JSON is printed. An embedded store is in use
/// while its proxy runs, so stop the proxy first; with etcd and PostgreSQL the proxies keep running.
#[derive(Debug, clap::Args)]
pub(super) struct RepairArgs {
    /// The scope
    #[arg(long, value_name = "NAME", value_parser = leaders_scope)]
    scope: Scope,
    /// The mark to set: the highest token that the election has really issued; 1 lets every token in
    #[arg(long, value_name = "TOKEN", value_parser = clap::value_parser!(Token))]
    mark: Token,
    /// Why, for the record
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    reason: String,
    /// Do it without asking
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    settings: Settings,
}

/// The result, for machines. One line on stdout.
#[derive(Debug, Serialize)]
struct Record<'a> {
    event: &'static str,
    completed: bool,
    /// Whether an earlier run has set the mark.
    resumed: bool,
    scope: &'a str,
    authority: String,
    cluster: String,
    repaired_at_us: i64,
    by: &'a str,
    reason: &'a str,
    old_mark: Token,
    old_incarnation: u32,
    new_mark: Token,
    new_incarnation: u32,
    sessions_to_end: usize,
}

pub(super) fn run(args: &ScopeArgs) -> Result<(), Failure> {
    let ScopeCommand::Repair(args) = &args.command;
    let config = configuration(&args.settings)?;
    let _log = logging::init(&config.log).map_err(failed)?;
    run_to_end(repair(&config, args))?
}

async fn repair(config: &Config, args: &RepairArgs) -> Result<(), Failure> {
    // A scope has its mark only in a store that is there.
    let opened = store::open_existing(config).await;
    let authority = opened.map_err(|error| match error {
        OpenError::InUse(why) => failed(format!(
            "{why}; stop the proxy first, and start it again afterwards"
        )),
        error => failed(error),
    })?;
    let by = operator::name();
    let options = store::takeover_options(config, by.clone());
    let (scope, to) = (args.scope.clone(), args.mark);
    let looked = ScopeRepair::look(options, WITHIN, authority, scope, to).await;
    let repair = looked.map_err(failed)?;
    tell(&describe(&repair, config));
    if !args.yes {
        confirm()?;
    }
    let cluster = repair.cluster.to_string();
    match repair.perform(&by, &args.reason).await {
        Ok(report) => {
            record(&report, config, cluster, true)?;
            tell("Done. All earlier sessions have ended.");
            Ok(())
        }
        Err(error) => {
            if let RepairError::Incomplete { report, .. } = &error {
                record(report, config, cluster, false)?;
            }
            Err(failed(error))
        }
    }
}

/// The steps that the operator confirms.
fn describe(repair: &ScopeRepair, config: &Config) -> String {
    let (scope, mark, to) = (&repair.scope, &repair.mark, repair.to);
    let will = match repair.work {
        Work::Repair => format!("set the mark to {to}, in a new incarnation, and end"),
        Work::Finish => "leave the mark, which the last repair has set, and end".to_owned(),
    };
    let mut text = format!(
        "scope       {scope}\nmark        {}, raised at {} by {}\nauthority   {}\ncluster     {}\n\
         will        {will} {}",
        mark.rank(),
        utc(mark.raised_at),
        plain(&mark.raised_by),
        config.takeover.authority,
        repair.cluster,
        counted(repair.sessions.len(), "registered session"),
    );
    for session in repair.sessions.iter().take(LISTED) {
        let (pid, since) = (session.backend.pid, utc(session.since));
        let line = format!(
            "\n  server process {pid}, token {}, since {since}",
            session.rank()
        );
        text.push_str(&line);
    }
    let more = repair.sessions.len().saturating_sub(LISTED);
    if more > 0 {
        text.push_str(&format!("\n  and {more} more"));
    }
    text
}

fn confirm() -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        return Err(failed("nothing was changed; add --yes to do it"));
    }
    let mut stderr = io::stderr();
    let asked = stderr.write_all(b"Continue? [y/N] ").and(stderr.flush());
    asked.map_err(failed)?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(failed)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(failed("nothing was changed")),
    }
}

fn record(
    report: &RepairReport,
    config: &Config,
    cluster: String,
    completed: bool,
) -> Result<(), Failure> {
    let Mark {
        repair: Some(repair),
        incarnation,
        token,
        ..
    } = &report.mark
    else {
        return Ok(());
    };
    let record = Record {
        event: "scope_repaired",
        completed,
        resumed: report.work == Work::Finish,
        scope: report.scope.as_str(),
        authority: config.takeover.authority.to_string(),
        cluster,
        repaired_at_us: repair.at,
        by: &repair.by,
        reason: &repair.reason,
        old_mark: repair.from,
        old_incarnation: incarnation.get().saturating_sub(1),
        new_mark: *token,
        new_incarnation: incarnation.get(),
        sessions_to_end: report.sessions,
    };
    print_json_line(&record).map_err(failed)
}
