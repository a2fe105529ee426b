//! The console: the proxy's state, and orders to it, for psql and programs that read pgbouncer's console.
//!
//! It runs on the main runtime, which has no sessions; slow work runs on other threads. It speaks with the messages
//! of [`pgpalisade_wire`], whose lengths are checked before they are trusted: a client may be hostile, even before its
//! login.

mod client;
mod command;
mod login;
mod pausing;
mod pgbouncer;
mod pools;
mod refusals;
mod table;
mod tables;
mod takeovers;

use std::sync::Arc;
use std::time::Duration;

use pgpalisade_server::leadership::Leaderships;
use pgpalisade_server::listener::{Accepted, Listener};
use pgpalisade_server::message_socket::MessageSocket;
use pgpalisade_server::worker::WorkerContext;
use pgpalisade_wire::encode::Severity;
use serde_json::Value;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::RawConfig;
use crate::in_force::InForce;
use crate::newest::accept_newest;
use crate::service_manager;
use client::ConsoleClient;
use command::Command;
pub(crate) use login::Users;
use login::{Operator, OperatorRole, Refused};
use table::{columns, object};

const DATABASE: &str = "pgpalisade";

/// Limit of admins, and separately of readers, so that readers keep no admin out.
const OPERATORS_MAX: usize = 16;

/// Connections that have not logged in. The newest replaces the oldest.
const LOGINS_MAX: usize = 16;

const LOGIN_WITHIN: Duration = Duration::from_secs(10);

const SEE_LOG: &str = "See the log of pgpalisade.";

const RELOAD_WITHIN: Duration = Duration::from_secs(30);

/// Tables that HTTP shows.
pub(crate) const OVER_HTTP: [&str; 6] = [
    "scopes",
    "takeovers",
    "rejections",
    "sessions",
    "pools",
    "proxies",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Once open transactions are over, or their time is up.
    Now,
    /// After the last client has left.
    WhenClientsHaveLeft,
}

pub(crate) type Reloaded = oneshot::Sender<Result<(), String>>;

/// Orders to this process, by signals and by the console.
#[derive(Debug, Clone)]
pub(crate) struct Orders {
    pub(crate) reload: mpsc::Sender<Option<Reloaded>>,
    /// A running or finished upgrade serves later requests too.
    pub(crate) upgrade: Arc<Notify>,
    /// Cancelled once a new process has taken over.
    pub(crate) replaced: CancellationToken,
    pub(crate) shutdown: CancellationToken,
    /// Cancelled: to end after the last client. Also cancelled with `shutdown`.
    pub(crate) closing: CancellationToken,
}

impl Orders {
    /// Capacity 1: a waiting reload serves later requests as well.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Option<Reloaded>>) {
        let (reload, reloads) = mpsc::channel(1);
        let shutdown = CancellationToken::new();
        let orders = Self {
            reload,
            upgrade: Arc::default(),
            replaced: CancellationToken::new(),
            closing: shutdown.child_token(),
            shutdown,
        };
        (orders, reloads)
    }

    pub(crate) fn stop(&self, stop: Stop) {
        match stop {
            Stop::Now => {
                tracing::info!("shutting down; a second signal ends it at once");
                if !self.replaced.is_cancelled() {
                    service_manager::stopping();
                }
                self.shutdown.cancel();
            }
            Stop::WhenClientsHaveLeft => {
                tracing::info!(
                    "no more clients are accepted; the proxy ends when the last one has left"
                );
                self.closing.cancel();
            }
        }
    }
}

pub(crate) struct Facts {
    pub(crate) shared: WorkerContext,
    pub(crate) leaderships: Leaderships,
    pub(crate) settings: RawConfig,
    pub(crate) authority: String,
    /// The policy in force, and the result of the last reload.
    pub(crate) in_force: InForce,
}

impl Facts {
    /// The rows of a table as JSON, if HTTP shows that table; its name is in lower case.
    pub(crate) async fn rows(
        self: &Arc<Self>,
        name: &str,
    ) -> Option<Result<impl ExactSizeIterator<Item = Value> + use<>, String>> {
        let mut tables = tables::all_tables().filter(|_| OVER_HTTP.contains(&name));
        let table = tables.find(|table| table.name.eq_ignore_ascii_case(name))?;
        let rows = table.read(self, |rows| rows).await;
        let columns = columns(table.columns);
        let objects = rows.map(|rows| rows.map(move |row| object(&columns, row)));
        Some(objects.map_err(|error| error.to_string()))
    }
}

/// An error for the client.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct ConsoleError {
    sqlstate: &'static str,
    message: String,
    hint: &'static str,
}

impl ConsoleError {
    fn new(sqlstate: &'static str, message: impl Into<String>) -> Self {
        Self {
            sqlstate,
            message: message.into(),
            hint: "",
        }
    }

    fn hint(self, hint: &'static str) -> Self {
        Self { hint, ..self }
    }
}

/// Accepts connections until dropped; open ones are served until the process ends.
#[derive(Debug)]
pub(crate) struct OpenConsole {
    pub(crate) listener: Arc<Listener>,
    _accepts: DropGuard,
}

