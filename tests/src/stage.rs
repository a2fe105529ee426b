//! PostgreSQL with the proxy in front of it, and the sessions that tests open on them.

use crate::postgres::Postgres;
use crate::proxy::Proxy;
use crate::wire::{Endpoint, Wire};

/// One server, one proxy.
///
/// The proxy is dropped first, so that its control connection does not see the server go.
#[derive(Debug)]
pub struct Stage {
    /// The proxy.
    pub proxy: Proxy,
    /// The server behind it.
    pub postgres: Postgres,
}

impl Stage {
    /// Starts both with everything at its default.
    pub fn start() -> Self {
        let postgres = Postgres::start();
        let proxy = Proxy::start(&postgres);
        Self { proxy, postgres }
    }

    /// As [`Self::start`], with SQL run on the server first.
    pub fn with(setup: &str) -> Self {
        let postgres = Postgres::start();
        postgres.sql(setup);
        let proxy = Proxy::start(&postgres);
        Self { proxy, postgres }
    }

    /// A session through the proxy that declares nothing.
    #[track_caller]
    pub fn plain(&self) -> Wire {
        Wire::login(
            &self.proxy.endpoint(),
            &[("user", "postgres"), ("database", "postgres")],
        )
    }

    /// A session through the proxy with `token` in its startup packet, as text: `34`, or `scheduler=34`.
    #[track_caller]
    pub fn leader(&self, token: &str) -> Wire {
        leader(&self.proxy.endpoint(), token)
    }
}

/// A session with `token` in its startup packet.
#[track_caller]
pub fn leader(endpoint: &Endpoint, token: &str) -> Wire {
    Wire::login(
        endpoint,
        &[
            ("user", "postgres"),
            ("database", "postgres"),
            ("fencing.token", token),
        ],
    )
}
