//! Stage two: every value parsed and within its bounds.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use pgpalisade_fence::statement_text::Literals;
use pgpalisade_policies::{Mode, Network};
use pgpalisade_server::accounts::Auth;
use pgpalisade_server::certificates::ClientTls;
use pgpalisade_server::hosts::Hosts;
use pgpalisade_server::listener::ListenAddr;
use pgpalisade_server::pooling::Pool;
use pgpalisade_server::transport::Batching;
use pgpalisade_server::worker::ClientLimits;
use pgpalisade_takeover::WitnessMode;
use pgpalisade_tls::{Login, Secret, SslSettings};
use tracing_subscriber::filter::{LevelFilter, Targets};

use super::address::parse_hosts;
use super::auth;
use super::authority::AuthorityLocation;
use super::backends;
use super::console::ConsoleAddr;
use super::control;
use super::error::ConfigErrors;
use super::http::HttpAddr;
use super::key::Key;
use super::listen;
use super::listener::{TokenListener, TokenSource};
use super::raw::{Environment, RawConfig};
use super::tls;
use super::values::{SECOND, Values, minutes, path};
use crate::process;

const BATCHING: [(&str, Batching); 2] = [("auto", Batching::Auto), ("off", Batching::Off)];
const WITNESS: [(&str, WitnessMode); 2] = [("auto", WitnessMode::Auto), ("off", WitnessMode::Off)];
const LITERALS: [(&str, Literals); 2] = [("remove", Literals::Remove), ("keep", Literals::Keep)];
const LOG_FORMAT: [(&str, Option<bool>); 3] =
    [("auto", None), ("text", Some(false)), ("json", Some(true))];

/// Configuration of `serve`, made by [`Config::from_raw`] only.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub(crate) struct Config {
    pub clients: Clients,
    pub upstream: Upstream,
    /// The proxy's own login. Without a user it is the system user's.
    pub control: Secret<Login>,
    pub takeover: TakeoverConfig,
    pub policy: Policy,
    pub rejections: Rejections,
    pub log: Log,
    pub http: Option<HttpAddr>,
    pub console: Option<ConsoleAddr>,
    pub workers: NonZeroUsize,
    pub batching: Batching,
    pub shutdown_grace: Duration,
}

#[derive(Debug, Clone)]
pub(crate) struct Clients {
    /// None twice. Port 0 lets the system choose.
    pub listen: Vec<ListenAddr>,
    /// At least one, or an address in `listen`.
    pub token_listeners: Vec<TokenListener>,
    pub tls: ClientTls,
    pub auth: Auth,
    pub pool: Pool,
    pub max_connections: NonZeroUsize,
    pub limits: ClientLimits,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Upstream {
    pub hosts: Hosts,
    pub ssl: SslSettings,
}

#[derive(Debug, Clone)]
pub(crate) struct TakeoverConfig {
    pub authority: AuthorityLocation,
    pub witness: WitnessMode,
    pub timeout: Duration,
}

#[derive(Debug, Clone)]
pub(crate) struct Policy {
    /// File of rules; without it the default policy applies.
    pub file: Option<PathBuf>,
    pub mode: Mode,
}

#[derive(Debug, Clone)]
pub(crate) struct Rejections {
    /// File of records; without it they are only logged.
    pub file: Option<PathBuf>,
    pub literals: Literals,
}

#[derive(Debug, Clone)]
pub(crate) struct Log {
    pub filter: Targets,
    /// Unless set: text on a terminal, JSON otherwise.
    pub json: Option<bool>,
}

impl Config {
    /// Addresses of the control connection, without user or password, in the order of the upstream's hosts.
    pub(crate) fn control_hosts(&self) -> Hosts {
        control::addresses(&self.control.expose().config)
    }

