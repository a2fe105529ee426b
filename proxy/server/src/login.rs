//! From an accepted connection to a session: startup packet, PostgreSQL's own authentication relayed
//! byte for byte, and the token of the startup packet.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-START-UP>

mod authentication;
mod channel_binding;
mod context;
mod encryption;
mod error;
mod mediated;
mod proxied;
mod refusal;
mod startup;
mod upstream;

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::OwnedSemaphorePermit;

use crate::arrivals::Arrival;
use crate::certificates::{ClientLeg, Loaded};
use crate::client_table::{ClientEntry, ClientState, Encryption, Publisher};
use crate::fence::ReplicationPermit;
use crate::listener::{Accepted, ClientStream};
use crate::passthrough::Passthrough;
use crate::pause;
use crate::rejection_log::{ClientAddr, SessionLabel};
use crate::relay::{Established, NotBegun, Relay};
use crate::session::tokens::TokenRequest;
use crate::session::{Beginning, Session};
use crate::transport::{Lookout, Socket};
use crate::worker::Worker;

use channel_binding::Binding;
use context::LoginContext;
use error::{Insecure, LoginError, Silence};
use refusal::refuse;
use startup::{StartupKind, StartupRequest};
use upstream::Connected;

/// Serves one client from its first byte to its login, and to its end where that makes it no session.
pub(crate) async fn serve_client(
    worker: Rc<Worker>,
    accepted: Accepted,
    listed: &Arc<ClientEntry>,
) -> Option<(Relay, OwnedSemaphorePermit)> {
    let mut arrival = worker.shared.arrivals.enter();
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
            login = log_in(&worker, &mut client, &mut client_addr, &mut arrival, listed) => login,
            () = has_left(&worker, lookout) => Err(LoginError::ClientLeft),
            _ = listed.is_to_end() => Err(LoginError::Killed),
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
            // In a box, for it is as large as a session, and many connections never come so far.
            let shown = Publisher::new(Arc::clone(listed));
            let relay = Box::pin(begin(&worker, client, *session, left, shown)).await;
            drop(arrival);
            return relay.map(|relay| (relay, place));
        }
        // The client is not waited for: as to PostgreSQL, it may send this and close.
        Ok(Ok((LoginOutcome::Cancel(packet), _place))) => {
            upstream::forward_cancel(&worker, &packet).await;
        }
        Ok(Ok((LoginOutcome::Replication(stream), _place))) => {
            drop(arrival);
            let Stream {
                label,
                passage,
                established,
            } = stream;
            let user = label.user.as_str();
            tracing::info!(%client_addr, user, "a replication connection begins: it is not fenced");
            listed.set_state(ClientState::Streaming);
            let end = Passthrough::run(worker, client, established, passage, listed).await;
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

/// Begins a session: the client is told that it is ready once the tokens of its startup packet are accepted.
async fn begin(
    worker: &Rc<Worker>,
    client: Socket,
    login: LoggedIn,
    within: Duration,
    shown: Publisher,
) -> Option<Relay> {
    let LoggedIn {
        label,
        session,
        wanted,
        ready,
        established,
    } = login;
    let client_addr = label.client_addr;
    let mut relay = Relay::new(
        Rc::clone(worker),
        label,
        shown,
        session,
        client,
        established,
    );
    let outcome = tokio::select! {
        outcome = worker.shared.timers.timeout(within, relay.begin(wanted.as_ref(), &ready)) => outcome,
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

/// What a login has led to, without its client's socket.
enum LoginOutcome {
    /// A packet for PostgreSQL, which cancels a statement of another session.
    Cancel(Bytes),
    Session(Box<LoggedIn>),
    Replication(Stream),
}

/// A session of the fence that the server has authenticated.
struct LoggedIn {
    label: Arc<SessionLabel>,
    session: Session,
    /// The tokens of its startup packet.
    wanted: Option<TokenRequest>,
    /// ReadyForQuery, not passed on yet.
    ready: Bytes,
    established: Established,
}

/// A replication connection, which is exempt as a whole.
struct Stream {
    label: Arc<SessionLabel>,
    passage: ReplicationPermit,
    established: Established,
}

async fn log_in(
    worker: &Worker,
    client: &mut Socket,
    client_addr: &mut ClientAddr,
    arrival: &mut Arrival,
    listed: &ClientEntry,
) -> Result<(LoginOutcome, OwnedSemaphorePermit), LoginError> {
    let mut carry = BytesMut::new();
    if worker.shared.limits.comes_proxied(*client_addr) {
        let header = proxied::read(client, &mut carry, *client_addr);
        let header = arrival.unless_given_up(header).await;
        *client_addr = header.unwrap_or(Err(LoginError::NoStartup(Silence::Nothing)))?;
    }
    let client_addr = *client_addr;
    // What the client is shown, up to the end of its login.
    let certificates = worker.shared.certificates.current();
    let shown = certificates.as_ref();
    let leg = leg_of(client_addr, shown);
    let reading = startup::read(client, &mut carry, leg);
    let opening = arrival.unless_given_up(reading).await;
    let request = match opening.unwrap_or(Err(LoginError::NoStartup(Silence::Nothing)))? {
        // It may come in the clear, as at PostgreSQL: many clients send it so, and its key is all that counts.
        StartupKind::Cancel(packet) => {
            let place = arrival.cancel_place().await;
            let place = place.ok_or(LoginError::NoStartup(Silence::Nothing))?;
            return Ok((LoginOutcome::Cancel(packet), place));
        }
        StartupKind::Startup(request) => request,
    };
    arrival.answered();
    if let Some(Err(lacks)) = leg.map(|leg| encryption::check(client, leg)) {
        let who = request.who(client_addr);
        return Err(LoginError::Insecure(Insecure { lacks, who }));
    }
    let place = arrival.place().await.ok_or(LoginError::Full)?;
    let mut label = request.label(client_addr);
    label.common_name = client.peer_common_name();
    let encryption = match client.is_encrypted() {
        true => Encryption::Tls,
        false => Encryption::None,
    };
    listed.set_label(&Arc::new(label.clone()), encryption);
    let established = establish(worker, shown, client, carry, &request, label, arrival).await?;
    // With the process id of its server.
    let label = match &established {
        LoginOutcome::Session(session) => Some(&session.label),
        LoginOutcome::Replication(stream) => Some(&stream.label),
        LoginOutcome::Cancel(_) => None,
    };
    if let Some(label) = label {
        listed.set_label(label, encryption);
    }
    Ok((established, place))
}

/// Returns when the client has left, whatever is waited for: nothing goes on for it.
async fn has_left(worker: &Worker, client: Lookout) {
    loop {
        worker.shared.timers.sleep(pause::LOOK_EVERY).await;
        if client.is_closed_by_peer() {
            return;
        }
    }
}

/// Connects for a client, once sessions may begin, and sends its startup packet.
async fn connect(worker: &Worker, request: &StartupRequest) -> Result<Connected, LoginError> {
    worker.gate.is_open().await;
    let mut server = upstream::connect(worker).await?;
    server.socket.write_all(request.packet()).await?;
    Ok(server)
}

/// Has PostgreSQL authenticate a client, and the tokens of its startup packet accepted.
async fn establish(
    worker: &Worker,
    shown: &Loaded,
    client: &mut Socket,
    mut carry: BytesMut,
    request: &StartupRequest,
    label: SessionLabel,
    arrival: &mut Arrival,
) -> Result<LoginOutcome, LoginError> {
    let mut entry = LoginContext::new(worker, label);
    entry.unless_observed(request.check_names())?;
    let scope = entry.unless_observed(request.scope())?;
    // A token in a scope that has no name is none.
    let wanted = match &scope {
        Some(scope) => entry.wanted_tokens(request, scope.as_ref())?,
        None => None,
    };
    let scope = scope.flatten();
    let passage = entry.passage(request, wanted.as_ref())?;
    let mut server = connect(worker, request).await?;
    let mut legs = authentication::Legs {
        binding: Binding::between(client, shown, &server.socket),
        client,
        carry: &mut carry,
        server: &mut server.socket,
        shown,
    };
    let shared = &worker.shared;
    let authenticating = mediated::authenticate(&mut legs, shared, request, arrival);
    let authenticated = Connected::while_primary(server.tenure.as_ref(), authenticating).await?;
    entry.on_authenticated(authenticated.backend_pid);
    let established = Established {
        client_bytes: carry,
        server: server.socket,
        tenure: server.tenure,
        server_bytes: authenticated.server_carry,
    };
    if let Some(passage) = passage {
        client.write_all(&authenticated.ready).await?;
        return Ok(LoginOutcome::Replication(Stream {
            label: Arc::new(entry.label),
            passage,
            established,
        }));
    }
    let LoginContext { label, fence, .. } = entry;
    let session = Session::new(Beginning {
        reported: authenticated.reported,
        texts: authenticated.texts,
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

/// On a socket of the file system there is no TLS, and none is asked for, as by PostgreSQL.
const fn leg_of(client_addr: ClientAddr, shown: &Loaded) -> Option<&ClientLeg> {
    match client_addr {
        ClientAddr::Tcp(_) => shown.client.as_ref(),
        ClientAddr::Local => None,
    }
}
