//! SELECTs with TLS on no leg, on the client's, and on both: TLS 1.3 with `TLS_AES_256_GCM_SHA384`, whoever speaks.
//!
//! The load is our own, since haproxy does not know PostgreSQL's SSLRequest: it takes TLS from the first byte only,
//! which pgbench has since 17. To PostgreSQL it would need a server of that version. So with TLS on both legs haproxy
//! and the bare relay carry what they cannot read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};

use pgpalisade_tests::postgres::Postgres;
use pgpalisade_tests::tls::{Authority, TlsClient};
use pgpalisade_tests::wire::{Batch, Wire};

use crate::pgbench::{self, Moment, WARM_UP, micros};
use crate::plan::{Cell, Plan, in_turn};
use crate::record::{Figure, Measurement, Record, Target, counted};
use crate::ways::{Encryption, Way, server};

/// pgbench's tables, with this many rows.
const SCALE: u32 = 1;
const ROWS: u32 = SCALE * 100_000;

/// From one row to the next: prime, so that every row has its turn.
const STRIDE: u32 = 48_271;

const PROTOCOLS: [&str; 2] = ["simple", "prepared"];

/// Which legs are encrypted.
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

/// A server, and the ways to it, with TLS on these legs. Dropped from the first to the last.
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
        let mut tls = Encryption::default();
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
        let targets = Target::ALL.into_iter();
        // It has no TLS of its own, and PostgreSQL's would be that of both legs.
        let targets = targets.filter(|&target| (legs, target) != (Legs::Client, Target::Relay));
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

    /// A session, encrypted where the client's leg is.
    fn login(&self, way: &Way) -> Wire {
        let connected = match (self.legs, way.target) {
            (Legs::None, _) => Ok(Wire::connect(way.endpoint())),
            (Legs::Client, Target::Haproxy) => {
                let client = self.client.clone().speaking(&["postgresql"]);
                Wire::connect(way.endpoint()).encrypt(&client)
            }
            _ => Wire::connect_tls(way.endpoint(), &self.client),
        };
        way.login_over(connected.expect("TLS"))
    }

    /// PostgreSQL's end of a session is what is said to be measured.
    fn check(&self, way: &Way, session: &mut Wire) {
        let own =
            "SELECT concat_ws(' ', version, cipher) FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        let is_encrypted = match way.target {
            Target::Direct => self.legs != Legs::None,
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

/// Measures one SELECT by primary key.
pub(crate) fn tls(plan: &Plan) -> Vec<Record> {
    // Enough of them that the cores do not sleep.
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

/// One window, in which each client has a thread of its own.
fn run(stage: &Stage, way: &Way, protocol: &str, clients: u32, plan: &Plan) -> Vec<(Figure, f64)> {
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

/// What a client does until it is over: the end and the latency of each transaction.
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
