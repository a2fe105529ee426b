//! From an accepted connection to a session: startup packet, authentication, and the tokens of the startup packet.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-START-UP>

mod authentication;
mod channel_binding;
mod context;
mod encryption;
mod error;
mod exchange;
mod mediated;
mod pooled;
mod proxied;
mod refusal;
mod startup;

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use pgpalisade_fence::ReplicationPermit;
use pgpalisade_logins::{ClientAddr, SessionLabel};
use pgpalisade_policies::PoolMode;
use pgpalisade_pool::ClientId;
use pgpalisade_session::token_request::TokenRequest;
use pgpalisade_session::{Beginning, ClientHalf, Session};
use pgpalisade_wire::backend::TransactionStatus;
use pgpalisade_wire::encode::{self, ReadyForQuery};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::OwnedSemaphorePermit;

use crate::backends::lending::Seat;
use crate::backends::try_login::try_login;
use crate::backends::{self, UpstreamConnection};
use crate::certificates::{ClientLeg, Loaded};
use crate::client_table::{ClientEntry, ClientState, Encryption, Publisher};
use crate::listener::{Accepted, ClientStream};
use crate::passthrough::Passthrough;
use crate::pause;
use crate::pending_logins::PendingLogin;
use crate::pooling::SharedLogin;
use crate::relay::{ClientSide, Established, NotBegun, Parked, Relay, Served};
use crate::transport::{Lookout, Socket};
use crate::worker::Worker;

use context::LoginContext;
use error::{LoginError, Silence};
use exchange::Exchange;
use refusal::refuse;
use startup::{StartupKind, StartupRequest};

/// Serves a client through its login, or to the end if it becomes no session.
pub(crate) async fn serve_client(
    worker: Rc<Worker>,
    accepted: Accepted,
    listed: &Arc<ClientEntry>,
) -> Option<(Served, OwnedSemaphorePermit)> {
    let mut pending = worker.shared.pending_logins.enter();
    let mut client_addr = accepted.client_addr;
    let mut client = match socket(&worker, accepted.stream) {
        Ok(client) => client,
        Err(error) => {
            tracing::debug!(%client_addr, %error, "cannot take over a connection");
            return None;
        }
    };
    let begun = Instant::now();
    let lookout = client.lookout();
    let login = async {
        tokio::select! {
            biased;
            login = log_in(&worker, &mut client, &mut client_addr, &mut pending, listed) => login,
            () = has_left(&worker, lookout) => Err(LoginError::ClientLeft),
            cause = listed.end.ordered() => Err(LoginError::Ended(cause)),
        }
    };
    let outcome = tokio::select! {
        // First, because a connection that has been handed over must not be dropped unseen.
        biased;
        outcome = worker.shared.timers.timeout(worker.shared.limits.login_timeout, login) => outcome,
        () = worker.drain.cancelled() => return None,
    };
    let (outcome, place) = match outcome.unwrap_or(Err(LoginError::Unanswered)) {
        Ok(done) => done,
        Err(error) => {
            refuse(&worker.shared, &mut client, client_addr, &error).await;
            return None;
        }
    };
    let login = match outcome {
        LoginOutcome::LoggedIn(login) => login,
        // As with PostgreSQL, the client may send this and close, or wait for the end.
        LoginOutcome::Cancel(packet) => {
            backends::cancel(&worker, &packet).await;
            client.shut_down_write();
            return None;
        }
    };
    if let Service::Replication(permit, established) = login.service {
        drop(pending);
        let user = login.label.user.as_str();
        tracing::info!(%client_addr, user, "a replication connection begins: it is not fenced");
        listed.set_state(ClientState::Streaming);
        let client = (client, login.client_bytes);
        let end = Passthrough::run(worker, client, established, permit, listed).await;
        tracing::info!(%client_addr, user, %end, "a replication connection ended");
        return None;
    }
    let served = begin(&worker, client, login, begun, listed).await;
    drop(pending);
    served.map(|served| (served, place))
}

fn socket(worker: &Worker, stream: ClientStream) -> io::Result<Socket> {
    match stream {
        ClientStream::Tcp(stream) => {
            let stream = TcpStream::from_std(stream)?;
            Socket::tcp(stream, worker.shared.limits.tcp_keepalive, &worker.sends)
        }
        ClientStream::Unix(stream) => Socket::unix(UnixStream::from_std(stream)?, &worker.sends),
    }
}

