//! Checks of the store against the cluster.

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use pgpalisade_authority::{Mark, Rank, Scope};
use pgpalisade_fence::rejection::utc;
use pgpalisade_takeover::ControlError;
use pgpalisade_takeover::cluster_lock::{self, Proxy};
use pgpalisade_takeover::error::wrong_cluster_advice;
use pgpalisade_takeover::prepare;
use pgpalisade_takeover::witness::forgotten;

use super::super::finding::{Check, CheckResult, listed};
use super::super::hosts::Chosen;
use super::super::store::{self, StoreContents};
use super::FindingSink;
use crate::config::AuthorityLocation;

pub(super) const CHECKS: RangeInclusive<Check> = Check::Cluster..=Check::Marks;

/// A server process notices within this time that its proxy has ended.
const GONE_WITHIN: Duration = Duration::from_secs(2);

const IN_USE: &str =
    "not checked: only the running proxy can read its store; its console has SHOW TAKEOVERS";
const NO_STORE: &str = "nothing to check: there is no store yet";
const UNKNOWN: &str = "not checked: the store cannot be read";
const ON_STANDBY: &str = "not checked: the control connection leads to a standby";
const RECOVER: &str = "if this is not the store that was used before, correct \"authority\"; only if that store was \
                       lost or restored, stop all proxies of this cluster and run \"pgpalisade recover\" with the \
                       same configuration";

pub(super) async fn checks(
    control: &Chosen,
    location: &AuthorityLocation,
    held: &StoreContents,
    proxies: Result<Vec<Proxy>, ControlError>,
    witnessed: Option<&HashMap<Scope, Mark>>,
    report: &mut FindingSink<'_>,
) {
    if control.rights.standby {
        return report.skip(CHECKS, ON_STANDBY);
    }
    report.add(Check::Cluster, on_record(control, held).await);
    let proxies = match (location, held, proxies) {
        (AuthorityLocation::Embedded(_), StoreContents::Contents(_), Ok(seen))
            if !seen.is_empty() =>
        {
            still_there(control).await
        }
        (.., proxies) => proxies,
    };
    let served = proxies.map(|proxies| served(location, held, &proxies));
    report.add(Check::Proxies, served);
    report.add(Check::Marks, marks(held, witnessed));
}

/// Proxies that the cluster still sees although none has the store open.
async fn still_there(control: &Chosen) -> Result<Vec<Proxy>, ControlError> {
    let give_up = Instant::now() + GONE_WITHIN;
    loop {
        let proxies = control.connection.look(cluster_lock::proxies).await?;
        if proxies.is_empty() || Instant::now() >= give_up {
            return Ok(proxies);
        }
        tokio::time::sleep(GONE_WITHIN / 20).await;
    }
}

const fn why_not(held: &StoreContents) -> &'static str {
    match held {
        StoreContents::Nothing => NO_STORE,
        StoreContents::InUse => IN_USE,
        StoreContents::Unknown | StoreContents::Contents(_) => UNKNOWN,
    }
}

async fn on_record(control: &Chosen, held: &StoreContents) -> Result<CheckResult, ControlError> {
    let ours = control.connection.look(prepare::cluster).await?;
    let Some(contents) = held.contents() else {
        return Ok(CheckResult::skip(why_not(held)));
    };
    Ok(match contents.cluster {
        None => CheckResult::ok(format!("cluster {ours}; none is on record yet")),
        Some(recorded) if recorded == ours => {
            CheckResult::ok(format!("cluster {ours} is the one on record"))
        }
        Some(recorded) if ours.follows(&recorded) => CheckResult::ok(format!(
            "cluster {ours}; {recorded} is on record until a proxy connects"
        )),
        Some(recorded) => CheckResult::fail(
            format!("this is cluster {ours}, but the marks are for cluster {recorded}"),
            wrong_cluster_advice(&ours, &recorded),
        ),
    })
}

fn served(location: &AuthorityLocation, held: &StoreContents, proxies: &[Proxy]) -> CheckResult {
    const SHARE: &str =
        "give all proxies the same store: a cluster with two authorities has two marks";
    let served: BTreeSet<u32> = proxies.iter().map(|proxy| proxy.authority).collect();
    let all: Vec<String> = proxies.iter().map(describe).collect();
    let all = all.join("; ");
    let other = |ours: u32| served.iter().any(|theirs| *theirs != ours);
    match held {
        _ if served.len() > 1 => {
            CheckResult::fail(format!("proxies with several authorities: {all}"), SHARE)
        }
        StoreContents::Contents(contents) if other(contents.identity.short()) => CheckResult::fail(
            format!(
                "this configuration has authority {:08x}..., but the cluster is served with another: {all}",
                contents.identity.short()
            ),
            SHARE,
        ),
        StoreContents::Nothing if !served.is_empty() => CheckResult::fail(
            format!(
                "this configuration has no store yet, but the cluster is served with one: {all}"
            ),
            SHARE,
        ),
        // A copy: the store that is open elsewhere is not this file.
        StoreContents::Contents(_)
            if matches!(location, AuthorityLocation::Embedded(_)) && !served.is_empty() =>
        {
            CheckResult::fail(
                format!("the cluster is served with a copy of this store: {all}"),
                "stop that proxy, or give all of them a store for several: etcd or postgres",
            )
        }
        StoreContents::InUse if served.is_empty() => CheckResult::warn(
            "the store is in use, but no proxy is connected to this cluster",
            "wait if a proxy is just starting; otherwise it serves another cluster, or its control connection is down: \
             see its log",
        ),
        _ if served.is_empty() => CheckResult::ok("no proxy is connected to this cluster now"),
        _ => CheckResult::ok(all),
    }
}

fn describe(proxy: &Proxy) -> String {
    let since = proxy
        .since
        .map_or_else(String::new, |us| format!(" since {}", utc(us)));
    format!(
        "{} with authority {:08x}...{since}",
        proxy.holder, proxy.authority
    )
}

fn marks(held: &StoreContents, witnessed: Option<&HashMap<Scope, Mark>>) -> CheckResult {
    let Some(witnessed) = witnessed else {
        return CheckResult::skip("not compared: the cluster keeps no copy of the marks");
    };
    let kept: HashMap<Scope, Mark> = match held {
        StoreContents::Contents(contents) => contents.marks.iter().cloned().collect(),
        StoreContents::Nothing => HashMap::new(),
        StoreContents::InUse => {
            return CheckResult::skip(
                "not compared: only the running proxy can read its store, and it compared at its start",
            );
        }
        StoreContents::Unknown => return CheckResult::skip(UNKNOWN),
    };
    let lost = forgotten(witnessed, &kept);
    if lost.is_empty() {
        return CheckResult::ok(format!(
            "the authority has every mark that the cluster has seen ({})",
            store::of_sessions(witnessed.keys())
        ));
    }
    let name = |(scope, seen, kept): &(&Scope, Rank, Option<Rank>)| {
        let kept = kept.map_or("no mark".to_owned(), |rank| rank.to_string());
        format!("{scope} ({kept}, seen {seen})")
    };
    CheckResult::fail(
        format!(
            "the authority has forgotten marks: {}",
            listed(lost.iter().map(name))
        ),
        RECOVER,
    )
}