    /// Roles of the control connection and of the store, and the one that PostgreSQL's method `peer` gives this
    /// process.
    pub(crate) fn own_roles(&self) -> Vec<String> {
        let control = self.control.expose().config.get_user();
        let store = match &self.takeover.authority {
            AuthorityLocation::Postgres(options) => options.user(),
            AuthorityLocation::Embedded(_) | AuthorityLocation::Etcd(_) => None,
        };
        let named = [control, store].into_iter().flatten().map(str::to_owned);
        named.chain([process::user()]).collect()
    }

    /// Checks everything that was written.
    ///
    /// # Errors
    ///
    /// All wrong, unknown and missing keys.
    pub(crate) fn from_raw(
        raw: RawConfig,
        environment: &Environment,
    ) -> Result<Self, ConfigErrors> {
        let mut values = Values::new(&raw);
        let config = Self::read(&mut values, environment);
        let errors = values.into_errors();
        match config {
            Some(config) if raw.errors.is_empty() && errors.is_empty() => Ok(config),
            _ => Err(ConfigErrors([raw.errors, errors].concat())),
        }
    }

    /// Reads every key, to find all errors. `None` if one without a default has no valid value, or if some do not fit
    /// together. A key with a default always has a good value: its `?` leaves no other key unread.
    fn read(values: &mut Values<'_>, environment: &Environment) -> Option<Self> {
        let clients = Clients::read(values, environment);
        let what = "the address of the PostgreSQL to protect";
        let upstream = values.required(Key::Upstream, what, parse_hosts);
        let login = values.last(Key::Control, control::parse);
        let what = "embedded:DIR, etcd:URL,URL or postgres:DSN; \
                    no default, because an empty store has forgotten the marks";
        let authority = values.required(Key::Authority, what, AuthorityLocation::parse);
        let http = HttpAddr::read(values);
        let console = ConsoleAddr::read(values);
        let listen = clients.iter().flat_map(Clients::addresses);
        let mut services: Vec<_> = listen
            .map(|(key, address)| (key, address.clone()))
            .collect();
        let place = console.iter();
        services.extend(place.map(|console| ("console", console.listen.clone())));
        let place = http.iter();
        services.extend(place.map(|http| ("http", ListenAddr::Tcp(http.address))));
        listen::refuse_shared(values, &services);
        refuse_elections_elsewhere(values, clients.as_ref(), authority.as_ref());
        let witness = values.choice(Key::Witness, &WITNESS)?;
        let timeout = values.time(
            Key::TakeoverTimeout,
            Duration::from_millis(100)..=minutes(10),
        )?;
        let policy = Policy {
            file: values.last(Key::Policy, path),
            mode: values.last(Key::Observe, mode)?,
        };
        let rejections = Rejections {
            file: values.last(Key::RejectionLog, path),
            literals: values.choice(Key::RejectionLiterals, &LITERALS)?,
        };
        let log = Log {
            filter: values.last(Key::Log, log_filter)?,
            json: values.choice(Key::LogFormat, &LOG_FORMAT)?,
        };
        let workers = values.count(Key::Workers, 1..=1024);
        let batching = values.choice(Key::IoUring, &BATCHING)?;
        let shutdown_grace = values.time(Key::ShutdownGrace, Duration::ZERO..=minutes(60))?;
        let (hosts, ssl) = upstream?;
        let control = control::complete(login, &hosts, &ssl, environment);
        let control = values.accept(control)?;
        Some(Self {
            clients: clients?,
            upstream: Upstream { hosts, ssl },
            control: Secret::new(control),
            takeover: TakeoverConfig {
                authority: authority?,
                witness,
                timeout,
            },
            policy,
            rejections,
            log,
            http,
            console,
            workers: workers.unwrap_or_else(default_workers),
            batching,
            shutdown_grace,
        })
    }
}

/// An election in etcd is followed with the authority's connection.
fn refuse_elections_elsewhere(
    values: &mut Values<'_>,
    clients: Option<&Clients>,
    authority: Option<&AuthorityLocation>,
) {
    let is_elsewhere = authority.is_some_and(|known| !known.is_etcd());
    let elections = clients.filter(|_| is_elsewhere);
    for listener in elections
        .into_iter()
        .flat_map(|clients| &clients.token_listeners)
    {
        if matches!(listener.source, TokenSource::Etcd { .. }) {
            values.refuse(format!(
                "listener {listener}: an election in etcd can be followed only with authority = \"etcd:..\""
            ));
        }
    }
}

impl Clients {
    /// Addresses of all listeners for clients, each with its key, in the order of [`Self::listen`] and
    /// [`Self::token_listeners`].
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (&'static str, &ListenAddr)> {
        let plain = self.listen.iter().map(|address| ("listen", address));
        let listeners = self.token_listeners.iter();
        let with_token = listeners.flat_map(|listener| &listener.listen);
        plain.chain(with_token.map(|address| ("listener", address)))
    }

