//! The endpoints: one client for each, our own rotation, and a bound for every attempt.
//!
//! One client with several endpoints would spread the calls over all of them, also over one that hangs. So each
//! endpoint has a client of its own. All calls go to the same one until it fails or does not answer in time, then
//! to the next. One that is only slow may still answer: its attempt goes on beside the others, and what is called here
//! must bear being taken twice.
//!
//! Each connection reads the files with password, certificates and key again. So after a change of them a login that is
//! refused is made once more, over a new connection.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, GetOptions, GetResponse, Txn, TxnResponse};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::fault::{Fault, Kind};
use super::open::client_options;
use super::options::Options;

/// The longest that a call takes, with all its attempts. Less than the 5 s that a takeover has by default, so that
/// the client hears the reason; more than etcd needs to elect a leader (about 2 s).
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(4);
/// How long one endpoint may take to answer before the next is asked.
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(800);
/// Between two rounds over all endpoints.
const PAUSE: Duration = Duration::from_millis(50);
/// etcd lets a client ping every 5 s and disconnects it where it does so more often.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// All endpoints of an etcd cluster.
pub(super) struct Members {
    members: Vec<Member>,
    options: Options,
    /// Index of the endpoint in use.
    current: AtomicUsize,
    /// Where connections live: they must not end with the runtime of whoever calls first.
    runtime: Handle,
}

struct Member {
    url: String,
    slot: Mutex<Slot>,
}

/// The client of an endpoint, and how many it has had.
#[derive(Default)]
struct Slot {
    made: usize,
    client: Option<Client>,
}

/// A client, and which of the endpoint's clients it is.
#[derive(Clone)]
struct Connected {
    client: Client,
    number: usize,
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls = self.members.iter().map(|member| &member.url);
        f.debug_list().entries(urls).finish()
    }
}

/// The bounds and habits that every client has.
pub(super) fn habits() -> ConnectOptions {
    ConnectOptions::new()
        .with_connect_timeout(ATTEMPT_TIMEOUT)
        .with_keep_alive(KEEP_ALIVE, KEEP_ALIVE_TIMEOUT)
        .with_keep_alive_while_idle(false)
        // A member that has lost its leader says so at once, also on open watches.
        .with_require_leader(true)
        .with_auto_token_refresh(true)
}

impl Members {
    /// Connects to nobody yet. To be called inside the runtime that the connections shall live in.
    pub(super) fn new(options: &Options) -> Self {
        let member = |url: &String| Member {
            url: url.clone(),
            slot: Mutex::default(),
        };
        Self {
            members: options.urls.iter().map(member).collect(),
            options: options.clone(),
            current: AtomicUsize::new(0),
            runtime: Handle::current(),
        }
    }

    /// Takes a transaction; twice, where an answer is lost.
    pub(super) async fn txn(&self, txn: &Txn) -> Result<TxnResponse, Fault> {
        let ask = |client: Client| async move { client.kv_client().txn(txn.clone()).await };
        self.call(ask).await
    }

    /// Reads one key, or what the options say.
    pub(super) async fn get(&self, key: &[u8], options: &GetOptions) -> Result<GetResponse, Fault> {
        let ask = |client: Client| async move {
            client.kv_client().get(key, Some(options.clone())).await
        };
        self.call(ask).await
    }

    /// The first answer that an endpoint gives within [`CALL_TIMEOUT`].
    ///
    /// One that is silent is not waited for, nor given up: the next is asked beside it.
    pub(super) async fn call<T, F, A>(&self, ask: F) -> Result<T, Fault>
    where
        F: Fn(Client) -> A + Send + Sync,
        A: Future<Output = Result<T, etcd_client::Error>> + Send,
        T: Send,
    {
        let end = Instant::now() + CALL_TIMEOUT;
        let mut said: Vec<Option<String>> = vec![None; self.members.len()];
        let mut kind = Kind::Unavailable;
        let mut asked = FuturesUnordered::new();
        for attempt in 1_u32.. {
            let index = self.current.load(Ordering::Relaxed);
            let ask = &ask;
            asked.push(async move { (index, self.attempt(index, end, ask).await) });
            let until = end.min(Instant::now() + ATTEMPT_TIMEOUT);
            let (index, fault) = match timeout_at(until, asked.next()).await {
                Ok(Some((_, Ok(answer)))) => return Ok(answer),
                Ok(Some((index, Err(fault)))) => (index, fault),
                Ok(None) | Err(_) => {
                    self.forget(index);
                    (index, silent(ATTEMPT_TIMEOUT))
                }
            };
            if !matches!(fault.kind, Kind::Unavailable | Kind::Denied | Kind::Foreign) {
                return Err(fault);
            }
            kind = fault.kind;
            if let Some(said) = said.get_mut(index) {
                *said = Some(fault.text);
            }
            self.leave(index);
            let all_asked = attempt.is_multiple_of(self.count());
            // Wrong rights do not mend by waiting; another endpoint may be another etcd.
            if all_asked && kind != Kind::Unavailable {
                break;
            }
            if all_asked {
                sleep(PAUSE).await;
            }
            if Instant::now() + PAUSE >= end {
                break;
            }
        }
        Err(Fault::new(kind, self.summary(&said)))
    }

