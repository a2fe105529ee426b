//! Two writers on one row: each takes the leadership from the other, reads the whole row, and writes it back with its
//! own next number appended. Without fencing a late write of one loses numbers of the other.
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
use super::plan::Pooler;
use super::stop::Stop;

/// Separate, so that little is decoded of the other database.
pub const DATABASE: &str = "shared_row";

/// `writer:number` for each entry.
pub const SETUP: &str =
    "CREATE TABLE shared (entries text NOT NULL); INSERT INTO shared VALUES ('')";

const SCOPE: &str = "row";
/// Far from the other leaders' numbers.
const FIRST_LEADER: u32 = 1 << 30;

/// State shared by the writers: the election, and their route to the proxies.
#[derive(Debug)]
pub struct Election<'a> {
    last_token: Mutex<u64>,
    proxies: &'a [SocketAddr],
    pooler: Option<Pooler>,
    patience: Duration,
    recorder: &'a Recorder,
    quiet: &'a RwLock<()>,
}

impl<'a> Election<'a> {
    /// Elections pause while another thread write-locks `quiet`.
    pub fn new(
        proxies: &'a [SocketAddr],
        pooler: Option<Pooler>,
        patience: Duration,
        recorder: &'a Recorder,
        quiet: &'a RwLock<()>,
    ) -> Self {
        Self {
            last_token: Mutex::new(0),
            proxies,
            pooler,
            patience,
            recorder,
            quiet,
        }
    }

    /// Elects the caller, as a bad election would: the old leader is not told.
    fn elect(&self) -> u64 {
        let mut last = self.last_token.lock().expect("tokens");
        *last += 1;
        *last
    }
}

/// A writer remembers its own next number, whatever it reads.
#[derive(Debug)]
struct Writer<'a> {
    election: &'a Election<'a>,
    number: u32,
    next: u64,
    /// Whether `next` may already be written: the answer was lost.
    doubt: Doubt,
    random: StdRng,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    None,
    MayBeThere,
}

/// Takes the leadership repeatedly and appends, until stopped.
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
    /// Leads under a new token until something fails. After a write with an unknown result a leader needs a new
    /// token: with the old one its own late write could still arrive.
    fn lead(&mut self, stop: &Stop) {
        let not_quiet = self.election.quiet.read().expect("elections");
        let token = self.election.elect();
        let leader = FIRST_LEADER + u32::try_from(token).expect("few elections");
        let reach = Reach {
            proxies: self.election.proxies,
            first: 0,
            pooler: self.election.pooler,
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
        while self.append(&mut accepted.client, token, stop) == Answer::Ok {
            if stop.sleep(Duration::from_millis(self.random.random_range(5..50))) {
                return;
            }
        }
    }

    /// Reads the row, waits, and writes it back with one more number.
    fn append(&mut self, client: &mut Client, token: u64, stop: &Stop) -> Answer {
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
        let update = format!("UPDATE shared SET entries = '{entries}{own}'");
        let answer = match self.election.pooler {
            Some(Pooler::Transaction) => {
                let set = format!("SET LOCAL fencing.token = 'default=1,{SCOPE}={token}'");
                client.query(&format!("BEGIN; {set}; {update}; COMMIT"))
            }
            _ => client.query(&update),
        };
        let answer = answer.answer;
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

/// In the order of the row.
pub fn entries(text: &str) -> Vec<(u32, u64)> {
    let read = |entry: &str| -> Option<(u32, u64)> {
        let (writer, number) = entry.split_once(':')?;
        Some((writer.parse().ok()?, number.parse().ok()?))
    };
    text.split_terminator(',')
        .map(|entry| read(entry).expect("an entry is writer:number"))
        .collect()
}
