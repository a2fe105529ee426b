//! Checks of the protected PostgreSQL over the control connection.

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::time::Duration;

use pgpalisade_server::accounts::{Auth, VerifierSource};
use pgpalisade_server::hosts::UpstreamAddr;
use pgpalisade_server::pooling::Pool;
use pgpalisade_takeover::cluster_lock::Proxy;
use pgpalisade_takeover::{ControlError, prepare};

use super::super::cluster::{self, PreparedTransaction};
use super::super::finding::{Check, CheckResult, listed};
use super::super::hosts::{Chosen, Host, HostRole};
use super::super::probe::{Probe, ProbeError};
use super::witness;
use crate::config::{AuthorityLocation, Config};

pub(super) const CHECKS: RangeInclusive<Check> = Check::Primary..=Check::Witness;

/// Number of running proxies that share the server's connections: one for an embedded store.
fn sharing(location: &AuthorityLocation, seen: usize) -> NonZeroUsize {
    match location {
        AuthorityLocation::Embedded(_) => NonZeroUsize::MIN,
        _ => NonZeroUsize::new(seen).unwrap_or(NonZeroUsize::MIN),
    }
}

pub(super) async fn checks(
    config: &Config,
    control: &Chosen,
    hosts: &[Host],
    proxies: &[Proxy],
    within: Duration,
    report: &mut dyn FnMut(Check, CheckResult),
) {
    report(Check::Primary, primary(control, hosts));
    report(Check::Rights, rights(control));
    report(Check::Superusers, superusers(control).await);
    report(Check::Direct, direct(control));
    report(
        Check::SameServer,
        same_server(config, control, within).await,
    );
    let count = sharing(&config.takeover.authority, proxies.len());
    report(
        Check::Connections,
        connections(config, control, count).await,
    );
    report(Check::Prepared, prepared(control).await.into());
    report(Check::Witness, witness(config, control, proxies).await);
}

fn primary(control: &Chosen, hosts: &[Host]) -> CheckResult {
    let named: Vec<String> = hosts
        .iter()
        .map(|host| format!("{}: {}", host.host, host.seen))
        .collect();
    match (control.rights.standby, hosts.len()) {
        (true, 1) => {
            return CheckResult::fail(
                "the control connection leads to a standby",
                "point \"control\" and \"upstream\" to the primary",
            );
        }
        (true, _) => {
            return CheckResult::fail(
                format!("none of the hosts is the primary: {}", named.join("; ")),
                "promote one, or name the primary too",
            );
        }
        (false, 1) => return CheckResult::ok("the server is a primary"),
        (false, _) => {}
    }
    let is_sound = |host: &Host| matches!(host.role, HostRole::Primary | HostRole::Standby);
    if hosts.iter().all(is_sound) {
        CheckResult::ok(named.join("; "))
    } else {
        CheckResult::warn(
            named.join("; "),
            "stop each host that is neither the primary nor a standby of it, or make it a standby",
        )
    }
}

fn rights(control: &Chosen) -> CheckResult {
    let rights = &control.rights;
    let role = &rights.role;
    if !rights.missing.is_empty() {
        return CheckResult::fail(
            format!("role {role} lacks {}", rights.missing.join(" and ")),
            format!("run as an administrator: {}", rights.grant()),
        );
    }
    if rights.superuser {
        CheckResult::ok(format!(
            "role {role} is a superuser and may end every session"
        ))
    } else {
        CheckResult::ok(format!(
            "role {role} has pg_signal_backend and pg_read_all_stats"
        ))
    }
}

async fn superusers(control: &Chosen) -> CheckResult {
    if control.rights.superuser {
        return CheckResult::ok("the control role can end the sessions of superusers too");
    }
    // The role cannot see which sessions are clients.
    if !control.rights.missing.is_empty() {
        return CheckResult::skip("not checked: the control role lacks rights");
    }
    match control.connection.look(cluster::superusers).await {
        Ok(roles) if roles.is_empty() => {
            CheckResult::ok("no client is connected as a superuser now")
        }
        Ok(roles) => CheckResult::warn(
            format!(
                "clients are connected as superuser ({}), whose sessions role {} cannot end",
                roles.join(", "),
                control.rights.role
            ),
            "let applications log in without superuser rights: a takeover over such a session fails with PF006",
        ),
        Err(error) => CheckResult::unanswered(&error),
    }
}

/// Whether the session that answers is the one of the login.
fn direct(control: &Chosen) -> CheckResult {
    const POOLER: &str = "let \"control\" lead to PostgreSQL itself: a pooler gives it the session of another client";
    let own = control.rights.backend.pid;
    match control.connection.told_pid {
        Some(told) if told == own => CheckResult::ok(format!(
            "no pooler is between this machine and server process {own}"
        )),
        Some(told) => CheckResult::fail(
            format!(
                "a pooler is in between: it told server process {told} at login, and it is {own}"
            ),
            POOLER,
        ),
        None => CheckResult::fail("no server process was told at login", POOLER),
    }
}

