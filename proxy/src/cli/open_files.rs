//! The limit of open files: a session with its server connection holds two sockets, so the usual soft limit of 1024
//! allows some 500 of them.

use pgpalisade_server::pooling::Pool;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;

/// Files besides the sockets of sessions: listeners, event queues, the store, logs, control connections.
const BESIDES: u64 = 64;

/// Raises the soft limit to the hard one, and warns if that is too low for `connections.max`.
///
/// The soft limit exists for programs that use select(2): <https://0pointer.net/blog/file-descriptor-limits.html>
pub(super) fn raise_limit(config: &Config) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    let limit = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum,
        Err(error) => {
            tracing::warn!(%error, "cannot raise the limit of open files");
            current
        }
    };
    let clients = config.clients.max_connections.get();
    let servers = match &config.clients.pool {
        Pool::Session => clients,
        Pool::Transaction(limits) => limits.max.get().saturating_add(limits.sessions),
    };
    if let Some(needed) = too_few(limit, clients.saturating_add(servers)) {
        tracing::warn!(
            limit,
            needed,
            "the limit of open files is too low for connections.max: raise it (ulimit -n, LimitNOFILE= of systemd), \
             or lower connections.max"
        );
    }
}

/// Number of files that may be needed, if that exceeds the limit; `None` is infinite.
fn too_few(limit: Option<u64>, connections: usize) -> Option<u64> {
    let needed = u64::try_from(connections)
        .unwrap_or(u64::MAX)
        .saturating_add(BESIDES);
    limit.filter(|limit| *limit < needed).map(|_| needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_for_each_connection() {
        assert_eq!(too_few(None, 10_000), None);
        assert_eq!(too_few(Some(10_064), 10_000), None);
        assert_eq!(too_few(Some(10_063), 10_000), Some(10_064));
        assert_eq!(too_few(Some(1_024), usize::MAX), Some(u64::MAX));
    }
}
