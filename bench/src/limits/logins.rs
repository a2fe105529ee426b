//! How many logins there are in a second, and what one costs.

use std::time::{Duration, Instant};

use pgpalisade_bench::Error;
use pgpalisade_bench::ground::Ground;
use pgpalisade_bench::targets::{Kind, Link, Target};
use tokio_util::sync::CancellationToken;

use crate::client::{Appetite, Client};
use crate::drive::{Done, on_threads, share_of_direct, timed};
use crate::effort::Effort;
use crate::progress::say;
use crate::report::Report;

pub(crate) const NAME: &str = "logins";

/// At a time.
const CLIENTS: [usize; 2] = [1, 16];

const RATE: &str = "logins/s";
const SHARE: &str = "share %";
const CPU: &str = "proxy CPU us/login";

/// Both kinds of sessions go through one proxy, so that no proxy has to end between two rounds.
const LANES: [(Kind, &str); 6] = [
    (Kind::Direct, "direct"),
    (Kind::Bound, "pgpalisade, token"),
    (Kind::Bound, "pgpalisade, no token"),
    (Kind::Pgbouncer, "pgbouncer"),
    (Kind::Haproxy, "haproxy"),
    (Kind::Relay, "relay"),
];

/// Startup to ReadyForQuery, then Terminate; again and again.
pub(crate) fn measure(effort: &Effort, stop: &CancellationToken) -> Result<Report, Error> {
    let ground = Ground::start(64, &[], stop)?;
    let mut targets = Vec::new();
    for kind in [
        Kind::Direct,
        Kind::Bound,
        Kind::Pgbouncer,
        Kind::Haproxy,
        Kind::Relay,
    ] {
        targets.push(Target::start(kind, Link::Tcp, &ground)?);
    }
    let mut samples: Vec<(&str, usize, Vec<Done>)> = Vec::new();
    for clients in CLIENTS {
        for (_, name) in LANES {
            samples.push((name, clients, Vec::new()));
        }
    }
    for round in 0..effort.rounds {
        say(NAME, &format!("round {} of {}", round + 1, effort.rounds));
        // Each round begins with another, so that what else the machine does meets all of them.
        let first = round as usize % LANES.len();
        let turns = LANES.iter().cycle().skip(first).take(LANES.len());
        for (clients, (kind, name)) in CLIENTS
            .iter()
            .flat_map(|n| turns.clone().map(move |l| (*n, *l)))
        {
            let Some(target) = targets.iter().find(|target| target.kind() == kind) else {
                continue;
            };
            let options = target.options().filter(|_| name != "pgpalisade, no token");
            let done = logins(target, options, clients, effort.time, stop)?;
            let lane = samples
                .iter_mut()
                .find(|lane| (lane.0, lane.1) == (name, clients));
            if let Some((_, _, samples)) = lane {
                samples.push(done);
            }
        }
    }
    Ok(report(&samples))
}

fn logins(
    target: &Target,
    options: Option<&str>,
    clients: usize,
    time: Duration,
    stop: &CancellationToken,
) -> Result<Done, Error> {
    timed(target, || {
        let end = Instant::now() + time;
        let one = |()| {
            let mut count = 0_u64;
            while Instant::now() < end {
                Client::login_with(target, options, Appetite::Small, stop)?.terminate()?;
                count += 1;
            }
            Ok::<_, Error>(count)
        };
        Ok(on_threads(vec![(); clients], one)?.into_iter().sum())
    })
}

fn report(samples: &[(&str, usize, Vec<Done>)]) -> Report {
    let mut report = Report::new(
        NAME,
        "clients",
        "logins in a second, one after the other by each client: startup to ReadyForQuery, then Terminate",
    );
    for (name, clients, done) in samples {
        let at = (*name, &*clients.to_string());
        let rates: Vec<f64> = done.iter().map(Done::rate).collect();
        report.figure(at, RATE, &rates, 0);
        share_of_direct(&mut report, at, RATE, SHARE);
        let has_process = *name != "direct";
        let costs = done.iter().filter(|_| has_process).map(Done::micros_each);
        report.figure(at, CPU, &costs.collect::<Vec<_>>(), 0);
    }
    let cpu = |name: &str| report.value(name, "1", CPU);
    let time = |name: &str| report.value(name, "1", RATE).map(|rate| 1e6 / rate);
    let (token, plain) = ("pgpalisade, token", "pgpalisade, no token");
    if let (Some(token_cpu), Some(plain_cpu), Some(token_us), Some(plain_us)) =
        (cpu(token), cpu(plain), time(token), time(plain))
    {
        report.remark(format!(
            "The token costs a login {:.0} us of CPU and {:.0} us of time, one client: the proxy asks \
             PostgreSQL who the session is, and registers it durably in the embedded store, synced to the \
             disk of TMPDIR. 16 at a time share a sync.",
            token_cpu - plain_cpu,
            token_us - plain_us
        ));
    }
    report.remark(
        "pgbouncer keeps server connections and gives them to the next client: its logins start no \
         session of PostgreSQL. All others start one each.",
    );
    report
}
