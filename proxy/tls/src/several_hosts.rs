//! Connecting to the first of several hosts that answers and fits.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, Connection, Socket};

use crate::client::{ConnectError, Login, Stream};

/// Longest time in which a host that is silent keeps the next one waiting.
const PATIENCE: Duration = Duration::from_secs(1);

impl Login {
    /// Connects like [`Self::connect`], but a host that accepts and says nothing cannot take all of the time: the next
    /// one is then tried too, and the first that succeeds counts. The caller bounds it to `within`; dropping it ends
    /// all attempts.
    ///
    /// # Errors
    ///
    /// All hosts have failed: the error of the last that did.
    pub async fn connect_to_any(
        &self,
        within: Duration,
    ) -> Result<(Client, Connection<Socket, Stream<Socket>>), ConnectError> {
        let config = &self.config;
        let hosts = config.get_hosts().len().max(config.get_hostaddrs().len());
        if hosts < 2 {
            return self.connect().await;
        }
        // Half of the time is left for the last one, as others may be silent too.
        let share = within / u32::try_from(hosts * 2).unwrap_or(u32::MAX);
        let patience = share.min(PATIENCE);
        let mut attempts = JoinSet::new();
        let mut failed = None;
        for at in 0..hosts {
            let host = self.only_host(at);
            attempts.spawn(async move { host.connect().await });
            let is_last = at + 1 == hosts;
            loop {
                let ended = if is_last {
                    attempts.join_next().await
                } else {
                    let ended = timeout(patience, attempts.join_next()).await;
                    ended.ok().flatten()
                };
                match ended {
                    Some(Ok(Ok(connected))) => return Ok(connected),
                    Some(Ok(Err(error))) => failed = Some(error),
                    Some(Err(_)) => {}
                    None => break,
                }
                if !is_last {
                    break;
                }
            }
        }
        match failed {
            Some(error) => Err(error),
            // No attempt has come to its end.
            None => self.connect().await,
        }
    }

    /// The same with one host. The settings of tokio-postgres cannot forget the others.
    fn only_host(&self, at: usize) -> Self {
        let all = &self.config;
        let mut config = Config::new();
        config
            .ssl_mode(all.get_ssl_mode())
            .ssl_negotiation(all.get_ssl_negotiation())
            .keepalives(all.get_keepalives())
            .keepalives_idle(all.get_keepalives_idle())
            .target_session_attrs(all.get_target_session_attrs())
            .channel_binding(all.get_channel_binding())
            .load_balance_hosts(all.get_load_balance_hosts());
        if let Some(user) = all.get_user() {
            config.user(user);
        }
        if let Some(password) = all.get_password() {
            config.password(password);
        }
        if let Some(name) = all.get_dbname() {
            config.dbname(name);
        }
        if let Some(options) = all.get_options() {
            config.options(options);
        }
        if let Some(name) = all.get_application_name() {
            config.application_name(name);
        }
        if let Some(time) = all.get_connect_timeout() {
            config.connect_timeout(*time);
        }
        if let Some(time) = all.get_tcp_user_timeout() {
            config.tcp_user_timeout(*time);
        }
        if let Some(time) = all.get_keepalives_interval() {
            config.keepalives_interval(time);
        }
        if let Some(count) = all.get_keepalives_retries() {
            config.keepalives_retries(count);
        }
        match all.get_hosts().get(at) {
            Some(Host::Tcp(name)) => drop(config.host(name)),
            Some(Host::Unix(directory)) => drop(config.host_path(directory)),
            None => {}
        }
        if let Some(address) = all.get_hostaddrs().get(at) {
            config.hostaddr(*address);
        }
        let ports = all.get_ports();
        if let Some(port) = ports.get(at).or(ports.first()) {
            config.port(*port);
        }
        Self {
            config,
            ssl: self.ssl.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_has_the_settings_of_all() {
        let settings = "user=u password=p dbname=d options=o application_name=a connect_timeout=3 \
            tcp_user_timeout=4 keepalives=0 keepalives_idle=5 keepalives_interval=6 keepalives_retries=7 \
            target_session_attrs=read-write channel_binding=disable load_balance_hosts=random sslmode=require";
        let login = |hosts: &str| Login::parse(&format!("{hosts} {settings}"), "").unwrap();
        for (all, at, only) in [
            ("host=a,b port=1,2", 1, "host=b port=2"),
            ("host=a,/run port=1", 1, "host=/run port=1"),
            ("host=a,b hostaddr=::1,::2", 0, "host=a hostaddr=::1"),
            ("hostaddr=::1,::2 port=1,2", 1, "hostaddr=::2 port=2"),
        ] {
            assert!(login(all).only_host(at) == login(only), "{all}");
        }
    }
}
