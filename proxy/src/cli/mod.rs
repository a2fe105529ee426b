//! The command line: one file per subcommand.
//!
//! Exit codes: 0 for success, 1 for failure, 2 if the command line or the configuration is wrong.

mod bench;
mod check;
mod check_policy;
mod config;
mod demo;
mod elect;
mod explain;
mod explained;
mod moment;
mod open_files;
mod operator;
mod package_files;
mod recover;
mod rejection_file;
mod rejections;
mod report;
mod scope;
mod serve;
mod settings;
mod status;
mod text;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use pgpalisade_authority::Scope;
use pgpalisade_fence::readable::without_error_numbers;
use tokio::runtime::Runtime;

use crate::config::{Config, Environment, RawConfig};
use settings::Settings;
use text::{plain, unsteered};

const EXIT_FAILURE: u8 = 1;
const EXIT_USAGE: u8 = 2;

/// PostgreSQL proxy that refuses the writes of a deposed leader
///
/// Point the application at pgpalisade instead of PostgreSQL and let each leader declare its fencing token: `SET
/// fencing.token = 34`, or PGOPTIONS='-c fencing.token=34'. Once a leader with token 34 has been admitted, a leader
/// with token 33 can no longer write.
#[derive(Debug, Parser)]
#[command(name = "pgpalisade", version, max_term_width = 110)]
#[command(after_help = "See it work; it needs only installed PostgreSQL binaries: pgpalisade demo")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::ServeArgs),
    Check(check::CheckArgs),
    Config(config::ConfigArgs),
    Status(status::StatusArgs),
    Explain(explain::ExplainArgs),
    Report(report::ReportArgs),
    Rejections(rejections::RejectionsArgs),
    Bench(bench::BenchArgs),
    Elect(Box<elect::ElectArgs>),
    Demo(demo::DemoArgs),
    Recover(recover::RecoverArgs),
    Scope(scope::ScopeArgs),
    #[command(hide = true)]
    PackageFiles(package_files::PackageFilesArgs),
}

/// Reason for an exit code other than 0.
#[derive(Debug)]
enum Failure {
    Usage(String),
    Failed(Box<dyn Error>),
    /// The error has been printed.
    Told,
    /// The error has been printed, and this is the exit code.
    Code(u8),
}

pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Includes --help and --version, which succeed. A failed write is ignored.
            let _ = error.print();
            return u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
        }
    };
    let result = match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Rejections(args) => rejections::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Elect(args) => elect::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Recover(args) => recover::run(&args),
        Command::Scope(args) => scope::run(&args),
        Command::PackageFiles(args) => package_files::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(message)) => {
            tell(&message);
            ExitCode::from(EXIT_USAGE)
        }
        Err(Failure::Failed(error)) => {
            tell(&format!("pgpalisade: {}", chain(error.as_ref())));
            ExitCode::from(EXIT_FAILURE)
        }
        Err(Failure::Told) => ExitCode::from(EXIT_FAILURE),
        Err(Failure::Code(code)) => ExitCode::from(code),
    }
}

fn configuration(settings: &Settings) -> Result<Config, Failure> {
    let environment = Environment::of_this_process();
    let raw = RawConfig::collect(&settings.0, &environment);
    Config::from_raw(raw, &environment).map_err(|errors| Failure::Usage(errors.to_string()))
}

/// Runs a command. Its tasks on other threads do not delay the end.
fn run_to_end<T>(command: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = runtime()?;
    let done = runtime.block_on(command);
    runtime.shutdown_background();
    Ok(done)
}

fn runtime() -> Result<Runtime, Failure> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().map_err(failed)
}

fn leaders_scope(name: &str) -> Result<Scope, String> {
    let scope = Scope::new(name).map_err(|error| error.to_string())?;
    if scope.is_epoch() {
        return Err(
            "it is the proxies' own count of their starts, and no leader declares in it".to_owned(),
        );
    }
    Ok(scope)
}

/// An error of a file that the configuration names. One that cannot be read may be there later.
fn wrong_file(error: impl Into<Box<dyn Error>>) -> Failure {
    let error = error.into();
    if is_unread(error.as_ref()) {
        return Failure::Failed(error);
    }
    Failure::Usage(format!("pgpalisade: {}", chain(error.as_ref())))
}

fn failed(error: impl Into<Box<dyn Error>>) -> Failure {
    Failure::Failed(error.into())
}

fn is_unread(error: &(dyn Error + 'static)) -> bool {
    error.is::<io::Error>() || error.source().is_some_and(is_unread)
}

fn tell(message: &str) {
    let message = without_error_numbers(message);
    let message = unsteered(&message, |line| plain(line).into());
    let _ = writeln!(io::stderr(), "{message}");
}

/// The error and its causes in one line, each quoted once.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn causes_are_said_once() {
        let inner = io::Error::other("disk full");
        let error = pgpalisade_rejection_log::RejectionLogError::Open {
            path: "/r".into(),
            source: inner,
        };
        assert_eq!(chain(&error), "cannot open the rejection log /r: disk full");
    }

    /// The other commands take every key of `serve` and list those they use.
    #[test]
    fn only_serve_lists_every_key() {
        let mut command = Cli::command();
        let check = command.find_subcommand_mut("check").unwrap();
        let help = check.render_help().to_string();
        assert!(
            help.contains("--upstream <") && !help.contains("--listen <"),
            "{help}"
        );
        assert!(help.lines().count() <= 40, "{help}");
        let taken = ["pgpalisade", "check", "--listen", "127.0.0.1:0"];
        assert!(Cli::try_parse_from(taken).is_ok());
    }

    #[test]
    fn every_key_is_a_flag_with_help() {
        let mut command = Cli::command();
        let help = command
            .find_subcommand_mut("serve")
            .unwrap()
            .render_long_help()
            .to_string();
        for spec in crate::config::KEYS {
            let (flag, env) = (spec.flag(), spec.env());
            assert!(
                help.contains(&format!("--{flag} <")) || help.contains(&format!("--{flag}[=<")),
                "{flag}"
            );
            assert!(help.contains(&env), "{env}");
        }
    }
}
