//! Tables that only this proxy has.

use std::collections::HashMap;
use std::sync::Arc;

use pgpalisade_authority::Scope;
use pgpalisade_fence::mark_cache::CachedMark;
use pgpalisade_policies::Numbers;
use pgpalisade_rejection_log::moment;
use pgpalisade_server::client_table::{ClientEntry, Encryption};
use pgpalisade_takeover::cluster_lock::Proxy;
use serde_json::Value;
use tokio::time::Instant;

use super::Facts;
use super::table::{
    ANSWER_WITHIN, QueryResult, Row, RowIter, Rows, Table, rows, time, unanswered, yes,
};
use super::{pgbouncer, refusals, takeovers};

pub(super) const TABLES: [Table; 8] = [
    Table {
        name: "AUTHORITY",
        help: "the token authority, and the control connection",
        columns: "key text, value text",
        rows: Rows::Asked(authority),
    },
    Table {
        name: "HELP",
        help: "this list",
        columns: "command text, right text, help text",
        rows: Rows::Known(help),
    },
    Table {
        name: "POLICY",
        help: "scopes that the policy names, and what limits their tokens",
        columns: "\
            scope text, mode text, max_step int8, max_token int8, numbers text, prepared text",
        rows: Rows::Known(policy),
    },
    Table {
        name: "PROXIES",
        help: "the proxies that are connected to the cluster, by their control connections",
        columns: "\
            pid int8, address text, application_name text, since text, authority text, \
            this_one text",
        rows: Rows::Asked(proxies),
    },
    Table {
        name: "REJECTIONS",
        help: "the last refusals, the oldest first",
        columns: refusals::COLUMNS,
        rows: Rows::Many(refusals::rejections),
    },
    Table {
        name: "SCOPES",
        help: "marks, and the sessions of this process that hold a token",
        columns: "\
            scope text, mark int8, raised_at text, raised_by text, sessions int8, \
            stale_sessions int8",
        rows: Rows::Many(scopes),
    },
    Table {
        name: "SESSIONS",
        help: "connections of clients with their tokens, and what they do",
        columns: "\
            id int8, user text, database text, application_name text, client_addr text, \
            since text, tls text, state text, tokens text, backend_pid int8",
        rows: Rows::Many(sessions),
    },
    Table {
        name: "TAKEOVERS",
        help: "how the last takeovers went, the newest first",
        columns: takeovers::COLUMNS,
        rows: Rows::Asked(takeovers::takeovers),
    },
];

/// Commands other than SHOW, for SHOW HELP.
const ORDERS: [(&str, &str); 6] = [
    (
        "RELOAD",
        "reads the policy file and the files for TLS and users again",
    ),
    (
        "KILL id",
        "ends the connection of a client, by its id in SHOW CLIENTS",
    ),
    (
        "PAUSE",
        "lets no session begin a transaction, and answers when none is open",
    ),
    ("RESUME", "lets sessions begin transactions again"),
    (
        "SHUTDOWN",
        "ends the proxy as SIGTERM does: open transactions have shutdown.grace",
    ),
    (
        "SHUTDOWN WAIT_FOR_CLIENTS",
        "accepts no more clients, and ends the proxy when the last one has left",
    ),
];

pub(super) fn all_tables() -> impl Iterator<Item = &'static Table> {
    TABLES.iter().chain(&pgbouncer::TABLES)
}

fn help(_: &Facts) -> Vec<Row> {
    let show = |table: &Table| {
        let command = format!("SHOW {}", table.name);
        vec![command.into(), "read".into(), table.help.into()]
    };
    let order = |(command, help): (&str, &str)| vec![command.into(), "admin".into(), help.into()];
    let mut rows: Vec<Row> = all_tables().map(show).collect();
    rows.sort_by(|a, b| format!("{a:?}").cmp(&format!("{b:?}")));
    rows.extend(ORDERS.map(order));
    rows
}

fn sessions(facts: &Facts) -> RowIter {
    let row = |entry: Arc<ClientEntry>| {
        let client = entry.facts();
        let label = client.label.as_deref();
        vec![
            entry.id.into(),
            label.map(|label| label.user.as_str()).into(),
            label.map(|label| label.database.as_str()).into(),
            label
                .and_then(|label| label.application_name.as_deref())
                .into(),
            client.client_addr.to_string().into(),
            time(entry.since),
            yes(client.encryption == Encryption::Tls).into(),
            entry.state().as_str().into(),
            client.tokens.map(|tokens| tokens.to_string()).into(),
            entry.server_pid().into(),
        ]
    };
    rows(facts.shared.connected.all(), row)
}

