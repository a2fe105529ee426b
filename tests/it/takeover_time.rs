//! How long a takeover takes: 100 old sessions, each with an open write transaction, must be gone first.

use std::time::{Duration, Instant};

use pgpalisade_tests::stage::{Stage, leader};
use pgpalisade_tests::wire::{Wire, pretty};

const SESSIONS: usize = 100;
const ROUNDS: usize = 8;
const BATCHES: usize = 3;
/// What the issue asks for on two cores.
const P99_MAX: Duration = Duration::from_millis(150);

/// On a machine that is shared one batch may be slowed from outside: the median of the p99 of three batches counts.
#[test]
fn takeover_over_100_open_write_transactions() {
    let stage = Stage::with("CREATE TABLE jobs (id serial, who int)");
    let _alone = stage.postgres.alone();
    let mut token = 1;
    let mut p99s: Vec<Duration> = (0..BATCHES)
        .map(|batch| {
            let mut times: Vec<Duration> = (0..ROUNDS)
                .map(|_| {
                    token += 1;
                    round(&stage, token)
                })
                .collect();
            times.sort();
            let p99 = times[(times.len() * 99).div_ceil(100) - 1];
            println!(
                "batch {batch}: p50 {:?}, p99 {p99:?}, all {times:?}",
                times[times.len() / 2]
            );
            p99
        })
        .collect();
    p99s.sort();
    let median = p99s[BATCHES / 2];
    println!("takeover over {SESSIONS} sessions: median of the batches' p99 {median:?}");
    assert!(median < P99_MAX, "{median:?} is above {P99_MAX:?}");
}

/// The time from sending the SET with the next token to its ReadyForQuery. All old writes must be lost.
fn round(stage: &Stage, token: u64) -> Duration {
    let mut old: Vec<Wire> = (0..SESSIONS)
        .map(|_| leader(&stage.proxy.endpoint(), &token.to_string()))
        .collect();
    for wire in &mut old {
        wire.ok(&format!("BEGIN; INSERT INTO jobs (who) VALUES ({token})"));
    }
    let mut next = stage.plain();
    let begin = Instant::now();
    let answer = next.query(&format!("SET fencing.token = {}", token + 1));
    let took = begin.elapsed();
    assert!(
        !answer.iter().any(|message| message.tag == b'E'),
        "{}",
        pretty(&answer)
    );
    assert_eq!(next.rows("SELECT count(*) FROM jobs"), [["0"]]);
    for mut wire in old {
        let last = wire.query("COMMIT");
        assert_eq!(last[0].sqlstate(), "PF001", "{}", pretty(&last));
    }
    assert_eq!(stage.postgres.value("SELECT count(*) FROM jobs"), "0");
    took
}
