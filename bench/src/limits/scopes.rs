//! Many scopes: whether a statement pays for those that it has nothing to do with.

use std::fmt::Write;
use std::fs;
use std::time::Instant;

use pgpalisade_authority::{Authority, Cluster, Embedded, Mark, Scope, Token, now_us};
use pgpalisade_bench::ground::{Ground, ROLE};
use pgpalisade_bench::targets::{Kind, Link, Target};
use pgpalisade_bench::{Error, memory};
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::drive::{execution, login_many_with, loops, prepare, timed};
use crate::effort::Effort;
use crate::progress::say;
use crate::report::Report;
use crate::sessions::{CPU, flat_goal};

pub(crate) const NAME: &str = "scopes";

/// Sessions of each series.
const ACTIVE: usize = 16;

const RSS: &str = "proxy RSS MiB";
const START: &str = "start ms";

/// Where the scopes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// The store has a mark of each.
    Marks,
    /// The policy file lists a table for each.
    Tables,
}

/// Sessions that do the same.
struct Lane {
    series: &'static str,
    clients: Vec<Client>,
    micros: Vec<f64>,
}

/// A PostgreSQL with a proxy in front of it, and its sessions. Dropped from the first to the last.
struct Place {
    lanes: Vec<Lane>,
    target: Target,
    _ground: Ground,
    scopes: u32,
    start_ms: f64,
    rss_mib: f64,
}

/// Closed loops of sessions behind proxies that know more and more scopes. All of them run at once, and take turns.
pub(crate) fn measure(effort: &Effort, stop: &CancellationToken) -> Result<Report, Error> {
    let mut places = Vec::new();
    for &scopes in &effort.scopes {
        say(NAME, &format!("a store with {scopes} marks"));
        places.push(Place::start(Known::Marks, scopes, stop)?);
    }
    for &scopes in &effort.scopes {
        say(NAME, &format!("a policy file with {scopes} scopes"));
        places.push(Place::start(Known::Tables, scopes, stop)?);
    }
    let (rounds, time) = effort.fine();
    for round in 0..rounds as usize {
        say(NAME, &format!("round {} of {rounds}", round + 1));
        let count = places.len();
        for turn in 0..count {
            let Some(place) = places.get_mut((round + turn) % count) else {
                continue;
            };
            for lane in &mut place.lanes {
                let done = timed(&place.target, || {
                    loops(&mut lane.clients, &execution("p"), time)
                })?;
                lane.micros.push(done.micros_each());
            }
        }
    }
    Ok(report(&places))
}

impl Place {
    fn start(known: Known, scopes: u32, stop: &CancellationToken) -> Result<Self, Error> {
        let mut ground = Ground::start(4 * ACTIVE as u32, &["shared_buffers=16MB"], stop)?;
        // The last one of all: what looks for it from the beginning shows.
        let table = format!("public.t{scopes}");
        ground.director().run(&format!(
            "CREATE TABLE {table} (id int); ALTER TABLE {table} OWNER TO {ROLE}"
        ))?;
        let policy = ground.directory().join("policy.toml");
        let mut flags = Vec::new();
        match known {
            Known::Marks => fill_store(&mut ground, scopes)?,
            Known::Tables => {
                fs::write(&policy, policy_text(scopes))
                    .map_err(Error::system("cannot write a policy file"))?;
                flags = vec!["--policy".to_owned(), policy.display().to_string()];
            }
        }
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let begin = Instant::now();
        let target = Target::start_with(Kind::Bound, Link::Tcp, &ground, &flags)?;
        let start_ms = begin.elapsed().as_secs_f64() * 1e3;
        let lane = |series, options: Option<&str>, sql: &str| {
            let mut clients = login_many_with(&target, options, ACTIVE, stop)?;
            prepare(&mut clients, "p", sql)?;
            Ok::<_, Error>(Lane {
                series,
                clients,
                micros: Vec::new(),
            })
        };
        let read = format!("SELECT id FROM {table}");
        let write = format!("DELETE FROM {table} WHERE false");
        let token = format!("-c fencing.token=scope-{scopes}=1");
        let lanes = match known {
            Known::Marks => vec![
                lane("marks, bound, reads", target.options(), &read)?,
                lane("marks, bound, writes", target.options(), &write)?,
            ],
            Known::Tables => {
                vec![
                    lane("tables, bound, reads", Some(token.as_str()), &read)?,
                    lane("tables, bound, writes", Some(token.as_str()), &write)?,
                    lane("tables, no token, reads", None, &read)?,
                ]
            }
        };
        let pid = target.pid().unwrap_or_default();
        let rss_mib = memory::resident_kib(pid)? as f64 / 1024.0;
        Ok(Self {
            lanes,
            target,
            _ground: ground,
            scopes,
            start_ms,
            rss_mib,
        })
    }
}

