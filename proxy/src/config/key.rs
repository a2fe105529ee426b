//! The one table of configuration keys. Flags, environment variables, help texts and defaults all come from it.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Listen,
    /// Networks of load balancers that send the client's address.
    ProxyProtocol,
    Upstream,
    /// The proxy's own login to PostgreSQL.
    Control,
    TlsMode,
    TlsCertificate,
    TlsKeyFile,
    TlsClientCa,
    TlsClientCertificates,
    Auth,
    AuthFile,
    /// SQL that finds verifiers.
    AuthQuery,
    Authority,
    Barrier,
    /// Whether marks are copied into the cluster.
    Witness,
    TakeoverTimeout,
    Policy,
    /// Whether refusals are only recorded.
    Observe,
    RejectionLog,
    /// Whether rejection records keep literals.
    RejectionLiterals,
    /// Address for metrics and health.
    Http,
    HttpTokenFile,
    HttpCertificate,
    HttpKeyFile,
    /// CA of the certificates that grant access.
    HttpClientCa,
    Console,
    ConsoleAuthFile,
    /// Users of the console that may do more than read.
    ConsoleAdmins,
    ConnectionsMax,
    LoginTimeout,
    /// Time without progress to a client that does not read.
    WriteStallTimeout,
    /// Idle time before TCP keep-alive probes.
    TcpKeepalive,
    Workers,
    /// Whether io_uring batches sends.
    IoUring,
    /// Time that sessions get at shutdown.
    ShutdownGrace,
    Log,
    LogFormat,
}

/// Form of a value in the TOML file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TomlType {
    Text,
    /// A string, or an array of strings. Separated by commas in the environment.
    List,
    Number,
    /// A string, or an integer (then 0).
    Duration,
    /// A Boolean; a flag without a value is `on`.
    Switch,
}

/// Description of a key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeySpec {
    /// Name in the TOML file; a dot leads into a table.
    pub name: &'static str,
    /// Without the dashes.
    pub flag: &'static str,
    pub env: &'static str,
    /// Placeholder of the value in the help.
    pub value_name: &'static str,
    pub shape: TomlType,
    /// The default as a user would write it, if it is fixed.
    pub default: Option<&'static str>,
    /// Heading in the help.
    pub heading: &'static str,
    /// One sentence without a full stop.
    pub help: &'static str,
    /// Further text of `--help`; may be empty.
    pub more: &'static str,
}

const ADDRESSES: &str = "Addresses";
const TLS: &str = "TLS to clients";
const LOGINS: &str = "Logins";
const FENCE: &str = "Fence";
const RECORD: &str = "Record";
const CONSOLE: &str = "Console";
const LIMITS: &str = "Limits";

