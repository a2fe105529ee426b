//! Idle sessions: what each takes of the proxy's memory, and whether the others pay for them.

use std::time::{Duration, Instant};

use pgpalisade_bench::Error;
use pgpalisade_bench::ground::Ground;
use pgpalisade_bench::targets::{Kind, Link, Target};
use pgpalisade_tests::wire::Batch;
use rustix::process::{Resource, getrlimit};
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::drive::{Done, execution, login_many, loops, prepare, timed};
use crate::effort::Effort;
use crate::progress::say;
use crate::report::{Report, Verdict};
use crate::rollup::{Rollup, available_mib};

pub(crate) const NAME: &str = "sessions";

/// Those that are compared at the least number of idle sessions.
const PEERS: [Kind; 3] = [Kind::Pgbouncer, Kind::Haproxy, Kind::Relay];

/// Sessions that work while the others are idle.
const ACTIVE: usize = 16;

/// What a session of PostgreSQL takes, in KiB, generously: less than this was seen for one that runs one statement.
const SERVER_KIB: u64 = 3 * 1024;

/// What everything else takes, in MiB.
const REST_MIB: u64 = 1024;

/// Files that a process has open besides two for each session.
const FILES_MORE: u64 = 300;

/// What is aimed for: KiB of an idle session.
const GOAL_KIB: f64 = 12.0;

/// The dearest statement may cost this much more than the cheapest, and the line is called flat. CPU time for a
/// statement moves by more than a tenth from second to second.
pub(crate) const FLAT: f64 = 1.25;

/// For what has been written to be read, and memory to be given back.
const SETTLE: Duration = Duration::from_millis(500);

const RATE: &str = "logins/s";
const FRESH: &str = "KiB/session";
const USED: &str = "after a statement";
const ANONYMOUS: &str = "anonymous";
const PSS: &str = "PSS";
pub(crate) const CPU: &str = "CPU us/statement";

/// One line of the table.
struct Level {
    kind: Kind,
    idle: u32,
    /// How many logins there were in a second on the way here.
    rate: Option<f64>,
    /// Memory more than with the working sessions alone, before and after each has run a statement.
    fresh: Rollup,
    used: Rollup,
    /// One closed loop of the working sessions.
    loops: Vec<Done>,
}

/// Opens idle sessions, more and more, and looks at memory and CPU time at each number of them.
pub(crate) fn measure(effort: &Effort, stop: &CancellationToken) -> Result<Report, Error> {
    let most = effort.sessions.last().copied().unwrap_or_default();
    check_machine(most)?;
    let connections = most + ACTIVE as u32 + 20;
    // Little of its own, since each session maps all of it.
    let ground = Ground::start(connections, &["shared_buffers=16MB"], stop)?;
    let mut levels = crowd(Kind::Bound, &effort.sessions, effort, &ground, stop)?;
    for kind in PEERS {
        let least = effort.sessions.get(..1).unwrap_or_default();
        levels.extend(crowd(kind, least, effort, &ground, stop)?);
    }
    Ok(report(&levels))
}

/// Refuses where the machine is too small, and says what is needed.
fn check_machine(sessions: u32) -> Result<(), Error> {
    let needed = u64::from(sessions) * SERVER_KIB / 1024 + REST_MIB;
    let there = available_mib()?;
    if there < needed {
        return Err(Error::Round(format!(
            "{sessions} sessions of PostgreSQL need {needed} MiB of memory, and {there} MiB are available: \
             measure fewer (--sessions 1000), or leave this out (--only)"
        )));
    }
    let needed = u64::from(sessions) * 2 + FILES_MORE;
    let there = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    if there < needed {
        return Err(Error::Round(format!(
            "a proxy with {sessions} sessions needs {needed} open files, and the hard limit is {there}: raise it \
             (ulimit -Hn {needed}, as root), or measure fewer (--sessions)"
        )));
    }
    Ok(())
}

