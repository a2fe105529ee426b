//! Stage two: every value parsed and in its bounds.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use pgpalisade_fence::statement_text::Literals;
use pgpalisade_policies::Mode;
use pgpalisade_takeover::WitnessMode;
use pgpalisade_tls::{Login, SslSettings};
use tracing_subscriber::filter::LevelFilter;

use super::address::{self, UpstreamAddr};
use super::authority::AuthorityLocation;
use super::control;
use super::duration;
use super::error::{ConfigError, ConfigErrors, Source};
use super::key::{KEYS, Key};
use super::raw::{Environment, Item, RawConfig, RawValue};
use super::secret::Secret;
use super::tls::{ClientTls, TlsKeys};

/// What `serve` needs to know. Made by [`Config::from_raw`] only.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub(crate) struct Config {
    /// Addresses to listen on: at least one, none twice. Port 0 lets the system choose.
    pub listen: Vec<SocketAddr>,
    /// The protected PostgreSQL.
    pub upstream: UpstreamAddr,
    /// TLS to it, of sessions.
    pub upstream_ssl: SslSettings,
    /// TLS to clients.
    pub client_tls: ClientTls,
    /// How the proxy itself logs in to it. Complete but for the user, which is then the system user's name.
    pub control: Secret<Login>,
    /// Where marks are kept.
    pub authority: AuthorityLocation,
    /// What a takeover waits for.
    pub barrier: Barrier,
    /// Whether marks are copied into the protected cluster.
    pub witness: WitnessMode,
    /// Time within which a declaration succeeds or fails.
    pub takeover_timeout: Duration,
    /// File of rules; without it the default holds.
    pub policy: Option<PathBuf>,
    /// Whether refusals are carried out at all.
    pub mode: Mode,
    /// File of rejection records; without it they are only logged.
    pub rejection_log: Option<PathBuf>,
    /// Whether rejection records keep the literals of a statement.
    pub rejection_literals: Literals,
    /// Limit of client connections at one time.
    pub max_connections: NonZeroUsize,
    /// Time from connecting to the end of the login.
    pub login_timeout: Duration,
    /// A client that accepts no byte for this long is disconnected; `None`: never.
    pub write_stall_timeout: Option<Duration>,
    /// Idle time before TCP keep-alive probes; `None`: no probes.
    pub tcp_keepalive: Option<Duration>,
    /// Worker threads.
    pub workers: NonZeroUsize,
    /// How many sends go to the system in one call.
    pub batching: Batching,
    /// Time that open transactions get at shutdown.
    pub shutdown_grace: Duration,
    /// What is logged.
    pub log: LogFilter,
    /// In which form.
    pub log_format: LogFormat,
}

/// What a takeover waits for. `local` is refused in this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Barrier {
    /// PostgreSQL itself has ended every session with a lower token.
    Cluster,
}

/// How many sends go to the system in one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Batching {
    /// All that the connections of a worker have in one turn, where the kernel has io_uring and allows it.
    Auto,
    /// One.
    Off,
}

/// A valid filter for `tracing_subscriber::EnvFilter`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogFilter(pub(super) String);

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// Text.
    Text,
    /// One JSON object per line.
    Json,
}

impl LogFilter {
    /// The filter as it was written.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Config {
    /// Where the control connection goes, for messages: without user or password.
    pub(crate) fn control_address(&self) -> UpstreamAddr {
        control::address(&self.control.expose().config)
    }

    /// Checks everything that was written. All errors come back together.
    ///
    /// # Errors
    /// Every wrong or unknown key of every source, and every key that is missing.
    pub(crate) fn from_raw(
        raw: RawConfig,
        environment: &Environment,
    ) -> Result<Self, ConfigErrors> {
        let mut parsed = Parsed::default();
        let mut errors = raw.errors;
        for value in &raw.values {
            errors.extend(parsed.set(value));
        }
        // Only keys that nobody set are missing; one with a bad value already has its error, and so has a file that
        // may have them.
        let given = |key: Key| raw.file_unread || raw.values.iter().any(|value| value.key == key);
        let missing = [
            (Key::Upstream, "the address of the PostgreSQL to protect"),
            (
                Key::Authority,
                "embedded:DIR, etcd:URL,URL or postgres:DSN; no default, since an empty store would forget the marks",
            ),
        ];
        for (key, what) in missing.into_iter().filter(|(key, _)| !given(*key)) {
            errors.push(ConfigError::new(&Source::Nowhere, not_set(key, what)));
        }
        if let Err(message) = parsed.tls.finish() {
            errors.push(ConfigError::new(&Source::Nowhere, message));
        }
        if errors.is_empty()
            && let Some(config) = parsed.finish(environment)
        {
            return Ok(config);
        }
        Err(ConfigErrors(errors))
    }
}

