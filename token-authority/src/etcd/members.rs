//! Endpoints of etcd: one client for each, our own rotation, and a limit for every attempt.
//!
//! One client with several endpoints would spread the calls over all of them, including one that hangs. Here all
//! calls go to one endpoint until it fails or does not answer in time, then to the next. Its attempt continues in
//! parallel, so every request must tolerate being executed twice.
//!
//! Each connection reads the files with password, certificates and key again. So a refused login is retried once over
//! a new connection.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Client, GetOptions, GetResponse, Txn, TxnResponse};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::connect::{ATTEMPT_TIMEOUT, client_options};
use super::fault::{EtcdFault, FaultKind};
use super::options::Options;

/// Limit of a call with all its attempts. Below a takeover's default of 5 s, so that the client gets the reason;
/// above the time in which etcd elects a leader (about 2 s).
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(4);
/// Pause between rounds over all endpoints.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Members {
    members: Vec<Member>,
    options: Options,
    current: AtomicUsize,
    /// Runtime of the connections, which must not end with the runtime of the first caller.
    runtime: Handle,
}

struct Member {
    url: String,
    /// The connection in use.
    client: Mutex<Option<Arc<Client>>>,
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls = self.members.iter().map(|member| &member.url);
        f.debug_list().entries(urls).finish()
    }
}

impl Members {
    /// Does not connect yet. Must be called in the runtime that will run the connections.
    pub(super) fn new(options: &Options) -> Self {
        let member = |url: &String| Member {
            url: url.clone(),
            client: Mutex::default(),
        };
        Self {
            members: options.urls.iter().map(member).collect(),
            options: options.clone(),
            current: AtomicUsize::new(0),
            runtime: Handle::current(),
        }
    }

    /// Spawns on the runtime of the connections.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(work));
    }

    /// Runs a transaction; twice, if an answer is lost.
    pub(super) async fn txn(&self, txn: &Txn) -> Result<TxnResponse, EtcdFault> {
        let ask = |client: Client| async move { client.kv_client().txn(txn.clone()).await };
        self.call(ask).await
    }

    pub(super) async fn get(
        &self,
        key: &[u8],
        options: &GetOptions,
    ) -> Result<GetResponse, EtcdFault> {
        let ask = |client: Client| async move {
            client.kv_client().get(key, Some(options.clone())).await
        };
        self.call(ask).await
    }

    /// First answer of an endpoint within [`CALL_TIMEOUT`].
    ///
    /// A silent endpoint stays asked, while the next is asked in parallel.
    pub(super) async fn call<T, F, A>(&self, ask: F) -> Result<T, EtcdFault>
    where
        F: Fn(Client) -> A + Send + Sync,
        A: Future<Output = Result<T, etcd_client::Error>> + Send,
        T: Send,
    {
        let end = Instant::now() + CALL_TIMEOUT;
        let mut said: Vec<Option<String>> = vec![None; self.members.len()];
        let mut kind = FaultKind::Unavailable;
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
                    // This connection may be dead: the next attempt reconnects.
                    if let Some(member) = self.members.get(index) {
                        *member.client.lock() = None;
                    }
                    (index, silent(ATTEMPT_TIMEOUT))
                }
            };
            if !matches!(
                fault.kind,
                FaultKind::Unavailable | FaultKind::Denied | FaultKind::Foreign
            ) {
                return Err(fault);
            }
            kind = fault.kind;
            if let Some(said) = said.get_mut(index) {
                *said = Some(fault.text);
            }
            self.leave(index);
            let all_asked = attempt.is_multiple_of(self.count());
            // Waiting does not mend wrong rights; another endpoint may be another etcd.
            if all_asked && kind != FaultKind::Unavailable {
                break;
            }
            if all_asked {
                sleep(PAUSE).await;
            }
            if Instant::now() + PAUSE >= end {
                break;
            }
        }
        Err(EtcdFault::new(kind, self.summary(&said)))
    }

    pub(super) async fn current(&self) -> Result<(usize, Arc<Client>), EtcdFault> {
        let index = self.current.load(Ordering::Relaxed);
        let client = timeout(ATTEMPT_TIMEOUT, self.client(self.member(index)?)).await;
        let client = client.unwrap_or_else(|_| Err(silent(ATTEMPT_TIMEOUT)));
        if client.is_err() {
            self.leave(index);
        }
        Ok((index, client?))
    }

    /// Moves to the next endpoint, if this one is still in use.
    pub(super) fn leave(&self, index: usize) {
        let next = (index + 1).checked_rem(self.members.len()).unwrap_or(0);
        let left = self
            .current
            .compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
        if left.is_ok() && next != index {
            tracing::debug!(server = self.url(next), "etcd: next endpoint");
        }
    }

    fn urls(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| member.url.as_str())
    }

    /// One answer from one endpoint. A refusal over an old connection is retried, because the password may have
    /// changed.
    async fn attempt<T, F, A>(&self, index: usize, until: Instant, ask: &F) -> Result<T, EtcdFault>
    where
        F: Fn(Client) -> A,
        A: Future<Output = Result<T, etcd_client::Error>>,
    {
        let member = self.member(index)?;
        let mut is_old = member.client.lock().is_some();
        loop {
            let began = Instant::now();
            let mut used = None;
            let asked = async {
                let client = used.insert(self.client(member).await?);
                Ok(ask(Client::clone(client)).await?)
            };
            let answer = timeout_at(until, asked).await;
            let answer = answer.unwrap_or_else(|_| Err(silent(until - began)));
            let Err(fault) = answer else {
                return answer;
            };
            if let Some(used) = used
                && fault.kind != FaultKind::Compacted
            {
                // A dead connection, or an expired login. Another task may have replaced it already.
                let mut client = member.client.lock();
                client.take_if(|client| Arc::ptr_eq(client, &used));
            }
            if fault.kind != FaultKind::Denied || !is_old {
                return Err(fault);
            }
            is_old = false;
        }
    }

    fn member(&self, index: usize) -> Result<&Member, EtcdFault> {
        let missing = || EtcdFault::new(FaultKind::Foreign, "the endpoint does not exist");
        self.members.get(index).ok_or_else(missing)
    }

    async fn client(&self, member: &Member) -> Result<Arc<Client>, EtcdFault> {
        if let Some(client) = &*member.client.lock() {
            return Ok(Arc::clone(client));
        }
        let (url, options) = (member.url.clone(), self.options.clone());
        // A set ends its task when dropped: a login may hang.
        let mut connecting = JoinSet::new();
        let connect = async move {
            let read = spawn_blocking(move || client_options(&options)).await;
            let options = read.unwrap_or_else(|error| Err(error.to_string()));
            // The files may be in the middle of a replacement.
            let options = options.map_err(EtcdFault::unavailable)?;
            Ok::<_, EtcdFault>(Client::connect([url], Some(options)).await?)
        };
        connecting.spawn_on(connect, &self.runtime);
        let Some(Ok(client)) = connecting.join_next().await else {
            return Err(EtcdFault::unavailable("the runtime has ended"));
        };
        // If two tasks connected at the same time, the second connection replaces the first, which ends after its last
        // use.
        let client = Arc::new(client?);
        *member.client.lock() = Some(Arc::clone(&client));
        Ok(client)
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

fn silent(waited: Duration) -> EtcdFault {
    EtcdFault::unavailable(format!("no answer within {} ms", waited.as_millis()))
}
