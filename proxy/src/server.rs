//! Temporary shim: a bare relay without any fence, until the server is there.

use std::net::SocketAddr;

use tokio::net::{TcpListener, UnixStream};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, UpstreamAddr};
use crate::rejection_log::RejectionLog;

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

/// Temporary.
///
/// # Errors
/// Where it cannot listen.
pub async fn serve(
    config: Config,
    shutdown: CancellationToken,
    _rejections: RejectionLog,
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
    while let Some(Ok((mut client, _))) = shutdown.run_until_cancelled(listener.accept()).await {
        if let UpstreamAddr::Unix(path) = config.upstream.clone() {
            tokio::spawn(async move {
                if let Ok(mut upstream) = UnixStream::connect(path).await {
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
                }
            });
        }
    }
    Ok(())
}
