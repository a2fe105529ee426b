//! The checks, in order.

mod elections;
mod listeners;
mod logins;
mod postgres;
mod ways_in;

use std::collections::HashMap;

use clap::ValueEnum;
use pgpalisade_authority::{Cluster, Mark, Scope};
use pgpalisade_policies::Policy;
use pgpalisade_server::pooling::Pool;
use pgpalisade_takeover::cluster_lock::Proxy;
use pgpalisade_takeover::{ControlError, StartError, WitnessMode, cluster_lock, prepare, witness};

use super::cluster::{self, Witness};
use super::finding::{Check, CheckOutcome, CheckResult, Finding};
use super::hosts::{self, Chosen, Survey, Unseen};
use super::step_within;
use super::store::{self, StoreSnapshot, StoreState};
use crate::config::Config;
use crate::http::Access;
use crate::local;
use crate::policy_file::PolicyFileErrors;

/// Runs every check, and reports each finding at once.
pub(crate) async fn run(config: &Config, tell: &mut dyn FnMut(Finding)) {
    let within = step_within(config);
    let report = &mut |id, verdict| tell(Finding { id, verdict });
    report(Check::Config, CheckResult::ok("every value is valid"));
    report(Check::Files, files(config));
    let policy = local::policy(config);
    let policy = policy.as_ref();
    let declare = policy.map_or_else(invalid, |loaded| sessions(config, &loaded.policy));
    report(Check::Declare, declare);
    let logins = logins::check(config, within).await;
    report(Check::Logins, logins);
    let Survey { chosen, hosts } = hosts::survey(config, within).await;
    report(Check::Control, introduce(&chosen));
    let control = chosen.ok();
    let proxies = match &control {
        Some(control) => control.connection.look(cluster_lock::proxies).await,
        None => Ok(Vec::new()),
    };
    let has_no_proxy = proxies.as_ref().is_ok_and(Vec::is_empty);
    let proxies = proxies.unwrap_or_default();
    match &control {
        Some(control) => {
            postgres::checks(config, control, &hosts, &proxies, within, report).await;
        }
        None => Check::value_variants()
            .iter()
            .filter(|id| postgres::CHECKS.contains(id))
            .for_each(|id| report(*id, CheckResult::skip(WITHOUT_CONTROL))),
    }
    let protected = control.as_ref().map(|c| c.server.system_identifier);
    let location = &config.takeover.authority;
    // Before the store, which is raised first: so it cannot seem to have forgotten a mark.
    let witnessed = match &control {
        Some(control) => Some(witnessed(config, control).await),
        None => None,
    };
    let store = store::look(location, protected, within).await;
    let mut store = store::try_open(location, store, within).await;
    if store.state == StoreState::InUse
        && store.verdict.outcome == CheckOutcome::Ok
        && has_no_proxy
        // A standby knows no proxies.
        && control.as_ref().is_some_and(|c| !c.rights.standby)
    {
        store.verdict = CheckResult::warn(
            format!("{location} is in use, but this cluster has no proxy"),
            "look for another cluster's proxy that has this store: no second one starts with it",
        );
    }
    let forgotten = witnessed.and_then(|witnessed| forgotten(&witnessed, &store));
    report(Check::Authority, forgotten.unwrap_or(store.verdict));
    let elected = policy.map_or(&[][..], |loaded| loaded.policy.elected());
    let elections = elections::check(location, elected, within).await;
    report(Check::Elections, elections);
    let taken_by = policy.ok().map(|loaded| &loaded.policy);
    let listeners = listeners::check(config, taken_by, within).await;
    report(Check::Listeners, listeners);
    let ways_in = match &control {
        Some(control) => ways_in::check(control, taken_by, &proxies).await.into(),
        None => CheckResult::skip(WITHOUT_CONTROL),
    };
    report(Check::WaysIn, ways_in);
}

fn files(config: &Config) -> CheckResult {
    let token = config.http.as_ref().map(Access::new).transpose();
    let wrong = [
        local::certificates(config)
            .err()
            .map(|error| error.to_string()),
        local::console_users(config)
            .err()
            .map(|error| error.to_string()),
        token.err(),
    ];
    let wrong: Vec<String> = wrong.into_iter().flatten().collect();
    if wrong.is_empty() {
        return CheckResult::ok("all files for TLS, the console and HTTP can be used");
    }
    let advice = "correct the file or its permissions: a proxy does not start without it";
    CheckResult::fail(wrong.join("; "), advice)
}

fn invalid(errors: &PolicyFileErrors) -> CheckResult {
    let all = errors.to_string();
    CheckResult::fail(
        all.lines().next().unwrap_or_default(),
        "\"pgpalisade check --policy FILE\" lists all errors of the file itself",
    )
}

