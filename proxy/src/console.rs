//! The console: what the proxy knows of itself, and what operators tell it to do, for psql and the programs that read
//! pgbouncer's.
//!
//! On the main runtime, where no session is; what takes long is done on other threads. It speaks with the messages of
//! [`wire`](crate::wire), whose lengths are checked before they are trusted: whoever reaches it may be hostile, also
//! before a login.

mod command;
mod login;
mod pausing;
mod pgbouncer;
mod refusals;
mod session;
mod table;
mod tables;
mod takeovers;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::ShownKey;
use crate::in_force::InForce;
use crate::server::listener::{Accepted, Listener};
use crate::server::message_socket::MessageSocket;
use crate::server::worker::WorkerContext;
use crate::wire::encode::Severity;
use command::Command;
pub(crate) use login::Users;
use login::{Operator, Refused, Rights};
use session::Session;
use table::{RowIter, Rows, columns, object};

/// The only database.
const DATABASE: &str = "pgpalisade";

/// Admins at one time, and others: those who only read keep no admin out.
const OPERATORS_MAX: usize = 16;

/// Connections that have not logged in. The oldest gives way to the newest.
const LOGINS_MAX: usize = 16;

/// For a login.
const LOGIN_WITHIN: Duration = Duration::from_secs(10);

/// How long the listener rests after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// For all files that RELOAD reads.
const RELOAD_WITHIN: Duration = Duration::from_secs(30);

/// When the proxy is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// As soon as open transactions are over, or had their time.
    Now,
    /// When the last client has left by itself.
    WhenClientsHaveLeft,
}

/// Whom to tell how a reload went: what is wrong with the files, if anything.
pub(crate) type Reloaded = oneshot::Sender<Result<(), String>>;

/// Where orders go, to whoever obeys signals too.
#[derive(Debug, Clone)]
pub(crate) struct Orders {
    /// To read files again.
    pub(crate) reload: mpsc::Sender<Option<Reloaded>>,
    /// To end.
    pub(crate) stop: mpsc::Sender<Stop>,
}

impl Orders {
    /// With what those who obey receive. A reload that waits is one that does for those who come meanwhile.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Option<Reloaded>>, mpsc::Receiver<Stop>) {
        let ((reload, reloads), (stop, stops)) = (mpsc::channel(1), mpsc::channel(1));
        (Self { reload, stop }, reloads, stops)
    }
}

/// What is shown.
pub(crate) struct Facts {
    /// Who is connected, what was refused and counted, the policy, and the like.
    pub(crate) shared: WorkerContext,
    /// The configuration.
    pub(crate) settings: Vec<ShownKey>,
    /// The store, without passwords.
    pub(crate) authority: String,
    /// Which policy is in force, and how the last reload went.
    pub(crate) in_force: InForce,
}

impl Facts {
    /// The rows of a table as JSON, where it is one of those that HTTP shows: its name in small letters. An error says
    /// why it cannot be read now.
    pub(crate) async fn rows(
        &self,
        name: &str,
    ) -> Option<Result<impl ExactSizeIterator<Item = Value> + use<>, String>> {
        let is_shown = matches!(
            name,
            "scopes" | "sessions" | "rejections" | "overlaps" | "proxies" | "takeovers"
        );
        let mut tables = tables::TABLES.iter().filter(|_| is_shown);
        let table = tables.find(|table| table.name.eq_ignore_ascii_case(name))?;
        let rows: Result<RowIter, String> = match table.rows {
            Rows::Known(read) => Ok(Box::new(read(self).into_iter())),
            Rows::Many(read) => Ok(read(self)),
            Rows::Asked(ask) => ask(self).await.map(|rows| Box::new(rows.into_iter()) as _),
        };
        let columns = columns(table.columns);
        Some(rows.map(|rows| rows.map(move |row| object(&columns, row))))
    }
}

/// What the console needs of those who have started the proxy.
#[derive(Debug)]
pub(crate) struct ConsoleParts {
    /// Whom it lets in.
    pub(crate) users: Users,
    /// The configuration.
    pub(crate) settings: Vec<ShownKey>,
    /// Who does what it is told.
    pub(crate) orders: Orders,
}

/// An error that the client is told.
#[derive(Debug)]
struct Failure {
    sqlstate: &'static str,
    message: String,
    hint: &'static str,
}

