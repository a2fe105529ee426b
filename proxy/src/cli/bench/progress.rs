//! Progress on standard error: one line that is rewritten on a terminal, a line for each round elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use crate::bench::{Event, Round, Stage};

/// Where it is written to.
pub(super) struct Progress {
    /// What the line on the terminal says besides; `None` where there is no terminal.
    line: Option<String>,
}

impl Progress {
    pub(super) fn on_stderr() -> Self {
        Self {
            line: io::stderr().is_terminal().then(String::new),
        }
    }

    pub(super) fn tell(&mut self, event: Event<'_>) {
        // A closed standard error is no reason to stop.
        let _closed = match &mut self.line {
            Some(last) => rewrite(last, event),
            None => lines(event),
        };
    }

    /// Removes the line from the terminal.
    pub(super) fn end(&mut self) {
        if self.line.is_some() {
            let _closed = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn rewrite(last: &mut String, event: Event<'_>) -> io::Result<()> {
    let mut stderr = io::stderr();
    match event {
        Event::Surveyed => write!(
            stderr,
            "\r\x1b[Kboth ways lead to the same server, logging in"
        ),
        Event::Turn {
            stage,
            rounds,
            path,
            left,
        } => {
            write!(
                stderr,
                "\r\x1b[K{} left, {}: {path}{last}",
                clock(left),
                name(stage, rounds)
            )
        }
        Event::Round { stage, round, .. } => {
            *last = figures(stage, round)
                .map_or_else(String::new, |figures| format!(" (last round: {figures})"));
            Ok(())
        }
    }?;
    stderr.flush()
}

fn lines(event: Event<'_>) -> io::Result<()> {
    let mut stderr = io::stderr();
    match event {
        Event::Surveyed => writeln!(stderr, "both ways lead to the same server"),
        Event::Turn { .. } => Ok(()),
        Event::Round {
            stage,
            rounds,
            round,
        } => match figures(stage, round) {
            Some(figures) => writeln!(stderr, "{}: {figures}", name(stage, rounds)),
            None => writeln!(stderr, "{}", name(stage, rounds)),
        },
    }
}

fn name(stage: Stage, rounds: usize) -> String {
    match stage {
        Stage::WarmUp => "warm-up".to_owned(),
        Stage::Throughput(number) => format!("throughput {number} of {rounds}"),
        Stage::Latency(number) => format!("latency {number} of {rounds}"),
    }
}

fn figures(stage: Stage, round: &Round) -> Option<String> {
    let (what, (direct, proxied)) = match stage {
        Stage::WarmUp => return None,
        Stage::Throughput(_) => ("statements/s", round.throughput()),
        Stage::Latency(_) => ("us at p50", round.latency(0.5)),
    };
    Some(format!("direct {direct:.0}, proxied {proxied:.0} {what}"))
}

/// Minutes and seconds.
fn clock(time: Duration) -> String {
    let seconds = time.as_millis().div_ceil(1_000);
    format!("{}:{:02}", seconds / 60, seconds % 60)
}
