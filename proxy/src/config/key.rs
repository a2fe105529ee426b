//! The one table of configuration keys, for flags, environment variables, help texts and defaults.

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
    /// An array of tables; one inline table in a flag or variable.
    Tables,
}

/// The default, or its replacement in the package's configuration file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sample {
    Default(&'static str),
    Example(&'static str),
    /// There is no default; the file sets this.
    Set(&'static str),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct KeySpec {
    pub key: Key,
    /// Name in the TOML file; a dot leads into a table.
    pub name: &'static str,
    pub value_name: &'static str,
    pub shape: TomlType,
    pub sample: Sample,
    pub heading: &'static str,
    /// One sentence without a full stop.
    pub help: &'static str,
    /// Further text of `--help`; may be empty.
    pub more: &'static str,
}

impl KeySpec {
    pub(crate) fn flag(&self) -> String {
        self.name.replace(['.', '_'], "-")
    }

    pub(crate) fn env(&self) -> String {
        format!("PGPALISADE_{}", self.name.replace('.', "_").to_uppercase())
    }

    pub(crate) const fn default(&self) -> Option<&'static str> {
        match self.sample {
            Sample::Default(text) => Some(text),
            Sample::Example(_) | Sample::Set(_) => None,
        }
    }
}

/// Makes [`Key`] and [`KEYS`] from a table of headings, each with its keys.
macro_rules! keys {
    ($($heading:literal {
        $($key:ident($name:literal, $value_name:literal, $shape:ident, $sample:ident($text:literal),
            $help:literal, $more:literal);)*
    })*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Key {
            $($($key,)*)*
        }

        /// All keys, in the order of the help.
        pub(crate) const KEYS: &[&KeySpec] = &[$($(Key::$key.spec(),)*)*];

        impl Key {
            pub(super) const fn spec(self) -> &'static KeySpec {
                match self {
                    $($(Self::$key => &KeySpec {
                        key: Self::$key, name: $name, value_name: $value_name, shape: TomlType::$shape,
                        sample: Sample::$sample($text), heading: $heading, help: $help, more: $more,
                    },)*)*
                }
            }
        }
    };
}

