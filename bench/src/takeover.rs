//! Duration of a takeover, compared with the time that PostgreSQL alone needs to end as many sessions.

use std::thread::sleep;
use std::time::{Duration, Instant};

use pgpalisade_fence::readable::counted;
use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::machine;
use pgpalisade_test_servers::postgres::{Auth, END_ALONE, Postgres};
use pgpalisade_test_servers::proxy::{Options, Proxy, Store};
use pgpalisade_test_servers::stage::leader;
use pgpalisade_test_servers::wire::{Endpoint, Message, Wire, pretty};
use strum::VariantArray as _;

use crate::plan::{BenchPlan, Cell};
use crate::record::{ComparedTarget, Figure, Measurement, Record};

const WRITE: &str = "BEGIN; INSERT INTO jobs (who) VALUES (1)";
pub(crate) const USER: [(&str, &str); 2] = [("user", "postgres"), ("database", "postgres")];

/// The proxy removes records of ended sessions in the background, which must not overlap with the next round.
const SETTLE: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, strum::Display, strum::VariantArray)]
pub(crate) enum StoreKind {
    #[strum(to_string = "embedded")]
    Embedded,
    #[strum(to_string = "etcd of three")]
    Etcd,
    #[strum(to_string = "PostgreSQL")]
    Postgres,
}

/// Servers of one store. Fields are dropped in order: the proxy outlives none of its servers.
pub(crate) struct Stage {
    proxy: Proxy,
    postgres: Postgres,
    _store: RunningStore,
    token: u64,
}

enum RunningStore {
    InTheProxy,
    Etcd(#[expect(dead_code, reason = "dropped")] Etcd),
    Postgres(#[expect(dead_code, reason = "dropped")] Postgres),
}

pub(crate) fn takeover(plan: &BenchPlan) -> Vec<Record> {
    let mut records = Vec::new();
    for &kind in StoreKind::VARIANTS {
        let most = plan.old_sessions.iter().copied().max().unwrap_or_default();
        let mut stage = Stage::start(kind, most);
        for &number in plan.old_sessions {
            eprintln!(
                "takeover: {kind}, over {}, {}",
                counted(number, "session"),
                counted(plan.takeovers, "round")
            );
            for round in 1..=plan.takeovers {
                let cell = Cell {
                    measurement: Measurement::Takeover,
                    variant: &kind.to_string(),
                    number,
                    round,
                };
                let millis = |time: Duration| [(Figure::Takeover, time.as_secs_f64() * 1e3)];
                records.extend(
                    cell.records(ComparedTarget::Pgpalisade, millis(stage.takeover(number))),
                );
                stage.settle();
                if number > 0 {
                    records
                        .extend(cell.records(ComparedTarget::Direct, millis(stage.alone(number))));
                    stage.settle();
                }
            }
        }
    }
    records
}

impl Stage {
    /// With room for the sessions.
    pub(crate) fn start(kind: StoreKind, sessions_max: u32) -> Self {
        let postgres = durable(sessions_max, &[]);
        postgres.sql("CREATE TABLE jobs (who int)");
        let mut options = Options::new(&postgres);
        let store = match kind {
            StoreKind::Embedded => RunningStore::InTheProxy,
            StoreKind::Etcd => {
                let cluster = Etcd::start(3);
                options.store = Store::Url(cluster.authority());
                RunningStore::Etcd(cluster)
            }
            StoreKind::Postgres => {
                let server = durable(0, &[]);
                let dsn = format!(
                    "host=127.0.0.1 port={} user=postgres dbname=postgres",
                    server.port()
                );
                options.store = Store::Url(format!("postgres:{dsn}"));
                RunningStore::Postgres(server)
            }
        };
        Self {
            proxy: Proxy::start_with(options),
            postgres,
            _store: store,
            token: 1,
        }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        self.proxy.endpoint()
    }

    pub(crate) fn forget_rows(&self) {
        self.postgres.sql("TRUNCATE jobs");
    }

    /// Time from SET with the next token to its answer, over sessions with an open write transaction each.
    fn takeover(&mut self, sessions: u32) -> Duration {
        let endpoint = self.proxy.endpoint();
        let old = self.token.to_string();
        let old = writers(sessions, || leader(&endpoint, &old));
        self.token += 1;
        let mut next = Wire::login(&endpoint, &USER);
        let set = format!("SET fencing.token = {}", self.token);
        let begin = Instant::now();
        next.ok(&set);
        let took = begin.elapsed();
        next.ok("BEGIN; INSERT INTO jobs (who) VALUES (2); ROLLBACK");
        for mut session in old {
            let answer = session.query("COMMIT");
            let ended = answer.first().map(Message::sqlstate).as_deref() == Some("PF001");
            assert!(ended, "COMMIT of an old session:\n{}", pretty(&answer));
        }
        took
    }

    /// Time that PostgreSQL needs to end as many sessions of the same kind.
    fn alone(&self, sessions: u32) -> Duration {
        let [user, database] = USER;
        let parameters = [user, database, ("application_name", "alone")];
        let old = writers(sessions, || Wire::login(&self.postgres.tcp(), &parameters));
        let mut admin = self.postgres.admin();
        let begin = Instant::now();
        admin.ok(END_ALONE);
        let took = begin.elapsed();
        drop(old);
        took
    }

    /// Waits until a round's sessions have ended, and checks that no old session wrote its row. Sessions use TCP; the
    /// control connection and ours use the unix socket.
    fn settle(&self) {
        let mut admin = self.postgres.admin();
        machine::wait_until("the sessions of a round to end", || {
            let sessions = "SELECT count(*) FROM pg_stat_activity WHERE client_addr IS NOT NULL";
            admin.rows(sessions) == [["0"]]
        });
        assert_eq!(
            admin.rows("SELECT count(*) FROM jobs"),
            [["0"]],
            "rows of old sessions"
        );
        sleep(SETTLE);
    }
}

/// Turns fsync on, which the test harness turns off; the later setting wins.
pub(crate) fn durable(sessions_max: u32, settings: &[&str]) -> Postgres {
    let connections = format!("max_connections={}", sessions_max + 50);
    let ours = ["fsync=on", &connections];
    Postgres::start_with(Auth::Trust, &[&ours, settings].concat())
}

/// Sessions with an open transaction that has written a row.
fn writers(count: u32, login: impl Fn() -> Wire) -> Vec<Wire> {
    let mut writers: Vec<Wire> = (0..count).map(|_| login()).collect();
    writers
        .iter_mut()
        .for_each(|session| drop(session.ok(WRITE)));
    writers
}
