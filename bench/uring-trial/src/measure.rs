//! The measurement: every relay in turn, in short rounds, and the median of them.

use std::fs::File;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::cpu;
use crate::pgbench::{self, Load};
use crate::postgres::{Postgres, free_port};
use crate::relay::Kind;

const USAGE: &str = "usage: uring-trial [OPTION VALUE]...
  --clients LIST       1,16,64,256
  --protocols LIST     simple,prepared (also: extended)
  --upstreams LIST     tcp,unix
  --relays LIST        epoll:1,epoll-batch:1,ring:1,ring-multishot:1,ring-hybrid:1,tokio:1,tokio:2 (KIND:THREADS)
  --rounds N           5
  --seconds N          2, for each round
  --scale N            10, of pgbench's tables
  --csv FILE           where every round goes too
  --lock FILE          is held while one cell of the table is measured, so that others can take turns
  --binaries DIR       /usr/lib/postgresql/15/bin
Where it is run as root, PostgreSQL is run as the user postgres or nobody.";

const PROTOCOLS: [&str; 3] = ["simple", "extended", "prepared"];
const READY_WITHIN: Duration = Duration::from_secs(5);

struct Options {
    clients: Vec<u32>,
    protocols: Vec<String>,
    upstreams: Vec<String>,
    relays: Vec<RelayName>,
    rounds: usize,
    seconds: u32,
    scale: u32,
    csv: Option<PathBuf>,
    lock: Option<PathBuf>,
    binaries: PathBuf,
}

/// `KIND:THREADS`.
#[derive(Debug, Clone, Copy)]
struct RelayName(Kind, usize);

impl FromStr for RelayName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, threads) = text.split_once(':').unwrap_or((text, "1"));
        Ok(Self(
            kind.parse()?,
            threads.parse().map_err(|e| format!("{text}: {e}"))?,
        ))
    }
}

fn list<T: FromStr>(text: &str) -> Result<Vec<T>, String> {
    let one = |part: &str| {
        part.parse()
            .map_err(|_| format!("{part}: not understood\n{USAGE}"))
    };
    text.split(',').map(one).collect()
}

impl Options {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self {
            clients: vec![1, 16, 64, 256],
            protocols: list("simple,prepared")?,
            upstreams: list("tcp,unix")?,
            relays: list(
                "epoll:1,epoll-batch:1,ring:1,ring-multishot:1,ring-hybrid:1,tokio:1,tokio:2",
            )?,
            rounds: 5,
            seconds: 2,
            scale: 10,
            csv: None,
            lock: None,
            binaries: "/usr/lib/postgresql/15/bin".into(),
        };
        for pair in args.chunks(2) {
            let [name, value] = pair else {
                return Err(USAGE.to_owned());
            };
            let number = || {
                value
                    .parse::<u32>()
                    .map_err(|_| format!("{value}: not a number\n{USAGE}"))
            };
            match name.as_str() {
                "--clients" => options.clients = list(value)?,
                "--protocols" => options.protocols = list(value)?,
                "--upstreams" => options.upstreams = list(value)?,
                "--relays" => options.relays = list(value)?,
                "--rounds" => options.rounds = number()?.max(1) as usize,
                "--seconds" => options.seconds = number()?.max(1),
                "--scale" => options.scale = number()?.max(1),
                "--csv" => options.csv = Some(value.into()),
                "--lock" => options.lock = Some(value.into()),
                "--binaries" => options.binaries = value.into(),
                _ => return Err(USAGE.to_owned()),
            }
        }
        Ok(options)
    }
}

/// A relay that runs. Killed when dropped.
struct Running {
    label: String,
    port: u16,
    child: Option<Child>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// One round, or the medians of several.
#[derive(Debug, Clone, Copy)]
struct Figures {
    rate: f64,
    /// CPU of the relay for one transaction.
    relay_us: f64,
    /// CPU of everything on the machine for one transaction.
    machine_us: f64,
    /// Context switches of the relay for one transaction.
    switches: f64,
    kernel_workers: f64,
}

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let options = Options::parse(args)?;
    let mut csv = options.csv.as_deref().map(open_csv).transpose()?;
    let postgres = Postgres::start(&options.binaries, options.scale)?;
    for upstream in &options.upstreams {
        let targets = start_all(&options, &postgres, upstream)?;
        for protocol in &options.protocols {
            let protocol = PROTOCOLS.into_iter().find(|known| known == protocol);
            let protocol = protocol.ok_or_else(|| USAGE.to_owned())?;
            for &clients in &options.clients {
                let load = Load {
                    clients,
                    protocol,
                    seconds: options.seconds,
                };
                let cell = Cell {
                    postgres: &postgres,
                    upstream,
                    load,
                    rounds: options.rounds,
                };
                let _lock = options.lock.as_deref().map(hold).transpose()?;
                cell.measure(&targets, csv.as_mut())?;
            }
        }
    }
    Ok(())
}

fn open_csv(path: &Path) -> Result<File, String> {
    let mut csv = File::create(path).map_err(|e| format!("{}: {e}", path.display()))?;
    writeln!(
        csv,
        "upstream,protocol,clients,relay,round,tps,relay_us,machine_us,switches,kernel_workers"
    )
    .map_err(|e| e.to_string())?;
    Ok(csv)
}

fn hold(path: &Path) -> Result<File, String> {
    let open = File::options().create(true).append(true).open(path);
    let file = open.map_err(|e| format!("{}: {e}", path.display()))?;
    flock(&file, FlockOperation::LockExclusive).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(file)
}

