//! Looks, before the rounds, that it is a fence that is measured.

use std::fs;
use std::time::{Duration, Instant};

use pgpalisade_bench::Error;
use pgpalisade_bench::ground::Ground;
use pgpalisade_bench::targets::{Kind, Target};

use crate::pgbench::Pgbench;
use crate::plan::Lane;

/// The writer of the rejection log has a thread of its own.
const LOG_LIMIT: Duration = Duration::from_secs(5);

/// One write over each lane: it must pass where it may, be refused where the session has no token, and be recorded
/// where it is only observed.
pub(crate) fn check(ground: &mut Ground, pgbench: &Pgbench, lane: Lane) -> Result<(), Error> {
    let target = Target::start(lane.kind, lane.link, ground)?;
    let written = pgbench.write_once(&target);
    match lane.kind {
        Kind::NoToken => expect_refusal(written)?,
        Kind::Observe => {
            written?;
            expect_record(&target)?;
        }
        Kind::Direct | Kind::Bound | Kind::Pgbouncer | Kind::Haproxy | Kind::Relay => written?,
    }
    drop(target);
    ground.wait_until_empty()
}

fn expect_refusal(written: Result<(), Error>) -> Result<(), Error> {
    match written {
        // PF002, "no token".
        Err(Error::Pgbench { output, .. }) if output.contains("token") => Ok(()),
        Err(other) => Err(other),
        Ok(()) => Err(Error::NotFenced(
            "the proxy let a session without a token write".to_owned(),
        )),
    }
}

fn expect_record(target: &Target) -> Result<(), Error> {
    let Some(log) = target.rejection_log() else {
        return Ok(());
    };
    let start = Instant::now();
    while start.elapsed() < LOG_LIMIT {
        if fs::read_to_string(&log).is_ok_and(|text| text.contains("no_token")) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(Error::NotFenced(
        "the proxy in observe mode let a session without a token write, and has no record of it"
            .to_owned(),
    ))
}
