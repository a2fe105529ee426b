//! The workers' pools as operators see them. Each worker is asked at that moment.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use pgpalisade_pool::{Access, BackendView};
use pgpalisade_wire::startup::{StartupPacket, parse};
use tokio::sync::{mpsc, oneshot};

use super::SharedLogin;
use super::backends::{Backends, Tokens};
use crate::metrics::{PoolSizes, ServerState};

/// Names in the startup packet of shared connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginNames {
    pub user: String,
    pub database: String,
    pub application_name: Option<String>,
}

#[derive(Debug)]
pub struct SharedServer {
    pub names: LoginNames,
    pub state: ServerState,
    /// `None` while it is being opened.
    pub opened: Option<Opened>,
    /// The client that has it, by its id in the client table.
    pub client: Option<u64>,
    /// Tokens that it is registered for, or that its client wants.
    pub tokens: Option<Tokens>,
    /// Whether no other client gets it any more.
    pub is_leaving: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Opened {
    pub pid: i32,
    pub at: SystemTime,
}

/// A client that waits for a server connection.
#[derive(Debug)]
pub struct WaitingClient {
    pub client: u64,
    pub names: LoginNames,
    pub waited: Duration,
}

/// All pools.
#[derive(Debug, Default)]
pub struct PoolView {
    pub servers: Vec<SharedServer>,
    pub waits: Vec<WaitingClient>,
}

/// Ways to ask the workers. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Pools(Arc<Mutex<Vec<mpsc::Sender<Question>>>>);

pub(crate) type Question = oneshot::Sender<PoolView>;

impl Pools {
    /// Asks all workers that have a pool. The caller bounds the wait.
    pub async fn view(&self) -> PoolView {
        let workers = self.0.lock().clone();
        let mut all = PoolView::default();
        for worker in workers {
            let (question, answer) = oneshot::channel();
            // A worker that has ended has no pool.
            let _ = worker.send(question).await;
            let view = answer.await.unwrap_or_default();
            all.servers.extend(view.servers);
            all.waits.extend(view.waits);
        }
        all
    }

    /// Questions to one more worker.
    pub(crate) fn questions(&self) -> mpsc::Receiver<Question> {
        let (sender, questions) = mpsc::channel(1);
        self.0.lock().push(sender);
        questions
    }
}

impl SharedLogin {
    pub(crate) fn names(&self) -> LoginNames {
        let message = match parse(&self.packet) {
            Ok(StartupPacket::Startup(message)) => Some(message),
            _ => None,
        };
        let get = |name| message.and_then(|message| message.get(name));
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let named = |name| get(name).filter(|bytes| !bytes.is_empty()).map(text);
        let user = named("user").unwrap_or_default();
        LoginNames {
            // PostgreSQL's own default.
            database: named("database").unwrap_or_else(|| user.clone()),
            application_name: named("application_name"),
            user,
        }
    }
}

impl Backends {
    /// Answers one operator after the other.
    pub(crate) async fn answer(&self, mut questions: mpsc::Receiver<Question>) {
        while let Some(question) = questions.recv().await {
            let _ = question.send(self.view());
        }
    }

    fn view(&self) -> PoolView {
        let (machine, now) = (self.machine.borrow(), self.now());
        let wait = |wait: pgpalisade_pool::Wait<'_, SharedLogin>| WaitingClient {
            client: wait.client.0,
            names: wait.login.names(),
            waited: now.saturating_sub(wait.since),
        };
        PoolView {
            servers: machine.backends().map(|of| self.server(&of)).collect(),
            waits: machine.waits().map(wait).collect(),
        }
    }

    fn server(&self, of: &BackendView<'_, SharedLogin, Tokens>) -> SharedServer {
        SharedServer {
            names: of.login.names(),
            state: of.activity,
            opened: self.opened.borrow().get(&of.id).copied(),
            client: of.client.map(|client| client.0),
            tokens: match of.access {
                Access::Tokens(tokens) => Some(Arc::clone(tokens)),
                Access::New | Access::ReadOnly => None,
            },
            is_leaving: of.is_leaving,
        }
    }

    pub(crate) fn sizes(&self) -> PoolSizes {
        let machine = self.machine.borrow();
        let mut sizes = PoolSizes {
            waiting: machine.waiting(),
            ..PoolSizes::default()
        };
        for backend in machine.backends() {
            sizes.pinned += usize::from(backend.is_pinned);
            if let Some(count) = sizes.connections.get_mut(backend.activity as usize) {
                *count += 1;
            }
        }
        sizes
    }
}
