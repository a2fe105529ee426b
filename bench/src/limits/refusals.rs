//! A refused statement: what it costs the proxy, and whether PostgreSQL hears of it.

use std::fs;
use std::time::Duration;

use pgpalisade_bench::Error;
use pgpalisade_bench::affinity::OneProcessor;
use pgpalisade_bench::ground::Ground;
use pgpalisade_bench::targets::{Kind, Link, Target};
use pgpalisade_tests::wire::Batch;
use tokio_util::sync::CancellationToken;

use crate::client::{Appetite, Client};
use crate::drive::{Done, timed};
use crate::effort::Effort;
use crate::progress::say;
use crate::report::{Report, Verdict};

pub(crate) const NAME: &str = "refusals";

const TABLE: &str = "CREATE TABLE ledger (id bigint, amount int, note text)";

/// What is aimed for: CPU time of a refusal, in microseconds.
const GOAL_MICROS: f64 = 30.0;

const RATE: &str = "refusals/s";
const CPU: &str = "proxy CPU us/refusal";
const RUNS: &str = "times the backend ran";
const RECORDS: &str = "records";

/// How a write without a token comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// A simple Query, always the same text.
    Simple,
    /// A simple Query with another number each time: the texts have one verdict.
    OtherNumber,
    /// A simple Query with another name each time, so that no verdict is cached.
    NewText,
    /// Bind, Execute, Sync of a statement that was prepared.
    Prepared,
    /// Parse, Bind, Execute, Sync.
    Extended,
}

impl Shape {
    const ALL: [Self; 5] = [
        Self::Simple,
        Self::OtherNumber,
        Self::NewText,
        Self::Prepared,
        Self::Extended,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::OtherNumber => "simple, other number",
            Self::NewText => "simple, new text",
            Self::Prepared => "prepared",
            Self::Extended => "extended",
        }
    }

    /// The request with this number.
    fn request(self, number: u32) -> Vec<u8> {
        let sql = |number| format!("INSERT INTO ledger VALUES ({number}, 250, 'rent of november')");
        let batch = match self {
            Self::Simple => Batch::new().query(&sql(1)),
            Self::OtherNumber => Batch::new().query(&sql(number)),
            Self::NewText => Batch::new().query(&format!("{} RETURNING id AS r{number}", sql(1))),
            Self::Prepared => Batch::new().bind("", "p", &[]).execute("", 0).sync(),
            Self::Extended => Batch::new()
                .parse("", &sql(1))
                .bind("", "", &[])
                .execute("", 0)
                .sync(),
        };
        batch.bytes().to_vec()
    }
}

/// Whose statements are on their way at one time, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Crowd {
    /// One session, on all processors: between two statements one falls asleep, and how deep decides what they cost.
    One,
    /// One session, and the client, the proxy and PostgreSQL share a processor, which does not sleep.
    OneOnOneCore,
    /// Sixteen, on all processors.
    Sixteen,
}

impl Crowd {
    const ALL: [Self; 3] = [Self::One, Self::OneOnOneCore, Self::Sixteen];

    fn sessions(self) -> usize {
        match self {
            Self::One | Self::OneOnOneCore => 1,
            Self::Sixteen => 16,
        }
    }

    /// The name of a series.
    fn series(self, shape: Shape) -> String {
        let more = match self {
            Self::One => "",
            Self::OneOnOneCore => ", one core",
            Self::Sixteen => ", 16 sessions",
        };
        format!("{}{more}", shape.name())
    }
}

struct Row {
    name: String,
    done: Done,
    /// Times that the kernel has put the sessions' processes of PostgreSQL on a processor.
    runs: u64,
    records: u64,
}

/// Sessions without a token write again and again.
pub(crate) fn measure(effort: &Effort, stop: &CancellationToken) -> Result<Report, Error> {
    let mut ground = Ground::start(16, &[], stop)?;
    ground.director().run(TABLE)?;
    let mut rows = Vec::new();
    for crowd in Crowd::ALL {
        rows.extend(series(effort, &ground, crowd, stop)?);
    }
    let written = ground.director().number("SELECT count(*) FROM ledger")?;
    if written != 0 {
        return Err(Error::NotFenced(format!(
            "{written} rows of a session without a token are there"
        )));
    }
    Ok(report(effort, &rows))
}

/// All shapes, by sessions of a proxy of their own.
fn series(
    effort: &Effort,
    ground: &Ground,
    crowd: Crowd,
    stop: &CancellationToken,
) -> Result<Vec<Row>, Error> {
    let _one = match crowd {
        Crowd::One | Crowd::Sixteen => None,
        Crowd::OneOnOneCore => Some(OneProcessor::with(&[ground.postgres().pid()])?),
    };
    let target = Target::start(Kind::NoToken, Link::Tcp, ground)?;
    let logins = (0..crowd.sessions()).map(|_| Session::login(&target, stop));
    let mut sessions = logins.collect::<Result<Vec<_>, Error>>()?;
    let waits = format!("{:?} for PostgreSQL to be idle", effort.settle);
    say(NAME, &waits);
    ground.pause(effort.settle)?;
    let shapes = Shape::ALL.into_iter();
    shapes
        .map(|shape| row(effort, &target, crowd.series(shape), shape, &mut sessions))
        .collect()
}