/// Whether sessions opened like a client's appear on the control connection, under the pid of their login. Takeovers
/// rely on this.
async fn same_server(config: &Config, control: &Chosen, within: Duration) -> CheckResult {
    let addr = &control.upstream;
    let opened = Probe::open(addr, config.control.expose(), within).await;
    let connection = match opened {
        Ok(connection) => connection,
        Err(error) => return not_compared(control, &error),
    };
    match connection.look(cluster::is_pgpalisade).await {
        Ok(false) => {}
        Ok(true) => return another_pgpalisade(addr),
        Err(error) => return CheckResult::unanswered(&error),
    }
    let looked = async {
        let theirs = connection.look(prepare::rights).await?;
        let server = connection.look(cluster::server).await?;
        let told = connection.told_pid;
        let started = control
            .connection
            .look(async |client| match told {
                Some(pid) => cluster::started(client, pid).await,
                None => Ok(None),
            })
            .await?;
        Ok((theirs.backend, server.system_identifier, told, started))
    };
    let (backend, system_identifier, told, started) = match looked.await {
        Ok(looked) => looked,
        Err(error) => return CheckResult::unanswered(&error),
    };
    let ours = control.server.system_identifier;
    if system_identifier != ours {
        return CheckResult::fail(
            format!(
                "\"upstream\" leads to cluster {system_identifier}, \"control\" to cluster {ours}"
            ),
            "let both lead to the same server",
        );
    }
    if told != Some(backend.pid) {
        return CheckResult::fail(
            format!(
                "a pooler is between \"upstream\" and the server: it told {} at login, and it is server process {}",
                told.map_or("nothing".to_owned(), |pid| format!("server process {pid}")),
                backend.pid
            ),
            "let \"upstream\" lead to PostgreSQL itself; a pooler belongs in front of pgpalisade",
        );
    }
    if started != Some(backend.started_us) {
        return CheckResult::fail(
            format!(
                "server process {} of \"upstream\" does not show on the control connection: they are two servers of \
                 cluster {ours}",
                backend.pid
            ),
            "let both lead to the primary",
        );
    }
    CheckResult::ok(format!(
        "a session through {addr} shows on the control connection as server process {}",
        backend.pid
    ))
}

fn not_compared(control: &Chosen, error: &ProbeError) -> CheckResult {
    let (upstream, control) = (&control.upstream, &control.control);
    if upstream == control {
        return CheckResult::warn(error.to_string(), "look at the server's log");
    }
    if let ProbeError::Dial(..) | ProbeError::Timeout(..) = error {
        return CheckResult::fail(
            error.to_string(),
            "start PostgreSQL, or correct \"upstream\"",
        );
    }
    CheckResult::warn(
        format!("cannot be compared: {error}"),
        format!("make sure that {upstream} and {control} are the same server"),
    )
}

fn another_pgpalisade(addr: &UpstreamAddr) -> CheckResult {
    CheckResult::warn(
        format!("the server at {addr}, in \"upstream\", is itself a pgpalisade"),
        "let \"upstream\" and \"control\" lead to PostgreSQL itself: there this proxy's sessions hold no token",
    )
}

async fn connections(config: &Config, control: &Chosen, count: NonZeroUsize) -> CheckResult {
    let places = match control.connection.look(cluster::places).await {
        Ok(places) => places,
        Err(error) => return CheckResult::unanswered(&error),
    };
    // The control connection takes one, and so do the lookups of passwords; a store in PostgreSQL, which may be in this
    // server, takes two.
    let asks = matches!(&config.clients.auth, Auth::Scram(VerifierSource::Query(_)));
    let stores = matches!(&config.takeover.authority, AuthorityLocation::Postgres(_));
    let own = 1 + usize::from(asks) + 2 * usize::from(stores);
    let all = usize::try_from(places).unwrap_or_default();
    let most = (all / count).saturating_sub(own);
    let (key, wanted) = match &config.clients.pool {
        Pool::Session => ("connections.max", config.clients.max_connections.get()),
        Pool::Transaction(limits) if limits.sessions == 0 => ("backends.max", limits.max.get()),
        Pool::Transaction(limits) => (
            "backends.max + backends.sessions",
            limits.max.get() + limits.sessions,
        ),
    };
    let each = match count.get() {
        1 => format!("{key} is {wanted}"),
        _ => format!("{key} is {wanted}, with {count} proxies"),
    };
    if wanted <= most {
        return CheckResult::ok(format!(
            "{each}, and the server takes {places} besides those that it reserves"
        ));
    }
    let share = match count.get() {
        1 => String::new(),
        _ => " for each".to_owned(),
    };
    CheckResult::warn(
        format!("{each}, but the server takes only {places} besides those that it reserves"),
        format!(
            "set {key} to {most} or less{share}, or raise the server's max_connections: if clients take every place, \
             the control connection cannot come back"
        ),
    )
}

async fn prepared(control: &Chosen) -> Result<CheckResult, ControlError> {
    let found = control.connection.look(cluster::prepared).await?;
    if found.is_empty() {
        return Ok(CheckResult::ok("there are no prepared transactions"));
    }
    let name = |p: &PreparedTransaction| format!("{:?} of {} in {}", p.gid, p.owner, p.database);
    let named = listed(found.iter().map(name));
    Ok(CheckResult::warn(
        format!("prepared transactions outlive a takeover: {named}"),
        "finish each with COMMIT PREPARED or ROLLBACK PREPARED and the current token",
    ))
}
