//! What could io_uring win for a relay of PostgreSQL's protocol? Relays that look at nothing, each built on another way
//! to wait for sockets, and a measurement of them beside each other. See docs/decisions/0008-io-uring-for-the-relay.md.
//!
//! `uring-trial` measures. `uring-trial relay KIND THREADS PORT UPSTREAM` is one relay, which the measurement starts
//! as a process of its own so that its CPU can be told from everything else.

mod buffer_ring;
mod by_epoll;
mod by_ring;
mod by_ring_multishot;
mod by_tokio;
mod cpu;
mod intake;
mod measure;
mod pgbench;
mod postgres;
mod relay;
mod ring;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let ran = match args.first().map(String::as_str) {
        Some("relay") => relay::run(&args[1..]),
        _ => measure::run(&args),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("uring-trial: {error}");
            ExitCode::FAILURE
        }
    }
}