/// What the policy says of sessions as such.
fn sessions(config: &Config, policy: &Policy) -> CheckResult {
    match &config.clients.pool {
        Pool::Transaction(limits) if limits.sessions == 0 && policy.gives_own_connections() => {
            CheckResult::warn(
                "rules with pool = \"session\" refuse their clients, because backends.sessions allows none",
                "set backends.sessions, or remove pool from the rules",
            )
        }
        _ => who_may_declare(policy),
    }
}

/// Advice in any case: a pooler in front of the proxy cannot be detected.
fn who_may_declare(policy: &Policy) -> CheckResult {
    const POOLERS: &str = "behind a pooler in transaction or statement mode a session-level SET is unsafe unless the \
                           policy says declare = \"transaction\"";
    CheckResult::ok(if policy.says_who_may_declare() {
        format!("the policy says who may declare; {POOLERS}")
    } else {
        format!(
            "every session may declare every scope, and so end its leader: if several teams share this proxy, set \
             holders and declare in the policy; {POOLERS}"
        )
    })
}

const WITHOUT_CONTROL: &str = "not checked: there is no control connection";

fn introduce(chosen: &Result<Chosen, Unseen>) -> CheckResult {
    let chosen = match chosen {
        Ok(chosen) => chosen,
        Err(why @ Unseen::Connect(_)) => {
            return CheckResult::fail(
                why.to_string(),
                "start PostgreSQL, or correct \"upstream\", \"control\" (address, user, password, database) or \
                 the server's pg_hba.conf",
            );
        }
        Err(why @ Unseen::Question(_)) => {
            return CheckResult::fail(why.to_string(), "look at the server's log");
        }
    };
    let (rights, server) = (&chosen.rights, &chosen.server);
    let kind = if rights.superuser { ", superuser" } else { "" };
    CheckResult::ok(format!(
        "role {}{kind}, database {}, at {}, PostgreSQL {}",
        rights.role, server.database, chosen.control, server.version
    ))
}

/// What the server says of the cluster on record, and of the marks. What cannot be read is reported elsewhere.
struct Witnessed {
    cluster: Option<Cluster>,
    marks: HashMap<Scope, Mark>,
}

async fn witnessed(config: &Config, control: &Chosen) -> Witnessed {
    let cluster = control.connection.look(prepare::cluster).await;
    let witness = match config.takeover.witness {
        WitnessMode::Auto => control.connection.look(cluster::witness).await.ok(),
        WitnessMode::Off => None,
    };
    Witnessed {
        cluster: cluster.ok(),
        marks: match witness {
            Some(Witness::Kept(marks)) => marks,
            _ => HashMap::new(),
        },
    }
}

/// Why a proxy would not start with a store that is sound in itself.
fn forgotten(witnessed: &Witnessed, store: &StoreSnapshot) -> Option<CheckResult> {
    let (recorded, marks) = match (&store.state, &store.contents) {
        _ if store.verdict.outcome == CheckOutcome::Fail => return None,
        (_, Some(contents)) => (contents.cluster, contents.marks.iter().cloned().collect()),
        (StoreState::Missing, None) => (None, HashMap::new()),
        (_, None) => return None,
    };
    let error = match (witnessed.cluster, recorded) {
        (Some(ours), Some(recorded)) if !ours.follows(&recorded) => {
            StartError::WrongCluster { ours, recorded }
        }
        _ => witness::check_marks(&witnessed.marks, &marks).err()?,
    };
    let advice = "a proxy does not start before that is done";
    Some(CheckResult::fail(error.to_string(), advice))
}

async fn witness(config: &Config, control: &Chosen, proxies: &[Proxy]) -> CheckResult {
    if let Err(error) = cluster_lock::share_database(proxies) {
        return CheckResult::fail(error.to_string(), "correct the database in \"control\"");
    }
    if config.takeover.witness == WitnessMode::Off {
        return CheckResult::warn(
            "it is off, so an authority restored from an older snapshot would not be noticed",
            "set witness = \"auto\"",
        );
    }
    match control.connection.look(cluster::witness).await {
        Ok(Witness::Kept(marks)) => CheckResult::ok(format!(
            "the cluster keeps a copy of the marks: {}",
            store::of_sessions(marks.keys())
        )),
        Ok(Witness::None { can_be_made: true }) => CheckResult::ok(
            "the cluster keeps no copy of the marks yet; the first start of a proxy creates it",
        ),
        Ok(Witness::None { can_be_made: false }) => {
            let role = &control.rights.role;
            CheckResult::warn(
                format!("the cluster keeps no copy of the marks that role {role} may use"),
                format!(
                    "let its owner or a superuser run in database {}: {} and GRANT the role USAGE on the schema and \
                     SELECT, INSERT, UPDATE on the table",
                    control.server.database,
                    witness::SETUP
                ),
            )
        }
        Err(error @ ControlError::Strange(_)) => {
            let advice = "until that is done, a proxy does not start, and a takeover fails";
            CheckResult::fail(error.to_string(), advice)
        }
        Err(error) => CheckResult::unanswered(&error),
    }
}
