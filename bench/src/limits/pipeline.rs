//! Thousands of statements in front of one Sync.

use std::time::Duration;

use pgpalisade_bench::Error;
use pgpalisade_bench::ground::Ground;
use pgpalisade_bench::targets::{Kind, Link, Target};
use pgpalisade_tests::wire::Batch;
use tokio_util::sync::CancellationToken;

use crate::client::{Appetite, Client};
use crate::drive::{prepare, share_of_direct};
use crate::effort::Effort;
use crate::growth::{Sample, sampled};
use crate::progress::say;
use crate::report::Report;

pub(crate) const NAME: &str = "pipeline";

const KINDS: [Kind; 6] = [
    Kind::Direct,
    Kind::Bound,
    Kind::NoToken,
    Kind::Pgbouncer,
    Kind::Haproxy,
    Kind::Relay,
];

const SQL: &str = "SELECT 1";

/// How often one looks at the memory of the proxy: it is over soon.
const LOOK: Duration = Duration::from_millis(2);

/// Rounds more than the other measurements have, for it takes little time.
const ROUNDS_MORE: usize = 3;

const TIME: &str = "ms";
const RATE: &str = "statements/s";
const SHARE: &str = "share %";
const CPU: &str = "proxy CPU us/statement";
const GROWTH: &str = "proxy RSS +KiB";

/// What stands in front of the one Sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Parse, Bind, Execute of each.
    Parsed,
    /// Bind, Execute of a statement that was prepared before.
    Prepared,
}

impl Shape {
    const ALL: [Self; 2] = [Self::Parsed, Self::Prepared];

    fn name(self) -> &'static str {
        match self {
            Self::Parsed => "parse, bind, execute",
            Self::Prepared => "bind, execute",
        }
    }

    fn requests(self, count: u32) -> Vec<u8> {
        let one = match self {
            Self::Parsed => Batch::new().parse("", SQL).bind("", "", &[]),
            Self::Prepared => Batch::new().bind("", "p", &[]),
        };
        let one = one.execute("", 0);
        let mut all = one.bytes().repeat(count as usize);
        all.extend_from_slice(Batch::new().sync().bytes());
        all
    }
}

/// A target with its session. pgpalisade has two on one proxy: with and without a token.
struct Lane {
    kind: Kind,
    target: usize,
    client: Client,
    samples: Vec<(Shape, Sample)>,
}

/// Writes a pipeline, and reads its answers at the same time.
pub(crate) fn measure(effort: &Effort, stop: &CancellationToken) -> Result<Report, Error> {
    let ground = Ground::start(16, &[], stop)?;
    let mut targets: Vec<Target> = Vec::new();
    let mut lanes = Vec::new();
    for kind in KINDS {
        if kind != Kind::NoToken {
            targets.push(Target::start(kind, Link::Tcp, &ground)?);
        }
        let Some(target) = targets.last() else {
            continue;
        };
        let options = target.options().filter(|_| kind == Kind::Bound);
        let mut client = Client::login_with(target, options, Appetite::Large, stop)?;
        prepare(std::slice::from_mut(&mut client), "p", SQL)?;
        lanes.push(Lane {
            kind,
            target: targets.len() - 1,
            client,
            samples: Vec::new(),
        });
    }
    let rounds = effort.rounds as usize + ROUNDS_MORE;
    let count = lanes.len();
    for round in 0..rounds {
        say(NAME, &format!("round {} of {rounds}", round + 1));
        for shape in Shape::ALL {
            let requests = shape.requests(effort.pipeline);
            for turn in 0..count {
                let Some(lane) = lanes.get_mut((round + turn) % count) else {
                    continue;
                };
                let Some(target) = targets.get(lane.target) else {
                    continue;
                };
                let statements = u64::from(effort.pipeline);
                let sample = sampled(target, LOOK, || {
                    let answer = lane.client.run_while_reading(&requests)?;
                    Ok(answer.expect(statements, "a pipeline")?.completed)
                })?;
                lane.samples.push((shape, sample));
            }
        }
    }
    Ok(report(effort, &lanes))
}

fn report(effort: &Effort, lanes: &[Lane]) -> Report {
    let title = format!(
        "{} times `{SQL}` in front of one Sync, by one client",
        effort.pipeline
    );
    let mut report = Report::new(NAME, "each statement", title);
    for shape in Shape::ALL {
        for lane in lanes {
            let at = (lane.kind.name(), shape.name());
            let of = |figure: fn(&Sample) -> f64| -> Vec<f64> {
                let own = lane.samples.iter().filter(|(its, _)| *its == shape);
                own.map(|(_, sample)| figure(sample)).collect()
            };
            report.figure(
                at,
                TIME,
                &of(|sample| sample.done.took.as_secs_f64() * 1e3),
                1,
            );
            report.figure(at, RATE, &of(|sample| sample.done.rate()), 0);
            share_of_direct(&mut report, at, RATE, SHARE);
            if lane.kind != Kind::Direct {
                report.figure(at, CPU, &of(|sample| sample.done.micros_each()), 2);
                report.figure(at, GROWTH, &of(|sample| sample.growth_kib as f64), 0);
            }
        }
    }
    report
}
