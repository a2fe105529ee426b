//! What makes the figures doubtful. Pure.

use super::estimate::ROUNDS_FOR_INTERVAL;
use super::report::Latencies;
use super::rounds::Round;
use super::survey::{Proof, Survey};
use super::target::Path;
use super::turn::Tally;

/// With more of its statements sent late, the bench's own lateness is in the p99.
const LATE_MAX: f64 = 0.01;
/// A loader that was busier was at its limit, and with it the throughput.
const BUSY_MAX: f64 = 0.9;
/// With less CPU time to spare, statements waited for a core.
const IDLE_MIN: f64 = 0.05;

/// Each in one sentence or two, with what to do.
pub(super) fn of(
    survey: &Survey,
    closed: &[Round],
    open: &[Round],
    latency: Option<&Latencies>,
) -> Vec<String> {
    let mut all = Vec::new();
    if survey.same_server == Proof::Start {
        all.push(
            "That both ways lead to one server is known only from the moment when it was started: the role may not \
             call pg_control_system()."
                .to_owned(),
        );
    }
    let busiest = closed
        .iter()
        .flat_map(Round::both)
        .map(|tally| tally.busiest)
        .fold(0.0, f64::max);
    if busiest > BUSY_MAX {
        all.push(format!(
            "A thread of the bench was busy for {:.0} % of a throughput turn: the throughput may be its limit and not \
             the server's. Give more --threads.",
            busiest * 100.0
        ));
    }
    all.extend(busy_machine(closed, "throughput"));
    all.extend(busy_machine(open, "latency"));
    for path in Path::BOTH {
        all.extend(lateness(open, path));
    }
    if let Some(latency) =
        latency.filter(|latency| !latency.rows.iter().any(|row| row.name == "p99.9"))
    {
        all.push(format!(
            "At {:.0} statements/s a round is too short for a p99.9, which needs 1000 statements. Give a longer \
             --round, or a higher --rate.",
            latency.rate
        ));
    }
    let rounds = closed
        .len()
        .min(latency.map_or(usize::MAX, |latency| latency.rounds));
    if rounds < ROUNDS_FOR_INTERVAL {
        all.push(format!(
            "There are too few rounds for intervals, so no difference can be told from chance: {ROUNDS_FOR_INTERVAL} \
             are needed."
        ));
    }
    all
}

/// The bench, and whatever else of the three runs on this machine, did not get the CPU time that they wanted.
fn busy_machine(rounds: &[Round], part: &str) -> Option<String> {
    let idle: Vec<f64> = rounds.iter().filter_map(|round| round.idle).collect();
    let mean = idle.iter().sum::<f64>() / idle.len() as f64;
    // Not a number where nothing is known.
    (mean < IDLE_MIN).then(|| {
        format!(
            "In the {part} rounds this machine had only {:.0} % of its CPU time to spare. What runs on it, the bench \
             too, waited for cores: the {part} says how they shared them. Run the bench elsewhere, or with a lower \
             load.",
            mean * 100.0
        )
    })
}

/// Of one way in the open loop.
fn lateness(open: &[Round], path: Path) -> Option<String> {
    let sum = |count: fn(&Tally) -> u64| -> f64 {
        let of = |round: &Round| match path {
            Path::Direct => count(&round.direct),
            Path::Proxied => count(&round.proxied),
        };
        open.iter().map(of).sum::<u64>() as f64
    };
    let (due, late, given_up) = (
        sum(Tally::due),
        sum(|tally| tally.late),
        sum(|tally| tally.given_up),
    );
    if given_up > 0.0 {
        return Some(format!(
            "The {path} way could not keep up with the rate: {:.1} % of its statements were given up, and its \
             latencies are more than shown. Give a lower --rate.",
            given_up / due * 100.0
        ));
    }
    (late > due * LATE_MAX).then(|| {
        format!(
            "The bench itself sent {:.1} % of the {path} statements more than 250 us late, though a session was free: \
             its own lateness is in the higher percentiles. Give this machine less to do, or a lower --rate.",
            late / due * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench::report;
    use crate::bench::survey::Way;

    fn survey(same_server: Proof) -> Survey {
        let way = Way {
            address: "db:5432".to_owned(),
            server_version: "15.20".to_owned(),
            fencing_status: None,
        };
        Survey {
            direct: way.clone(),
            proxied: way,
            same_server,
        }
    }

    /// Six rounds of which nothing bad can be said.
    fn rounds() -> Vec<Round> {
        let mut tally = Tally::new().unwrap();
        tally.answered = 1_000;
        tally.busiest = 0.3;
        let round = Round {
            direct: tally.clone(),
            proxied: tally,
            length: Duration::from_secs(1),
            idle: Some(0.5),
        };
        vec![round; 6]
    }

    #[track_caller]
    fn check(proof: Proof, closed: &[Round], open: &[Round], expect: &[&str]) {
        let latency = report::latencies(open, 1_000.0);
        let found = of(&survey(proof), closed, open, latency.as_ref());
        assert_eq!(found.len(), expect.len(), "{found:#?}");
        for (found, expect) in found.iter().zip(expect) {
            assert!(found.contains(expect), "{expect:?} is not in {found:?}");
        }
    }

    /// The rounds, each changed.
    fn with(change: impl Fn(&mut Round)) -> Vec<Round> {
        let mut all = rounds();
        all.iter_mut().for_each(change);
        all
    }

    #[test]
    fn each_doubt_is_told_and_none_without_reason() {
        const SURE: Proof = Proof::IdentifierAndStart;
        let fine = rounds();
        check(SURE, &fine, &fine, &[]);
        check(Proof::Start, &fine, &fine, &["pg_control_system()"]);
        let busy = with(|round| round.proxied.busiest = 0.97);
        check(SURE, &busy, &fine, &["busy for 97 %"]);
        // In the open loop it is the lateness that counts.
        check(SURE, &fine, &busy, &[]);
        let full = with(|round| round.idle = Some(0.02));
        check(
            SURE,
            &full,
            &fine,
            &["In the throughput rounds this machine had only 2 %"],
        );
        check(
            SURE,
            &fine,
            &full,
            &["In the latency rounds this machine had only 2 %"],
        );
        let unknown = with(|round| round.idle = None);
        check(SURE, &unknown, &unknown, &[]);
        let late = with(|round| round.proxied.late = 11);
        check(
            SURE,
            &fine,
            &late,
            &["1.1 % of the proxied statements more than 250 us late"],
        );
        let late = with(|round| round.direct.late = 10);
        check(SURE, &fine, &late, &[]);
        let over = with(|round| round.direct.given_up = 1_000);
        check(
            SURE,
            &fine,
            &over,
            &["The direct way could not keep up with the rate: 50.0 %"],
        );
        let few = with(|round| round.direct.answered = 999);
        check(SURE, &fine, &few, &["too short for a p99.9"]);
        check(SURE, &fine[..5], &fine, &["too few rounds"]);
        check(SURE, &fine, &fine[..5], &["too few rounds"]);
        // Interrupted before the latency.
        check(SURE, &fine, &[], &[]);
    }
}