/// PostgreSQL without a relay first.
fn start_all(
    options: &Options,
    postgres: &Postgres,
    upstream: &str,
) -> Result<Vec<Running>, String> {
    let address = match upstream {
        "tcp" => format!("tcp:127.0.0.1:{}", postgres.port),
        "unix" => format!("unix:{}", postgres.socket().display()),
        _ => return Err(USAGE.to_owned()),
    };
    let mut targets = vec![Running {
        label: "direct".to_owned(),
        port: postgres.port,
        child: None,
    }];
    for &RelayName(kind, threads) in &options.relays {
        targets.push(start(kind, threads, &address)?);
    }
    Ok(targets)
}

fn start(kind: Kind, threads: usize, upstream: &str) -> Result<Running, String> {
    let port = free_port()?;
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(program);
    command.args([
        "relay",
        kind.name(),
        &threads.to_string(),
        &port.to_string(),
        upstream,
    ]);
    let child = command
        .stdin(Stdio::piped())
        .spawn()
        .map_err(|e| format!("{command:?}: {e}"))?;
    let running = Running {
        label: format!("{kind}:{threads}"),
        port,
        child: Some(child),
    };
    let started = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if started.elapsed() > READY_WITHIN {
            return Err(format!("{command:?} does not listen"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(running)
}

struct Cell<'a> {
    postgres: &'a Postgres,
    upstream: &'a str,
    load: Load,
    rounds: usize,
}

impl Cell<'_> {
    fn measure(&self, targets: &[Running], mut csv: Option<&mut File>) -> Result<(), String> {
        let mut figures: Vec<Vec<Figures>> = targets.iter().map(|_| Vec::new()).collect();
        for round in 1..=self.rounds {
            for (target, rounds) in targets.iter().zip(&mut figures) {
                // On a machine that is not idle pgbench may be held up for a whole round.
                let figures = self.round(target).or_else(|error| {
                    eprintln!("{error}: once more");
                    self.round(target)
                })?;
                if let Some(csv) = &mut csv {
                    self.record(csv, target, round, figures)
                        .map_err(|e| e.to_string())?;
                }
                rounds.push(figures);
            }
        }
        let Load {
            clients, protocol, ..
        } = self.load;
        println!(
            "\nupstream {}, {protocol}, {clients} clients",
            self.upstream
        );
        println!(
            "{:<18}{:>10}{:>10}{:>14}{:>12}{:>13}{:>10}",
            "relay", "tps", "direct=1", "relay us/tx", "epoll=1", "machine us/tx", "switches"
        );
        let medians: Vec<Figures> = figures.iter().map(|rounds| median(rounds)).collect();
        let first = |label: &str| {
            targets
                .iter()
                .position(|t| t.label == label)
                .map(|at| medians[at])
        };
        for (target, m) in targets.iter().zip(&medians) {
            let direct = first("direct").map_or(f64::NAN, |direct| m.rate / direct.rate);
            let epoll = first("epoll:1").map_or(f64::NAN, |epoll| m.relay_us / epoll.relay_us);
            let note = if m.kernel_workers > 0.0 {
                "  kernel workers"
            } else {
                ""
            };
            println!(
                "{:<18}{:>10.0}{:>10.2}{:>14.2}{:>12.2}{:>13.1}{:>10.2}{note}",
                target.label, m.rate, direct, m.relay_us, epoll, m.machine_us, m.switches
            );
        }
        Ok(())
    }

    fn round(&self, target: &Running) -> Result<Figures, String> {
        let pid = target.child.as_ref().map(Child::id);
        let spent = || pid.map_or(Ok(cpu::Spent::default()), cpu::of_process);
        let say = |e: std::io::Error| format!("{}: {e}", target.label);
        let (before, machine_before) = (spent().map_err(say)?, cpu::machine_ticks().map_err(say)?);
        let report = pgbench::round(self.postgres, target.port, self.load)
            .map_err(|error| format!("{}: {error}", target.label))?;
        let (after, machine) = (spent().map_err(say)?, cpu::machine_ticks().map_err(say)?);
        let relay = after - before;
        Ok(Figures {
            rate: report.rate,
            relay_us: relay.cpu_ns as f64 / 1e3 / report.transactions,
            machine_us: (machine - machine_before) as f64 * 1e4 / report.transactions,
            switches: relay.switches as f64 / report.transactions,
            kernel_workers: relay.kernel_workers as f64,
        })
    }

    fn record(
        &self,
        csv: &mut File,
        target: &Running,
        round: usize,
        f: Figures,
    ) -> std::io::Result<()> {
        let Load {
            clients, protocol, ..
        } = self.load;
        write!(
            csv,
            "{},{protocol},{clients},{},{round},{:.0},",
            self.upstream, target.label, f.rate
        )?;
        writeln!(
            csv,
            "{:.3},{:.3},{:.3},{}",
            f.relay_us, f.machine_us, f.switches, f.kernel_workers
        )
    }
}

/// Of each figure by itself.
fn median(rounds: &[Figures]) -> Figures {
    let of = |figure: fn(&Figures) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(figure).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    Figures {
        rate: of(|f| f.rate),
        relay_us: of(|f| f.relay_us),
        machine_us: of(|f| f.machine_us),
        switches: of(|f| f.switches),
        kernel_workers: of(|f| f.kernel_workers),
    }
}