    /// A client of the endpoint in use, and its index for [`Self::leave`].
    pub(super) async fn current(&self) -> Result<(usize, Client), Fault> {
        let index = self.current.load(Ordering::Relaxed);
        let client = timeout(ATTEMPT_TIMEOUT, self.client(index)).await;
        let client = client.unwrap_or_else(|_| Err(silent(ATTEMPT_TIMEOUT)));
        match client {
            Ok(connected) => Ok((index, connected.client)),
            Err(fault) => {
                self.leave(index);
                Err(fault)
            }
        }
    }

    /// Takes the next endpoint, if this one is still in use.
    pub(super) fn leave(&self, index: usize) {
        let next = (index + 1).checked_rem(self.members.len()).unwrap_or(0);
        let left = self
            .current
            .compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
        if left.is_ok() && next != index {
            tracing::debug!(server = self.url(next), "etcd: next endpoint");
        }
    }

    /// The endpoints, in the order given.
    pub(super) fn urls(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| member.url.as_str())
    }

    /// One answer from one endpoint. A login over a connection of before may be refused because the password is another
    /// by now.
    pub(super) async fn attempt<T, F, A>(
        &self,
        index: usize,
        until: Instant,
        ask: &F,
    ) -> Result<T, Fault>
    where
        F: Fn(Client) -> A,
        A: Future<Output = Result<T, etcd_client::Error>>,
    {
        let is_connected = |member: &Member| member.get().is_some();
        let was_connected = self.members.get(index).is_some_and(is_connected);
        match self.answer(index, until, ask).await {
            Err(fault) if fault.kind == Kind::Denied && was_connected => {
                self.answer(index, until, ask).await
            }
            answer => answer,
        }
    }

    async fn answer<T, F, A>(&self, index: usize, until: Instant, ask: &F) -> Result<T, Fault>
    where
        F: Fn(Client) -> A,
        A: Future<Output = Result<T, etcd_client::Error>>,
    {
        let began = Instant::now();
        let mut number = None;
        let asked = async {
            let connected = self.client(index).await?;
            number = Some(connected.number);
            ask(connected.client).await.map_err(Fault::from)
        };
        let answer = timeout_at(until, asked).await;
        let answer = answer.unwrap_or_else(|_| Err(silent(until - began)));
        if let (Err(fault), Some(number)) = (&answer, number)
            && fault.kind != Kind::Compacted
        {
            // A connection that leads nowhere, or a login that is no longer good.
            self.discard(index, number);
        }
        answer
    }

    async fn client(&self, index: usize) -> Result<Connected, Fault> {
        let Some(member) = self.members.get(index) else {
            return Err(Fault::new(Kind::Foreign, "the endpoint does not exist"));
        };
        if let Some(connected) = member.get() {
            return Ok(connected);
        }
        let (url, options) = (member.url.clone(), self.options.clone());
        // A set, for it ends its task when it is dropped: a login may hang.
        let mut connecting = JoinSet::new();
        let connect = async move {
            let read = spawn_blocking(move || client_options(&options)).await;
            let options = read.map_err(|error| error.to_string());
            let options = options.and_then(|read| read.map_err(|error| error.to_string()));
            // They may be in the middle of being replaced.
            let options = options.map_err(|why| Fault::new(Kind::Unavailable, why))?;
            Client::connect([url], Some(options))
                .await
                .map_err(Fault::from)
        };
        connecting.spawn_on(connect, &self.runtime);
        match connecting.join_next().await {
            Some(Ok(client)) => Ok(member.put(client?)),
            _ => Err(Fault::new(Kind::Unavailable, "the runtime has ended")),
        }
    }

    /// Lets the next attempt connect anew, for this connection may lead nowhere.
    fn forget(&self, index: usize) {
        if let Some(member) = self.members.get(index) {
            member.slot.lock().client = None;
        }
    }

    fn discard(&self, index: usize, number: usize) {
        if let Some(member) = self.members.get(index) {
            member.discard(number);
        }
    }

    fn count(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }

    fn url(&self, index: usize) -> &str {
        self.urls().nth(index).unwrap_or_default()
    }

    fn summary(&self, said: &[Option<String>]) -> String {
        let heard = self.urls().zip(said);
        let lines = heard.filter_map(|(url, said)| Some(format!("{url}: {}", said.as_ref()?)));
        lines.collect::<Vec<_>>().join("; ")
    }
}

fn silent(waited: Duration) -> Fault {
    let waited = waited.as_millis();
    Fault::new(Kind::Unavailable, format!("no answer within {waited} ms"))
}

impl Member {
    fn get(&self) -> Option<Connected> {
        let slot = self.slot.lock();
        let number = slot.made;
        slot.client
            .clone()
            .map(|client| Connected { client, number })
    }

    /// Where two have connected at the same time, the second connection replaces the first, which ends when
    /// nobody uses it any more.
    fn put(&self, client: Client) -> Connected {
        let mut slot = self.slot.lock();
        slot.made += 1;
        slot.client = Some(client.clone());
        let number = slot.made;
        Connected { client, number }
    }

    fn discard(&self, number: usize) {
        let mut slot = self.slot.lock();
        if slot.made == number {
            slot.client = None;
        }
    }
}
