//! SELECTs with TLS on no leg, on the client's, and on both: TLS 1.3 with `TLS_AES_256_GCM_SHA384` for every target.
//!
//! The load is our own, since haproxy needs TLS from the first byte, which pgbench and PostgreSQL support since 17.
//! So with TLS on both legs haproxy and the bare relay carry encrypted bytes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};

use pgpalisade_fence::readable::counted;
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::tls::{Authority, TlsClient};
use pgpalisade_test_servers::wire::{Batch, Wire};

use crate::pgbench::{self, Moment, WARM_UP, micros};
use crate::plan::{BenchPlan, Cell, in_turn};
use crate::record::{ComparedTarget, Figure, Measurement, Record};
use crate::ways::{TlsSettings, Way, server};

const SCALE: u32 = 1;
const ROWS: u32 = SCALE * 100_000;

/// Distance between rows: prime, so that every row gets its turn.
const STRIDE: u32 = 48_271;

const PROTOCOLS: [&str; 2] = ["simple", "prepared"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Legs {
    None,
    Client,
    Both,
}

impl Legs {
    const ALL: [Self; 3] = [Self::None, Self::Client, Self::Both];

    const fn name(self) -> &'static str {
        match self {
            Self::None => "no TLS",
            Self::Client => "client TLS",
            Self::Both => "both TLS",
        }
    }
}

/// A server and its ways, with TLS on these legs.
struct Stage {
    legs: Legs,
    ways: Vec<Way>,
    _postgres: Postgres,
    client: TlsClient,
    _authority: Authority,
}

impl Stage {
    fn open(legs: Legs, clients: u32) -> Self {
        let authority = Authority::new();
        let pair = authority.issue_local("server");
        let settings = authority.settings(&pair);
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        // pgbouncer keeps its sessions.
        let postgres = server(2 * clients, &settings);
        pgbench::initialise(&postgres, SCALE);
        let pem = authority.lend(&[&pair.certificate, &pair.key], authority.path("both.pem"));
        let pem = pem.display();
        let mut tls = TlsSettings::default();
        if legs != Legs::None {
            tls.flags = vec![
                ("--tls-mode", "require".to_owned()),
                ("--tls-certificate", pair.certificate.display().to_string()),
                ("--tls-key", pair.key.display().to_string()),
            ];
            tls.pgbouncer = format!(
                "client_tls_sslmode = require\nclient_tls_cert_file = {pem}\nclient_tls_key_file = {pem}\n\
                 client_tls_protocols = tlsv1.3\n"
            );
        }
        match legs {
            Legs::None => {}
            Legs::Client => tls.haproxy = format!("ssl crt {pem} alpn postgresql"),
            Legs::Both => {
                tls.upstream = "?sslmode=require";
                tls.pgbouncer += "server_tls_sslmode = require\nserver_tls_protocols = tlsv1.3\n";
            }
        }
        let targets = ComparedTarget::ALL.into_iter();
        // The relay has no TLS, and PostgreSQL's would be on both legs.
        let targets =
            targets.filter(|&target| (legs, target) != (Legs::Client, ComparedTarget::Relay));
        Self {
            legs,
            ways: targets
                .map(|target| Way::encrypted(target, &postgres, clients, &tls))
                .collect(),
            _postgres: postgres,
            client: TlsClient::pinned(&authority.certificate()),
            _authority: authority,
        }
    }

    /// Encrypted if the client's leg is.
    fn login(&self, way: &Way) -> Wire {
        let connected = match (self.legs, way.target) {
            (Legs::None, _) => Ok(Wire::connect(way.endpoint())),
            (Legs::Client, ComparedTarget::Haproxy) => {
                let client = self.client.clone().speaking(&["postgresql"]);
                Wire::connect(way.endpoint()).encrypt(&client)
            }
            _ => Wire::connect_tls(way.endpoint(), &self.client),
        };
        way.login_over(connected.expect("TLS"))
    }

    /// Checks PostgreSQL's end of a session against the measured legs.
    fn check(&self, way: &Way, session: &mut Wire) {
        let own =
            "SELECT concat_ws(' ', version, cipher) FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        let is_encrypted = match way.target {
            ComparedTarget::Direct => self.legs != Legs::None,
            _ => self.legs == Legs::Both,
        };
        let expect = if is_encrypted {
            "TLSv1.3 TLS_AES_256_GCM_SHA384"
        } else {
            ""
        };
        assert_eq!(session.rows(own), [[expect]], "{way:?}");
    }
}

pub(crate) fn tls(plan: &BenchPlan) -> Vec<Record> {
    // Enough clients to keep the cores awake.
    let clients = plan.clients.get(1).copied().unwrap_or(1);
    let stages = Legs::ALL.map(|legs| Stage::open(legs, clients));
    let mut records = Vec::new();
    for round in 1..=plan.rounds {
        eprintln!(
            "tls: round {round} of {}, {}",
            plan.rounds,
            counted(clients, "client")
        );
        for stage in in_turn(&stages, round) {
            for protocol in PROTOCOLS {
                let variant = format!("{protocol}, {}", stage.legs.name());
                let cell = Cell {
                    measurement: Measurement::Tls,
                    variant: &variant,
                    number: clients,
                    round,
                };
                for way in in_turn(&stage.ways, round) {
                    let figures = run(stage, way, protocol, cell.number, plan);
                    records.extend(cell.records(way.target, figures));
                }
            }
        }
    }
    records
}

fn run(
    stage: &Stage,
    way: &Way,
    protocol: &str,
    clients: u32,
    plan: &BenchPlan,
) -> Vec<(Figure, f64)> {
    let mut sessions: Vec<Wire> = (0..clients).map(|_| stage.login(way)).collect();
    sessions
        .iter_mut()
        .for_each(|session| stage.check(way, session));
    let is_over = AtomicBool::new(false);
    let over = &is_over;
    let (from, to, done) = scope(|scope| {
        let numbered = sessions.into_iter().zip(1..);
        let running: Vec<_> = numbered
            .map(|(session, number)| {
                scope.spawn(move || transactions(session, protocol, number, over))
            })
            .collect();
        sleep(WARM_UP);
        let from = Moment::now(way);
        sleep(plan.window);
        let to = Moment::now(way);
        is_over.store(true, Ordering::Relaxed);
        let done = running
            .into_iter()
            .flat_map(|client| client.join().expect("a client"));
        (from, to, done.collect::<Vec<_>>())
    });
    pgbench::summary(done.into_iter(), &from, &to)
}

/// Returns end and latency of each transaction.
fn transactions(
    mut session: Wire,
    protocol: &str,
    number: u32,
    is_over: &AtomicBool,
) -> Vec<(u64, f64)> {
    let mut done = Vec::new();
    let mut row = number;
    let select = "SELECT abalance FROM pgbench_accounts WHERE aid =";
    session.run(&Batch::new().parse("select", &format!("{select} $1")).sync());
    while !is_over.load(Ordering::Relaxed) {
        row = row.wrapping_add(STRIDE) % ROWS + 1;
        let batch = match protocol {
            "simple" => Batch::new().query(&format!("{select} {row}")),
            _ => {
                let bound = Batch::new().bind("", "select", &[Some(&row.to_string())]);
                bound.describe_portal("").execute("", 0).sync()
            }
        };
        let begin = micros();
        session.send(&batch);
        let answer = session.until_ready();
        let end = micros();
        assert!(
            answer.iter().any(|message| message.tag == b'D'),
            "no row: {answer:?}"
        );
        done.push((end, end.saturating_sub(begin) as f64));
    }
    session.send(&Batch::new().terminate());
    done
}
