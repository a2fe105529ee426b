//! A process that believes that it leads: it declares its token, reads the table, and writes over several sessions
//! until it learns that it is stale. It does not stop earlier than its lifetime.

use pgpalisade_test_servers::wire::Endpoint;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum as _;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::client::Client;
use super::declaration::{Accepted, Declarer, Reach};
use super::history::{Answer, Event, Recorder, Row, Tally, now};
use super::listeners::Listener;
use super::plan::Pooler;
use super::program;
use super::shapes::Shape;
use super::take::take;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    pub leader: u32,
    pub scope: String,
    /// Source of its fencing token.
    pub number: Number,
    pub proxies: Vec<SocketAddr>,
    pub pooler: Option<Pooler>,
    /// PostgreSQL's own socket, to read its log position past all links. `None` if a failover may lead to another
    /// server.
    pub direct: Option<PathBuf>,
    pub history: PathBuf,
    pub seed: u64,
    /// Number of concurrent writing sessions.
    pub sessions: u64,
    /// Share of writes that first declare the token again, besides that shape's own share.
    pub again: f64,
    /// Fenced or not.
    pub lifetime: Duration,
    /// For the answer to a declaration.
    pub patience: Duration,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Number {
    Given(u64),
    Taken,
    /// Given by `pgpalisade elect`, which starts it once it has the lease of its scope through this proxy.
    Elected(SocketAddr),
    /// Given by a listener to each connection.
    Led(Listener),
}

/// A stale leader that asks again is refused again; these attempts are enough.
const REFUSALS_MAX: usize = 3;

/// Log position and timeline of the session's server.
const STANDS: &str = ", pg_current_wal_flush_lsn() - '0/0', \
    ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int";

pub(super) struct Leader<'a> {
    pub(super) task: &'a Task,
    pub(super) token: u64,
    pub(super) recorder: Recorder,
    ids: AtomicU64,
    rows: AtomicU64,
    end: Instant,
    refusals: Mutex<usize>,
}

/// Leads until the end of its lifetime, or until every session has learned that this leader is stale.
pub fn lead(task: &Task) {
    let mut leader = Leader::new(task, 0);
    let mut random = StdRng::seed_from_u64(task.seed);
    let first = match task.number {
        Number::Led(listener) => return program::work(task, listener),
        Number::Given(token) => leader.lead_with(token, &mut random),
        Number::Taken => leader.take(&mut random),
        Number::Elected(_) => {
            let token = std::env::var("FENCING_TOKEN").expect("the token of the term");
            let token = token.parse().expect("a token is a number");
            leader.record_take(token);
            leader.lead_with(token, &mut random)
        }
    };
    let Some(first) = first else {
        return;
    };
    std::thread::scope(|scope| {
        for number in 1..task.sessions {
            let (leader, seed) = (&leader, task.seed.wrapping_add(number));
            scope.spawn(move || leader.write_on(None, StdRng::seed_from_u64(seed)));
        }
        leader.write_on(Some(first), random);
    });
}

impl<'a> Leader<'a> {
    pub(super) fn new(task: &'a Task, token: u64) -> Self {
        Self {
            task,
            token,
            recorder: Recorder::open(&task.history).expect("open the history"),
            ids: AtomicU64::new(1),
            rows: AtomicU64::new(1),
            end: Instant::now() + task.lifetime,
            refusals: Mutex::new(0),
        }
    }

