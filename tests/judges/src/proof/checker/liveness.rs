//! G5 and G6: no refusal without a reason, and no endless wait.

use std::collections::BTreeMap;

use crate::proof::history::{Answer, FaultKind, POISON, Target, process};
use crate::proof::plan::{ELECTED, LED};

use super::indexed::{Declaration, Fault, History};
use super::report::{Rule, Violation};

/// By the fence, or because a connection failed or was lost.
const DECLARATION_FAILS_WITH: [&str; 3] = ["PF001", "PF004", "PF006"];
const CONNECTION_FAILS_WITH: [&str; 7] =
    ["08", "57P01", "57P02", "57P03", "57P05", "57014", "53300"];

/// SQLSTATE of pgpool-II if the proxy cannot be reached.
const POOLER_FAILS_WITH: &str = "XX000";

/// SQLSTATE of a server that was replaced.
const DEPOSED: &str = "PF007";
/// Time for a proxy to notice a restart of its server.
const SEEN_WITHIN_NS: u64 = 15_000_000_000;

/// Time after its end for which a fault still counts: a resumed process has waiting work.
const AFTERMATH_NS: u64 = 300_000_000;

/// G5. A refusal needs an earlier attempt to declare a higher token.
pub(super) fn no_self_fencing(history: &History<'_>, violations: &mut Vec<Violation>) {
    let attempts = attempts(history);
    let mut refusals: Vec<(u64, u32, String)> = Vec::new();
    for declaration in history.declarations.values() {
        if let Some((at, Answer::Error(code))) = declaration.answer
            && code == "PF001"
        {
            refusals.push((at, declaration.leader, "a declaration".to_owned()));
        }
    }
    for (id, write) in &history.writes {
        match write.answer {
            // A stale session is read-only until it is ended: PostgreSQL refuses its hidden writes.
            Some((at, Answer::Error(code))) if code == "PF001" || code == "25006" => {
                let what = format!("write {id} ({}, {code})", write.shape);
                refusals.push((at, write.leader, what));
            }
            Some((_, Answer::Error(code)))
                if code.starts_with("PF") && history.has_seen_exemption(write.leader) => {}
            Some((at, Answer::Error(code))) if code == DEPOSED && is_deposed(history, at) => {}
            // In another server connection the token must be declared again.
            Some((_, Answer::Error(code)))
                if history.shares && DECLARATION_FAILS_WITH.contains(&code.as_str()) => {}
            // Every session of a history that writes was admitted with a token.
            Some((_, Answer::Error(code))) if code.starts_with("PF") => {
                violations.push(Violation {
                    rule: Rule::G5,
                    what: format!(
                        "write {id} ({}) of leader {}, which holds a token, was refused with {code}",
                        write.shape, write.leader
                    ),
                });
            }
            _ => {}
        }
    }
    // A takeover ends the connections of lower tokens, whoever has them by now.
    if history.pooled {
        return;
    }
    refusals.sort_unstable();
    let mut attempts = attempts.into_iter().peekable();
    let mut highest: BTreeMap<&str, u64> = BTreeMap::new();
    for (at, leader, what) in refusals {
        while let Some((_, scope, token)) = attempts.next_if(|(begun, ..)| *begun < at) {
            let tried = highest.entry(scope).or_default();
            *tried = token.unwrap_or(*tried + 1).max(*tried);
        }
        let Some(who) = history.leaders.get(&leader) else {
            continue;
        };
        if [ELECTED, LED].contains(&who.scope) {
            // A candidate that loses its session or the answer takes again, unrecorded. A term may end before the
            // next one begins.
            continue;
        }
        let tried = highest.get(who.scope).copied().unwrap_or_default();
        if tried <= who.token && !history.has_seen_exemption(leader) {
            violations.push(Violation {
                rule: Rule::G5,
                what: format!(
                    "{what} of leader {leader} with token {} of {} was refused as stale; the \
                     highest token that anybody had tried was {tried}",
                    who.token, who.scope
                ),
            });
        }
    }
}

