//! `pgpalisade status`: the present state.

use pgpalisade_authority::{Scope, utc};
use pgpalisade_fence::readable::without_error_numbers;
use pgpalisade_server::history::ShownTakeover;

use super::settings::Settings;
use super::text::{Output, counted, plain, table};
use super::{Failure, configuration, failed, run_to_end};
use crate::inspect::cluster::PreparedTransaction;
use crate::inspect::hosts::Host;
use crate::inspect::status::{
    self, MarksFrom, PREPARED, PROXIES, ProxyStatus, SCOPES, ScopeFilter, ScopeStatus, Status,
};

const SCOPES_SHOWN: usize = 50;

/// Show the cluster, the authority, the proxies, the marks and unfinished takeovers
///
/// Changes nothing. An embedded store can be read only while no proxy runs; otherwise the marks come from the cluster's
/// copy, and may be higher by now. Exits with 1 if the cluster, the authority or the marks cannot be read, or if the
/// scope of --scope has no mark.
#[derive(Debug, clap::Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    output: Output,
    /// Show every scope, not only the first 50
    #[arg(long, conflicts_with = "scope")]
    all: bool,
    /// Show this scope only
    #[arg(long, value_name = "NAME", value_parser = clap::value_parser!(Scope))]
    scope: Option<Scope>,
    #[command(flatten)]
    settings: Settings,
}

pub(super) fn run(args: &StatusArgs) -> Result<(), Failure> {
    let config = configuration(&args.settings)?;
    let wanted = match (&args.scope, args.all) {
        (Some(scope), _) => ScopeFilter::One(scope.clone()),
        (None, true) => ScopeFilter::All,
        (None, false) => ScopeFilter::First(SCOPES_SHOWN),
    };
    let status = run_to_end(status::look(&config, &wanted))?;
    let page = |status: &Status| without_error_numbers(&describe(status, &wanted));
    args.output.print(&status, page)?;
    match wanted {
        _ if status.is_incomplete() => Err(Failure::Told),
        ScopeFilter::One(scope) if status.scopes.is_empty() => Err(failed(format!(
            "scope \"{scope}\" has no mark: no leader has declared a token in it yet, or the name is wrong; \
             \"pgpalisade status --all\" lists the scopes"
        ))),
        _ => Ok(()),
    }
}

fn describe(status: &Status, wanted: &ScopeFilter) -> String {
    let mut text = format!("cluster    {}\n", cluster(status));
    let authority = &status.authority;
    if let hosts @ [_, _, ..] = status.cluster.hosts.as_slice() {
        for Host { host, seen, .. } in hosts {
            text += &format!("           {host}: {}\n", plain(seen));
        }
    }
    for problem in &status.cluster.problems {
        text += &format!("           not read: {}\n", plain(problem));
    }
    text += &format!("authority  {}\n", plain(&authority.seen));
    if let Some(recorded) = &authority.recorded_system_identifier {
        let timeline = authority.recorded_timeline.unwrap_or_default();
        text += &format!("on record  {recorded} on timeline {timeline}\n");
    }
    text += &format!("sessions   {}\n\nproxies\n", sessions(status));
    let list = |name: &str, told: String| {
        if status.is_unread(name) {
            "cannot be read\n".to_owned()
        } else {
            told
        }
    };
    text.push_str(&list(PROXIES, proxies(&status.proxies)));
    text.push_str(&format!("\n{}\n", scopes_head(status, wanted)));
    text.push_str(&list(SCOPES, scopes(&status.scopes, status.marks_from)));
    text.push_str(&repaired(&status.scopes));
    text.push_str(&takeovers(&status.takeovers));
    text.push_str("\nprepared transactions\n");
    let prepared = prepared(&status.prepared_transactions);
    text.push_str(&list(PREPARED, prepared));
    text
}

fn cluster(status: &Status) -> String {
    let cluster = &status.cluster;
    let Some(identifier) = &cluster.system_identifier else {
        return "cannot be read".to_owned();
    };
    let timeline = cluster
        .timeline
        .map_or_else(String::new, |timeline| format!(" on timeline {timeline}"));
    let version = cluster.version.as_deref().unwrap_or_default();
    format!("{identifier}{timeline}, PostgreSQL {version}")
}

fn sessions(status: &Status) -> String {
    let authority = &status.authority;
    match (authority.registered_sessions, authority.alive_sessions) {
        (Some(registered), Some(alive)) => {
            format!("{registered} registered, {alive} of them alive")
        }
        (Some(registered), None) => format!("{registered} registered"),
        (None, _) => "only the authority knows".to_owned(),
    }
}

