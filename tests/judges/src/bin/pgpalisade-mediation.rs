//! The oracle of mediation as a command: runs conversations for as long as asked, and prints the result.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use pgpalisade_judges::mediation::conversation::Session;
use pgpalisade_judges::mediation::generator;
use pgpalisade_judges::mediation::run::{LOOKED_AT, Plan, run};
use pgpalisade_test_servers::machine;

/// Sessions that may not write say anything that the protocol and SQL have, and the database is the judge.
#[derive(Debug, Parser)]
struct Arguments {
    /// The seed of the first conversation. Without it the clock gives one; it is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// At most so many conversations.
    #[arg(long, default_value_t = u64::MAX)]
    conversations: u64,
    /// For at most so many minutes.
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// How many at a time, each with servers of its own.
    #[arg(long, default_value_t = 4)]
    threads: usize,
    /// Ends when so many conversations were found that do what they may not.
    #[arg(long, default_value_t = 1)]
    violations: usize,
    /// One conversation in so many is looked at for needless refusals.
    #[arg(long, default_value_t = LOOKED_AT)]
    look_at: u64,
    /// Only these sessions, such as `Bare,Faithful`. Seeds then make other conversations.
    #[arg(long, value_delimiter = ',', value_parser = session)]
    sessions: Vec<Session>,
    /// Print the conversation of the seed, and run nothing.
    #[arg(long)]
    print: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let seed = arguments.seed.unwrap_or_else(machine::seed);
    let sessions = if arguments.sessions.is_empty() {
        Session::ALL.to_vec()
    } else {
        arguments.sessions
    };
    if arguments.print {
        println!("{}", generator::conversation(seed, &sessions));
        return ExitCode::SUCCESS;
    }
    let plan = Plan {
        seed,
        conversations: arguments.conversations,
        duration: Duration::from_secs_f64(arguments.minutes * 60.0),
        threads: arguments.threads,
        violations_max: arguments.violations,
        looked_at: arguments.look_at.max(1),
        sessions,
    };
    let report = run(&plan);
    print!("\nseed           {seed}\n{report}");
    if report.violations.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn session(name: &str) -> Result<Session, String> {
    let known = Session::ALL
        .into_iter()
        .find(|session| format!("{session:?}") == name);
    known.ok_or_else(|| format!("one of {:?}", Session::ALL))
}