impl Failure {
    fn new(sqlstate: &'static str, message: impl Into<String>, hint: &'static str) -> Self {
        let message = message.into();
        Self {
            sqlstate,
            message,
            hint,
        }
    }
}

/// Answers until it is dropped; those who are connected by then are answered to the end of the process.
#[derive(Debug)]
pub(crate) struct OpenConsole {
    /// Where it listens.
    pub(crate) listener: Arc<Listener>,
    _accepts: DropGuard,
}

/// What all its connections share.
struct Console {
    facts: Arc<Facts>,
    orders: Orders,
    users: Users,
    readers: Arc<Semaphore>,
    admins: Arc<Semaphore>,
}

impl OpenConsole {
    /// Begins to answer.
    pub(crate) fn open(listener: Listener, parts: ConsoleParts, facts: Arc<Facts>) -> Self {
        if let Ok(address) = listener.address() {
            tracing::info!(%address, "the console is open");
        }
        let console = Arc::new(Console {
            facts,
            orders: parts.orders,
            users: parts.users,
            readers: Arc::new(Semaphore::new(OPERATORS_MAX)),
            admins: Arc::new(Semaphore::new(OPERATORS_MAX)),
        });
        let (listener, closing) = (Arc::new(listener), CancellationToken::new());
        let (accepts, closed) = (Arc::clone(&listener), closing.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = accept(&accepts, &console) => {}
                () = closed.cancelled() => {}
            }
        });
        Self {
            listener,
            _accepts: closing.drop_guard(),
        }
    }
}

async fn accept(listener: &Listener, console: &Arc<Console>) {
    let mut logins: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok(accepted) => {
                logins.retain(|login| !login.is_finished());
                if logins.len() >= LOGINS_MAX
                    && let Some(oldest) = logins.pop_front()
                {
                    oldest.abort();
                }
                let login = tokio::spawn(log_in(accepted, Arc::clone(console)));
                logins.push_back(login.abort_handle());
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the console");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Brings one client through its login. What comes then is a task of its own, which gives way to nobody.
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
            let session = Session::new(console, operator, link);
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
        // Who has not logged in takes none.
        let (places, who) = match operator.rights {
            Rights::Read => (&self.readers, "operators who may read"),
            Rights::Admin => (&self.admins, "admins"),
        };
        let place = Arc::clone(places).try_acquire_owned().map_err(|_| {
            let message = format!("{OPERATORS_MAX} {who} are connected to the console already");
            let hint = "An operator who sends nothing for ten minutes is disconnected.";
            Failure::new("53300", message, hint)
        })?;
        login::welcome(link).await?;
        Ok((operator, place))
    }

    /// Does what is no SHOW.
    async fn obey(&self, command: Command, operator: &Operator) -> Result<(), Failure> {
        if command.only_reads() {
            return Ok(());
        }
        if operator.rights != Rights::Admin {
            return Err(Failure::new(
                "42501",
                format!("permission denied: {} is for admins", command.tag()),
                "console_admins names them.",
            ));
        }
        let tag = command.tag();
        tracing::info!(
            user = operator.user,
            order = tag,
            "an operator gave a command"
        );
        match command {
            Command::Show(_) | Command::Set => Ok(()),
            Command::Reload => self.reload().await,
            Command::Kill(id) => match self.facts.shared.connected.kill(id) {
                true => Ok(()),
                false => Err(Failure::new(
                    "42704",
                    format!("there is no client {id}"),
                    "SHOW CLIENTS shows the ids of connected clients.",
                )),
            },
            Command::Pause => self.pause().await,
            Command::Resume => self.resume().await,
            Command::Shutdown(stop) => self.orders.stop.send(stop).await.map_err(|_| ending()),
        }
    }

    async fn reload(&self) -> Result<(), Failure> {
        let (done, is_done) = oneshot::channel();
        let reloading = async {
            self.orders
                .reload
                .send(Some(done))
                .await
                .map_err(|_| ending())?;
            let done = is_done.await.map_err(|_| ending())?;
            done.map_err(|why| {
                Failure::new(
                    "F0000",
                    why,
                    "If a file has an error, what was in force stays in force.",
                )
            })
        };
        let late = |_| {
            Failure::new(
                "57014",
                "the files are not read yet",
                "See the log of pgpalisade.",
            )
        };
        tokio::time::timeout(RELOAD_WITHIN, reloading)
            .await
            .map_err(late)?
    }
}

fn ending() -> Failure {
    Failure::new("57P01", "the proxy is ending", "")
}
