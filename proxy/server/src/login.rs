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
use pgpalisade_authority::Scope;
use pgpalisade_fence::ReplicationPermit;
use pgpalisade_logins::{ClientAddr, SessionLabel};
use pgpalisade_policies::{Access, PoolMode};
use pgpalisade_pool::ClientId;
use pgpalisade_session::tokens::TokenRequest;
use pgpalisade_session::{Beginning, ClientHalf, Session};
use pgpalisade_wire::backend::TransactionStatus;
use pgpalisade_wire::encode::{self, ReadyForQuery};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::OwnedSemaphorePermit;

use crate::backends::lending::{Seat, try_login};
use crate::backends::{self, UpstreamConnection};
use crate::certificates::{ClientLeg, Loaded};
use crate::client_table::{ClientEntry, ClientState, Encryption, Publisher};
use crate::listener::{Accepted, ClientStream};
use crate::passthrough::Passthrough;
use crate::pause;
use crate::pending_logins::PendingLogin;
use crate::pooling::SharedLogin;
use crate::relay::{Established, NotBegun, Parked, Relay, Served};
use crate::transport::{Lookout, Socket};
use crate::worker::Worker;

use channel_binding::Binding;
use context::LoginContext;
use error::{Insecure, LoginError, Silence};
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
            cause = listed.is_to_end() => Err(LoginError::of_cause(cause)),
        }
    };
    let outcome = tokio::select! {
        outcome = worker.shared.timers.timeout(worker.shared.limits.login_timeout, login) => outcome,
        () = worker.drain.cancelled() => return None,
    };
    match outcome {
        Ok(Ok((LoginOutcome::Session(session), place))) => {
            let left = worker
                .shared
                .limits
                .login_timeout
                .saturating_sub(begun.elapsed());
            // Boxed because it is as large as a session, which many connections never become.
            let shown = Publisher::new(Arc::clone(listed));
            let relay = Box::pin(begin(&worker, client, *session, left, shown)).await;
            drop(pending);
            return relay.map(|relay| (Served::Bound(relay), place));
        }
        Ok(Ok((LoginOutcome::Shared(login), place))) => {
            let shown = Publisher::new(Arc::clone(listed));
            let begun = Box::pin(begin_shared(&worker, client, *login, shown)).await;
            drop(pending);
            return begun.map(|served| (served, place));
        }
        // As with PostgreSQL, the client may send this and close.
        Ok(Ok((LoginOutcome::Cancel(packet), _place))) => {
            backends::cancel(&worker, &packet).await;
        }
        Ok(Ok((LoginOutcome::Replication(replication), _place))) => {
            drop(pending);
            let (established, permit) = (replication.established, replication.permit);
            let user = replication.label.user.as_str();
            tracing::info!(%client_addr, user, "a replication connection begins: it is not fenced");
            listed.set_state(ClientState::Streaming);
            let end = Passthrough::run(worker, client, established, permit, listed).await;
            tracing::info!(%client_addr, user, %end, "a replication connection ended");
        }
        Ok(Err(error)) => refuse(&worker.shared, &mut client, client_addr, &error).await,
        Err(_) => {
            let error = LoginError::Unanswered;
            refuse(&worker.shared, &mut client, client_addr, &error).await;
        }
    }
    None
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
async fn begin(
    worker: &Rc<Worker>,
    client: Socket,
    login: LoggedIn,
    within: Duration,
    shown: Publisher,
) -> Option<Box<Relay>> {
    let relay = Box::new(Relay::new(
        Rc::clone(worker),
        login.label,
        shown,
        login.session,
        client,
        login.established,
    ));
    begin_with(relay, login.wanted.as_ref(), &login.ready, within).await
}