/// Attempts to raise the mark: time, scope, and token if certain.
fn attempts<'a>(history: &'a History<'_>) -> Vec<(u64, &'a str, Option<u64>)> {
    let declarations = history
        .declarations
        .values()
        // A repair undoes it.
        .filter(|declaration| declaration.token < POISON)
        .map(|declaration| {
            (
                declaration.invoked,
                declaration.scope,
                Some(declaration.token),
            )
        });
    // Answered or not. A take that names no mark raises it by at most one.
    let takes = history.takes.values();
    let takes = takes.map(|take| (take.invoked, take.scope, take.after.map(|mark| mark + 1)));
    let mut attempts: Vec<_> = declarations.chain(takes).collect();
    attempts.sort_unstable();
    attempts
}

/// G6.
pub(super) fn bounded_takeover(history: &History<'_>, violations: &mut Vec<Violation>) {
    let limit_ns = history.limit_ns.unwrap_or_default();
    for (id, declaration) in &history.declarations {
        // Without an answer the client was killed.
        let Some((at, answer)) = declaration.answer else {
            continue;
        };
        let mut add = |what: String| {
            violations.push(Violation {
                rule: Rule::G6,
                what: format!(
                    "declaration {id} of token {} of {} by leader {} through proxy {} {what}",
                    declaration.token, declaration.scope, declaration.leader, declaration.proxy
                ),
            });
        };
        let took = own_time(history, declaration, at);
        if took > limit_ns {
            add(format!(
                "took {} ms, not counting what stood in its way",
                took / 1_000_000
            ));
        }
        let code = answer.sqlstate().unwrap_or_default();
        let promised = code.is_empty()
            || code == DEPOSED && is_deposed(history, at)
            || DECLARATION_FAILS_WITH.contains(&code)
            || history.pooled && code == POOLER_FAILS_WITH
            || CONNECTION_FAILS_WITH
                .iter()
                .any(|prefix| code.starts_with(prefix));
        if !promised {
            add(format!("failed with {code}"));
        }
    }
}

/// Whether the server was restarted at that time, or a copy of it was served with the same store. A restart ends
/// earlier sessions and logins. A copy, and a clock that was set back, close the cluster until an operator has
/// repaired it and the proxies have noticed.
fn is_deposed(history: &History<'_>, at: u64) -> bool {
    history.faults.iter().any(|fault| {
        let is_seen = fault.end + SEEN_WITHIN_NS;
        let deposes = fault.target == Target::Postgres
            || matches!(fault.kind, FaultKind::Copy | FaultKind::ClockStep);
        deposes && (fault.begin..is_seen).contains(&at)
    })
}

pub(super) fn slowest_ns(history: &History<'_>) -> u64 {
    let answered = history
        .declarations
        .values()
        .filter_map(|declaration| Some((declaration, declaration.answer?.0)));
    answered
        .map(|(declaration, at)| own_time(history, declaration, at))
        .max()
        .unwrap_or_default()
}

/// Without the times in which a fault blocked it.
fn own_time(history: &History<'_>, declaration: &Declaration<'_>, answered: u64) -> u64 {
    let mut excused: Vec<(u64, u64)> = history
        .faults
        .iter()
        .filter(|fault| stands_in_the_way(fault, declaration))
        .map(|fault| (fault.begin, fault.end + AFTERMATH_NS))
        .collect();
    excused.sort_unstable();
    let mut own = 0;
    let mut from = declaration.invoked;
    for (begin, end) in excused {
        own += begin.min(answered).saturating_sub(from);
        from = from.max(end);
    }
    own + answered.saturating_sub(from)
}

/// Whether the fault blocked the declaration's own session. The proxy must answer in time despite a silent store, a
/// cut control connection, an old session that does not end, or a missing PostgreSQL.
fn stands_in_the_way(fault: &Fault, declaration: &Declaration<'_>) -> bool {
    match fault.target {
        Target::Proxy(proxy) | Target::ClientLink(proxy) | Target::UpstreamLink(proxy) => {
            proxy == declaration.proxy
        }
        Target::Leader(leader) => leader == process(declaration.leader),
        Target::Backend(pid) => declaration.pid.is_none_or(|own| own == pid),
        // Pausing the whole server stops the session's own backend.
        Target::Postgres => fault.kind == FaultKind::Pause,
        Target::Member(_) | Target::ControlLink(_) | Target::StoreLink(_) | Target::Election => {
            false
        }
    }
}
