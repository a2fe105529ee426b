//! PostgreSQL with the proxy in front of it, and sessions on them.

use crate::policy::PolicyFile;
use crate::postgres::Postgres;
use crate::proxy::{Options, Proxy};
use crate::wire::{Endpoint, TRUSTED, Wire, trusted};

/// One server and one proxy, dropped first so that it does not see the server end.
#[derive(Debug)]
pub struct Stage {
    pub proxy: Proxy,
    pub postgres: Postgres,
}

impl Stage {
    pub fn start() -> Self {
        let postgres = Postgres::start();
        let proxy = Proxy::start(&postgres);
        Self { proxy, postgres }
    }

    /// After running SQL on the server.
    pub fn with(setup: &str) -> Self {
        Self::with_options(setup, |options| options)
    }

    /// With additional flags for the proxy.
    pub fn with_flags(setup: &str, flags: &[(&str, &str)]) -> Self {
        Self::with_options(setup, |options| options.flags(flags))
    }

    pub fn governed(setup: &str, policy: &PolicyFile) -> Self {
        Self::with_options(setup, |options| options.policy(policy))
    }

    pub fn with_options(setup: &str, change: impl FnOnce(Options) -> Options) -> Self {
        let postgres = Postgres::start();
        postgres.sql(setup);
        let proxy = Proxy::start_with(change(Options::new(&postgres)));
        Self { proxy, postgres }
    }

    /// Runs SQL on the server, past the proxy.
    #[track_caller]
    pub fn sql(&self, sql: &str) -> Vec<Vec<String>> {
        self.postgres.sql(sql)
    }

    /// The one value that SQL returns there.
    #[track_caller]
    pub fn value(&self, sql: &str) -> String {
        self.postgres.value(sql)
    }

    /// Session through the proxy without a token.
    #[track_caller]
    pub fn plain(&self) -> Wire {
        Wire::login(&self.proxy.endpoint(), &TRUSTED)
    }

    /// Kind and enforcement of the rejections, once there are `count`.
    #[track_caller]
    pub fn records(&self, count: usize) -> Vec<(String, bool)> {
        let records = self.proxy.first_rejections(count);
        let of = |record: &serde_json::Value| {
            let kind = record["kind"].as_str().unwrap_or_default();
            (kind.to_owned(), record["enforced"] == true)
        };
        let records: Vec<_> = records.iter().map(of).collect();
        assert_eq!(records.len(), count, "{records:?}");
        records
    }

    /// Session of `user` without a token.
    #[track_caller]
    pub fn user(&self, user: &str) -> Wire {
        Wire::login(
            &self.proxy.endpoint(),
            &[("user", user), ("database", "postgres")],
        )
    }

    /// Session with `token` in its startup packet: `34`, or `scheduler=34`.
    #[track_caller]
    pub fn leader(&self, token: &str) -> Wire {
        leader(&self.proxy.endpoint(), token)
    }
}

#[track_caller]
pub fn leader(endpoint: &Endpoint, token: &str) -> Wire {
    Wire::login(endpoint, &trusted(&[("fencing.token", token)]))
}