    pub(super) fn declarer(&self) -> Declarer<'_> {
        Declarer {
            leader: self.task.leader,
            scope: &self.task.scope,
            token: self.token,
            database: "postgres",
            reach: Reach {
                proxies: &self.task.proxies,
                first: 0,
                pooler: self.task.pooler,
                patience: self.task.patience,
                recorder: &self.recorder,
                ids: &self.ids,
            },
        }
    }

    pub(super) fn goes_on(&self) -> bool {
        Instant::now() < self.end && *self.refusals.lock().expect("refusals") < REFUSALS_MAX
    }

    fn note(&self, answer: &Answer) {
        if answer.sqlstate() == Some("PF001") {
            *self.refusals.lock().expect("refusals") += 1;
        }
    }

    fn lead_with(&mut self, token: u64, random: &mut StdRng) -> Option<Client> {
        self.token = token;
        self.recorder.record(&Event::Leader {
            leader: self.task.leader,
            scope: self.task.scope.clone(),
            token,
        });
        self.take_over(random)
    }

    /// Records the token that its election has taken for it exclusively.
    fn record_take(&self, token: u64) {
        let id = self.declarer().next_id();
        self.recorder.record(&Event::Take {
            id,
            at: now(),
            scope: self.task.scope.clone(),
            after: None,
        });
        let token = Some(token);
        self.recorder.record(&Event::Taken { id, token });
    }

    /// A lock without a number: every candidate believes that it holds it, and takes the next token.
    fn take(&mut self, random: &mut StdRng) -> Option<Client> {
        while self.goes_on() {
            if let Some(taken) = take(&self.declarer(), random) {
                self.token = taken.token;
                return self.look(taken.accepted, random);
            }
            pause(random, 5..100);
        }
        None
    }

    /// Declares until accepted, then takes the first snapshot and the position of PostgreSQL's log.
    fn take_over(&self, random: &mut StdRng) -> Option<Client> {
        while self.goes_on() {
            match self.declarer().declare(random) {
                Ok(accepted) => return self.look(accepted, random),
                Err(answer) => self.note(&answer),
            }
            pause(random, 5..100);
        }
        None
    }

    /// Reads the position or the snapshot first: whichever comes immediately is the stricter check.
    pub(super) fn look(&self, accepted: Accepted, random: &mut StdRng) -> Option<Client> {
        let Accepted { mut client, id } = accepted;
        let position_first = random.random_bool(0.5);
        let position = || {
            if let Some(direct) = &self.task.direct {
                self.position(id, direct);
            }
        };
        if position_first {
            position();
        }
        // After a failover only the session itself leads to the server that it has seen. The position comes last, to
        // cover the whole snapshot.
        let stands = match self.task.direct {
            Some(_) => "",
            None => STANDS,
        };
        let sql = format!(
            "SELECT count(*), coalesce(bit_xor(id), 0){stands} FROM writes WHERE scope = '{}' AND token < {}",
            self.task.scope, self.token
        );
        let reply = client.query(&sql);
        self.note(&reply.answer);
        if let Some(seen) = tally(&reply.rows) {
            let at = now();
            self.recorder.record(&Event::Snapshot { id, at, seen });
        }
        if let Some([_, _, lsn, timeline]) = reply.rows.first().map(Vec::as_slice) {
            let (lsn, timeline) = (lsn.parse().expect("a position"), timeline.parse().ok());
            self.recorder.record(&Event::Position { id, lsn, timeline });
        }
        if !position_first {
            position();
        }
        // A leader that was fenced meanwhile still tries to write, on purpose.
        Some(client)
    }

    /// Records the position of PostgreSQL's log. PostgreSQL may be down; a later position is valid but less strict.
    fn position(&self, id: u64, direct: &Path) {
        let direct = Endpoint::Unix(direct.to_owned());
        while Instant::now() < self.end {
            let lsn = Client::login(&direct, &[], self.task.patience).map(|mut client| {
                let reply = client.query("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn");
                reply.value().and_then(|lsn| lsn.parse().ok())
            });
            if let Ok(Some(lsn)) = lsn {
                let timeline = None;
                self.recorder.record(&Event::Position { id, lsn, timeline });
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn write_on(&self, mut session: Option<Client>, mut random: StdRng) {
        while self.goes_on() {
            let client = match session.take() {
                Some(client) => client,
                None => match self.declarer().declare(&mut random) {
                    Ok(accepted) => accepted.client,
                    Err(answer) => {
                        self.note(&answer);
                        pause(&mut random, 5..150);
                        continue;
                    }
                },
            };
            session = self.write(client, &mut random);
        }
    }

    /// Returns the session if all went well and it holds its token.
    pub(super) fn write(&self, mut client: Client, random: &mut StdRng) -> Option<Client> {
        client.set_patience(Duration::from_millis(random.random_range(300..4_000)));
        let shapes = match self.task.number {
            Number::Led(_) => Shape::undeclared(),
            _ => Shape::value_variants(),
        };
        let shape = if random.random_bool(self.task.again) {
            Shape::DeclaredAgain
        } else {
            shapes[random.random_range(0..shapes.len())]
        };
        let rows: Vec<Row> = (0..random.random_range(1..=shape.rows_max()))
            .map(|_| Row {
                id: u64::from(self.task.leader) << 24 | self.rows.fetch_add(1, Ordering::Relaxed),
                scope: self.task.scope.clone(),
                token: self.token,
            })
            .collect();
        let id = self.declarer().next_id();
        self.recorder.record(&Event::Write {
            at: now(),
            id,
            leader: self.task.leader,
            shape: format!("{shape:?}"),
            rows: rows.iter().map(|row| row.id).collect(),
        });
        let mut answer = Answer::Ok;
        let steps = match self.task.pooler {
            Some(Pooler::Transaction) => shape.steps_in_a_block(&rows),
            _ => shape.steps(&rows),
        };
        for batch in steps {
            answer = client.exchange(&batch, 1).answer;
            if answer != Answer::Ok {
                break;
            }
            // Delays an old leader between two steps, so that a takeover finds its transaction open.
            if random.random_bool(0.3) {
                pause(random, 1..60);
            }
        }
        self.note(&answer);
        let good = answer == Answer::Ok;
        let at = now();
        self.recorder.record(&Event::Written { at, id, answer });
        pause(random, 1..30);
        (good && shape != Shape::LocalToken).then_some(client)
    }
}

pub(super) fn pause(random: &mut StdRng, milliseconds: std::ops::Range<u64>) {
    std::thread::sleep(Duration::from_millis(random.random_range(milliseconds)));
}

pub(super) fn tally(rows: &[Vec<String>]) -> Option<Tally> {
    let [rows, fold, ..] = rows.first()?.as_slice() else {
        return None;
    };
    Some(Tally {
        rows: rows.parse().ok()?,
        fold: fold.parse().ok()?,
    })
}