/// Declares the tokens of a startup packet, and tells the client that it is ready.
async fn begin_with(
    mut relay: Box<Relay>,
    wanted: Option<&TokenRequest>,
    ready: &[u8],
    within: Duration,
) -> Option<Box<Relay>> {
    let worker = relay.worker();
    let client_addr = relay.client_addr();
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

/// Begins a session that shares server connections.
async fn begin_shared(
    worker: &Rc<Worker>,
    client: Socket,
    login: SharedSession,
    shown: Publisher,
) -> Option<Served> {
    let mut ready = BytesMut::new();
    encode::put(
        &mut ready,
        &ReadyForQuery::new(TransactionStatus::Idle.into()),
    );
    let client = (client, login.client_bytes);
    let listed = Arc::clone(shown.entry());
    let parked = Parked::new(worker, login.label, shown, login.half, client, login.seat);
    let mut parked = Box::new(parked);
    let Some(wanted) = &login.wanted else {
        parked.say(&ready);
        return Some(Served::Parked(parked));
    };
    let within = worker.shared.limits.login_timeout;
    let lending = tokio::select! {
        lent = parked.lend() => lent,
        // A connection with a token must not outlive it.
        _ = listed.is_to_end() => return None,
    };
    match lending {
        Ok(relay) => {
            let relay = begin_with(relay, Some(wanted), &ready, within).await?;
            Some(Served::Bound(relay))
        }
        Err((parked, error)) => {
            parked.refuse(error).await;
            None
        }
    }
}

enum LoginOutcome {
    Cancel(Bytes),
    Session(Box<LoggedIn>),
    Shared(Box<SharedSession>),
    Replication(ReplicationLogin),
}

struct LoggedIn {
    label: Arc<SessionLabel>,
    session: Session,
    wanted: Option<TokenRequest>,
    /// ReadyForQuery, held back.
    ready: Bytes,
    established: Established,
}

/// A client that is lent a server connection for each transaction.
struct SharedSession {
    label: Arc<SessionLabel>,
    half: Box<ClientHalf>,
    wanted: Option<TokenRequest>,
    seat: Seat,
    client_bytes: BytesMut,
}

struct ReplicationLogin {
    label: Arc<SessionLabel>,
    permit: ReplicationPermit,
    established: Established,
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
    if let Some(Err(lacks)) = leg.map(|leg| encryption::check(client, leg)) {
        let who = request.who(client_addr);
        return Err(LoginError::Insecure(Insecure { lacks, who }));
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
    let established = establish(worker, shown, client, carry, &request, entry, pending).await?;
    // This label has a process id.
    let (label, mode) = match &established {
        LoginOutcome::Session(session) => (&session.label, PoolMode::Session),
        LoginOutcome::Shared(session) => (&session.label, PoolMode::Transaction),
        LoginOutcome::Replication(replication) => (&replication.label, PoolMode::Session),
        LoginOutcome::Cancel(_) => return Ok((established, place)),
    };
    listed.admit(label, encryption, mode);
    Ok((established, place))
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
    shown: &Loaded,
    client: &mut Socket,
    mut carry: BytesMut,
    request: &StartupRequest,
    mut entry: LoginContext<'_>,
    pending: &mut PendingLogin,
) -> Result<LoginOutcome, LoginError> {
    let (scope, wanted) = entry.declared(request)?;
    let permit = entry.permit(request, wanted.as_ref())?;
    let own_place = entry.own_place(permit.as_ref())?;
    if permit.is_none() && own_place.is_none() && worker.backends.is_some() {
        let exchange = Exchange {
            client,
            carry: &mut carry,
            shown,
            user: request.user(),
            pending,
        };
        let (told, seat) = share(worker, exchange, request, entry.client()).await?;
        entry.on_authenticated(seat.backend_pid());
        return Ok(entry.shared(told, scope, wanted, (seat, carry)));
    }
    let mut server = connect(worker, request).await?;
    let mut legs = authentication::Legs {
        binding: Binding::between(client, shown, &server.socket),
        client,
        carry: &mut carry,
        server: &mut server.socket,
        shown,
    };
    let shared = &worker.shared;
    let authenticating = mediated::authenticate(&mut legs, shared, request, pending);
    let authenticated =
        UpstreamConnection::while_primary(server.tenure.as_ref(), authenticating).await?;
    entry.on_authenticated(authenticated.backend_pid);
    let established = Established {
        client_bytes: carry,
        server: server.socket,
        tenure: server.tenure,
        server_bytes: authenticated.server_carry,
        own_place,
    };
    if let Some(permit) = permit {
        client.write_all(&authenticated.ready).await?;
        return Ok(LoginOutcome::Replication(ReplicationLogin {
            label: Arc::new(entry.label),
            permit,
            established,
        }));
    }
    let LoginContext { label, fence, .. } = entry;
    let session = Session::new(Beginning {
        reported: authenticated.initial.reported,
        texts: authenticated.initial.texts,
        backend_pid: authenticated.backend_pid,
        fence,
        scope,
    });
    Ok(LoginOutcome::Session(Box::new(LoggedIn {
        label: Arc::new(label),
        session,
        wanted,
        ready: authenticated.ready,
        established,
    })))
}

impl LoginContext<'_> {
    /// The session of a client that shares server connections.
    fn shared(
        self,
        told: Option<Access>,
        scope: Option<Scope>,
        wanted: Option<TokenRequest>,
        (seat, client_bytes): (Seat, BytesMut),
    ) -> LoginOutcome {
        LoginOutcome::Shared(Box::new(SharedSession {
            half: Box::new(ClientHalf::begin(self.fence, scope, told)),
            label: Arc::new(self.label),
            wanted,
            seat,
            client_bytes,
        }))
    }
}

/// Authenticates a client that shares server connections. Returns the access mode that it was told, and its place.
async fn share(
    worker: &Rc<Worker>,
    mut exchange: Exchange<'_>,
    request: &StartupRequest,
    client: ClientId,
) -> Result<(Option<Access>, Seat), LoginError> {
    worker.gate.is_open().await;
    let (logins, pooling) = (&worker.shared.logins, &worker.shared.pooling);
    let obtain = async |login: &SharedLogin| try_login(worker, client, login).await;
    let login =
        pooled::authenticate(&mut exchange, logins, request.packet(), pooling, obtain).await?;
    let told = login.greeting.initial.reported.default_access();
    let seat = Seat::new(worker, client, login.login, login.cancel_key);
    Ok((told, seat))
}

/// TLS settings for a client; none on a unix socket, as with PostgreSQL.
const fn leg_of(client_addr: ClientAddr, shown: &Loaded) -> Option<&ClientLeg> {
    match client_addr {
        ClientAddr::Tcp(_) => shown.client.as_ref(),
        ClientAddr::Local => None,
    }
}