/// Puts a mark of each scope into the store that the proxy is going to open.
fn fill_store(ground: &mut Ground, scopes: u32) -> Result<(), Error> {
    let failed = |error: String| Error::Round(format!("filling the store: {error}"));
    let number = |text: &str| {
        text.parse::<i64>()
            .map_err(|error| failed(error.to_string()))
    };
    let director = ground.director();
    let system = director
        .column("SELECT system_identifier FROM pg_control_system()")?
        .join("");
    let timeline = director.number("SELECT timeline_id FROM pg_control_checkpoint()")?;
    let cluster = Cluster {
        system_identifier: number(&system)?.cast_unsigned(),
        timeline: u32::try_from(timeline).map_err(|error| failed(error.to_string()))?,
    };
    let token = Token::new(1).map_err(|error| failed(error.to_string()))?;
    let mark = |number: u32| {
        // The first one is that of the sessions.
        let scope = match number {
            0 => Ok(Scope::default()),
            _ => Scope::new(&format!("scope-{number}")),
        };
        let mark = Mark::new(token, now_us(), "bench".to_owned());
        scope
            .map(|scope| (scope, mark))
            .map_err(|error| failed(error.to_string()))
    };
    let marks = (0..scopes).map(mark).collect::<Result<Vec<_>, _>>()?;
    let store = Embedded::open(&ground.authority()).map_err(|error| failed(error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(Error::system("cannot make a runtime"))?;
    let filled = runtime.block_on(store.recover(cluster, &marks));
    filled.map_err(|error| failed(error.to_string()))
}

/// A table of one schema for each scope.
fn policy_text(scopes: u32) -> String {
    let mut text = String::new();
    for number in 1..=scopes {
        // Writing to a String does not fail.
        let _ = write!(
            text,
            "[scope.scope-{number}]\ntables = [\"public.t{number}\"]\n"
        );
    }
    text
}

fn report(places: &[Place]) -> Report {
    let title = format!(
        "CPU time of a prepared statement of {ACTIVE} sessions, where the store knows so many scopes \
         (marks), or a policy file lists a table for each (tables)"
    );
    let mut report = Report::new(NAME, "scopes", title);
    let lanes = || {
        places
            .iter()
            .flat_map(|place| place.lanes.iter().map(move |lane| (place, lane)))
    };
    let mut names: Vec<&str> = Vec::new();
    for (_, lane) in lanes() {
        if !names.contains(&lane.series) {
            names.push(lane.series);
        }
    }
    for name in &names {
        for (place, lane) in lanes().filter(|(_, lane)| lane.series == *name) {
            let at = (*name, &*place.scopes.to_string());
            report.figure(at, CPU, &lane.micros, 2);
            report.figure(at, RSS, &[place.rss_mib], 1);
            report.figure(at, START, &[place.start_ms], 0);
        }
    }
    for name in names {
        flat_goal(&mut report, name, CPU, "scopes");
    }
    report.remark("A policy file may have 100000 scopes. All its tables are in one schema.");
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_list_a_table_for_each_scope() {
        let expect = "[scope.scope-1]\ntables = [\"public.t1\"]\n[scope.scope-2]\ntables = [\"public.t2\"]\n";
        assert_eq!(policy_text(2), expect);
    }
}
