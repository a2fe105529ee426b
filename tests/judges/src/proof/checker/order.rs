//! G1 to G4: commits and their order, compared with the answers.

use std::collections::{BTreeMap, HashSet};

use crate::proof::history::{Answer, BESIDE, FaultKind, Tally};

use super::indexed::{Declaration, History};
use super::report::{Rule, Violation};

/// SQLSTATEs by which the fence guarantees that nothing of the write is committed.
const CERTAINLY_NOT: [&str; 8] = [
    "PF001", "PF002", "PF003", "PF004", "PF005", "PF006", "PF007", "25006",
];

/// Time in which a proxy notices that its lead is gone, and closes its connections.
const LOST_WITHIN_NS: u64 = 12_000_000_000;

/// G1. Walks both sides in the order of PostgreSQL's log.
pub(super) fn no_stale_commit(history: &History<'_>, violations: &mut Vec<Violation>) {
    let mut marks: Vec<(u64, &str, usize, u64)> = history
        .declarations
        .values()
        .filter_map(|declaration| {
            let section = section_of(history, declaration)?;
            let (position, scope) = (declaration.position?, declaration.scope);
            Some((position, scope, section, declaration.token))
        })
        .collect();
    marks.sort_unstable();
    let mut rows: Vec<_> = history.committed.iter().collect();
    rows.sort_unstable_by_key(|row| row.lsn);
    let mut marks = marks.into_iter().peekable();
    let mut highest: BTreeMap<(&str, usize), (u64, u64)> = BTreeMap::new();
    for row in rows {
        while let Some((position, scope, section, token)) =
            marks.next_if(|(position, ..)| *position < row.lsn)
        {
            let mark = highest.entry((scope, section)).or_insert((token, position));
            if token > mark.0 {
                *mark = (token, position);
            }
        }
        let Some(section) = history.exempt.section_of_log(row.scope, row.lsn) else {
            continue;
        };
        let Some((mark, position)) = highest.get(&(row.scope, section)) else {
            continue;
        };
        if row.token < *mark {
            violations.push(Violation {
                rule: Rule::G1,
                what: format!(
                    "row {} of token {} in {} was committed at {:x}; token {mark} had been \
                     acknowledged at {position:x}",
                    row.id, row.token, row.scope, row.lsn
                ),
            });
        }
    }
}

fn section_of(history: &History<'_>, declaration: &Declaration<'_>) -> Option<usize> {
    let (from, to) = (declaration.invoked, declaration.acknowledged()?);
    history.exempt.section(declaration.scope, from, to)
}