fn crowd(
    kind: Kind,
    numbers: &[u32],
    effort: &Effort,
    ground: &Ground,
    stop: &CancellationToken,
) -> Result<Vec<Level>, Error> {
    let flags = match kind {
        Kind::Bound => vec![
            "--connections-max".to_owned(),
            ground.connections().to_string(),
        ],
        _ => Vec::new(),
    };
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let target = Target::start_with(kind, Link::Tcp, ground, &flags)?;
    let Some(pid) = target.pid() else {
        return Ok(Vec::new());
    };
    let mut active = login_many(&target, ACTIVE, stop)?;
    prepare(&mut active, "p", "SELECT 1")?;
    let work =
        |active: &mut [Client]| timed(&target, || loops(active, &execution("p"), effort.time));
    // What is cached, and what the allocator keeps, is there before the idle ones come.
    work(&mut active)?;
    std::thread::sleep(SETTLE);
    let before = Rollup::of(pid)?;
    let without = (0..effort.rounds)
        .map(|_| work(&mut active))
        .collect::<Result<_, _>>()?;
    let mut levels = vec![Level {
        kind,
        idle: 0,
        rate: None,
        fresh: before,
        used: before,
        loops: without,
    }];
    let mut idle: Vec<Client> = Vec::new();
    for &number in numbers {
        say(
            NAME,
            &format!("{kind}: logging in until {number} sessions are idle"),
        );
        let more = (number as usize).saturating_sub(idle.len());
        let begin = Instant::now();
        idle.extend(login_many(&target, more, stop)?);
        let rate = more as f64 / begin.elapsed().as_secs_f64();
        std::thread::sleep(SETTLE);
        let fresh = Rollup::of(pid)?;
        let query = Batch::new().query("SELECT 1");
        for client in &mut idle {
            client.run(query.bytes())?.expect(1, "SELECT 1")?;
        }
        std::thread::sleep(SETTLE);
        let used = Rollup::of(pid)?;
        let loops = (0..effort.rounds)
            .map(|_| work(&mut active))
            .collect::<Result<_, _>>()?;
        levels.push(Level {
            kind,
            idle: number,
            rate: Some(rate),
            fresh,
            used,
            loops,
        });
    }
    Ok(levels)
}

fn report(levels: &[Level]) -> Report {
    let mut report = Report::new(
        NAME,
        "idle",
        format!(
            "memory of the proxy for each idle session, and CPU time of a statement of {ACTIVE} others meanwhile"
        ),
    );
    let mut before = None;
    for level in levels {
        if level.idle == 0 {
            before = Some(level.fresh);
        }
        let at = (level.kind.name(), &*level.idle.to_string());
        let each = |now: Rollup, field: fn(Rollup) -> u64| {
            let before = before.filter(|_| level.idle > 0)?;
            let grown = field(now) as f64 - field(before) as f64;
            Some(grown / f64::from(level.idle))
        };
        report.figure(at, FRESH, each(level.fresh, |now| now.rss).as_slice(), 2);
        report.figure(at, USED, each(level.used, |now| now.rss).as_slice(), 2);
        report.figure(
            at,
            ANONYMOUS,
            each(level.used, |now| now.anonymous).as_slice(),
            2,
        );
        report.figure(at, PSS, each(level.used, |now| now.pss).as_slice(), 2);
        report.figure(at, RATE, level.rate.as_slice(), 0);
        let costs: Vec<f64> = level.loops.iter().map(Done::micros_each).collect();
        report.figure(at, CPU, &costs, 2);
    }
    let ours = Kind::Bound.name();
    for level in levels
        .iter()
        .filter(|level| level.kind == Kind::Bound && level.idle > 0)
    {
        let idle = level.idle.to_string();
        for figure in [FRESH, USED] {
            if let Some(kib) = report.value(ours, &idle, figure) {
                let what = format!("{figure}, {idle} idle sessions: at most {GOAL_KIB} KiB");
                report.goal(
                    what,
                    format!("{kib:.1} KiB"),
                    Verdict::of(|| kib <= GOAL_KIB),
                );
            }
        }
    }
    flat_goal(&mut report, ours, CPU, "idle sessions");
    report.remark(
        "Resident memory more than with the working sessions alone; anonymous and PSS are after the \
         statement.",
    );
    report
}

/// The goal that a figure of a series is the same in all its cases.
pub(crate) fn flat_goal(report: &mut Report, series: &str, figure: &str, over: &str) {
    let all = report.figures.iter();
    let own = all.filter(|one| one.series == series && one.name == figure);
    let values: Vec<f64> = own.filter_map(|one| one.value).collect();
    let Some((least, most)) = pgpalisade_bench::statistics::range(&values) else {
        return;
    };
    let what = format!(
        "{series}, {figure}, flat over {over}: the dearest at most {FLAT} times the cheapest"
    );
    let measured = format!("{:.2} ({least:.2} to {most:.2})", most / least);
    report.goal(what, measured, Verdict::of(|| most <= least * FLAT));
}
