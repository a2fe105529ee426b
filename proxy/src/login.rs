//! From an accepted connection to a session: startup packet, PostgreSQL's own authentication relayed
//! byte for byte, and the token of the startup packet.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-START-UP>

mod authentication;
mod channel_binding;
mod encryption;
mod error;
mod refusal;
mod startup;
mod upstream;

use std::net::{SocketAddr, TcpStream as StdTcpStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use pgpalisade_authority::Scope;
use pgpalisade_policies::{Access, Lifetime, Mode};
use tokio::sync::OwnedSemaphorePermit;

use crate::arrivals::Arrival;
use crate::certificates::Loaded;
use crate::fence::{ReplicationPermit, SessionFence, TokenValue};
use crate::passthrough::{Ends, Passthrough};
use crate::rejection::Enforcement;
use crate::rejection::Rejection;
use crate::rejection_log::{RejectionRecord, SessionLabel};
use crate::relay::{NotBegun, Relay, Sockets};
use crate::session::access::AccessMode;
use crate::session::text_settings::TextSettings;
use crate::session::tokens::Wanted;
use crate::session::{Beginning, Session};
use crate::transport::Socket;
use crate::upstream::PassthroughUpstream;
use crate::worker::Worker;
use authentication::Authenticated;
use channel_binding::Binding;
use error::{Insecure, LoginError, Silence};
use refusal::refuse;
use startup::{StartupKind, StartupRequest};

/// Serves one client from its first byte to its login, and to its end where that makes it no session.
pub(crate) async fn serve_client(
    worker: Rc<Worker>,
    stream: StdTcpStream,
    client_addr: SocketAddr,
) -> Option<(Relay, OwnedSemaphorePermit)> {
    let mut arrival = worker.arrivals.enter();
    let socket = tokio::net::TcpStream::from_std(stream);
    let mut client =
        match socket.and_then(|socket| Socket::tcp(socket, worker.tcp_keepalive, &worker.sends)) {
            Ok(client) => client,
            Err(error) => {
                tracing::debug!(client.addr = %client_addr, %error, "taking over a connection");
                return None;
            }
        };
    let begun = Instant::now();
    let login = log_in(&worker, &mut client, client_addr, &mut arrival);
    let outcome = tokio::select! {
        outcome = worker.timers.timeout(worker.login_timeout, login) => outcome,
        () = worker.drain.cancelled() => return None,
    };
    drop(arrival);
    match outcome {
        Ok(Ok((LoginOutcome::Session(session), place))) => {
            let left = worker.login_timeout.saturating_sub(begun.elapsed());
            // In a box, for it is as large as a session, and many connections never come so far.
            let relay = Box::pin(begin(&worker, client, *session, left)).await;
            return relay.map(|relay| (relay, place));
        }
        Ok(Ok((LoginOutcome::Replication(stream), _place))) => {
            let user = stream.user.clone();
            tracing::info!(client.addr = %client_addr, user, "a replication connection begins: it is not fenced");
            let end = Passthrough::run(worker, stream.with_client(client)).await;
            tracing::info!(client.addr = %client_addr, user, %end, "a replication connection ended");
        }
        Ok(Err(error)) => refuse(&worker.timers, &mut client, client_addr, &error).await,
        Err(_) => {
            refuse(
                &worker.timers,
                &mut client,
                client_addr,
                &LoginError::Unanswered,
            )
            .await;
        }
    }
    None
}

/// Begins a session: the client is told that it is ready once the tokens of its startup packet are accepted.
async fn begin(
    worker: &Rc<Worker>,
    client: Socket,
    login: LoggedIn,
    within: Duration,
) -> Option<Relay> {
    let LoggedIn {
        label,
        session,
        wanted,
        ready,
        server,
        client_carry,
        server_carry,
    } = login;
    let sockets = Sockets {
        client,
        client_bytes: client_carry,
        server,
        server_bytes: server_carry,
    };
    let client_addr = label.client_addr;
    let mut relay = Relay::new(Rc::clone(worker), label, session, sockets);
    let outcome = tokio::select! {
        outcome = worker.timers.timeout(within, relay.begin(wanted.as_ref(), &ready)) => outcome,
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
    if let Some(error) = refusal::words(client_addr, &error) {
        relay.refuse(&error).await;
    }
    None
}

/// What a login has led to, without its client's socket.
enum LoginOutcome {
    Session(Box<LoggedIn>),
    Replication(Stream),
}

/// A session of the fence that the server has authenticated.
struct LoggedIn {
    label: SessionLabel,
    session: Session,
    /// The tokens of its startup packet.
    wanted: Option<Wanted>,
    /// ReadyForQuery, not passed on yet.
    ready: Bytes,
    server: Socket,
    client_carry: BytesMut,
    server_carry: BytesMut,
}

/// A replication connection, which is exempt as a whole.
struct Stream {
    server: PassthroughUpstream,
    client_carry: BytesMut,
    server_carry: BytesMut,
    user: String,
}

impl Stream {
    fn with_client(self, client: Socket) -> Ends {
        Ends {
            client,
            client_carry: self.client_carry,
            server: self.server,
            server_carry: self.server_carry,
        }
    }
}

async fn log_in(
    worker: &Worker,
    client: &mut Socket,
    client_addr: SocketAddr,
    arrival: &mut Arrival,
) -> Result<(LoginOutcome, OwnedSemaphorePermit), LoginError> {
    let mut carry = BytesMut::new();
    // What the client is shown, up to the end of its login.
    let certificates = worker.certificates.current();
    let shown = certificates.as_ref();
    let request = startup_request(worker, shown, client, &mut carry, client_addr, arrival).await?;
    let place = arrival.place().await.ok_or(LoginError::Full)?;
    let established =
        establish(worker, shown, client, carry, &request, client_addr, arrival).await?;
    Ok((established, place))
}

/// What the transactions of a session may do at its start.
fn access_mode(asked: Access, startup: Access, authenticated: &Authenticated) -> AccessMode {
    let mut access = match startup {
        // A session that was not made read-only has what the server itself reports.
        Access::ReadWrite => AccessMode::new(authenticated.reported, authenticated.reported),
        Access::ReadOnly => AccessMode::new(asked, startup),
    };
    access.on_recovery(authenticated.recovery);
    access
}

/// Has PostgreSQL authenticate a client, and the tokens of its startup packet accepted.
async fn establish(
    worker: &Worker,
    shown: &Loaded,
    client: &mut Socket,
    mut carry: BytesMut,
    request: &StartupRequest,
    client_addr: SocketAddr,
    arrival: &mut Arrival,
) -> Result<LoginOutcome, LoginError> {
    let label = request.label(client_addr);
    let fence = worker.fence_for(&label);
    let mut entry = LoginContext::new(worker, label, fence);
    entry.unless_observed(request.check_names())?;
    let scope = entry.unless_observed(request.scope())?;
    // A token in a scope that has no name is none.
    let wanted = match &scope {
        Some(scope) => entry.wanted_tokens(request, scope.as_ref())?,
        None => None,
    };
    let scope = scope.flatten();
    let passage = entry.passage(request, wanted.as_ref())?;

    let startup = if passage.is_some() || wanted.is_some() || entry.fence.may_write(None) {
        Access::ReadWrite
    } else {
        Access::ReadOnly
    };
    let mut server = upstream::connect(worker).await?;
    server
        .write_all(&request.packet_for_server(startup)?)
        .await?;
    let asked = request.asked_access();
    let mut legs = authentication::Legs {
        binding: Binding::between(client, shown, &server),
        client,
        carry: &mut carry,
        server: &mut server,
    };
    let authenticated = authentication::relay(&mut legs, asked, startup, arrival).await?;
    entry.on_authenticated(authenticated.backend_pid);
    if let Some(passage) = passage {
        client.write_all(&authenticated.ready).await?;
        return Ok(LoginOutcome::Replication(Stream {
            server: PassthroughUpstream::new(server, passage),
            client_carry: carry,
            server_carry: authenticated.server_carry,
            user: entry.label.user,
        }));
    }
    if startup == Access::ReadOnly && authenticated.reported != Access::ReadOnly {
        return Err(entry.refused(Box::new(Rejection::read_only_mode_dropped())));
    }
    let LoginContext { label, fence, .. } = entry;
    let session = Session::new(Beginning {
        access: access_mode(asked, startup, &authenticated),
        text_settings: TextSettings::new(authenticated.lexing),
        backend_pid: authenticated.backend_pid,
        fence,
        scope,
    });
    Ok(LoginOutcome::Session(Box::new(LoggedIn {
        label,
        session,
        wanted,
        ready: authenticated.ready,
        server,
        client_carry: carry,
        server_carry: authenticated.server_carry,
    })))
}

/// Reads the startup packet. A connection that is for something else is served here, and answered.
async fn startup_request(
    worker: &Worker,
    shown: &Loaded,
    client: &mut Socket,
    carry: &mut BytesMut,
    client_addr: SocketAddr,
    arrival: &mut Arrival,
) -> Result<StartupRequest, LoginError> {
    let leg = shown.client.as_ref();
    let reading = startup::read(client, carry, leg);
    let opening = arrival.unless_given_up(reading).await;
    arrival.answered();
    let opening = opening.unwrap_or(Err(LoginError::NoStartup(Silence::Nothing)))?;
    let lacks = leg.and_then(|leg| encryption::check(client, leg).err());
    match (opening, lacks) {
        // It may come in the clear, as at PostgreSQL: many clients send it so, and its key is all that counts.
        (StartupKind::Cancel(packet), _) => upstream::forward_cancel(worker, &packet).await,
        (kind, Some(lacks)) => {
            let who = kind.who(client_addr);
            return Err(LoginError::Insecure(Insecure { lacks, who }));
        }
        (StartupKind::Startup(request), None) => return Ok(request),
        (StartupKind::OtherVersion(packet), None) => {
            let mut server = upstream::connect(worker).await?;
            server.write_all(&packet).await?;
            authentication::relay_refusal(client, &mut server).await;
        }
    }
    Err(LoginError::Answered)
}

/// A login that may be refused, or observed.
struct LoginContext<'a> {
    worker: &'a Worker,
    label: SessionLabel,
    fence: SessionFence,
    /// What was let pass, to be on record once it is proved who it is.
    observed: Vec<Rejection>,
}

impl<'a> LoginContext<'a> {
    const fn new(worker: &'a Worker, label: SessionLabel, fence: SessionFence) -> Self {
        Self {
            worker,
            label,
            fence,
            observed: Vec::new(),
        }
    }

    fn on_authenticated(&mut self, backend_pid: i32) {
        self.label.backend_pid = Some(backend_pid);
        for rejection in std::mem::take(&mut self.observed) {
            self.record(&rejection, Enforcement::Observed);
        }
    }

    fn record(&self, rejection: &Rejection, enforcement: Enforcement) {
        let record = RejectionRecord::new(rejection, &self.label, None, None, enforcement);
        self.worker.rejections.record(record);
    }

    /// Carries a refusal out, or lets it pass where it is only observed. It is on record in both cases.
    fn unless_observed<T>(
        &mut self,
        answer: Result<T, Box<Rejection>>,
    ) -> Result<Option<T>, LoginError> {
        let rejection = match answer {
            Ok(value) => return Ok(Some(value)),
            Err(rejection) => rejection,
        };
        match self.fence.mode_of(&rejection) {
            Mode::Observe => {
                self.observed.push(*rejection);
                Ok(None)
            }
            Mode::Enforce => {
                self.record(&rejection, Enforcement::Refused);
                Err(LoginError::Refused(rejection))
            }
        }
    }

    fn wanted_tokens(
        &mut self,
        request: &StartupRequest,
        scope: Option<&Scope>,
    ) -> Result<Option<Wanted>, LoginError> {
        let read = || {
            let Some(text) = request.token_text()? else {
                return Ok(None);
            };
            let scope = scope.unwrap_or_else(|| self.fence.default_scope());
            let value = TokenValue::parse(&text, scope).map_err(|error| {
                Box::new(Rejection::invalid_value("fencing.token", &text, &error))
            })?;
            if let Some(value) = &value {
                self.fence.may_declare_all(value, Lifetime::Session)?;
            }
            Ok(value)
        };
        let value = self.unless_observed(read())?.flatten();
        Ok(value.map(|value| Wanted::new(&self.fence, value)))
    }

    /// SQL and streams of a replication connection pass no fence: it is exempt as a whole, or there is none.
    fn passage(
        &mut self,
        request: &StartupRequest,
        wanted: Option<&Wanted>,
    ) -> Result<Option<ReplicationPermit>, LoginError> {
        match request.asks_for_replication() {
            startup::Replication::No => Ok(None),
            startup::Replication::Yes => {
                let admitted = self.fence.admit_replication(wanted.map(Wanted::value));
                let (passage, observed) = admitted.map_err(|rejection| self.refused(rejection))?;
                self.observed.extend(observed.map(|rejection| *rejection));
                Ok(Some(passage))
            }
        }
    }

    fn refused(&self, rejection: Box<Rejection>) -> LoginError {
        self.record(&rejection, Enforcement::Refused);
        LoginError::Refused(rejection)
    }
}
