//! `pgpalisade elect`: runs a command while this process leads.

use std::ffi::OsString;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use pgpalisade_authority::Scope;
use pgpalisade_elect::{Cluster, ElectConfig, ElectError, Event, HELD, Lock, LockSpec, Proxied};
use pgpalisade_tls::Secret;
use pgpalisade_wire::startup_options;

use super::text::plain;
use super::{Failure, failed, leaders_scope, runtime, tell};
use crate::config::{Environment, address_of, parse_dsn, parse_time, show_time};

const APPLICATION_NAME: &str = "pgpalisade elect";

/// A shorter lease may end before etcd notices that it lost a member.
const TTL: RangeInclusive<Duration> = Duration::from_secs(3)..=Duration::from_secs(3600);
const GRACE_MAX: Duration = Duration::from_secs(3600);

/// Run a command while this process leads, with the fencing token of its term
///
/// Waits for a lock, then runs the command with FENCING_TOKEN, FENCING_SCOPE and PGOPTIONS in its environment, so
/// every program that uses libpq declares its token. If the lock is lost, the command and what it has started get a
/// SIGTERM, and a SIGKILL after the grace; then this process campaigns again. When the command ends, the lock is
/// released at once.
///
/// It does not run the command if the server at --proxied is not pgpalisade. PGHOST and PGPORT in the command's
/// environment are those of --proxied, as are PGUSER and PGDATABASE unless they are set. A connection string or
/// service of the command can still bypass the proxy.
///
/// Signals are passed on to the command and what it has started.
///
/// Exits with the code of the command (128 plus the number of a signal that has ended it), with 75 if leadership is
/// lost and --once or --no-wait is given, with 69 if another leads and --no-wait is given (1 if this cannot be
/// determined), with 126 or 127 if the command cannot be run, and with 2 if the command line is wrong.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Locks:\n  \
    lease               a lease of the scope, kept by the proxy's authority; the token is the scope's next one\n  \
    etcd:KEY            an election in etcd, as of \"etcdctl elect KEY\"; the token is the candidacy's revision\n  \
    kubernetes:NS/NAME  a Lease of Kubernetes, as of client-go; the token is the scope's next one\n  \
    advisory-lock:ID    pg_advisory_lock(ID) of the database behind the proxy; the token is the scope's next one\n\n\
Examples:\n  \
    pgpalisade elect jobs --with lease --proxied postgres://app@db:6432/app -- ./scheduler\n  \
    pgpalisade elect jobs --with etcd:/elections/jobs --etcd http://10.0.0.1:2379 \\\n      \
    --proxied postgres://app@db:6432/app -- ./scheduler\n  \
    pgpalisade elect nightly --with advisory-lock:42 --proxied postgres://app@db:6432/app -- psql -f nightly.sql")]
pub(super) struct ElectArgs {
    /// What the token is for: the scope of the policy, or "default"
    #[arg(value_parser = leaders_scope)]
    scope: Scope,
    /// The lock whose holder leads: lease, etcd:KEY, kubernetes:NAMESPACE/NAME or advisory-lock:ID
    #[arg(long, value_name = "LOCK")]
    with: LockSpec,
    /// etcd, for etcd:KEY: http://host:2379, several with commas; ?ca=, cert=, key=, user=, password_file= after it
    #[arg(long, value_name = "URLS")]
    etcd: Option<String>,
    /// Kubernetes, for kubernetes:NAMESPACE/NAME: https://host:6443; ?ca=, token_file=, cert=, key= after it; in a
    /// pod the default is its service account
    #[arg(long, value_name = "URL")]
    kubernetes: Option<String>,
    /// The database through pgpalisade, for the lock and the command; what is left out comes from PGHOST and the like
    #[arg(long, value_name = "DSN")]
    proxied: Option<String>,
    /// A leader that is silent for this long has lost the lock, 3s to 1h
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = ttl)]
    ttl: Duration,
    /// Time that the command has to end after the lock is lost
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = grace)]
    grace: Duration,
    /// Exit with status 75 if leadership is lost
    #[arg(long)]
    once: bool,
    /// Do not wait: if another leads now, exit at once with status 69. Implies --once
    #[arg(long)]
    no_wait: bool,
    /// What runs while this process leads
    #[arg(value_name = "COMMAND", required = true, last = true)]
    command: Vec<OsString>,
}

pub(super) fn run(args: &ElectArgs) -> Result<(), Failure> {
    let plan = plan(args).map_err(|why| Failure::Usage(format!("pgpalisade: {why}")))?;
    let runtime = runtime()?;
    let ended = runtime.block_on(pgpalisade_elect::run(&plan, &mut |event| say(args, &event)));
    runtime.shutdown_background();
    match ended {
        Ok(0) => Ok(()),
        Ok(code) => Err(Failure::Code(code)),
        Err(error) => {
            let code = match &error {
                ElectError::Signals(_) => return Err(failed(error)),
                ElectError::Command { error, .. } => not_run(error),
                ElectError::NotNow(_) if error.is_held() => HELD,
                ElectError::NotNow(_) => return Err(failed(error)),
            };
            tell(&format!("pgpalisade: {}", plain(&error.to_string())));
            Err(Failure::Code(code))
        }
    }
}