    fn read(values: &mut Values<'_>, environment: &Environment) -> Option<Self> {
        let mut listen = values.last_list(Key::Listen, listen::parse, listen::is_fixed)?;
        let token_listeners = TokenListener::read(values, environment);
        if !token_listeners.is_empty() && !values.is_set(Key::Listen) {
            listen.clear();
        }
        let proxy_protocol = values.last_list(Key::ProxyProtocol, Network::parse, |_| true);
        let tls = tls::read(values);
        let auth = auth::read(values, tls.as_ref());
        let pool = backends::read(values);
        if let Some(Pool::Transaction(limits)) = &pool
            && limits.sessions == 0
            && let Some(own) = token_listeners.iter().find(|own| own.pool.is_some())
        {
            values.refuse(format!(
                "listener {own}: with pool = \"session\" its clients have server connections of their own, and \
                 backends.sessions allows none"
            ));
        }
        let max_connections = values.count(Key::ConnectionsMax, 1..=1_000_000)?;
        let limits = ClientLimits {
            proxy_protocol: proxy_protocol.unwrap_or_default(),
            login_timeout: values.time(Key::LoginTimeout, SECOND..=minutes(10))?,
            write_stall_timeout: values
                .time_or_off(Key::WriteStallTimeout, SECOND..=minutes(24 * 60))?,
            tcp_keepalive: values.time_or_off(Key::TcpKeepalive, SECOND..=minutes(2 * 60))?,
        };
        Some(Self {
            listen,
            token_listeners,
            tls: tls?,
            auth: auth?,
            pool: pool?,
            max_connections,
            limits,
        })
    }
}

/// Half of the cores: PostgreSQL or the clients need the others. Few busy threads cost less than many that sleep and
/// wake: `docs/overhead.md`.
fn default_workers() -> NonZeroUsize {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroUsize::new(cores / 2).unwrap_or(NonZeroUsize::MIN)
}

fn mode(observe: &str) -> Result<Mode, String> {
    match observe {
        "on" | "true" => Ok(Mode::Observe),
        "off" | "false" => Ok(Mode::Enforce),
        _ => Err(format!("{observe:?}: write on or off")),
    }
}

fn log_filter(text: &str) -> Result<Targets, String> {
    let words = text.split(',').map(str::trim);
    // The library reads an empty word as "error".
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    // The library takes any word for a target, so "verbose" would silence the log.
    if let Some(word) = words.iter().find(|word| is_no_level(word)) {
        return Err(format!(
            "{word:?} is not a log level: write error, warn, info, debug or trace, or target=level"
        ));
    }
    let filter = words.join(",").parse().ok();
    // Filters by span, which other programs take from RUST_LOG, would match nothing.
    filter.filter(|_| !text.contains('[')).ok_or_else(|| {
        format!(
            "{text:?} is not a log filter: write a level, such as info, or target=level, such as \
             pgpalisade_takeover=trace,info"
        )
    })
}

/// Whether a bare word is neither a level nor the name of a part of this program.
fn is_no_level(word: &str) -> bool {
    let is_bare = !word.contains(['=', '[', ':']);
    is_bare && !word.starts_with("pgpalisade") && LevelFilter::from_str(word).is_err()
}
