//! `pgpalisade demo`: the story of two leaders, on a private PostgreSQL.

use std::io;

use super::{Failure, failed, run_to_end};
use crate::demo::{self, DemoError};

/// See a deposed leader being refused, on a private PostgreSQL
///
/// Starts a PostgreSQL on a free port in a temporary directory, the proxy in front of it, and plays two leaders
/// through real connections. Leaves nothing running and no files, unless it is ended by SIGKILL. Needs PostgreSQL's
/// server programs: looks in $PG_BIN, where pg_config says, and in /usr/lib/postgresql. Exits with 1 if a step had
/// another outcome.
#[derive(Debug, clap::Args)]
pub(super) struct DemoArgs {
    /// Stay up afterwards and print how to connect, until Ctrl-C
    #[arg(long)]
    keep: bool,
}

pub(super) fn run(args: &DemoArgs) -> Result<(), Failure> {
    match run_to_end(demo::run(args.keep))? {
        // A reader that closed the pipe, such as `head`, is no failure.
        Err(DemoError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        played => played.map_err(failed),
    }
}