/// Begins a session. The client is told that it is ready once its startup packet's tokens are accepted.
///
/// Only what declares them is boxed: it is as large as a session.
async fn begin(
    worker: &Rc<Worker>,
    client: Socket,
    login: Box<LoggedIn>,
    begun: Instant,
    listed: &Arc<ClientEntry>,
) -> Option<Served> {
    let shown = Publisher::new(Arc::clone(listed));
    let client = ClientSide::new(worker, login.label, shown, client, login.client_bytes);
    let (wanted, limit) = (login.wanted.as_ref(), worker.shared.limits.login_timeout);
    let rest = || limit.saturating_sub(begun.elapsed());
    let relay = match login.service {
        Service::Own(session, established, ready) => {
            let relay = Box::new(Relay::new(client, session, established));
            Box::pin(begin_with(relay, wanted, &ready, rest())).await?
        }
        Service::Shared(half, seat) => {
            let mut ready = BytesMut::new();
            let idle = ReadyForQuery::new(TransactionStatus::Idle.into());
            encode::put(&mut ready, &idle);
            let mut parked = Parked::new(client, half, seat);
            let Some(declared) = wanted else {
                parked.say(&ready);
                return Some(Served::Parked(parked));
            };
            let lent = async move {
                let relay = parked.lend(declared, rest()).await?;
                begin_with(relay, wanted, &ready, rest()).await
            };
            Box::pin(lent).await?
        }
        Service::Replication(..) => return None,
    };
    Some(Served::Bound(relay))
}

/// Declares the tokens of a startup packet, and tells the client that it is ready.
async fn begin_with(
    mut relay: Box<Relay>,
    wanted: Option<&TokenRequest>,
    ready: &[u8],
    within: Duration,
) -> Option<Box<Relay>> {
    let (worker, client_addr) = (
        Rc::clone(&relay.client.worker),
        relay.client.label.client_addr,
    );
    let outcome = tokio::select! {
        outcome = worker.shared.timers.timeout(within, relay.begin(wanted, ready)) => outcome,
        () = worker.drain.cancelled() => return None,
    };
    let error = match outcome {
        Ok(Ok(())) => return Some(relay),
        Ok(Err(NotBegun::Ended(end))) => {
            relay.finish(end).await;
            return None;
        }
        Ok(Err(NotBegun::Refused(rejection))) => LoginError::Refused(rejection),
        Err(_) => LoginError::Unanswered,
    };
    if let Some(error) = refusal::words(&worker.shared.metrics, client_addr, &error) {
        relay.refuse(&error).await;
    }
    None
}

enum LoginOutcome {
    Cancel(Bytes),
    LoggedIn(Box<LoggedIn>),
}

/// A client that PostgreSQL has admitted.
struct LoggedIn {
    label: Arc<SessionLabel>,
    wanted: Option<TokenRequest>,
    /// Bytes that it has sent since.
    client_bytes: BytesMut,
    service: Service,
}

/// What serves a client.
enum Service {
    /// A server connection of its own, with ReadyForQuery, held back.
    Own(Session, Established, Bytes),
    /// A server connection that it is lent for each transaction.
    Shared(Box<ClientHalf>, Seat),
    Replication(ReplicationPermit, Established),
}

async fn log_in(
    worker: &Rc<Worker>,
    client: &mut Socket,
    client_addr: &mut ClientAddr,
    pending: &mut PendingLogin,
    listed: &Arc<ClientEntry>,
) -> Result<(LoginOutcome, OwnedSemaphorePermit), LoginError> {
    let mut carry = BytesMut::new();
    if worker.shared.limits.comes_proxied(*client_addr) {
        let header = proxied::read(client, &mut carry, *client_addr);
        let header = pending.unless_given_up(header).await;
        *client_addr = header.unwrap_or(Err(LoginError::NoStartup(Silence::Nothing)))?;
    }
    let client_addr = *client_addr;
    // Fixed until the end of the login.
    let certificates = worker.shared.certificates.current();
    let shown = certificates.as_ref();
    let leg = leg_of(client_addr, shown);
    let reading = startup::read(client, &mut carry, leg);
    let opening = pending.unless_given_up(reading).await;
    let request = match opening.unwrap_or(Err(LoginError::NoStartup(Silence::Nothing)))? {
        // A cancel request may be unencrypted, as with PostgreSQL: only its key counts.
        StartupKind::Cancel(packet) => {
            let place = pending.cancel_place().await;
            let place = place.ok_or(LoginError::NoStartup(Silence::Nothing))?;
            return Ok((LoginOutcome::Cancel(packet), place));
        }
        StartupKind::Startup(request) => request,
    };
    pending.answered();
    if let Some(leg) = leg {
        encryption::check(client, leg, || request.who(client_addr))?;
    }
    let place = pending.place().await.ok_or(LoginError::Full)?;
    let mut label = request.label(client_addr);
    label.common_name = client.peer_common_name();
    let encryption = if client.is_encrypted() {
        Encryption::Tls
    } else {
        Encryption::None
    };
    listed.set_label(&Arc::new(label.clone()), encryption);
    let entry = LoginContext::new(worker, label, listed);
    let exchange = Exchange {
        client,
        carry,
        shown,
        user: request.user(),
        pending,
    };
    let login = establish(worker, exchange, &request, entry).await?;
    let mode = match login.service {
        Service::Shared(..) => PoolMode::Transaction,
        Service::Own(..) | Service::Replication(..) => PoolMode::Session,
    };
    // This label has a process id.
    listed.admit(&login.label, encryption, mode);
    Ok((LoginOutcome::LoggedIn(Box::new(login)), place))
}