/// Number of sessions with a current token of a scope, and with a stale one.
type Holders = HashMap<Scope, (usize, usize)>;

fn holders(facts: &Facts) -> Holders {
    let mut holders = Holders::new();
    for entry in facts.shared.connected.all() {
        let Some(tokens) = entry.tokens() else {
            continue;
        };
        for held in tokens.tokens() {
            let (current, stale) = holders.entry(held.mark.scope().clone()).or_default();
            if held.is_current() {
                *current += 1;
            } else {
                *stale += 1;
            }
        }
    }
    holders
}

fn scopes(facts: &Facts) -> RowIter {
    let holders = holders(facts);
    let row = move |cell: Arc<CachedMark>| {
        let (scope, mark) = (cell.scope(), cell.mark_detail());
        let (current, stale) = holders.get(scope).copied().unwrap_or_default();
        let raised_at = mark.as_ref().and_then(|mark| moment(mark.raised_at));
        vec![
            scope.as_str().into(),
            mark.as_ref().map(|mark| mark.token.get()).into(),
            raised_at.map(time).into(),
            mark.as_ref().map(|mark| mark.raised_by.as_str()).into(),
            current.into(),
            stale.into(),
        ]
    };
    let mut cells = facts.shared.takeover.marks().all();
    cells.sort_by(|a, b| a.scope().cmp(b.scope()));
    Box::new(cells.into_iter().map(row))
}

fn policy(facts: &Facts) -> Vec<Row> {
    let fence = Arc::clone(&facts.shared.fence.borrow());
    let policy = fence.policy();
    let row = |scope: &str| {
        let bounds = policy.bounds(scope);
        vec![
            scope.into(),
            fence.mode_of_scope(scope).as_ref().into(),
            bounds.max_step.into(),
            bounds.max_token.into(),
            match bounds.numbers.unwrap_or_default() {
                Numbers::Any => "any".into(),
                Numbers::Issued => "issued".into(),
                Numbers::Election(election) => format!("election {election}").into(),
            },
            bounds.prepared.unwrap_or_default().as_ref().into(),
        ]
    };
    policy.scopes().iter().map(|scope| row(scope)).collect()
}

fn authority(facts: &Facts) -> QueryResult<'_> {
    Box::pin(async {
        let takeover = &facts.shared.takeover;
        let asking = takeover.ask_authority(Instant::now() + ANSWER_WITHIN);
        let answers = match asking.await {
            Ok(()) => "yes".to_owned(),
            Err(error) => error.to_string(),
        };
        Ok(status(facts, &answers))
    })
}

fn proxies(facts: &Facts) -> QueryResult<'_> {
    Box::pin(async {
        let takeover = &facts.shared.takeover;
        let all = takeover.proxies(Instant::now() + ANSWER_WITHIN).await;
        let row = |proxy: Proxy| {
            let holder = proxy.holder;
            vec![
                holder.pid.into(),
                holder.client_addr.into(),
                holder.application_name.into(),
                proxy.since.and_then(moment).map(time).into(),
                format!("{:08x}", proxy.authority).into(),
                yes(proxy.is_asked).into(),
            ]
        };
        let all = all.map_err(unanswered)?;
        Ok(all.into_iter().map(row).collect())
    })
}

fn status(facts: &Facts, answers: &str) -> Vec<Row> {
    let takeover = &facts.shared.takeover;
    let (primary, cluster) = (takeover.primary(), takeover.cluster());
    let control = match &primary {
        Some(_) => "up".to_owned(),
        None => takeover.why_no_primary().to_string(),
    };
    let number = |value: Option<u64>| value.map(|value| value.to_string()).into();
    [
        ("store", facts.authority.clone().into()),
        ("answers", answers.into()),
        ("control_connection", control.into()),
        (
            "primary",
            primary.map(|primary| primary.server.to_string()).into(),
        ),
        (
            "system_identifier",
            number(cluster.map(|cluster| cluster.system_identifier)),
        ),
        (
            "timeline",
            number(cluster.map(|cluster| cluster.timeline.into())),
        ),
    ]
    .map(|(key, value): (&str, Value)| vec![key.into(), value])
    .into()
}