keys! {
    "Addresses" {
        Listen("listen", "ADDRESS", List, Default("127.0.0.1:6432"),
            "Address that clients connect to: IP:PORT, or for a unix socket DIR:PORT; may be given several times",
            "In the directory clients find .s.PGSQL.PORT, as PostgreSQL's own; the port is 6432 if it is left out. \
             Anyone who can enter the directory can connect. The socket has no TLS, whatever tls.mode says.");
        Listener("listener", "TABLE", Tables,
            Example("{ listen = \"127.0.0.1:6431\", token = \"scheduler=lease\" }"),
            "Listener whose sessions get their token from the proxy, a table with listen and token; may be given \
             several times",
            "listen is as above. token is \"SCOPE=lease\": the proxy campaigns for the lease of the scope, and gives \
             its token to each new session while it leads. Or SCOPE=etcd:KEY, SCOPE=kubernetes:NAMESPACE/NAME (both \
             with identity, the name under which the replica leads) or SCOPE=file:PATH: the proxy follows an \
             election. without is \"read\" (the default: other sessions are admitted without a token) or \"refuse\". \
             pool = \"session\" gives them server connections of their own. on_loss is a command for the end of a \
             lead. With this key and no key listen, there is no other listener. \
             docs/listeners.md says what it is for.");
        ProxyProtocol("proxy_protocol", "NETWORK", List, Example("10.0.0.0/8"),
            "Network of load balancers that send the PROXY protocol, version 1 or 2; may be given several times",
            "A connection from there must begin with its header. Policies, logs and rejections see the address in it. \
             A connection from anywhere else that begins with such a header is closed.");
        Upstream("upstream", "ADDRESS", Text, Set("postgres://127.0.0.1:5432"),
            "The PostgreSQL to protect: postgres://host:port, several hosts as postgres://a:5432,b:5432, or a unix \
             socket directory (/var/run/postgresql, or postgres:///?host=/dir&port=5433)",
            "TLS to it is set as with libpq's parameters: postgres://host?sslmode=verify-full&sslrootcert=FILE. The \
             modes are disable, which is the default, prefer, require, verify-ca and verify-full; sslrootcert=system \
             trusts the system's certificate authorities; sslcert and sslkey are the proxy's own certificate. \
             docs/tls.md has examples.");
        Control("control", "DSN", Text, Set("user=pgpalisade dbname=postgres"),
            "How the proxy itself logs in to watch and end sessions, as a URL or as key=value pairs",
            "The role needs pg_signal_backend and pg_monitor. What the DSN leaves out comes from the \
             upstream's address, with its TLS, and from PGUSER, PGPASSWORD and PGDATABASE. Flags are visible to other \
             users of the machine: put a password into the file or the environment.");
    }
    "TLS to clients" {
        TlsMode("tls.mode", "off|allow|require", Text, Default("off"),
            "Whether clients may use TLS, or must",
            "require refuses every session that is not encrypted. A cancel request may be unencrypted, as with \
             PostgreSQL: many clients send it so. TLS 1.2 and 1.3, after an SSLRequest or at once \
             (sslnegotiation=direct).");
        TlsCertificate("tls.certificate", "FILE", Text, Example("/etc/pgpalisade/proxy.crt"),
            "Certificate that clients see, in PEM format, with those between it and its root",
            "SIGHUP reads all files for TLS again; if one of them has an error, the old ones stay in force.");
        TlsKeyFile("tls.key", "FILE", Text, Example("/etc/pgpalisade/proxy.key"),
            "Its private key, in PEM format, without a passphrase",
            "As for PostgreSQL, nobody else may read it: 0600, or 0640 if root owns it.");
        TlsClientCa("tls.client_ca", "FILE", Text, Example("/etc/pgpalisade/clients.crt"),
            "Certificate authority of client certificates, in PEM format; without it clients are not asked for one",
            "");
        TlsClientCertificates("tls.client_certificates", "optional|required", Text, Default("optional"),
            "Whether a session needs a client certificate",
            "A certificate that is shown must be valid in any case.");
    }
    "Logins" {
        Auth("auth", "relay|scram|password", Text, Default("relay"),
            "How clients are authenticated: by PostgreSQL, relayed; by the proxy, with SCRAM; or by PostgreSQL, with \
             the password that clients send to the proxy over TLS",
            "With TLS on both legs, relay works for clients with channel_binding=disable only. docs/tls.md has the \
             table, and \"pgpalisade check\" says which of them works here.");
        AuthFile("auth_file", "FILE", Text, Example("/etc/pgpalisade/userlist.txt"),
            "Users and their verifiers, for auth = scram, in the form of pgbouncer's userlist.txt",
            "Only SCRAM-SHA-256 verifiers, as in pg_authid.rolpassword. Others may not read the file. SIGHUP reads it \
             again; if it has an error, the old one stays in force.");
        AuthQuery("auth_query", "SQL", Text, Example("SELECT usename, passwd FROM pgpalisade_users($1)"),
            "SQL that finds a user and its verifier, for auth = scram; $1 is the user",
            "Runs as the role of the control connection, on a separate connection, with search_path pg_catalog. It \
             returns one row of two columns, the user and the verifier, or none.");
    }
    "Server connections" {
        Pool("pool", "session|transaction", Text, Default("session"),
            "How long a client has a server connection for itself: for its session, or for each transaction",
            "transaction: few server connections serve many clients, as the keys of [backends] say. With auth = relay \
             it works only for users that PostgreSQL asks for nothing (trust, peer).");
        BackendsMax("backends.max", "N", Number, Default("20"),
            "Server connections at one time, for pool = transaction; stay below PostgreSQL's max_connections", "");
        BackendsLeaders("backends.leaders", "N", Number, Default("2"),
            "Of these, how many are kept for clients with a token",
            "Fewer than backends.max: clients without a token never have the last ones, however long they wait.");
        BackendsWait("backends.wait", "TIME", Duration, Default("15s"),
            "Time that a transaction waits for a server connection (0 to 10min)",
            "Then it is refused with 53300; nothing of it was sent.");
        BackendsIdle("backends.idle", "TIME", Duration, Default("10min"),
            "An idle server connection is closed after this time (1s to 24h)", "");
        BackendsLifetime("backends.lifetime", "TIME", Duration, Default("1h"),
            "A server connection is replaced after this time, give or take a tenth (1min to 168h)", "");
        BackendsPinned("backends.pinned", "N", Number, Default("10"),
            "Server connections that clients may keep beyond a transaction",
            "A client keeps its connection for LISTEN, a temporary table, a session's advisory lock, and similar. Of \
             several, one is always left for the others.");
        BackendsReset("backends.reset", "always|auto", Text, Default("always"),
            "When a server connection is reset before another client gets it",
            "auto: not after transactions that have only read, if no function of the database may leave something in a \
             session. It looks at their texts each minute. docs/pooling.md has what it counts.");
        BackendsSessions("backends.sessions", "N", Number, Default("0"),
            "Server connections beside backends.max, for clients to which a rule or listener gives their own", "");
    }
    "Fence" {
        Authority("authority", "STORE", Text, Set("embedded:/var/lib/pgpalisade"),
            "Where marks are kept: embedded:DIR (a directory on a durable disk), etcd:URL,URL or postgres:DSN",
            "embedded is for one proxy, etcd and postgres are for several. There is no default: an empty store has \
             forgotten the marks and would let a deposed leader in. Flags are visible to other users of the machine: \
             put a password into the file or the environment. docs/stores.md has all options.");
        Witness("witness", "auto|off", Text, Default("auto"),
            "Copy each mark to a small table of the cluster, pgpalisade.mark",
            "The copy reveals an authority that was restored from an older snapshot. It costs one small transaction \
             for each takeover, none for a write. auto: if the control role may write the table.");
        TakeoverTimeout("takeover.timeout", "TIME", Duration, Default("5s"),
            "Time within which a declaration succeeds or fails (100ms to 10min)",
            "If old sessions cannot be confirmed gone in time, the new holder is refused (PF006).");
        Policy("policy", "FILE", Text, Example("/etc/pgpalisade/policy.toml"),
            "File of rules: which writes need the token of which scope, for whom, and what is refused",
            "Without one, every write needs the current token of scope \"default\", and reads are free. SIGHUP \
             reloads it; if the file has an error, the old rules stay in force. \"pgpalisade check --policy FILE\" \
             finds errors, \"pgpalisade explain\" shows what it does with a statement.");
        Observe("observe", "on|off", Switch, Default("off"),
            "Refuse nothing and end no session; only record what would be refused",
            "It overrides every mode in the policy file.");
    }
    "Record" {
        RejectionLog("rejection_log", "FILE", Text, Set("/var/log/pgpalisade/rejections.jsonl"),
            "File that gets one JSON line for every rejection",
            "It is appended to, and reopened on SIGHUP. Rejections are also in the log, with or without this file.");
        RejectionLiterals("rejection_literals", "remove|keep", Text, Default("remove"),
            "Remove or keep strings, numbers and comments in the SQL of rejection records",
            "They may be personal data or passwords.");
        Http("http", "ADDRESS", Text, Example("127.0.0.1:6434"),
            "IP:PORT that answers HTTP: /metrics for Prometheus, /healthz and /readyz for probes, and tables",
            "Without http_token_file or http_client_ca it must be an address of this machine, such as \
             127.0.0.1:6434.");
        HttpTokenFile("http_token_file", "FILE", Text, Example("/etc/pgpalisade/http.token"),
            "File with the bearer token that admits a request",
            "One line of at least 16 characters, which others may not read. It is read at each request, so a new \
             token works at once. Without the token, probes get only the status.");
        HttpCertificate("http_certificate", "FILE", Text, Example("/etc/pgpalisade/http.crt"),
            "Certificate for HTTP, in PEM format, with those between it and its root; with it there is TLS only",
            "SIGHUP reads all files for TLS again; if one of them has an error, the old ones stay in force.");
        HttpKeyFile("http_key", "FILE", Text, Example("/etc/pgpalisade/http.key"),
            "Its private key, as tls.key", "");
        HttpClientCa("http_client_ca", "FILE", Text, Example("/etc/pgpalisade/monitoring.crt"),
            "Certificate authority of client certificates, in PEM format: each such certificate admits, as the token \
             does", "");
    }
    "Console" {
        Console("console", "ADDRESS", Text, Example("/run/pgpalisade"),
            "Where psql reaches the console: IP:PORT of this machine, or for a unix socket DIR:PORT",
            "On a unix socket, whose port is 6433 if it is left out, the user that runs pgpalisade and root are \
             admins without a password. IP:PORT needs console_auth_file. docs/console.md has the commands.");
        ConsoleAuthFile("console_auth_file", "FILE", Text, Example("/etc/pgpalisade/console.txt"),
            "Users of the console and their SCRAM-SHA-256 verifiers, in the form of auth_file",
            "Others may not read the file. SIGHUP reads it again; if it has an error, the old one stays in force.");
        ConsoleAdmins("console_admins", "USER", List, Example("alice"),
            "Users of console_auth_file who may do more than read, such as PAUSE and KILL; may be given several times",
            "The others may only read.");
    }
    "Limits" {
        ConnectionsMax("connections.max", "N", Number, Default("5000"),
            "Client connections at one time",
            "With pool = session each uses one of PostgreSQL's, so stay below its max_connections.");
        LoginTimeout("login_timeout", "TIME", Duration, Default("60s"),
            "Time from connecting to the end of the login, like PostgreSQL's authentication_timeout (1s to 10min)", "");
        WriteStallTimeout("write_stall_timeout", "TIME|off", Duration, Default("15min"),
            "A client that accepts no byte of its results for this long is disconnected (1s to 24h, or off)",
            "A client that never reads would hold a session, its locks and its snapshot for ever. The default is far \
             above any pause of a healthy client; raise it if clients stop for longer in the middle of a result.");
        TcpKeepalive("tcp.keepalive", "TIME|off", Duration, Default("60s"),
            "Idle time before TCP keep-alive probes, towards clients and PostgreSQL (1s to 2h, or off)", "");
        Workers("workers", "N", Number, Example("2"),
            "Worker threads [default: half of the cores, at least one]",
            "One serves some ten thousand statements a second. On a machine of its own, give the proxy all cores.");
        IoUring("io_uring", "auto|off", Text, Default("auto"),
            "Batch socket writes with io_uring",
            "Saves 10 to 20 % of the CPU time when many sessions are busy. auto: if the kernel supports and allows \
             it, which Docker's default profile does not; nothing else changes without it.");
        ShutdownGrace("shutdown.grace", "TIME", Duration, Default("30s"),
            "Time that open transactions get after SIGTERM or SIGINT (0 to 1h)",
            "A second signal ends it at once.");
    }
    "Record" {
        Log("log", "FILTER", Text, Default("info"),
            "What is logged to standard error: error, warn, info, debug, trace, or target=level,...",
            "RUST_LOG is used if nothing else sets it.");
        LogFormat("log_format", "auto|text|json", Text, Default("auto"),
            "auto: text on a terminal, JSON lines otherwise", "");
    }
}

impl Key {
    pub(crate) fn by_name(name: &str) -> Option<&'static KeySpec> {
        KEYS.iter().copied().find(|spec| spec.name == name)
    }

    pub(crate) fn by_env(name: &str) -> Option<&'static KeySpec> {
        KEYS.iter().copied().find(|spec| spec.env() == name)
    }
}
