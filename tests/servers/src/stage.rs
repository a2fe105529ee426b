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
        let postgres = Postgres::start();
        postgres.sql(setup);
        let proxy = Proxy::start(&postgres);
        Self { proxy, postgres }
    }

    /// With additional flags for the proxy.
    pub fn with_flags(setup: &str, flags: &[(&str, &str)]) -> Self {
        let postgres = Postgres::start();
        postgres.sql(setup);
        let options = Options::new(&postgres);
        let options = flags
            .iter()
            .fold(options, |options, (name, value)| options.flag(name, value));
        let proxy = Proxy::start_with(options);
        Self { proxy, postgres }
    }

    pub fn governed(setup: &str, policy: &PolicyFile) -> Self {
        let path = policy.path();
        Self::with_flags(setup, &[("--policy", &path.display().to_string())])
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