/// All keys, in the order of the help.
#[rustfmt::skip] // One key, one row of aligned fields: it is a table.
pub(crate) const KEYS: [(Key, KeySpec); 37] = [
    (Key::Listen, KeySpec {
        name: "listen", flag: "listen", env: "PGPALISADE_LISTEN", value_name: "ADDRESS", shape: TomlType::List,
        default: Some("127.0.0.1:6432"), heading: ADDRESSES,
        help: "Address that clients connect to: IP:PORT, or for a unix socket DIR:PORT; may be given several times",
        more: "In the directory clients find .s.PGSQL.PORT, as PostgreSQL's own; the port is 6432 if it is left out. \
               Anyone who can enter the directory can connect. The socket has no TLS, whatever tls.mode says.",
    }),
    (Key::ProxyProtocol, KeySpec {
        name: "proxy_protocol", flag: "proxy-protocol", env: "PGPALISADE_PROXY_PROTOCOL", value_name: "NETWORK",
        shape: TomlType::List, default: None, heading: ADDRESSES,
        help: "Network of load balancers that send the PROXY protocol, version 1 or 2; may be given several times",
        more: "A connection from there must begin with its header. Policies, logs and rejections see the address in \
            it. A connection from anywhere else that begins with such a header is closed.",
    }),
    (Key::Upstream, KeySpec {
        name: "upstream", flag: "upstream", env: "PGPALISADE_UPSTREAM", value_name: "ADDRESS", shape: TomlType::Text,
        default: None, heading: ADDRESSES,
        help: "The PostgreSQL to protect: postgres://host:port, several hosts as postgres://a:5432,b:5432, or a unix \
               socket directory (/var/run/postgresql, or postgres:///?host=/dir&port=5433)",
        more: "TLS to it is set as with libpq's parameters: postgres://host?sslmode=verify-full&sslrootcert=FILE. \
               The modes are disable, which is the default, prefer, require, verify-ca and verify-full; \
               sslrootcert=system trusts the system's certificate authorities; sslcert and sslkey are the proxy's own \
               certificate. docs/tls.md has examples.",
    }),
    (Key::Control, KeySpec {
        name: "control", flag: "control", env: "PGPALISADE_CONTROL", value_name: "DSN", shape: TomlType::Text,
        default: None, heading: ADDRESSES,
        help: "How the proxy itself logs in to watch and end sessions, as a URL or as key=value pairs",
        more: "The role needs pg_signal_backend and pg_read_all_stats. What the DSN leaves out comes from the \
               upstream's address, with its TLS, and from PGUSER, PGPASSWORD and PGDATABASE. Flags are visible to \
               other users of the machine: put a password into the file or the environment.",
    }),
    (Key::TlsMode, KeySpec {
        name: "tls.mode", flag: "tls-mode", env: "PGPALISADE_TLS_MODE", value_name: "off|allow|require",
        shape: TomlType::Text, default: Some("off"), heading: TLS,
        help: "Whether clients may use TLS, or must",
        more: "require refuses every session that is not encrypted. A cancel request may be unencrypted, as with \
            PostgreSQL: many clients send it so. TLS 1.2 and 1.3, after an SSLRequest or at once \
               (sslnegotiation=direct).",
    }),
    (Key::TlsCertificate, KeySpec {
        name: "tls.certificate", flag: "tls-certificate", env: "PGPALISADE_TLS_CERTIFICATE", value_name: "FILE",
        shape: TomlType::Text, default: None, heading: TLS,
        help: "Certificate that clients see, in PEM format, with those between it and its root",
        more: "SIGHUP reads all files for TLS again; if one of them has an error, the old ones stay in force.",
    }),
    (Key::TlsKeyFile, KeySpec {
        name: "tls.key", flag: "tls-key", env: "PGPALISADE_TLS_KEY", value_name: "FILE",
        shape: TomlType::Text, default: None, heading: TLS,
        help: "Its private key, in PEM format, without a passphrase",
        more: "As for PostgreSQL, nobody else may read it: 0600, or 0640 if root owns it.",
    }),
    (Key::TlsClientCa, KeySpec {
        name: "tls.client_ca", flag: "tls-client-ca", env: "PGPALISADE_TLS_CLIENT_CA", value_name: "FILE",
        shape: TomlType::Text, default: None, heading: TLS,
        help: "Certificate authority of client certificates, in PEM format; without it clients are not asked for one",
        more: "",
    }),
    (Key::TlsClientCertificates, KeySpec {
        name: "tls.client_certificates", flag: "tls-client-certificates",
        env: "PGPALISADE_TLS_CLIENT_CERTIFICATES", value_name: "optional|required",
        shape: TomlType::Text, default: Some("optional"), heading: TLS,
        help: "Whether a session needs a client certificate",
        more: "A certificate that is shown must be valid in any case.",
    }),
    (Key::Auth, KeySpec {
        name: "auth", flag: "auth", env: "PGPALISADE_AUTH", value_name: "relay|scram|password",
        shape: TomlType::Text, default: Some("relay"), heading: LOGINS,
        help: "How clients are authenticated: by PostgreSQL, relayed; by the proxy, with SCRAM; or by PostgreSQL, \
            with the password that clients send to the proxy over TLS",
        more: "With TLS on both legs, relay works for clients with channel_binding=disable only. docs/tls.md has the \
               table, and \"pgpalisade check\" says which of them works here.",
    }),
    (Key::AuthFile, KeySpec {
        name: "auth_file", flag: "auth-file", env: "PGPALISADE_AUTH_FILE", value_name: "FILE",
        shape: TomlType::Text, default: None, heading: LOGINS,
        help: "Users and their verifiers, for auth = scram, in the form of pgbouncer's userlist.txt",
        more: "Only SCRAM-SHA-256 verifiers, as in pg_authid.rolpassword. Others may not read the file. SIGHUP \
               reads it again; if it has an error, the old one stays in force.",
    }),
    (Key::AuthQuery, KeySpec {
        name: "auth_query", flag: "auth-query", env: "PGPALISADE_AUTH_QUERY", value_name: "SQL",
        shape: TomlType::Text, default: None, heading: LOGINS,
        help: "SQL that finds a user and its verifier, for auth = scram; $1 is the user",
        more: "Runs as the role of the control connection, on a separate connection, with search_path pg_catalog. It \
               returns one row of two columns, the user and the verifier, or none.",
    }),
    (Key::Authority, KeySpec {
        name: "authority", flag: "authority", env: "PGPALISADE_AUTHORITY", value_name: "STORE", shape: TomlType::Text,
        default: None, heading: FENCE,
        help: "Where marks are kept: embedded:DIR (a directory on a durable disk), etcd:URL,URL or postgres:DSN",
        more: "embedded is for one proxy, etcd and postgres are for several. There is no default: an empty store has \
               forgotten the marks and would let a deposed leader in. Flags are visible to other users of the machine: \
               put a password into the file or the environment. docs/stores.md has all options.",
    }),
    (Key::Barrier, KeySpec {
        name: "barrier", flag: "barrier", env: "PGPALISADE_BARRIER", value_name: "KIND", shape: TomlType::Text,
        default: Some("cluster"), heading: FENCE,
        help: "What a takeover waits for: cluster",
        more: "cluster: PostgreSQL itself has ended every session with a lower token, whichever proxy it came through.",
    }),
    (Key::Witness, KeySpec {
        name: "witness", flag: "witness", env: "PGPALISADE_WITNESS", value_name: "auto|off", shape: TomlType::Text,
        default: Some("auto"), heading: FENCE,
        help: "Copy each mark to a small table of the cluster, pgpalisade.mark",
        more: "The copy reveals an authority that was restored from an older snapshot. It costs one small \
               transaction for each takeover, none for a write. auto: if the control role may write the table.",
    }),
    (Key::TakeoverTimeout, KeySpec {
        name: "takeover.timeout", flag: "takeover-timeout", env: "PGPALISADE_TAKEOVER_TIMEOUT", value_name: "TIME",
        shape: TomlType::Duration, default: Some("5s"), heading: FENCE,
        help: "Time within which a declaration succeeds or fails (100ms to 10min)",
        more: "If old sessions cannot be confirmed gone in time, the new holder is refused (PF006).",
    }),
    (Key::Policy, KeySpec {
        name: "policy", flag: "policy", env: "PGPALISADE_POLICY", value_name: "FILE",
        shape: TomlType::Text, default: None, heading: FENCE,
        help: "File of rules: which writes need the token of which scope, for whom, and what is refused",
        more: "Without one, every write needs the current token of scope \"default\", and reads are free. SIGHUP \
               reloads it; if the file has an error, the old rules stay in force. \"pgpalisade check --policy FILE\" \
               finds errors, \"pgpalisade explain\" shows what it does with a statement.",
    }),
    (Key::Observe, KeySpec {
        name: "observe", flag: "observe", env: "PGPALISADE_OBSERVE", value_name: "on|off",
        shape: TomlType::Switch, default: Some("off"), heading: FENCE,
        help: "Refuse nothing and end no session; only record what would be refused",
        more: "It overrides every mode in the policy file.",
    }),
    (Key::RejectionLog, KeySpec {
        name: "rejection_log", flag: "rejection-log", env: "PGPALISADE_REJECTION_LOG", value_name: "FILE",
        shape: TomlType::Text, default: None, heading: RECORD,
        help: "File that gets one JSON line for every rejection",
        more: "It is appended to, and reopened on SIGHUP. Rejections are also in the log, with or without this file.",
    }),
    (Key::RejectionLiterals, KeySpec {
        name: "rejection_literals", flag: "rejection-literals", env: "PGPALISADE_REJECTION_LITERALS",
        value_name: "remove|keep", shape: TomlType::Text, default: Some("remove"), heading: RECORD,
        help: "Remove or keep strings, numbers and comments in the SQL of rejection records",
        more: "They may be personal data or passwords.",
    }),
    (Key::Http, KeySpec {
        name: "http", flag: "http", env: "PGPALISADE_HTTP", value_name: "ADDRESS",
        shape: TomlType::Text, default: None, heading: RECORD,
        help: "IP:PORT that answers HTTP: /metrics for Prometheus, /healthz and /readyz for probes, and tables",
        more: "Without http_token_file or http_client_ca it must be an address of this machine, such as \
               127.0.0.1:6434.",
    }),
    (Key::HttpTokenFile, KeySpec {
        name: "http_token_file", flag: "http-token-file", env: "PGPALISADE_HTTP_TOKEN_FILE", value_name: "FILE",
        shape: TomlType::Text, default: None, heading: RECORD,
        help: "File with the bearer token that admits a request",
        more: "One line of at least 16 characters, which others may not read. It is read at each request, so a new \
            token works at once. Without the token, probes get only the status.",
    }),
    (Key::HttpCertificate, KeySpec {
        name: "http_certificate", flag: "http-certificate", env: "PGPALISADE_HTTP_CERTIFICATE", value_name: "FILE",
        shape: TomlType::Text, default: None, heading: RECORD,
        help: "Certificate for HTTP, in PEM format, with those between it and its root; with it there is TLS only",
        more: "SIGHUP reads all files for TLS again; if one of them has an error, the old ones stay in force.",
    }),
    (Key::HttpKeyFile, KeySpec {
        name: "http_key", flag: "http-key", env: "PGPALISADE_HTTP_KEY", value_name: "FILE",
        shape: TomlType::Text, default: None, heading: RECORD,
        help: "Its private key, as tls.key",
        more: "",
    }),
    (Key::HttpClientCa, KeySpec {
        name: "http_client_ca", flag: "http-client-ca", env: "PGPALISADE_HTTP_CLIENT_CA", value_name: "FILE",
        shape: TomlType::Text, default: None, heading: RECORD,
        help: "Certificate authority of client certificates, in PEM format: each such certificate admits, as the \
            token does",
        more: "",
    }),
    (Key::Console, KeySpec {
        name: "console", flag: "console", env: "PGPALISADE_CONSOLE", value_name: "ADDRESS",
        shape: TomlType::Text, default: None, heading: CONSOLE,
        help: "Where psql reaches the console: IP:PORT of this machine, or for a unix socket DIR:PORT",
        more: "On a unix socket, whose port is 6433 if it is left out, the user that runs pgpalisade and root are \
               admins without a password. IP:PORT needs console_auth_file. docs/console.md has the commands.",
    }),
    (Key::ConsoleAuthFile, KeySpec {
        name: "console_auth_file", flag: "console-auth-file", env: "PGPALISADE_CONSOLE_AUTH_FILE", value_name: "FILE",
        shape: TomlType::Text, default: None, heading: CONSOLE,
        help: "Users of the console and their SCRAM-SHA-256 verifiers, in the form of auth_file",
        more: "Others may not read the file. SIGHUP reads it again; if it has an error, the old one stays in force.",
    }),
    (Key::ConsoleAdmins, KeySpec {
        name: "console_admins", flag: "console-admins", env: "PGPALISADE_CONSOLE_ADMINS", value_name: "USER",
        shape: TomlType::List, default: None, heading: CONSOLE,
        help: "Users of console_auth_file who may RELOAD, KILL and SHUTDOWN; may be given several times",
        more: "The others may only read.",
    }),
    (Key::ConnectionsMax, KeySpec {
        name: "connections.max", flag: "connections-max", env: "PGPALISADE_CONNECTIONS_MAX", value_name: "N",
        shape: TomlType::Number, default: Some("5000"), heading: LIMITS,
        help: "Client connections at one time; each uses one of PostgreSQL's, so stay below its max_connections",
        more: "",
    }),
    (Key::LoginTimeout, KeySpec {
        name: "login_timeout", flag: "login-timeout", env: "PGPALISADE_LOGIN_TIMEOUT", value_name: "TIME",
        shape: TomlType::Duration, default: Some("60s"), heading: LIMITS,
        help: "Time from connecting to the end of the login, like PostgreSQL's authentication_timeout (1s to 10min)",
        more: "",
    }),
    (Key::WriteStallTimeout, KeySpec {
        name: "write_stall_timeout", flag: "write-stall-timeout", env: "PGPALISADE_WRITE_STALL_TIMEOUT",
        value_name: "TIME|off", shape: TomlType::Duration, default: Some("15min"), heading: LIMITS,
        help: "A client that accepts no byte of its results for this long is disconnected (1s to 24h, or off)",
        more: "A client that never reads would hold a session, its locks and its snapshot for ever. The default is far \
               above any pause of a healthy client; raise it if clients stop for longer in the middle of a result.",
    }),
    (Key::TcpKeepalive, KeySpec {
        name: "tcp.keepalive", flag: "tcp-keepalive", env: "PGPALISADE_TCP_KEEPALIVE", value_name: "TIME|off",
        shape: TomlType::Duration, default: Some("60s"), heading: LIMITS,
        help: "Idle time before TCP keep-alive probes, towards clients and PostgreSQL (1s to 2h, or off)",
        more: "",
    }),
    (Key::Workers, KeySpec {
        name: "workers", flag: "workers", env: "PGPALISADE_WORKERS", value_name: "N", shape: TomlType::Number,
        default: None, heading: LIMITS,
        help: "Worker threads [default: half of the cores, at least one]",
        more: "One serves some ten thousand statements a second. On a machine of its own, give the proxy all cores.",
    }),
    (Key::IoUring, KeySpec {
        name: "io_uring", flag: "io-uring", env: "PGPALISADE_IO_URING", value_name: "auto|off", shape: TomlType::Text,
        default: Some("auto"), heading: LIMITS,
        help: "Batch socket writes with io_uring",
        more: "Saves 10 to 20 % of the CPU time when many sessions are busy. auto: if the kernel supports and allows \
               it, which Docker's default profile does not; nothing else changes without it.",
    }),
    (Key::ShutdownGrace, KeySpec {
        name: "shutdown.grace", flag: "shutdown-grace", env: "PGPALISADE_SHUTDOWN_GRACE", value_name: "TIME",
        shape: TomlType::Duration, default: Some("30s"), heading: LIMITS,
        help: "Time that open transactions get after SIGTERM or SIGINT (0 to 1h)",
        more: "A second signal ends it at once.",
    }),
    (Key::Log, KeySpec {
        name: "log", flag: "log", env: "PGPALISADE_LOG", value_name: "FILTER", shape: TomlType::Text,
        default: Some("info"), heading: RECORD,
        help: "What is logged to standard error: error, warn, info, debug, trace, or target=level,...",
        more: "RUST_LOG is used if nothing else sets it.",
    }),
    (Key::LogFormat, KeySpec {
        name: "log_format", flag: "log-format", env: "PGPALISADE_LOG_FORMAT", value_name: "auto|text|json",
        shape: TomlType::Text, default: Some("auto"), heading: RECORD,
        help: "auto: text on a terminal, JSON lines otherwise",
        more: "",
    }),
];

impl Key {
    pub(super) fn spec(self) -> Option<&'static KeySpec> {
        const TABLE: &[(Key, KeySpec)] = &KEYS;
        let row = TABLE.iter().find(|(key, _)| *key == self);
        row.map(|(_, spec)| spec)
    }

    pub(crate) fn by_name(name: &str) -> Option<(Self, &'static KeySpec)> {
        by(|spec| spec.name == name)
    }

    pub(crate) fn by_env(name: &str) -> Option<(Self, &'static KeySpec)> {
        by(|spec| spec.env == name)
    }
}

fn by(wanted: impl Fn(&KeySpec) -> bool) -> Option<(Key, &'static KeySpec)> {
    const TABLE: &[(Key, KeySpec)] = &KEYS;
    TABLE
        .iter()
        .find(|(_, spec)| wanted(spec))
        .map(|(key, spec)| (*key, spec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_variables_follow_from_the_name() {
        for (_, spec) in &KEYS {
            assert_eq!(spec.flag, spec.name.replace(['.', '_'], "-"));
            let env = spec.name.replace('.', "_").to_uppercase();
            assert_eq!(spec.env, format!("PGPALISADE_{env}"));
        }
    }
}