/// The exit code of a shell.
fn not_run(error: &std::io::Error) -> u8 {
    match error.kind() {
        std::io::ErrorKind::NotFound => 127,
        _ => 126,
    }
}

/// Rejects options that the lock would ignore.
fn check_options(args: &ElectArgs) -> Result<(), String> {
    if args.etcd.is_some() && !matches!(args.with, LockSpec::Etcd(_)) {
        return Err("--etcd is for --with etcd:KEY: leave it out".to_owned());
    }
    if args.kubernetes.is_some() && !matches!(args.with, LockSpec::Kubernetes(_)) {
        let why = "--kubernetes is for --with kubernetes:NAMESPACE/NAME: leave it out";
        return Err(why.to_owned());
    }
    Ok(())
}

fn lock(args: &ElectArgs) -> Result<Lock, String> {
    check_options(args)?;
    Ok(match args.with.clone() {
        LockSpec::Lease => Lock::Lease,
        LockSpec::AdvisoryLock(id) => Lock::AdvisoryLock(id),
        LockSpec::Etcd(key) => {
            let urls = args.etcd.as_deref();
            let urls =
                urls.ok_or("--with etcd:KEY needs etcd's address: --etcd http://10.0.0.1:2379")?;
            Lock::Etcd(parsed("--etcd", urls)?, key)
        }
        LockSpec::Kubernetes(lease) => {
            let url = args.kubernetes.as_deref();
            let given = url.map(|url| parsed("--kubernetes", url)).transpose()?;
            let environment = Environment::of_this_process();
            let cluster = given.or_else(|| Cluster::of_this_pod(|name| environment.get(name)));
            let cluster = cluster.ok_or(
                "this is not a pod: --with kubernetes:NAMESPACE/NAME needs the API's address: \
                 --kubernetes 'https://10.0.0.1:6443?ca=FILE&token_file=FILE'",
            )?;
            Lock::Kubernetes(cluster, lease)
        }
    })
}

/// Parses an address here, because clap quotes one that is wrong, and it may have a password.
fn parsed<T: FromStr<Err: Display>>(flag: &str, address: &str) -> Result<T, String> {
    let parsed = address.parse();
    parsed.map_err(|error: T::Err| format!("{flag}: {error}"))
}

fn plan(args: &ElectArgs) -> Result<ElectConfig, String> {
    let lock = lock(args)?;
    let options = std::env::var_os("PGOPTIONS").unwrap_or_default();
    let settings = startup_options::from_switches(options.as_encoded_bytes());
    if startup_options::last(&settings, "fencing.token").is_some() {
        return Err(
            "PGOPTIONS already has a fencing.token, which this command would replace: remove it, and let the command \
                declare both"
                .to_owned(),
        );
    }
    let mut command = args.command.iter().cloned();
    Ok(ElectConfig {
        lock,
        proxied: proxied(args)?,
        program: command.next().unwrap_or_default(),
        arguments: command.collect(),
        grace: args.grace,
        waits: !args.no_wait,
        once: args.once || args.no_wait,
    })
}

fn proxied(args: &ElectArgs) -> Result<Proxied, String> {
    let dsn = args.proxied.as_deref().unwrap_or_default();
    let login = parse_dsn(dsn, APPLICATION_NAME, &Environment::of_this_process());
    let login = login.map_err(|why| format!("--proxied {why}"))?;
    Ok(Proxied {
        address: address_of(&login.config).to_string(),
        login: Secret::new(login),
        scope: args.scope.clone(),
        ttl: args.ttl,
    })
}

/// On standard error: standard output is the command's.
fn say(args: &ElectArgs, event: &Event<'_>) {
    let (scope, lock) = (&args.scope, &args.with);
    tell(&match event {
        Event::Campaigns if args.no_wait => return,
        Event::Campaigns => format!("pgpalisade: waiting for {lock}"),
        Event::Failed(error, pause) => {
            let (error, pause) = (plain(&error.to_string()), show_time(*pause));
            format!("pgpalisade: {error}; trying again in {pause}")
        }
        Event::Leads(token) => {
            format!("pgpalisade: leads scope \"{scope}\" with fencing token {token}")
        }
        Event::Lost(why) => {
            let (why, grace) = (plain(why), show_time(args.grace));
            format!("pgpalisade: lost {lock}: {why}; the command has {grace} to end")
        }
        Event::Kills => "pgpalisade: the command did not end in time and is killed".to_owned(),
    });
}

fn ttl(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    if TTL.contains(&time) && time.subsec_nanos() == 0 {
        Ok(time)
    } else {
        Err("write whole seconds, from 3s to 1h".to_owned())
    }
}

fn grace(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    if time <= GRACE_MAX {
        Ok(time)
    } else {
        Err("write a time of at most 1h".to_owned())
    }
}
