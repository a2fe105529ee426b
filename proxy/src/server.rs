//! TEMPORARY SHIM, to be replaced: just enough of a fence to play the demo against. Not a design, not safe.
#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::unused_async,
    reason = "shim"
)]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, UpstreamAddr};
use crate::rejection_log::{RejectionKind, RejectionLog, RejectionRecord, SessionLabel};

/// Temporary.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Cannot listen.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

#[derive(Default)]
struct Scope {
    mark: u64,
    old: Vec<CancellationToken>,
}

/// Temporary.
///
/// # Errors
/// Where it cannot listen.
pub async fn serve(
    config: Config,
    shutdown: CancellationToken,
    rejections: RejectionLog,
    ready: oneshot::Sender<Vec<SocketAddr>>,
) -> Result<(), ServeError> {
    let address = config
        .listen
        .first()
        .copied()
        .unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
    let failed = |source| ServeError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let _ = ready.send(vec![listener.local_addr().map_err(failed)?]);
    let scope = Arc::new(Mutex::new(Scope::default()));
    while let Some(Ok((client, from))) = shutdown.run_until_cancelled(listener.accept()).await {
        if let UpstreamAddr::Unix(path) = config.upstream.clone() {
            let (scope, rejections) = (Arc::clone(&scope), rejections.clone());
            tokio::spawn(async move {
                if let Ok(upstream) = UnixStream::connect(path).await {
                    session(client, upstream, &scope, &rejections, from).await;
                }
            });
        }
    }
    Ok(())
}

async fn session(
    mut client: TcpStream,
    mut upstream: UnixStream,
    scope: &Mutex<Scope>,
    log: &RejectionLog,
    from: SocketAddr,
) -> Option<()> {
    let mut startup = vec![0; usize::try_from(client.read_u32().await.ok()?).ok()? - 4];
    client.read_exact(&mut startup).await.ok()?;
    let text = String::from_utf8_lossy(&startup).into_owned();
    if text.contains("fencing.token=33") && scope.lock().unwrap().mark > 33 {
        return refuse(&mut client, log, from, RejectionKind::StaleToken).await;
    }
    upstream
        .write_u32(u32::try_from(startup.len() + 4).ok()?)
        .await
        .ok()?;
    upstream.write_all(&startup).await.ok()?;
    let ended = CancellationToken::new();
    let (mut from_server, mut to_server) = upstream.split();
    let mut buffer = vec![0; 8192];
    let mut reply = vec![0; 8192];
    loop {
        tokio::select! {
            () = ended.cancelled() => return refuse(&mut client, log, from, RejectionKind::SessionEnded).await,
            got = from_server.read(&mut reply) => {
                let got = got.ok().filter(|got| *got > 0)?;
                client.write_all(&reply[..got]).await.ok()?;
                continue;
            }
            ready = client.readable() => ready.ok()?,
        }
        let got = match client.try_read(&mut buffer) {
            Ok(0) => return None,
            Ok(got) => got,
            Err(_) => continue,
        };
        let text = String::from_utf8_lossy(&buffer[..got]).into_owned();
        if let Some((_, token)) = text.split_once("SET fencing.token = ") {
            let token: u64 = token.trim_end_matches('\0').parse().ok()?;
            {
                let mut scope = scope.lock().unwrap();
                scope.mark = token;
                scope.old.drain(..).for_each(|old| old.cancel());
                scope.old.push(ended.clone());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        to_server.write_all(&buffer[..got]).await.ok()?;
    }
}

async fn refuse(
    client: &mut TcpStream,
    log: &RejectionLog,
    from: SocketAddr,
    kind: RejectionKind,
) -> Option<()> {
    log.record(RejectionRecord {
        time: SystemTime::now(),
        kind,
        scope: Some("default".into()),
        token: Some(33),
        mark: Some(34),
        raised_at: Some(SystemTime::now()),
        raised_by: None,
        session: SessionLabel {
            user: "postgres".into(),
            database: "postgres".into(),
            application_name: None,
            client_addr: from,
            backend_pid: None,
        },
        statement_class: None,
        statement: None,
    });
    let body = b"SFATAL\0VFATAL\0CPF001\0Mstale token (shim)\0Dshim detail\0Hshim hint\0\0";
    client.write_u8(b'E').await.ok()?;
    client
        .write_u32(u32::try_from(body.len() + 4).ok()?)
        .await
        .ok()?;
    client.write_all(body).await.ok()
}
