//! The present state: cluster, authority, proxies, scopes, prepared transactions.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use pgpalisade_authority::{Backend, Contents, Mark, Rank, Scope, Token};
use pgpalisade_server::history::ShownTakeover;
use pgpalisade_takeover::{ControlError, WitnessMode, cluster_lock, prepare};
use serde::Serialize;

use super::cluster::{self, PreparedTransaction, Witness};
use super::hosts::{self, Host, Survey};
use super::probe::Probe;
use super::step_within;
use super::store::{self, StoreSnapshot, StoreState};
use crate::config::Config;

const TAKEOVERS: usize = 10;

/// Lists that may be unread, by their names in JSON.
pub(crate) const PROXIES: &str = "proxies";
pub(crate) const SCOPES: &str = "scopes";
pub(crate) const PREPARED: &str = "prepared_transactions";
const TAKEOVERS_LIST: &str = "takeovers";

/// Everything that `status` shows. Times are microseconds since the Unix epoch.
#[derive(Debug, Serialize)]
pub(crate) struct Status {
    pub(crate) cluster: ClusterStatus,
    pub(crate) authority: AuthorityStatus,
    pub(crate) proxies: Vec<ProxyStatus>,
    pub(crate) scopes: Vec<ScopeStatus>,
    pub(crate) marks_from: MarksFrom,
    pub(crate) scopes_total: usize,
    /// The newest first. Empty if the store cannot be read.
    pub(crate) takeovers: Vec<ShownTakeover>,
    /// The oldest ones, at most 100.
    pub(crate) prepared_transactions: Vec<PreparedTransaction>,
    pub(crate) unread: Vec<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MarksFrom {
    Authority,
    /// The cluster's copy, which may be behind.
    Copy,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct ClusterStatus {
    /// As text: it exceeds the exact range of many JSON parsers.
    pub(crate) system_identifier: Option<String>,
    pub(crate) timeline: Option<u32>,
    pub(crate) version: Option<String>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) problems: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct AuthorityStatus {
    pub(crate) location: String,
    pub(crate) state: StoreState,
    pub(crate) seen: String,
    pub(crate) identity: Option<String>,
    pub(crate) recorded_system_identifier: Option<String>,
    pub(crate) recorded_timeline: Option<u32>,
    /// Registered sessions; `None` if the store cannot be read.
    pub(crate) registered_sessions: Option<usize>,
    /// Registered sessions that still exist in PostgreSQL.
    pub(crate) alive_sessions: Option<usize>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ProxyStatus {
    /// Pid of its control connection, on the server.
    pub(crate) pid: Option<i32>,
    pub(crate) address: Option<String>,
    pub(crate) application_name: Option<String>,
    pub(crate) since_us: Option<i64>,
    /// The first 8 digits of its authority's identity.
    pub(crate) authority: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct ScopeStatus {
    pub(crate) scope: String,
    pub(crate) mark: Token,
    /// Number of repairs of the scope.
    pub(crate) incarnation: u32,
    /// The last repair, if the authority could be read.
    pub(crate) repair: Option<ScopeRepaired>,
    pub(crate) raised_at_us: i64,
    pub(crate) raised_by: String,
    /// Registered sessions below the mark that are alive: a takeover that is not completed. `None` if unknown.
    pub(crate) alive_below_mark: Option<usize>,
}

/// The last repair of a scope, by an operator.
#[derive(Debug, Serialize)]
pub(crate) struct ScopeRepaired {
    pub(crate) at_us: i64,
    pub(crate) by: String,
    pub(crate) reason: String,
    pub(crate) old_mark: Token,
    pub(crate) new_mark: Token,
}

#[derive(Debug, Clone)]
pub(crate) enum ScopeFilter {
    First(usize),
    All,
    One(Scope),
}

#[derive(Default)]
struct ClusterSnapshot {
    cluster: ClusterStatus,
    proxies: Vec<ProxyStatus>,
    prepared: Vec<PreparedTransaction>,
    unread: Vec<&'static str>,
    /// The cluster's copy of the marks; `None` if it keeps none.
    witnessed: Option<Vec<(Scope, Mark)>>,
}

/// Never fails: the status lists what cannot be read.
pub(crate) async fn look(config: &Config, wanted: &ScopeFilter) -> Status {
    let within = step_within(config);
    let (connection, mut seen) = cluster(config, within).await;
    let store = store::look(&config.takeover.authority, None, within).await;
    let contents = store.contents.as_ref();
    let alive = match (&connection, contents) {
        (Some(connection), Some(contents)) => {
            let look = async |client: &_| cluster::alive(client, &contents.sessions).await;
            let alive = connection.look(look).await;
            seen.keep(alive, "sessions")
        }
        _ => None,
    };
    let marks = match contents {
        Some(contents) => contents.marks.clone(),
        None => seen.witnessed.take().unwrap_or_else(|| {
            let note = match (store.state, &connection) {
                (StoreState::Missing, Some(_)) => None,
                (StoreState::Missing, None) => {
                    Some("marks: there is no store yet, and the cluster cannot be read")
                }
                (_, None) => Some("marks: neither the store nor the cluster can be read"),
                (_, Some(_)) => {
                    Some("marks: the store cannot be read, and the cluster keeps no copy of them")
                }
            };
            seen.unread.extend(note.map(|_| SCOPES));
            seen.cluster.problems.extend(note.map(str::to_owned));
            Vec::new()
        }),
    };
    if contents.is_none() && store.state != StoreState::Missing {
        seen.unread.push(TAKEOVERS_LIST);
    }
    let takeovers = contents.map_or_else(Vec::new, |contents| takeovers(contents, wanted));
    let scopes = scopes(marks, contents.zip(alive.as_ref()));
    let scopes_total = scopes.len();
    Status {
        cluster: seen.cluster,
        authority: authority(config, &store, alive.as_ref()),
        proxies: seen.proxies,
        scopes: select(scopes, wanted),
        marks_from: match store.contents {
            Some(_) => MarksFrom::Authority,
            None => MarksFrom::Copy,
        },
        scopes_total,
        takeovers,
        prepared_transactions: seen.prepared,
        unread: seen.unread,
    }
}

impl Status {
    /// Whether the cluster, the authority or a list could not be read. A store that only its proxy can read does not
    /// count, nor do the takeovers in it, if the cluster has a copy of the marks.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.cluster.version.is_none()
            || self.authority.state == StoreState::Unreadable
            || self.unread.iter().any(|list| *list != TAKEOVERS_LIST)
    }

    pub(crate) fn is_unread(&self, list: &str) -> bool {
        self.unread.contains(&list)
    }
}

impl ClusterSnapshot {
    fn keep<T>(&mut self, answer: Result<T, ControlError>, what: &str) -> Option<T> {
        match answer {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.cluster.problems.push(format!("{what}: {error}"));
                None
            }
        }
    }

    fn list<T>(&mut self, answer: Result<Vec<T>, ControlError>, name: &'static str) -> Vec<T> {
        let list = self.keep(answer, &name.replace('_', " "));
        if list.is_none() {
            self.unread.push(name);
        }
        list.unwrap_or_default()
    }
}

async fn cluster(config: &Config, within: Duration) -> (Option<Probe>, ClusterSnapshot) {
    let mut seen = ClusterSnapshot::default();
    let Survey { chosen, hosts } = hosts::survey(config, within).await;
    seen.cluster.hosts = hosts;
    let chosen = match chosen {
        Ok(chosen) => chosen,
        Err(why) => {
            seen.cluster.problems.push(why.to_string());
            seen.unread.extend([PROXIES, PREPARED]);
            return (None, seen);
        }
    };
    let (connection, server) = (chosen.connection, chosen.server);
    seen.cluster.version = Some(server.version);
    seen.cluster.system_identifier = Some(server.system_identifier.to_string());
    if chosen.rights.standby {
        let note =
            "the control connection leads to a standby, which knows no proxies and no timeline";
        seen.cluster.problems.push(note.to_owned());
        seen.unread.push(PROXIES);
    } else {
        let identity = connection.look(prepare::cluster).await;
        seen.cluster.timeline = seen.keep(identity, "timeline").map(|c| c.timeline);
    }
    let proxies = connection.look(cluster_lock::proxies).await;
    let proxies = seen.list(proxies, PROXIES);
    seen.proxies = proxies.into_iter().map(proxy).collect();
    let prepared = connection.look(cluster::prepared).await;
    seen.prepared = seen.list(prepared, PREPARED);
    if config.takeover.witness == WitnessMode::Auto {
        let witness = connection.look(cluster::witness).await;
        if let Some(Witness::Kept(marks)) = seen.keep(witness, "copy of the marks") {
            seen.witnessed = Some(marks.into_iter().collect());
        }
    }
    (Some(connection), seen)
}

fn proxy(proxy: cluster_lock::Proxy) -> ProxyStatus {
    ProxyStatus {
        pid: proxy.holder.pid,
        address: proxy.holder.client_addr,
        application_name: proxy.holder.application_name,
        since_us: proxy.since,
        authority: format!("{:08x}", proxy.authority),
    }
}

fn authority(
    config: &Config,
    store: &StoreSnapshot,
    alive: Option<&BTreeSet<Backend>>,
) -> AuthorityStatus {
    let contents = store.contents.as_ref();
    let recorded = contents.and_then(|contents| contents.cluster);
    let registered = contents.map(|contents| {
        let backends = contents.sessions.iter().map(|(_, session)| session.backend);
        backends.collect::<BTreeSet<_>>().len()
    });
    AuthorityStatus {
        location: config.takeover.authority.to_string(),
        state: store.state,
        seen: store.verdict.seen.clone(),
        identity: contents.map(|contents| contents.identity.to_string()),
        recorded_system_identifier: recorded.map(|r| r.system_identifier.to_string()),
        recorded_timeline: recorded.map(|r| r.timeline),
        registered_sessions: registered,
        alive_sessions: alive.map(BTreeSet::len),
    }
}

/// Scopes with an incomplete takeover first, then by name.
fn scopes(
    marks: Vec<(Scope, Mark)>,
    sessions: Option<(&Contents, &BTreeSet<Backend>)>,
) -> Vec<ScopeStatus> {
    let mut below: HashMap<Scope, usize> = HashMap::new();
    if let Some((contents, alive)) = sessions {
        let ranks: HashMap<&Scope, Rank> = marks.iter().map(|(s, m)| (s, m.rank())).collect();
        for (scope, session) in &contents.sessions {
            let is_old = ranks.get(scope).is_some_and(|mark| session.rank() < *mark);
            if is_old && alive.contains(&session.backend) {
                *below.entry(scope.clone()).or_default() += 1;
            }
        }
    }
    let status = |(scope, mark): (Scope, Mark)| ScopeStatus {
        mark: mark.token,
        incarnation: mark.incarnation.get(),
        repair: mark.repair.map(|repair| ScopeRepaired {
            at_us: repair.at,
            by: repair.by,
            reason: repair.reason,
            old_mark: repair.from,
            new_mark: repair.to,
        }),
        raised_at_us: mark.raised_at,
        raised_by: mark.raised_by,
        alive_below_mark: sessions.map(|_| below.get(&scope).copied().unwrap_or_default()),
        scope: scope.to_string(),
    };
    let of_sessions = marks.into_iter().filter(|(scope, _)| !scope.is_epoch());
    let mut scopes: Vec<ScopeStatus> = of_sessions.map(status).collect();
    scopes.sort_by(|a, b| {
        let by_work = b.alive_below_mark.cmp(&a.alive_below_mark);
        by_work.then_with(|| a.scope.cmp(&b.scope))
    });
    scopes
}

fn takeovers(contents: &Contents, wanted: &ScopeFilter) -> Vec<ShownTakeover> {
    let is_wanted = |scope: &Scope| match wanted {
        ScopeFilter::One(one) => scope == one,
        ScopeFilter::First(_) | ScopeFilter::All => true,
    };
    let all = contents.takeovers.iter();
    all.filter(|(scope, _)| is_wanted(scope))
        .cloned()
        .map(ShownTakeover::from)
        .take(match wanted {
            ScopeFilter::First(_) => TAKEOVERS,
            ScopeFilter::One(_) | ScopeFilter::All => usize::MAX,
        })
        .collect()
}

fn select(mut scopes: Vec<ScopeStatus>, wanted: &ScopeFilter) -> Vec<ScopeStatus> {
    match wanted {
        ScopeFilter::All => {}
        ScopeFilter::First(most) => scopes.truncate(*most),
        ScopeFilter::One(scope) => scopes.retain(|status| status.scope == scope.as_str()),
    }
    scopes
}