struct Console {
    facts: Arc<Facts>,
    orders: Orders,
    users: Users,
    readers: Arc<Semaphore>,
    admins: Arc<Semaphore>,
}

impl OpenConsole {
    pub(crate) fn open(
        listener: Listener,
        users: Users,
        orders: Orders,
        facts: Arc<Facts>,
    ) -> Self {
        if let Ok(address) = listener.address() {
            tracing::info!(%address, "the console is open");
        }
        let console = Arc::new(Console {
            facts,
            orders,
            users,
            readers: Arc::new(Semaphore::new(OPERATORS_MAX)),
            admins: Arc::new(Semaphore::new(OPERATORS_MAX)),
        });
        let (listener, closing) = (Arc::new(listener), CancellationToken::new());
        let (accepts, closed) = (Arc::clone(&listener), closing.clone());
        tokio::spawn(closed.run_until_cancelled_owned(async move {
            let accept = || accepts.accept();
            let log_in = |accepted| log_in(accepted, Arc::clone(&console));
            accept_newest("to the console", LOGINS_MAX, accept, log_in).await;
        }));
        Self {
            listener,
            _accepts: closing.drop_guard(),
        }
    }
}

/// Handles a client's login. The session after it is a separate task, never evicted.
async fn log_in(accepted: Accepted, console: Arc<Console>) {
    let client_addr = accepted.client_addr;
    let mut link = match MessageSocket::new(accepted.stream) {
        Ok(link) => link,
        Err(error) => return tracing::debug!(%client_addr, %error, "a connection to the console"),
    };
    let admitting = tokio::time::timeout(LOGIN_WITHIN, console.admit(&mut link)).await;
    match admitting {
        Ok(Ok((operator, place))) => {
            let user = &operator.user;
            tracing::debug!(%client_addr, user, rights = ?operator.rights, "a login to the console");
            let session = ConsoleClient::new(console, operator, link);
            tokio::spawn(async move {
                session.run().await;
                drop(place);
            });
        }
        Ok(Err(Refused::Told(failure))) => {
            tracing::info!(%client_addr, error = failure.message, "a login to the console was refused");
            failure.put(Severity::Fatal, &mut link.out);
            link.close().await;
        }
        Ok(Err(error)) => tracing::debug!(%client_addr, %error, "a connection to the console"),
        Err(_) => tracing::debug!(%client_addr, "a login to the console took too long"),
    }
}

impl Console {
    async fn admit(
        &self,
        link: &mut MessageSocket,
    ) -> Result<(Operator, OwnedSemaphorePermit), Refused> {
        let operator = self.users.identify(link).await?;
        // A place is taken only after the login.
        let (places, who) = match operator.rights {
            OperatorRole::Read => (&self.readers, "operators who may read"),
            OperatorRole::Admin => (&self.admins, "admins"),
        };
        let place = Arc::clone(places).try_acquire_owned().map_err(|_| {
            let message = format!("{OPERATORS_MAX} {who} are connected to the console already");
            let hint = "An operator who sends nothing for ten minutes is disconnected.";
            ConsoleError::new("53300", message).hint(hint)
        })?;
        login::welcome(link).await?;
        Ok((operator, place))
    }

    async fn obey(&self, command: Command, operator: &Operator) -> Result<(), ConsoleError> {
        if command.only_reads() {
            return Ok(());
        }
        let (user, order) = (&operator.user, command.tag());
        if operator.rights != OperatorRole::Admin {
            let message = format!("permission denied: {order} is for admins");
            return Err(ConsoleError::new("42501", message).hint("console_admins names them."));
        }
        let client = if let Command::Kill(id) = command {
            Some(id)
        } else {
            None
        };
        tracing::info!(user, order, client, "an operator gave a command");
        match command {
            Command::Show(_) | Command::Set => Ok(()),
            Command::Reload => self.reload().await,
            Command::Kill(id) => {
                if self.facts.shared.connected.kill(id) {
                    return Ok(());
                }
                let no_client = ConsoleError::new("42704", format!("there is no client {id}"));
                Err(no_client.hint("SHOW CLIENTS shows the ids of connected clients."))
            }
            Command::Pause => self.pause().await,
            Command::Resume => self.resume().await,
            Command::Shutdown(stop) => {
                self.orders.stop(stop);
                Ok(())
            }
        }
    }

    async fn reload(&self) -> Result<(), ConsoleError> {
        let (done, is_done) = oneshot::channel();
        let reloading = async {
            let sent = self.orders.reload.send(Some(done)).await;
            sent.map_err(|_| ending())?;
            is_done.await.map_err(|_| ending())
        };
        let reloaded = tokio::time::timeout(RELOAD_WITHIN, reloading).await;
        let late = ConsoleError::new("57014", "the files are not read yet").hint(SEE_LOG);
        let hint = "If a file has an error, what was in force stays in force.";
        let failed = |why| ConsoleError::new("F0000", why).hint(hint);
        reloaded.map_err(|_| late)??.map_err(failed)
    }
}

fn ending() -> ConsoleError {
    ConsoleError::new("57P01", "the proxy is ending")
}
