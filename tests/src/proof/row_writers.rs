//! Two writers on one row: each takes the leadership from the other, reads the whole row, and writes it back
//! with its own next number at the end. Without fencing the late write of one loses numbers of the other.
//!
//! The idea is the test of hashicorp/vault#23013.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, RwLock};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::client::Client;
use super::declaration::{Declarer, Reach};
use super::history::{Answer, Event, Recorder};
use super::stop::Stop;

/// The row lives in a database of its own, so that what is decoded of the other one stays small.
pub const DATABASE: &str = "shared_row";

/// What it looks like: `writer:number` for each entry.
pub const SETUP: &str =
    "CREATE TABLE shared (entries text NOT NULL); INSERT INTO shared VALUES ('')";

/// The scope of both writers.
const SCOPE: &str = "row";
/// A leader's own number is counted up from here, far from the others'.
const FIRST_LEADER: u32 = 1 << 30;

/// What both writers share: the election, and where events go.
#[derive(Debug)]
pub struct Election<'a> {
    last_token: Mutex<u64>,
    proxies: &'a [SocketAddr],
    patience: Duration,
    recorder: &'a Recorder,
    quiet: &'a RwLock<()>,
}

impl<'a> Election<'a> {
    /// Nobody has been elected yet, and nobody is while somebody else holds `quiet`.
    pub fn new(
        proxies: &'a [SocketAddr],
        patience: Duration,
        recorder: &'a Recorder,
        quiet: &'a RwLock<()>,
    ) -> Self {
        Self {
            last_token: Mutex::new(0),
            proxies,
            patience,
            recorder,
            quiet,
        }
    }

    /// Elects whoever asks, as a bad election would: the old leader is not told.
    fn elect(&self) -> u64 {
        let mut last = self.last_token.lock().expect("tokens");
        *last += 1;
        *last
    }
}

/// One of the writers. It remembers its own next number, whatever it reads.
#[derive(Debug)]
struct Writer<'a> {
    election: &'a Election<'a>,
    number: u32,
    next: u64,
    /// Whether `next` may be there already: the answer to writing it was lost.
    doubt: Doubt,
    random: StdRng,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    None,
    MayBeThere,
}

/// Takes the leadership again and again and appends, until it is stopped.
pub fn write(election: &Election<'_>, number: u32, seed: u64, stop: &Stop) {
    let mut writer = Writer {
        election,
        number,
        next: 1,
        doubt: Doubt::None,
        random: StdRng::seed_from_u64(seed),
    };
    loop {
        let rest = Duration::from_millis(writer.random.random_range(10..300));
        if stop.sleep(rest) {
            return;
        }
        writer.lead(stop);
    }
}

impl Writer<'_> {
    /// Leads under a new token until something goes wrong. After a write of which it does not know, a leader needs a
    /// new token: with the old one its own late write could still come.
    fn lead(&mut self, stop: &Stop) {
        let not_quiet = self.election.quiet.read().expect("elections");
        let token = self.election.elect();
        let leader = FIRST_LEADER + u32::try_from(token).expect("few elections");
        let reach = Reach {
            proxies: self.election.proxies,
            first: 0,
            patience: self.election.patience,
            recorder: self.election.recorder,
            ids: &AtomicU64::new(1),
        };
        let declarer = Declarer::announced(leader, (SCOPE, token), DATABASE, reach);
        let Ok(mut accepted) = declarer.declare(&mut self.random) else {
            return;
        };
        drop(not_quiet);
        accepted.client.set_patience(Duration::from_secs(2));
        while self.append(&mut accepted.client, stop) == Answer::Ok {
            if stop.sleep(Duration::from_millis(self.random.random_range(5..50))) {
                return;
            }
        }
    }

    /// Reads the row, thinks, and writes it back with one number more.
    fn append(&mut self, client: &mut Client, stop: &Stop) -> Answer {
        let read = client.query("SELECT entries FROM shared");
        let Some(entries) = read.value() else {
            return Answer::Lost;
        };
        let own = format!("{}:{},", self.number, self.next);
        if self.doubt == Doubt::MayBeThere && entries.split_inclusive(',').any(|entry| entry == own)
        {
            self.doubt = Doubt::None;
            self.next += 1;
            return Answer::Ok;
        }
        self.doubt = Doubt::None;
        // As a process that is paused between its read and its write.
        let pause = if self.random.random_bool(0.1) {
            self.random.random_range(200..1_000)
        } else {
            self.random.random_range(0..15)
        };
        stop.sleep(Duration::from_millis(pause));
        let (writer, number) = (self.number, self.next);
        self.election
            .recorder
            .record(&Event::Append { writer, number });
        let answer = client
            .query(&format!("UPDATE shared SET entries = '{entries}{own}'"))
            .answer;
        match &answer {
            Answer::Ok => self.next += 1,
            Answer::Error(code) if code == "PF001" => {}
            _ => self.doubt = Doubt::MayBeThere,
        }
        self.election.recorder.record(&Event::Appended {
            writer,
            number,
            answer: answer.clone(),
        });
        answer
    }
}

/// The entries of the row, in its order.
///
/// # Panics
/// When they are no entries.
pub fn entries(text: &str) -> Vec<(u32, u64)> {
    let read = |entry: &str| -> Option<(u32, u64)> {
        let (writer, number) = entry.split_once(':')?;
        Some((writer.parse().ok()?, number.parse().ok()?))
    };
    text.split_terminator(',')
        .map(|entry| read(entry).expect("an entry is writer:number"))
        .collect()
}