/// G2. The rows of a snapshot must be those that exist in the end, or at the next exemption.
pub(super) fn no_late_surprise(history: &History<'_>, violations: &mut Vec<Violation>) {
    let mut scopes: BTreeMap<&str, Vec<(u64, u64, u64)>> = BTreeMap::new();
    for row in &history.committed {
        let of_scope = scopes.entry(row.scope).or_default();
        of_scope.push((row.token, row.lsn, row.id));
    }
    let mut snapshots: BTreeMap<(&str, usize), Vec<(&Declaration<'_>, Tally)>> = BTreeMap::new();
    for declaration in history.declarations.values() {
        let Some((at, seen)) = declaration.snapshot else {
            continue;
        };
        let (scope, from) = (declaration.scope, declaration.invoked);
        if let Some(section) = history.exempt.section(scope, from, at) {
            let of_section = snapshots.entry((scope, section)).or_default();
            of_section.push((declaration, seen));
        }
    }
    scopes.values_mut().for_each(|rows| rows.sort_unstable());
    for ((scope, section), mut of_section) in snapshots {
        of_section.sort_unstable_by_key(|(declaration, _)| declaration.token);
        let end = history.exempt.end_of(scope, section);
        let rows = scopes.get(scope).into_iter().flatten();
        let mut rows = rows.filter(|(_, lsn, _)| *lsn <= end).peekable();
        let mut below = Tally::default();
        for (declaration, seen) in of_section {
            while let Some((.., id)) = rows.next_if(|(token, ..)| *token < declaration.token) {
                below.add(*id);
            }
            if seen != below {
                violations.push(Violation {
                    rule: Rule::G2,
                    what: format!(
                        "leader {} with token {} of {scope} saw {seen:?} of lower tokens, and in \
                         the end there is {below:?}",
                        declaration.leader, declaration.token
                    ),
                });
            }
        }
    }
}

/// G3. Only declarations that do not overlap are ordered.
pub(super) fn marks_only_rise(history: &History<'_>, violations: &mut Vec<Violation>) {
    let mut answered: Vec<(u64, &Declaration<'_>)> = history
        .declarations
        .values()
        .filter(|declaration| section_of(history, declaration).is_some())
        // Another store has its own marks.
        .filter(|declaration| declaration.proxy != BESIDE)
        .filter_map(|declaration| Some((declaration.acknowledged()?, declaration)))
        .collect();
    answered.sort_unstable_by_key(|(at, _)| *at);
    let mut begun: Vec<&Declaration<'_>> = answered.iter().map(|(_, d)| *d).collect();
    begun.sort_unstable_by_key(|declaration| declaration.invoked);
    let mut answered = answered.into_iter().peekable();
    let mut highest: BTreeMap<&str, u64> = BTreeMap::new();
    for declaration in begun {
        while let Some((_, earlier)) = answered.next_if(|(at, _)| *at < declaration.invoked) {
            let mark = highest.entry(earlier.scope).or_default();
            *mark = earlier.token.max(*mark);
        }
        let mark = highest.get(declaration.scope).copied().unwrap_or_default();
        if declaration.token < mark {
            violations.push(Violation {
                rule: Rule::G3,
                what: format!(
                    "token {} of {} was accepted from leader {} after token {mark} had been",
                    declaration.token, declaration.scope, declaration.leader
                ),
            });
        }
    }
}

/// Each token is taken once, and follows the named mark.
pub(super) fn takes_are_single(history: &History<'_>, violations: &mut Vec<Violation>) {
    let mut taken: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    for (id, take) in &history.takes {
        let Some(token) = take.token else {
            continue;
        };
        let mut add = |what: String| {
            violations.push(Violation {
                rule: Rule::Take,
                what: format!("take {id} of {} has got {token}, {what}", take.scope),
            });
        };
        if let Some(other) = taken.insert((take.scope, token), *id) {
            add(format!("which take {other} has got too"));
        }
        if let Some(mark) = take.after.filter(|mark| mark + 1 != token) {
            add(format!("and named the mark {mark}"));
        }
    }
}

/// Term. The connection of a client that does not read is the last to be closed.
pub(super) fn terms_do_not_overlap(history: &History<'_>, violations: &mut Vec<Violation>) {
    for (id, at) in &history.open {
        let Some(own) = history.declarations.get(id) else {
            continue;
        };
        let next = history
            .declarations
            .values()
            .filter(|declaration| declaration.scope == own.scope && declaration.token > own.token);
        let next = next.filter_map(|next| Some((next.acknowledged()?, next.token)));
        let Some((begun, token)) = next.min().filter(|(begun, _)| begun < at) else {
            continue;
        };
        let is_lost = history.faults.iter().any(|fault| {
            fault.kind == FaultKind::LeadLost
                && fault.begin < begun
                && *at < fault.end + LOST_WITHIN_NS
        });
        let is_exempt = history
            .exempt
            .section(own.scope, own.invoked, *at)
            .is_none();
        if !is_lost && !is_exempt {
            violations.push(Violation {
                rule: Rule::Term,
                what: format!(
                    "a connection of token {} of {} through proxy {} was open {} ms after token {token} was given",
                    own.token,
                    own.scope,
                    own.proxy,
                    (at - begun) / 1_000_000
                ),
            });
        }
    }
}

/// G4; confirmed writes are present.
pub(super) fn honest_answers(history: &History<'_>, violations: &mut Vec<Violation>) {
    let there: HashSet<u64> = history.committed.iter().map(|row| row.id).collect();
    for (id, write) in &history.writes {
        let wrong = match write.answer.map(|(_, answer)| answer) {
            Some(Answer::Ok) => write
                .rows
                .iter()
                .find(|row| !there.contains(row))
                .map(|row| format!("was confirmed and row {row} is not there")),
            Some(Answer::Error(code)) if CERTAINLY_NOT.contains(&code.as_str()) => write
                .rows
                .iter()
                .find(|row| there.contains(row))
                .map(|row| format!("was refused with {code} and row {row} is there")),
            _ => None,
        };
        if let Some(wrong) = wrong {
            violations.push(Violation {
                rule: Rule::G4,
                what: format!(
                    "write {id} of leader {} ({}) {wrong}",
                    write.leader, write.shape
                ),
            });
        }
    }
}
