//! `pgpalisade config`: configurations made from those of other programs.

use std::path::PathBuf;

use clap::Subcommand;

use super::text::print;
use super::{Failure, failed};
use crate::config::from_pgbouncer;

/// Make a configuration from that of another program
#[derive(Debug, clap::Args)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    FromPgbouncer(FromPgbouncerArgs),
}

/// Translate a pgbouncer.ini, and print the configuration; what has no equal is named in comments, with the reason
#[derive(Debug, clap::Args)]
struct FromPgbouncerArgs {
    /// The file, as of PgBouncer 1.25 or older
    file: PathBuf,
}

pub(super) fn run(args: &ConfigArgs) -> Result<(), Failure> {
    let ConfigCommand::FromPgbouncer(FromPgbouncerArgs { file }) = &args.command;
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::Usage(format!("pgpalisade: {}: {why}", file.display()))
    };
    let text = std::fs::read_to_string(file).map_err(|error| wrong(&error))?;
    let made = from_pgbouncer(&text).map_err(|error| wrong(&error))?;
    print(&made).map_err(failed)
}
