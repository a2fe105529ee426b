//! `pgpalisade rejections`: the records of a rejection log, present and future.

mod follow;
mod row;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use pgpalisade_authority::Scope;
use pgpalisade_elect::Signals;
use pgpalisade_fence::readable::{counted, escaped};
use pgpalisade_rejection_log::line::{self, Filter, Line, Read};
use rustix::process::Signal;

use super::moment::moment;
use super::rejection_file;
use super::{Failure, failed, run_to_end, tell};
use crate::config::{Environment, Flags, Key, RawConfig};
use follow::Followed;

/// Show the records of a rejection log, and follow it
///
/// Prints one line for each refused or observed request, the oldest first, without a server. --follow keeps printing
/// new records, across rotations of the file, until Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    pgpalisade rejections --since 10m /var/log/pgpalisade/rejections.jsonl\n  \
    pgpalisade rejections --follow --scope scheduler --config /etc/pgpalisade/pgpalisade.toml\n  \
    pgpalisade rejections --json --since 1h r.jsonl | jq .user")]
pub(super) struct RejectionsArgs {
    /// The file; "-" is standard input [default: rejection_log of the configuration]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Keep printing new records; without --since, print only those
    #[arg(short, long)]
    follow: bool,
    /// Only records of this scope; if there is none, the exit code is 1 (not with --follow)
    #[arg(long, value_name = "NAME", value_parser = clap::value_parser!(Scope))]
    scope: Option<Scope>,
    /// Only records from this time on: 2026-11-21T03:00:00Z, 2026-11-21 (UTC), or how long ago: 10m, 24h, 7d
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<Timestamp>,
    /// Print the lines of the log as they are, one JSON object each
    #[arg(long)]
    json: bool,
    /// TOML file of "pgpalisade serve", which names the log [env: PGPALISADE_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Table,
    Json,
}

/// Prints the lines of a log that match the filter.
struct Printer<W> {
    out: W,
    form: Form,
    filter: Filter,
    understood: u64,
    foreign: u64,
    /// Whether a record was of the wanted scope.
    has_scope: bool,
}

/// Prints the log. `--follow` continues until a signal or until the reader is gone.
pub(super) fn run(args: &RejectionsArgs) -> Result<(), Failure> {
    let path = match &args.file {
        Some(path) => path.clone(),
        None => configured(args)?,
    };
    let filter = Filter {
        since: args.since,
        scope: args.scope.as_ref().map(ToString::to_string),
    };
    let form = if args.json { Form::Json } else { Form::Table };
    if !args.follow {
        return ended(print(&path, form, filter, args.scope.as_ref()));
    }
    if path == Path::new("-") {
        let why = "standard input cannot be followed: name the file, or leave --follow out";
        return Err(Failure::Usage(why.to_owned()));
    }
    let followed = match args.since {
        Some(_) => Followed::from_start(&path),
        None => Followed::from_end(&path),
    };
    let followed = followed.map_err(|source| failed(rejection_file::unread(&path, &source)))?;
    run_to_end(until_signal(move || {
        let stdout = io::stdout();
        let mut printer = Printer::new(io::BufWriter::new(&stdout), form, filter)?;
        followed.print(&mut printer, &stdout)?;
        Ok(())
    }))?
}

fn configured(args: &RejectionsArgs) -> Result<PathBuf, Failure> {
    let flags = Flags {
        config_file: args.config.clone(),
        values: Vec::new(),
    };
    let raw = RawConfig::collect(&flags, &Environment::of_this_process());
    if raw.file_unread {
        let errors: Vec<String> = raw.errors.iter().map(ToString::to_string).collect();
        return Err(Failure::Usage(errors.join("\n")));
    }
    raw.text(Key::RejectionLog).map(PathBuf::from).ok_or_else(|| {
        let why = "which rejection log? Name the file, or --config with a rejection_log in it, or set \
            PGPALISADE_REJECTION_LOG";
        Failure::Usage(why.to_owned())
    })
}

#[derive(Debug, thiserror::Error)]
enum PrintError {
    #[error("{0}")]
    File(String),
    #[error("cannot print")]
    Output(#[from] io::Error),
}

impl PrintError {
    /// Whether the reader of the output is gone.
    fn is_no_failure(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

fn print(path: &Path, form: Form, filter: Filter, scope: Option<&Scope>) -> Result<(), PrintError> {
    let mut from = rejection_file::open(path, "rejections").map_err(PrintError::File)?;
    let stdout = io::BufWriter::new(io::stdout().lock());
    let mut printer = Printer::new(stdout, form, filter)?;
    let mut text = Vec::new();
    loop {
        let read = line::read(&mut from, &mut text);
        match read.map_err(|error| PrintError::File(rejection_file::unread(path, &error)))? {
            Read::End => break,
            Read::TooLong => printer.foreign += 1,
            Read::Line | Read::Torn => printer.line(&text)?,
        }
    }
    printer.out.flush()?;
    if printer.foreign > 0 && printer.understood == 0 {
        return Err(PrintError::File(rejection_file::no_log(path)));
    }
    if printer.foreign > 0 {
        let lines = counted(printer.foreign, "line");
        tell(&format!("pgpalisade: {lines} could not be read"));
    }
    match scope {
        Some(scope) if !printer.has_scope => {
            Err(PrintError::File(rejection_file::no_record(scope)))
        }
        _ => Ok(()),
    }
}

fn ended(result: Result<(), PrintError>) -> Result<(), Failure> {
    match result {
        Err(error) if error.is_no_failure() => Ok(()),
        result => result.map_err(failed),
    }
}

/// Runs `follow` on its own thread, since a terminal may block its output, so that a signal ends the command.
async fn until_signal(
    follow: impl FnOnce() -> Result<(), PrintError> + Send + 'static,
) -> Result<(), Failure> {
    let mut signals = Signals::listen(&[Signal::INT, Signal::TERM]).map_err(failed)?;
    tokio::select! {
        result = tokio::task::spawn_blocking(follow) => ended(result.map_err(failed)?),
        _ = signals.next() => Ok(()),
    }
}

impl<W: Write> Printer<W> {
    fn new(mut out: W, form: Form, filter: Filter) -> io::Result<Self> {
        if form == Form::Table {
            out.write_all(row::head().as_bytes())?;
        }
        Ok(Self {
            out,
            form,
            filter,
            understood: 0,
            foreign: 0,
            has_scope: false,
        })
    }

    fn line(&mut self, text: &[u8]) -> io::Result<()> {
        let parsed = line::parse(text);
        let wanted = match &parsed {
            Line::Empty => return Ok(()),
            Line::Foreign => {
                self.foreign += 1;
                return Ok(());
            }
            Line::Record(record) => {
                self.has_scope |= self.filter.takes_scope(record);
                self.filter.takes(record)
            }
            Line::Dropped { time, .. } | Line::Unauthenticated { time, .. } => {
                self.filter.takes_time(*time)
            }
        };
        self.understood += 1;
        if !wanted {
            return Ok(());
        }
        let shown = match self.form {
            // Another program may have written it.
            Form::Json => format!("{}\n", escaped(&String::from_utf8_lossy(text))),
            Form::Table => row::of(&parsed),
        };
        self.out.write_all(shown.as_bytes())
    }
}
