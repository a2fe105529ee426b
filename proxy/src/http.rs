//! HTTP: metrics, liveness and readiness, and some tables of the console.
//!
//! A separate thread and runtime, so that no scrape delays a session. It answers even while the proxy drains. At the
//! limit of connections a new one replaces the oldest.

mod access;
mod answers;
mod exposition;
mod picture;
mod readiness;

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::config::HttpAddr;
use crate::console::Facts;
use crate::newest::accept_newest;
use crate::process::Process;
pub(crate) use access::Access;
use answers::Answers;
use picture::Pictures;
use readiness::Readiness;

const CONNECTIONS_MAX: usize = 64;
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
const HEAD_WITHIN: Duration = Duration::from_secs(5);
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
/// Limits of a request's head: bytes, and fields. The library's minimum is 8 KiB.
const HEAD_MAX: (usize, usize) = (16 * 1024, 64);
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error("cannot listen on {address} for HTTP: {source}")]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("{0}")]
    Token(String),
    #[error("cannot start the thread for HTTP: {0}")]
    Thread(io::Error),
}

#[derive(Debug)]
pub(crate) struct HttpListener {
    listener: StdListener,
    /// With the port that the system chose.
    address: SocketAddr,
    access: Access,
}

impl HttpListener {
    /// Listens.
    ///
    /// # Errors
    ///
    /// [`HttpError`].
    pub(crate) fn open(config: &HttpAddr) -> Result<Self, HttpError> {
        let access = Access::new(config).map_err(HttpError::Token)?;
        let address = config.address;
        let listen = || {
            let listener = StdListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?, listener))
        };
        let (address, listener) =
            listen().map_err(|source| HttpError::Listen { address, source })?;
        Ok(Self {
            listener,
            address,
            access,
        })
    }
}

/// Dropping it stops the answers.
#[derive(Debug)]
pub(crate) struct HttpServer {
    end: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Starts to answer. `shutdown` is cancelled when the proxy begins to stop.
    ///
    /// # Errors
    ///
    /// If the thread did not start.
    pub(crate) fn start(
        listener: HttpListener,
        facts: Arc<Facts>,
        shutdown: CancellationToken,
    ) -> Result<Self, HttpError> {
        let takeover = facts.shared.takeover.clone();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Process::default()));
        registry.register_collector(Box::new(facts.in_force.clone()));
        let shared = &facts.shared;
        shared
            .metrics
            .register(&takeover, &shared.pause, &mut registry);
        let answers = Arc::new(Answers {
            registry,
            access: listener.access,
            facts,
            readiness: Readiness::new(takeover, shutdown),
            pictures: Pictures::default(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(HttpError::Thread)?;
        let end = CancellationToken::new();
        let until = end.clone();
        let thread = std::thread::Builder::new()
            .name(String::from("http"))
            .spawn(move || run(&runtime, listener.listener, &answers, &until))
            .map_err(HttpError::Thread)?;
        tracing::info!(address = %listener.address, "metrics and health are served over HTTP");
        Ok(Self {
            end,
            thread: Some(thread),
        })
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.end.cancel();
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            tracing::error!("the thread for HTTP has panicked");
        }
    }
}

fn run(
    runtime: &Runtime,
    listener: StdListener,
    answers: &Arc<Answers>,
    until: &CancellationToken,
) {
    runtime.block_on(until.run_until_cancelled(serve(listener, answers)));
}

async fn serve(listener: StdListener, answers: &Arc<Answers>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot serve HTTP"),
    };
    let accept = || listener.accept();
    let serve = |(stream, _)| begin(stream, Arc::clone(answers));
    accept_newest("for HTTP", CONNECTIONS_MAX, accept, serve).await;
}

/// Handles a connection, with the handshake of TLS if there is one.
async fn begin(stream: TcpStream, answers: Arc<Answers>) {
    let certificates = answers.facts.shared.certificates.current();
    let acceptor = certificates.http.clone();
    let Some(acceptor) = acceptor else {
        return converse(stream, false, answers).await;
    };
    match tokio::time::timeout(HANDSHAKE_WITHIN, acceptor.accept(stream)).await {
        Ok(Ok((stream, certificate))) => {
            converse(stream, certificate.is_some(), answers).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "TLS for HTTP failed"),
        Err(_) => tracing::debug!("TLS for HTTP took too long"),
    }
}

/// One request and its answer; the connection then closes to free its place.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    is_certified: bool,
    answers: Arc<Answers>,
) {
    let (bytes, fields) = HEAD_MAX;
    let mut protocol = http1::Builder::new();
    protocol
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(bytes)
        .max_headers(fields)
        .keep_alive(false);
    let answer = service_fn(|request| {
        let answers = Arc::clone(&answers);
        async move { answers.to(&request, is_certified).await }
    });
    let conversation = protocol.serve_connection(TokioIo::new(stream), answer);
    match tokio::time::timeout(ANSWERED_WITHIN, conversation).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a request over HTTP failed"),
        Err(_) => tracing::debug!("a request over HTTP took too long"),
    }
}