struct Session {
    client: Client,
    /// PostgreSQL's process.
    pid: u32,
}

impl Session {
    fn login(target: &Target, stop: &CancellationToken) -> Result<Self, Error> {
        let mut client = Client::login(target, Appetite::Small, stop)?;
        let pid = Batch::new().query("SELECT pg_backend_pid()");
        let pid = client.run(pid.bytes())?.value;
        let prepared = Batch::new()
            .parse(
                "p",
                "INSERT INTO ledger VALUES (1, 250, 'rent of november')",
            )
            .sync();
        client.run(prepared.bytes())?.expect(0, "preparing")?;
        Ok(Self {
            client,
            pid: pid.and_then(|pid| pid.parse().ok()).unwrap_or_default(),
        })
    }
}

/// Each of the sessions sends a statement, and then each reads its answer; and so on.
fn row(
    effort: &Effort,
    target: &Target,
    name: String,
    shape: Shape,
    sessions: &mut [Session],
) -> Result<Row, Error> {
    say(NAME, &format!("{} refusals, {name}", effort.refusals));
    let requests = (0..effort.refusals).map(|number| shape.request(number));
    let requests: Vec<Vec<u8>> = requests.collect();
    let records_before = records(target);
    let runs_before = runs_of(sessions)?;
    let done = timed(target, || {
        for requests in requests.chunks(sessions.len()) {
            for (session, request) in sessions.iter_mut().zip(requests) {
                session.client.send(request)?;
            }
            for (session, _) in sessions.iter_mut().zip(requests) {
                refused(session.client.until_ready()?)?;
            }
        }
        Ok(requests.len() as u64)
    })?;
    let runs = runs_of(sessions)? - runs_before;
    // They are written a moment later.
    std::thread::sleep(Duration::from_millis(300));
    Ok(Row {
        name,
        done,
        runs,
        records: records(target) - records_before,
    })
}

fn refused(answer: crate::client::Answer) -> Result<(), Error> {
    match &answer.error {
        Some(error) if error.starts_with("PF002") => Ok(()),
        Some(error) => Err(Error::Round(format!("it was refused otherwise: {error}"))),
        None => Err(Error::NotFenced(
            "a write without a token was not refused".to_owned(),
        )),
    }
}

/// Lines of the rejection log.
fn records(target: &Target) -> u64 {
    let text = target.rejection_log().and_then(|path| fs::read(path).ok());
    let lines = text.unwrap_or_default();
    lines.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// How often the processes of the sessions have run, of one thread each: the third number of `/proc/PID/schedstat`.
fn runs_of(sessions: &[Session]) -> Result<u64, Error> {
    let runs = sessions.iter().map(|session| {
        let path = format!("/proc/{}/schedstat", session.pid);
        let text =
            fs::read_to_string(&path).map_err(Error::system(format!("cannot read {path}")))?;
        let runs = text.split_whitespace().nth(2);
        let runs = runs.and_then(|runs| runs.parse::<u64>().ok());
        runs.ok_or(Error::NotUnderstood { what: path, text })
    });
    runs.sum()
}

fn report(effort: &Effort, rows: &[Row]) -> Report {
    let title = format!(
        "{} refused INSERTs of sessions without a token, one at a time of each",
        effort.refusals
    );
    let mut report = Report::new(NAME, "protocol", title);
    let ours = Kind::NoToken.name();
    for row in rows {
        let at = (ours, row.name.as_str());
        report.figure(at, RATE, &[row.done.rate()], 0);
        report.figure(at, CPU, &[row.done.micros_each()], 1);
        report.figure(at, RUNS, &[row.runs as f64], 0);
        report.figure(at, RECORDS, &[row.records as f64], 0);
    }
    for row in rows {
        let (name, micros) = (&row.name, row.done.micros_each());
        let what = format!("a refusal below {GOAL_MICROS} us of CPU, {name}");
        report.goal(
            what,
            format!("{micros:.1} us"),
            Verdict::of(|| micros < GOAL_MICROS),
        );
    }
    for row in rows {
        let what = format!("PostgreSQL is not touched, {}", row.name);
        let measured = format!("its processes ran {} times", row.runs);
        report.goal(what, measured, Verdict::of(|| row.runs == 0));
    }
    report.remark(
        "The CPU time is that of the whole process: the records that go to the rejection log are in it.",
    );
    report
}
