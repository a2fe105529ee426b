//! COPY of much data, out and in.

use std::fmt;
use std::time::Duration;

use pgpalisade_bench::Error;
use pgpalisade_bench::ground::{Ground, ROLE};
use pgpalisade_bench::targets::{Kind, Link, Target};
use pgpalisade_tests::wire::Batch;
use tokio_util::sync::CancellationToken;

use crate::client::{Appetite, Client};
use crate::drive::share_of_direct;
use crate::effort::Effort;
use crate::growth::{Sample, sampled};
use crate::progress::say;
use crate::report::{Report, Verdict};

pub(crate) const NAME: &str = "copy";

const KINDS: [Kind; 5] = [
    Kind::Direct,
    Kind::Bound,
    Kind::Pgbouncer,
    Kind::Haproxy,
    Kind::Relay,
];

/// A row with its line feed.
const ROW: usize = 100;

/// Data of one message of the client: what psql and pg_restore send.
const MESSAGE_ROWS: usize = 80;

/// Messages that are written at once.
const MESSAGES: usize = 16;

/// How often one looks at the memory of the proxy.
const LOOK: Duration = Duration::from_millis(100);

/// What is aimed for: a part of direct.
const GOAL_SHARE: f64 = 90.0;

/// What a proxy may grow by, in KiB, and still be called flat: buffers of one session, and noise of the kernel's count.
const GOAL_KIB: f64 = 1024.0;

const RATE: &str = "MB/s";
const SHARE: &str = "share %";
const CPU: &str = "proxy CPU us/MB";
const GROWTH: &str = "proxy RSS +KiB";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Out,
    In,
}

impl Direction {
    const ALL: [Self; 2] = [Self::Out, Self::In];

    fn name(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::In => "in",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// `COPY ... TO STDOUT` of rows that the server makes up, and `COPY ... FROM STDIN` into an unlogged table.
pub(crate) fn measure(effort: &Effort, stop: &CancellationToken) -> Result<Report, Error> {
    let mut ground = Ground::start(16, &[], stop)?;
    ground.director().run(&format!(
        "CREATE UNLOGGED TABLE landing (line text); ALTER TABLE landing OWNER TO {ROLE}"
    ))?;
    let mut targets = Vec::new();
    for kind in KINDS {
        targets.push((Target::start(kind, Link::Tcp, &ground)?, Vec::new()));
    }
    let rows = u64::from(effort.megabytes) * 1_000_000 / ROW as u64;
    for round in 0..effort.rounds as usize {
        say(NAME, &format!("round {} of {}", round + 1, effort.rounds));
        for direction in Direction::ALL {
            let count = targets.len();
            for turn in 0..count {
                let Some((target, samples)) = targets.get_mut((round + turn) % count) else {
                    continue;
                };
                let sample = match direction {
                    Direction::Out => copy_out(target, rows, stop)?,
                    Direction::In => copy_in(target, rows, stop)?,
                };
                samples.push((direction, sample));
                ground.director().run("TRUNCATE landing")?;
            }
        }
    }
    Ok(report(effort, &targets))
}

fn copy_out(target: &Target, rows: u64, stop: &CancellationToken) -> Result<Sample, Error> {
    let mut client = Client::login(target, Appetite::Large, stop)?;
    let line = "x".repeat(ROW - 1);
    let sql = format!("COPY (SELECT '{line}' FROM generate_series(1, {rows})) TO STDOUT");
    let request = Batch::new().query(&sql);
    let sample = sampled(target, LOOK, || {
        let answer = client.run(request.bytes())?.expect(1, "COPY TO STDOUT")?;
        Ok(answer.copied)
    })?;
    check_size(sample.done.count, rows)?;
    client.terminate()?;
    Ok(sample)
}

fn copy_in(target: &Target, rows: u64, stop: &CancellationToken) -> Result<Sample, Error> {
    let mut client = Client::login(target, Appetite::Small, stop)?;
    client.send(Batch::new().query("COPY landing FROM STDIN").bytes())?;
    let begun = client.until(b'G')?;
    if let Some(error) = begun.error {
        return Err(Error::Round(format!(
            "COPY FROM STDIN at {}: {error}",
            target.kind()
        )));
    }
    let message = lines(MESSAGE_ROWS);
    let write = message.repeat(MESSAGES);
    let rows_of_write = (MESSAGE_ROWS * MESSAGES) as u64;
    let end = lines((rows % rows_of_write) as usize);
    let sample = sampled(target, LOOK, || {
        for _ in 0..rows / rows_of_write {
            client.send(&write)?;
            if stop.is_cancelled() {
                return Err(Error::Interrupted);
            }
        }
        client.send(&end)?;
        client.send(Batch::new().copy_done().bytes())?;
        client.until_ready()?.expect(1, "COPY FROM STDIN")?;
        Ok(rows * ROW as u64)
    })?;
    client.send(Batch::new().query("SELECT count(*) FROM landing").bytes())?;
    let arrived = client.until_ready()?.value.unwrap_or_default();
    check_size(
        arrived.parse::<u64>().unwrap_or_default() * ROW as u64,
        rows,
    )?;
    client.terminate()?;
    Ok(sample)
}

/// CopyData with so many rows.
fn lines(count: usize) -> Vec<u8> {
    let mut line = vec![b'x'; ROW - 1];
    line.push(b'\n');
    Batch::new().copy_data(&line.repeat(count)).bytes().to_vec()
}

fn check_size(bytes: u64, rows: u64) -> Result<(), Error> {
    match bytes == rows * ROW as u64 {
        true => Ok(()),
        false => Err(Error::Round(format!(
            "{rows} rows were sent, and {bytes} bytes have arrived"
        ))),
    }
}

fn report(effort: &Effort, targets: &[(Target, Vec<(Direction, Sample)>)]) -> Report {
    let title = format!("COPY of {} MB, rows of {ROW} bytes", effort.megabytes);
    let mut report = Report::new(NAME, "direction", title);
    for direction in Direction::ALL {
        for (target, samples) in targets {
            let at = (target.kind().name(), direction.name());
            let of = |figure: fn(&Sample) -> f64| -> Vec<f64> {
                let own = samples.iter().filter(|(way, _)| *way == direction);
                own.map(|(_, sample)| figure(sample)).collect()
            };
            report.figure(at, RATE, &of(|sample| sample.done.rate() / 1e6), 0);
            share_of_direct(&mut report, at, RATE, SHARE);
            if target.pid().is_some() {
                report.figure(at, CPU, &of(|sample| sample.done.micros_each() * 1e6), 0);
                report.figure(at, GROWTH, &of(|sample| sample.growth_kib as f64), 0);
            }
        }
    }
    let ours = Kind::Bound.name();
    for direction in Direction::ALL {
        if let Some(share) = report.value(ours, direction.name(), SHARE) {
            let what = format!("COPY {direction} at {GOAL_SHARE} % of direct or more");
            report.goal(
                what,
                format!("{share:.1} %"),
                Verdict::of(|| share >= GOAL_SHARE),
            );
        }
        if let Some(growth) = report.value(ours, direction.name(), GROWTH) {
            let what = format!(
                "COPY {direction} with flat memory: at most {GOAL_KIB} KiB more than before"
            );
            report.goal(
                what,
                format!("{growth:.0} KiB"),
                Verdict::of(|| growth <= GOAL_KIB),
            );
        }
    }
    report.remark(
        "Client, proxy and PostgreSQL share the processors: what a proxy uses is missing elsewhere.",
    );
    report
}
