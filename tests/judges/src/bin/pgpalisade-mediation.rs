//! The oracle of mediation as a command.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use pgpalisade_judges::mediation::conversation::Session;
use pgpalisade_judges::mediation::generator;
use pgpalisade_judges::mediation::run::{LOOKED_AT, Plan, run};
use pgpalisade_judges::mediation::trial::Trial;
use pgpalisade_judges::sharing;
use pgpalisade_test_servers::machine;

/// Run random conversations of sessions that may not write, and let the database judge what they changed
#[derive(Debug, Parser)]
struct Arguments {
    /// Seed of the first conversation [default: from the clock]; printed
    #[arg(long)]
    seed: Option<u64>,
    /// Maximum number of conversations
    #[arg(long, default_value_t = u64::MAX)]
    conversations: u64,
    /// Maximum duration, in minutes
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// Number of parallel threads, each with its own servers
    #[arg(long, default_value_t = 4)]
    threads: usize,
    /// End after this many conversations with violations
    #[arg(long, default_value_t = 1)]
    violations: usize,
    /// Check one conversation in this many for needless refusals
    #[arg(long, default_value_t = LOOKED_AT)]
    look_at: u64,
    /// Only these kinds of sessions, such as `Bare,Faithful`. Changes the conversation of a seed
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Session::all())]
    #[arg(hide_default_value = true, hide_possible_values = true)]
    sessions: Vec<Session>,
    /// Two clients that share a server connection; each looks for what the other has left
    #[arg(long)]
    sharing: bool,
    /// Flags for the proxies, such as `--backends-lifetime 60s`
    #[arg(long, allow_hyphen_values = true, value_delimiter = ' ')]
    proxy_flags: Vec<String>,
    /// Print the conversation of the seed, and run nothing
    #[arg(long)]
    print: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let seed = arguments.seed.unwrap_or_else(machine::seed);
    if arguments.print {
        if arguments.sharing {
            println!("{}", sharing::generator::conversation(seed));
        } else {
            println!("{}", generator::conversation(seed, &arguments.sessions));
        }
        return ExitCode::SUCCESS;
    }
    let plan = Plan {
        seed,
        conversations: arguments.conversations,
        duration: Duration::from_secs_f64(arguments.minutes * 60.0),
        threads: arguments.threads,
        violations_max: arguments.violations,
        looked_at: arguments.look_at.max(1),
        sessions: arguments.sessions,
        flags: arguments.proxy_flags,
    };
    let report = if arguments.sharing {
        run::<sharing::trial::Trial>(&plan)
    } else {
        run::<Trial>(&plan)
    };
    print!("\nseed           {seed}\n{report}");
    if report.violations.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
