//! The checks, one after the other.

mod authority;
mod elections;
mod logins;
mod machine;
mod postgres;
mod ways_in;

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use clap::ValueEnum;
use pgpalisade_authority::{Mark, Scope};
use pgpalisade_policies::Policy;

use super::cluster::{self, Witness};
use super::connection::greet;
use super::finding::{Check, Finding, Outcome, Verdict};
use super::hosts::{self, Chosen, Survey, Unseen};
use super::{step_within, store};
use crate::config::Config;
use crate::policy_file::PolicyFileErrors;
use crate::takeover::{ControlError, WitnessMode, cluster_lock, witness};
use machine::Place;
use postgres::Proxies;

/// Where findings go as they are made.
struct Report<'a> {
    tell: &'a mut dyn FnMut(Finding),
}

impl Report<'_> {
    fn add(&mut self, id: Check, verdict: Verdict) {
        (self.tell)(Finding { id, verdict });
    }

    fn skip(&mut self, ids: RangeInclusive<Check>, why: &str) {
        for id in Check::value_variants().iter().filter(|id| ids.contains(id)) {
            self.add(*id, Verdict::skip(why));
        }
    }
}

/// Runs every check and tells each finding as soon as it is there.
pub(crate) async fn run(config: &Config, tell: &mut dyn FnMut(Finding)) {
    let within = step_within(config);
    let report = &mut Report { tell };
    report.add(Check::Config, Verdict::ok("every value is valid"));
    let tried = machine::checks(config, report).await;
    report.add(
        Check::Declare,
        match &tried.policy {
            Ok(loaded) => who_may_declare(&loaded.policy),
            Err(errors) => invalid(errors),
        },
    );
    let upstream = upstream(config, within).await;
    let answers = upstream.outcome != Outcome::Fail;
    report.add(Check::Upstream, upstream);
    let logins = logins::check(config, tried.logins, within).await;
    report.add(Check::Logins, logins);
    let (control, hosts) = if answers || config.control_hosts() != config.upstream.hosts {
        let Survey { chosen, hosts } = hosts::survey(config, within).await;
        report.add(Check::Control, introduce(&chosen));
        (chosen.ok(), hosts)
    } else {
        report.add(Check::Control, Verdict::skip(NO_HOST_ANSWERS));
        (None, Vec::new())
    };
    let proxies = match &control {
        Some(control) => control.connection.look(cluster_lock::proxies).await,
        None => Err(ControlError::Lost),
    };
    let witnessed = match &control {
        Some(control) => {
            let seen = proxies.as_ref().map_or(0, Vec::len);
            let count = match tried.places.iter().any(Place::is_in_use) {
                true => seen,
                false => seen + 1,
            };
            let proxies = Proxies::of(&config.takeover.authority, count);
            postgres::checks(config, control, &hosts, proxies, within, report).await
        }
        None => {
            report.skip(postgres::CHECKS, WITHOUT_CONTROL);
            None
        }
    };
    let protected = control.as_ref().map(|c| c.server.system_identifier);
    // After the witness, which never is ahead of an authority that remembers.
    let location = &config.takeover.authority;
    let store = store::look(location, protected, within).await;
    let store = store::try_open(location, store, within).await;
    report.add(Check::Authority, store.verdict);
    let policy = tried.policy.as_ref();
    let elected = policy.map_or(&[][..], |loaded| loaded.policy.elected());
    let elections = elections::check(location, elected, within).await;
    report.add(Check::Elections, elections);
    let seen = proxies.as_ref().map(Vec::len).ok();
    match &control {
        Some(control) => {
            let served = proxies.as_deref().unwrap_or_default().to_vec();
            let witnessed = witnessed.as_ref();
            authority::checks(control, location, &store.held, proxies, witnessed, report).await;
            let ways_in =
                ways_in::check(control, policy.ok().map(|loaded| &loaded.policy), &served).await;
            report.add(Check::WaysIn, ways_in);
        }
        None => report.skip(Check::Cluster..=Check::WaysIn, WITHOUT_CONTROL),
    }
    let running = machine::running(location, &store.held, seen);
    report.add(Check::Listen, machine::listen(&tried.places, running));
}

fn invalid(errors: &PolicyFileErrors) -> Verdict {
    let all = errors.to_string();
    Verdict::fail(
        all.lines().next().unwrap_or_default(),
        "\"pgpalisade check --policy FILE\" lists all errors of the file itself",
    )
}