fn proxies(proxies: &[ProxyStatus]) -> String {
    if proxies.is_empty() {
        return "none is connected to this cluster\n".to_owned();
    }
    let row = |proxy: &ProxyStatus| {
        [
            or_dash(proxy.pid.map(|pid| pid.to_string())),
            proxy.address.clone().unwrap_or_else(|| "local".to_owned()),
            or_dash(proxy.application_name.clone()),
            or_dash(proxy.since_us.map(utc)),
            format!("{}...", proxy.authority),
        ]
    };
    let head = ["PID", "ADDRESS", "APPLICATION", "SINCE", "AUTHORITY"];
    table(head, proxies.iter().map(row))
}

fn scopes_head(status: &Status, wanted: &ScopeFilter) -> String {
    if status.is_unread(SCOPES) {
        return "scopes".to_owned();
    }
    let source = match status.marks_from {
        MarksFrom::Authority => "",
        MarksFrom::Copy => ", from the cluster's copy of the marks: they may be higher by now",
    };
    let (shown, total) = (status.scopes.len(), status.scopes_total);
    let some = match wanted {
        ScopeFilter::First(_) if shown < total => {
            format!(" ({shown} of {total}; --all shows the rest)")
        }
        ScopeFilter::One(_) => format!(" ({shown} of {total})"),
        _ => String::new(),
    };
    format!("scopes{some}{source}")
}

fn scopes(scopes: &[ScopeStatus], from: MarksFrom) -> String {
    if scopes.is_empty() {
        return "none\n".to_owned();
    }
    let at_least = match from {
        MarksFrom::Authority => "",
        MarksFrom::Copy => "at least ",
    };
    let row = |scope: &ScopeStatus| {
        [
            scope.scope.clone(),
            match scope.incarnation {
                0 => format!("{at_least}{}", scope.mark),
                number => format!("{at_least}{} (incarnation {number})", scope.mark),
            },
            match scope.alive_below_mark {
                Some(0) => "completed".to_owned(),
                Some(left) => format!("{} left", counted(left, "old session")),
                None => "-".to_owned(),
            },
            utc(scope.raised_at_us),
            scope.raised_by.clone(),
        ]
    };
    let head = ["SCOPE", "MARK", "TAKEOVER", "RAISED AT", "RAISED BY"];
    table(head, scopes.iter().map(row))
}

fn repaired(scopes: &[ScopeStatus]) -> String {
    let row = |scope: &ScopeStatus| {
        let repair = scope.repair.as_ref()?;
        Some([
            scope.scope.clone(),
            format!("{} -> {}", repair.old_mark, repair.new_mark),
            utc(repair.at_us),
            repair.by.clone(),
            repair.reason.clone(),
        ])
    };
    let rows: Vec<_> = scopes.iter().filter_map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = ["SCOPE", "MARK", "REPAIRED AT", "BY", "REASON"];
    format!("\nrepaired scopes\n{}", table(head, rows))
}

fn takeovers(takeovers: &[ShownTakeover]) -> String {
    if takeovers.is_empty() {
        return String::new();
    }
    let row = |takeover: &ShownTakeover| {
        let from = or_dash(takeover.from.map(|token| token.to_string()));
        let took = format!("complete in {:.1} ms", takeover.took_us as f64 / 1e3);
        [
            takeover.scope.clone(),
            format!("{from} -> {}", takeover.to),
            or_dash(takeover.raised_at.clone()),
            takeover.sessions.to_string(),
            takeover.transactions.to_string(),
            match (&takeover.why, takeover.outcome) {
                (Some(why), outcome) => format!("{outcome}: {why}"),
                (None, "complete") => took,
                (None, outcome) => outcome.to_owned(),
            },
        ]
    };
    let (raised, ended) = ("RAISED AT", "IN TRANSACTION");
    let head = ["SCOPE", "MARK", raised, "ENDED", ended, "TAKEOVER"];
    let table = table(head, takeovers.iter().map(row));
    format!("\nlast takeovers\n{table}")
}

fn prepared(prepared: &[PreparedTransaction]) -> String {
    if prepared.is_empty() {
        return "none\n".to_owned();
    }
    let row = |p: &PreparedTransaction| {
        let (gid, owner) = (p.gid.clone(), p.owner.clone());
        [gid, owner, p.database.clone(), utc(p.prepared_us)]
    };
    let head = ["GID", "OWNER", "DATABASE", "PREPARED AT"];
    table(head, prepared.iter().map(row))
}

fn or_dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "-".to_owned())
}
