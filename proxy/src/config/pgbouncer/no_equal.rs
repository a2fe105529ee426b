//! Keys of PgBouncer 1.25 that pgpalisade has not, and why.

pub(super) const UNKNOWN: &str = "is not known to PgBouncer 1.25";

/// Keys of `[pgbouncer]`, and after a colon the reason. An indented line continues the one before it.
pub(super) const SETTINGS: &str = r#"
logfile syslog syslog_ident syslog_facility: the log goes to standard error
pidfile user: this is the work of the service manager
verbose log_connections log_disconnections log_pooler_errors: log = "debug" has them
log_stats stats_period: the metrics have them: set http, and see docs/observe.md
unix_socket_mode unix_socket_group: anyone who can enter the directory can connect
min_pool_size autodb_idle_timeout: server connections are opened when a client needs them
max_user_connections max_db_client_connections max_user_client_connections reserve_pool_timeout: the limits are
    connections.max and backends.max, for all users and databases together
server_reset_query server_reset_query_always: a connection is reset before another client gets it, by a text of the
    proxy's own; backends.reset says when
server_check_delay server_check_query server_fast_close server_round_robin server_login_retry
    server_connect_timeout: idle connections are watched, and failed openings repeated after a pause
track_extra_parameters ignore_startup_parameters application_name_add_host: clients share connections if their
    startup packets are equal; other parameters are PostgreSQL's
max_prepared_statements disable_pqexec scram_iterations: docs/pooling.md says what becomes of prepared statements
query_timeout: statement_timeout of PostgreSQL does this: ALTER ROLE .. SET statement_timeout
idle_transaction_timeout: idle_in_transaction_session_timeout of PostgreSQL does this
transaction_timeout: PostgreSQL 17 has this setting
client_idle_timeout: idle_session_timeout of PostgreSQL does this with pool = "session"; with "transaction" an idle
    client has no server connection, and stays
cancel_wait_timeout suspend_timeout: a cancel request waits for no place, and there is no SUSPEND
auth_hba_file auth_ident_file auth_ldap_options auth_dbname: logins are checked by SCRAM, or relayed to PostgreSQL:
    docs/tls.md
admin_users stats_users: root and the user of pgpalisade are admins on the socket of the console; for others set
    console_auth_file, whose users may all read it, and console_admins: docs/console.md
client_tls_protocols client_tls_ciphers client_tls13_ciphers client_tls_ecdhcurve client_tls_dheparams
    server_tls_protocols server_tls_ciphers server_tls13_ciphers: TLS 1.2 and 1.3, with what rustls finds safe
dns_max_ttl dns_nxdomain_ttl dns_zone_check_period resolv_conf: a name is resolved by the system for each connection
pkt_buf max_packet_size listen_backlog sbuf_loopcnt so_reuseport tcp_defer_accept tcp_socket_buffer tcp_keepcnt
    tcp_keepintvl tcp_user_timeout: nothing of the sockets needs tuning but tcp.keepalive
peer_id: a cancel request must reach the proxy of its client: docs/deployment.md
conffile service_name job_name: they are PgBouncer's own names
"#;

/// Keys of a line in `[databases]`. Their values may be secret.
pub(super) const DATABASE: &str = r#"
dbname: clients name the database as PostgreSQL does: there are no aliases
user password auth_user auth_query auth_dbname: clients log in as themselves, and the connections are in their name
connect_query client_encoding datestyle timezone: ALTER ROLE or ALTER DATABASE .. SET does this
pool_mode: for some clients, write a rule with pool = "session" into the policy, and set backends.sessions:
    docs/pooling.md
min_pool_size max_db_client_connections server_lifetime load_balance_hosts: there is one setting for all databases
"#;

/// The rows of a table: keys, and the reason.
pub(super) fn rows(table: &str) -> Vec<(String, String)> {
    let table = table.replace("\n    ", " ");
    let rows = table.lines().filter_map(|line| line.split_once(": "));
    rows.map(|(keys, why)| (keys.into(), why.into())).collect()
}

pub(super) fn why(table: &str, name: &str) -> String {
    let mut rows = rows(table).into_iter();
    let row = rows.find(|(keys, _)| keys.split(' ').any(|key| key == name));
    row.map_or_else(|| UNKNOWN.into(), |(_, why)| why)
}