/// Values that were good, highest rank last.
#[derive(Default)]
struct Parsed {
    listen: Option<Vec<SocketAddr>>,
    upstream: Option<(UpstreamAddr, SslSettings)>,
    tls: TlsKeys,
    control: Option<Login>,
    authority: Option<AuthorityLocation>,
    barrier: Option<Barrier>,
    witness: Option<WitnessMode>,
    takeover_timeout: Option<Duration>,
    policy: Option<PathBuf>,
    mode: Option<Mode>,
    rejection_log: Option<PathBuf>,
    rejection_literals: Option<Literals>,
    max_connections: Option<NonZeroUsize>,
    login_timeout: Option<Duration>,
    write_stall_timeout: Option<Option<Duration>>,
    tcp_keepalive: Option<Option<Duration>>,
    workers: Option<NonZeroUsize>,
    batching: Option<Batching>,
    shutdown_grace: Option<Duration>,
    log: Option<LogFilter>,
    log_format: Option<LogFormat>,
}

impl Parsed {
    /// Takes over one value, or says what is wrong with it.
    fn set(&mut self, value: &RawValue) -> Vec<ConfigError> {
        if value.items.is_empty() {
            return Vec::new(); // Its error is there already.
        }
        if value.key == Key::Listen {
            return self.set_listen(value);
        }
        let [item] = value.items.as_slice() else {
            return vec![ConfigError::new(
                &value.source,
                format!("{} is given more than once", name(value.key)),
            )];
        };
        match self.set_one(value.key, item.text.as_str()) {
            Ok(()) => Vec::new(),
            Err(message) => vec![wrong(value.key, item, &message)],
        }
    }

    fn set_one(&mut self, key: Key, text: &str) -> Result<(), String> {
        let seconds = Duration::from_secs;
        match key {
            Key::Listen => {} // A list: see set_listen.
            Key::Upstream => self.upstream = Some(UpstreamAddr::parse(text)?),
            Key::TlsMode
            | Key::TlsCertificate
            | Key::TlsKeyFile
            | Key::TlsClientCa
            | Key::TlsClientCertificates => self.tls.set(key, text)?,
            Key::Control => self.control = Some(control::parse(text)?),
            Key::Authority => self.authority = Some(AuthorityLocation::parse(text)?),
            Key::Barrier => self.barrier = Some(barrier(text)?),
            Key::Witness => self.witness = Some(witness(text)?),
            Key::TakeoverTimeout => {
                self.takeover_timeout = Some(time(text, Duration::from_millis(100), seconds(600))?);
            }
            Key::Policy => self.policy = Some(path(text)?),
            Key::Observe => self.mode = Some(mode(text)?),
            Key::RejectionLog => self.rejection_log = Some(path(text)?),
            Key::RejectionLiterals => self.rejection_literals = Some(literals(text)?),
            Key::ConnectionsMax => self.max_connections = Some(count(text, 1_000_000)?),
            Key::LoginTimeout => self.login_timeout = Some(time(text, seconds(1), seconds(600))?),
            Key::WriteStallTimeout => {
                self.write_stall_timeout = Some(time_or_off(text, seconds(1), seconds(24 * 3600))?);
            }
            Key::TcpKeepalive => {
                self.tcp_keepalive = Some(time_or_off(text, seconds(1), seconds(2 * 3600))?)
            }
            Key::Workers => self.workers = Some(count(text, 1024)?),
            Key::IoUring => self.batching = Some(batching(text)?),
            Key::ShutdownGrace => {
                self.shutdown_grace = Some(time(text, Duration::ZERO, seconds(3600))?)
            }
            Key::Log => self.log = Some(log_filter(text)?),
            Key::LogFormat => self.log_format = Some(log_format(text)?),
        }
        Ok(())
    }

    fn set_listen(&mut self, value: &RawValue) -> Vec<ConfigError> {
        let mut addresses: Vec<SocketAddr> = Vec::new();
        let mut errors = Vec::new();
        for item in &value.items {
            match address::parse_listen(&item.text) {
                Ok(address) if address.port() != 0 && addresses.contains(&address) => {
                    errors.push(wrong(value.key, item, &format!("{address} is given twice")));
                }
                Ok(address) => addresses.push(address),
                Err(message) => errors.push(wrong(value.key, item, &message)),
            }
        }
        if errors.is_empty() {
            self.listen = Some(addresses);
        }
        errors
    }

    /// `None` where a key without a default is missing, which `from_raw` has already reported.
    fn finish(self, environment: &Environment) -> Option<Config> {
        let (upstream, upstream_ssl) = self.upstream?;
        let control = control::complete(self.control, &upstream, &upstream_ssl, environment);
        Some(Config {
            listen: self.listen?,
            control: Secret::new(control),
            upstream,
            upstream_ssl,
            client_tls: self.tls.finish().ok()?,
            authority: self.authority?,
            barrier: self.barrier?,
            witness: self.witness?,
            takeover_timeout: self.takeover_timeout?,
            policy: self.policy,
            mode: self.mode?,
            rejection_log: self.rejection_log,
            rejection_literals: self.rejection_literals?,
            max_connections: self.max_connections?,
            login_timeout: self.login_timeout?,
            write_stall_timeout: self.write_stall_timeout?,
            tcp_keepalive: self.tcp_keepalive?,
            workers: self.workers.unwrap_or_else(default_workers),
            batching: self.batching?,
            shutdown_grace: self.shutdown_grace?,
            log: self.log?,
            log_format: self.log_format?,
        })
    }
}