/// Nothing shows a pooler in front of the proxy, so this is said in any case.
fn who_may_declare(policy: &Policy) -> Verdict {
    const POOLERS: &str = "behind a pooler in transaction or statement mode a session-level SET is unsafe unless the \
                           policy says declare = \"transaction\"";
    Verdict::ok(match policy.says_who_may_declare() {
        true => format!("the policy says who may declare; {POOLERS}"),
        false => format!(
            "EVERY session may declare EVERY scope, and so end its leader: if more than one team shares this \
             proxy, set holders and declare in the policy first; {POOLERS}"
        ),
    })
}

const NO_HOST_ANSWERS: &str =
    "not tried: it leads to the hosts of \"upstream\", and none of them answers";
const WITHOUT_CONTROL: &str = "not checked: there is no control connection";

/// The marks that the cluster has seen; `None` where it keeps none.
type Witnessed = Option<HashMap<Scope, Mark>>;

async fn upstream(config: &Config, within: Duration) -> Verdict {
    const ADVICE: &str = "start PostgreSQL, or correct \"upstream\"";
    let (mut answers, mut silent) = (Vec::new(), Vec::new());
    for host in config.upstream.hosts.all() {
        match greet(host, within).await {
            Ok(()) => answers.push(host.to_string()),
            Err(error) => silent.push(error.to_string()),
        }
    }
    let seen = match answers.len() {
        0 => return Verdict::fail(silent.join("; "), ADVICE),
        1 => format!("{} answers as PostgreSQL does", answers.join(", ")),
        _ => format!("{} answer as PostgreSQL does", answers.join(", ")),
    };
    match silent.is_empty() {
        true => Verdict::ok(seen),
        false => Verdict::warn(format!("{seen}; {}", silent.join("; ")), ADVICE),
    }
}

fn introduce(chosen: &Result<Chosen, Unseen>) -> Verdict {
    let Chosen {
        rights,
        server,
        control,
        ..
    } = match chosen {
        Ok(chosen) => chosen,
        Err(why @ Unseen::Connect(_)) => {
            return Verdict::fail(
                why.to_string(),
                "correct \"control\" (address, user, password, database), or the server's pg_hba.conf",
            );
        }
        Err(why @ Unseen::Question(_)) => {
            return Verdict::fail(why.to_string(), "look at the server's log");
        }
    };
    let kind = if rights.superuser { ", superuser" } else { "" };
    Verdict::ok(format!(
        "role {}{kind}, database {}, at {control}, PostgreSQL {}",
        rights.role, server.database, server.version
    ))
}

fn unanswered(error: ControlError) -> Verdict {
    Verdict::fail(
        format!("the query failed: {error}"),
        "look at the server's log",
    )
}

/// The check of the witness, and what it says.
async fn witness(config: &Config, control: &Chosen) -> (Verdict, Witnessed) {
    if config.takeover.witness == WitnessMode::Off {
        let verdict = Verdict::warn(
            "it is off, so an authority restored from an older snapshot would not be noticed",
            "set witness = \"auto\"",
        );
        return (verdict, None);
    }
    match control.connection.look(cluster::witness).await {
        Ok(Witness::Kept(marks)) => {
            let verdict = Verdict::ok(format!(
                "the cluster keeps a copy of the marks: {}",
                store::of_sessions(marks.keys())
            ));
            (verdict, Some(marks))
        }
        Ok(Witness::None { can_be_made: true }) => {
            let seen =
                "the cluster keeps no copy of the marks yet; the first start of a proxy creates it";
            (Verdict::ok(seen), None)
        }
        Ok(Witness::None { can_be_made: false }) => {
            let role = &control.rights.role;
            let verdict = Verdict::warn(
                format!("the cluster keeps no copy of the marks that role {role} may use"),
                format!(
                    "let a superuser run in database {}: {} and GRANT the role USAGE on the schema and SELECT, INSERT, \
                     UPDATE on the table",
                    control.server.database,
                    witness::SETUP
                ),
            );
            (verdict, None)
        }
        Err(error @ ControlError::Strange(_)) => {
            let advice = "until that is done, a proxy does not start, and a takeover fails";
            (Verdict::fail(error.to_string(), advice), None)
        }
        Err(error) => (unanswered(error), None),
    }
}
