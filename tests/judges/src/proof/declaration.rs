//! All ways in which a leader declares its token and records it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;

use pgpalisade_test_servers::wire::{Batch, Endpoint};

use super::client::Client;
use super::history::{Answer, Event, Recorder, now};
use super::plan::Pooler;

#[derive(Debug)]
pub struct Declarer<'a> {
    pub leader: u32,
    pub scope: &'a str,
    pub token: u64,
    pub database: &'a str,
    pub reach: Reach<'a>,
}

/// Route of declarations to the proxies, and the recorder of events.
#[derive(Clone, Copy, Debug)]
pub struct Reach<'a> {
    pub proxies: &'a [SocketAddr],
    pub first: usize,
    pub pooler: Option<Pooler>,
    pub patience: Duration,
    pub recorder: &'a Recorder,
    pub ids: &'a AtomicU64,
}

#[derive(Debug)]
pub struct Accepted {
    pub client: Client,
    pub id: u64,
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Startup,
    Options,
    Set,
    ExtendedSet,
    SetInBlock,
    SetLocal,
}

const WAYS: [Way; 5] = [
    Way::Startup,
    Way::Options,
    Way::Set,
    Way::ExtendedSet,
    Way::SetInBlock,
];

/// PgBouncer knows neither `fencing.token` nor `options` in a startup packet.
fn ways(pooler: Option<Pooler>) -> &'static [Way] {
    match pooler {
        None | Some(Pooler::Pgpool) => &WAYS,
        Some(Pooler::Session | Pooler::Careless) => &[Way::Set, Way::ExtendedSet, Way::SetInBlock],
        Some(Pooler::Transaction) => &[Way::SetLocal],
    }
}

impl<'a> Declarer<'a> {
    pub fn announced(
        leader: u32,
        (scope, token): (&'a str, u64),
        database: &'a str,
        reach: Reach<'a>,
    ) -> Self {
        reach.recorder.record(&Event::Leader {
            leader,
            scope: scope.to_owned(),
            token,
        });
        Self {
            leader,
            scope,
            token,
            database,
            reach,
        }
    }

    pub fn next_id(&self) -> u64 {
        u64::from(self.leader) << 32 | self.reach.ids.fetch_add(1, Ordering::Relaxed)
    }

    pub fn declare(&self, random: &mut StdRng) -> Result<Accepted, Answer> {
        let recorder = self.reach.recorder;
        let door = self.reach.door(random);
        let proxy = door.proxy;
        // Every write also needs a token of scope `default`, so all leaders share one there.
        let value = format!("default=1,{}={}", self.scope, self.token);
        let id = self.next_id();
        let begin = |pid| {
            recorder.record(&Event::Declare {
                at: now(),
                id,
                leader: self.leader,
                proxy,
                pid,
            });
        };
        let end = |answer: &Answer| {
            recorder.record(&Event::Declared {
                at: now(),
                id,
                answer: answer.clone(),
            });
        };
        let client = door.declare(self.database, &value, random, &begin, &end)?;
        Ok(Accepted { client, id })
    }

    /// Records a token that the leader was given between `at` and now.
    pub(super) fn record_given(&self, id: u64, at: u64, proxy: usize) {
        let recorder = self.reach.recorder;
        recorder.record(&Event::Leader {
            leader: self.leader,
            scope: self.scope.to_owned(),
            token: self.token,
        });
        recorder.record(&Event::Declare {
            at,
            id,
            leader: self.leader,
            proxy,
            pid: None,
        });
        let (at, answer) = (now(), Answer::Ok);
        recorder.record(&Event::Declared { at, id, answer });
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Door {
    pub(super) proxy: usize,
    address: SocketAddr,
    pooler: Option<Pooler>,
    patience: Duration,
}

impl Reach<'_> {
    pub(super) fn door(&self, random: &mut StdRng) -> Door {
        let choice = random.random_range(0..self.proxies.len());
        Door {
            proxy: self.first + choice,
            address: self.proxies[choice],
            pooler: self.pooler,
            patience: self.patience,
        }
    }
}

impl Door {
    pub(super) fn login(&self, database: &str, more: &[(&str, &str)]) -> Result<Client, Answer> {
        let all = [&[("database", database)], more].concat();
        Client::login(&Endpoint::Tcp(self.address), &all, self.patience)
    }

    /// Declares a value in one of the ways. Calls `begin` before it, with the backend pid if known, and `end` with
    /// the answer.
    pub(super) fn declare(
        &self,
        database: &str,
        value: &str,
        random: &mut StdRng,
        begin: &dyn Fn(Option<u32>),
        end: &dyn Fn(&Answer),
    ) -> Result<Client, Answer> {
        let at_login = |name, value: &str| {
            begin(None);
            let accepted = self.login(database, &[(name, value)]);
            end(accepted.as_ref().err().unwrap_or(&Answer::Ok));
            accepted
        };
        let by_set = |before: &[&str], set: &Batch, after: &[&str]| {
            let mut client = self.login(database, &[])?;
            // A pooler takes a connection only now, and its own number is none of a server process.
            let pid = match self.pooler {
                None => client.backend_pid(),
                Some(_) => good(client.query("SELECT 1").answer).map(|()| None)?,
            };
            for sql in before {
                good(client.query(sql).answer)?;
            }
            begin(pid);
            let answer = client.exchange(set, 1).answer;
            end(&answer);
            good(answer)?;
            for sql in after {
                good(client.query(sql).answer)?;
            }
            Ok(client)
        };
        let set = format!("SET fencing.token = '{value}'");
        let query = Batch::new().query(&set);
        let ways = ways(self.pooler);
        match ways[random.random_range(0..ways.len())] {
            Way::Startup => at_login("fencing.token", value),
            Way::Options => at_login("options", &format!("-c fencing.token={value}")),
            Way::Set => by_set(&[], &query, &[]),
            Way::ExtendedSet => by_set(&[], &Batch::new().statement(&set).sync(), &[]),
            Way::SetInBlock => by_set(&["BEGIN"], &query, &["COMMIT"]),
            Way::SetLocal => {
                let local = format!("SET LOCAL fencing.token = '{value}'");
                by_set(&["BEGIN"], &Batch::new().query(&local), &["COMMIT"])
            }
        }
    }
}

fn good(answer: Answer) -> Result<(), Answer> {
    match answer {
        Answer::Ok => Ok(()),
        other => Err(other),
    }
}