/// Half of the cores, for PostgreSQL or the clients need the others. One thread serves some ten thousand statements a
/// second, and few busy threads cost less than many that sleep and wake: `docs/overhead.md`.
fn default_workers() -> NonZeroUsize {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroUsize::new(cores / 2).unwrap_or(NonZeroUsize::MIN)
}

fn wrong(key: Key, item: &Item, message: &str) -> ConfigError {
    ConfigError::new(&item.source, format!("{}: {message}", name(key)))
}

fn name(key: Key) -> &'static str {
    KEYS.iter()
        .find(|(known, _)| *known == key)
        .map_or("", |(_, spec)| spec.name)
}

fn not_set(key: Key, what: &str) -> String {
    let spec = KEYS
        .iter()
        .find(|(known, _)| *known == key)
        .map(|(_, spec)| spec);
    spec.map_or_else(String::new, |spec| {
        format!(
            "{0} is not set: give --{1}, {2} or the key \"{0}\" ({what})",
            spec.name, spec.flag, spec.env
        )
    })
}

fn barrier(text: &str) -> Result<Barrier, String> {
    match text {
        "cluster" => Ok(Barrier::Cluster),
        "local" => Err(String::from(
            "\"local\" is not in this version: write cluster",
        )),
        _ => Err(format!("{text:?} is not a barrier: write cluster")),
    }
}

fn mode(observe: &str) -> Result<Mode, String> {
    match observe {
        "on" | "true" => Ok(Mode::Observe),
        "off" | "false" => Ok(Mode::Enforce),
        _ => Err(format!("{observe:?} is neither: write on or off")),
    }
}

fn witness(text: &str) -> Result<WitnessMode, String> {
    match text {
        "auto" => Ok(WitnessMode::Auto),
        "off" => Ok(WitnessMode::Off),
        _ => Err(format!("{text:?}: write auto or off")),
    }
}

fn batching(text: &str) -> Result<Batching, String> {
    match text {
        "auto" => Ok(Batching::Auto),
        "off" => Ok(Batching::Off),
        _ => Err(format!("{text:?}: write auto or off")),
    }
}

fn literals(text: &str) -> Result<Literals, String> {
    match text {
        "remove" => Ok(Literals::Remove),
        "keep" => Ok(Literals::Keep),
        _ => Err(format!("{text:?}: write remove or keep")),
    }
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "auto" => Ok(LogFormat::Auto),
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(format!("{text:?}: write auto, text or json")),
    }
}

fn log_filter(text: &str) -> Result<LogFilter, String> {
    // The library takes any word for a target. So "verbose" would silence the log.
    if let Some(word) = text
        .split(',')
        .map(str::trim)
        .find(|word| is_no_level(word))
    {
        return Err(format!(
            "{word:?} is not a log level: write error, warn, info, debug or trace, or target=level"
        ));
    }
    match tracing_subscriber::EnvFilter::try_new(text) {
        Ok(_) => Ok(LogFilter(text.to_owned())),
        Err(error) => Err(format!("{text:?} is not a log filter: {error}")),
    }
}

/// A bare word that is neither a level nor the name of a part of this program.
fn is_no_level(word: &str) -> bool {
    let is_bare = !word.is_empty() && !word.contains(['=', '[', ':']);
    is_bare && !word.starts_with("pgpalisade") && LevelFilter::from_str(word).is_err()
}

pub(super) fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err(String::from("names no file"));
    }
    // Absolute, so that a later reopen finds the same file.
    std::path::absolute(text).map_err(|error| format!("{text:?}: {error}"))
}

fn count(text: &str, most: usize) -> Result<NonZeroUsize, String> {
    let number = text.replace('_', "").parse::<NonZeroUsize>().ok();
    number
        .filter(|number| number.get() <= most)
        .ok_or_else(|| format!("{text:?} is out of range: write a number from 1 to {most}"))
}

fn time(text: &str, least: Duration, most: Duration) -> Result<Duration, String> {
    let time = duration::parse(text)?;
    if time < least || time > most {
        let (least, most) = (duration::show(least), duration::show(most));
        return Err(format!("{text:?} is out of range: write {least} to {most}"));
    }
    Ok(time)
}

fn time_or_off(text: &str, least: Duration, most: Duration) -> Result<Option<Duration>, String> {
    match text {
        "off" | "0" => Ok(None),
        _ => time(text, least, most)
            .map(Some)
            .map_err(|message| format!("{message}, or off")),
    }
}