/// Returns when the client has left, so the login can be dropped at any step.
async fn has_left(worker: &Worker, client: Lookout) {
    loop {
        worker.shared.timers.sleep(pause::LOOK_EVERY).await;
        if client.is_closed_by_peer() {
            return;
        }
    }
}

/// Connects for a client once sessions may begin, and sends its startup packet.
async fn connect(
    worker: &Worker,
    request: &StartupRequest,
) -> Result<UpstreamConnection, LoginError> {
    worker.gate.is_open().await;
    let mut server = backends::connect(worker).await?;
    server.socket.write_all(request.packet()).await?;
    Ok(server)
}

/// Authenticates a client at PostgreSQL, and reads the tokens of its startup packet.
async fn establish(
    worker: &Rc<Worker>,
    mut exchange: Exchange<'_>,
    request: &StartupRequest,
    mut entry: LoginContext<'_>,
) -> Result<LoggedIn, LoginError> {
    let (scope, wanted) = entry.declared(request)?;
    let permit = entry.permit(request, wanted.as_ref())?;
    let own_place = entry.own_place(permit.as_ref())?;
    let service = if permit.is_none() && own_place.is_none() && worker.backends.is_some() {
        let client = ClientId(entry.listed.id);
        worker.gate.is_open().await;
        let (logins, pooling) = (&worker.shared.logins, &worker.shared.pooling);
        let obtain = async |login: SharedLogin| try_login(worker, client, login).await;
        let packet = request.packet();
        let login = pooled::authenticate(&mut exchange, logins, packet, pooling, obtain).await?;
        entry.on_authenticated(login.cancel_key.pid());
        let seat = Seat::new(worker, client, login.login, login.cancel_key);
        entry.check_marks(wanted.as_ref())?;
        let half = ClientHalf::shared(entry.fence, scope, login.greeting);
        Service::Shared(Box::new(half), seat)
    } else {
        let mut server = connect(worker, request).await?;
        let authenticating =
            mediated::authenticate(&mut exchange, &mut server.socket, &worker.shared);
        let authenticated =
            UpstreamConnection::while_primary(server.tenure.as_ref(), authenticating).await?;
        entry.on_authenticated(authenticated.backend_pid);
        let established = Established {
            server: server.socket,
            tenure: server.tenure,
            server_bytes: authenticated.server_carry,
            own_place,
        };
        if let Some(permit) = permit {
            exchange.client.write_all(&authenticated.ready).await?;
            Service::Replication(permit, established)
        } else {
            entry.check_marks(wanted.as_ref())?;
            let session = Session::new(Beginning {
                reported: authenticated.initial.reported,
                texts: authenticated.initial.texts,
                backend_pid: authenticated.backend_pid,
                fence: entry.fence,
                scope,
            });
            Service::Own(session, established, authenticated.ready)
        }
    };
    Ok(LoggedIn {
        label: Arc::new(entry.label),
        wanted,
        client_bytes: exchange.carry,
        service,
    })
}

/// TLS settings for a client; none on a unix socket, as with PostgreSQL.
const fn leg_of(client_addr: ClientAddr, shown: &Loaded) -> Option<&ClientLeg> {
    match client_addr {
        ClientAddr::Tcp(_) => shown.client.as_ref(),
        ClientAddr::Local => None,
    }
}
