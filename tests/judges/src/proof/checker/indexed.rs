//! Events of a history, grouped.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::proof::history::{Answer, Event, FaultKind, Tally, Target};
use crate::proof::plan::LED;

use super::exempt::Exempt;
use super::report::{Counts, Rule, Violation};

#[derive(Clone, Debug)]
pub(super) struct Leader<'a> {
    pub(super) scope: &'a str,
    pub(super) token: u64,
}

/// With everything that followed from it.
#[derive(Clone, Debug)]
pub(super) struct Declaration<'a> {
    pub(super) leader: u32,
    pub(super) scope: &'a str,
    pub(super) token: u64,
    pub(super) proxy: usize,
    pub(super) pid: Option<u32>,
    pub(super) invoked: u64,
    pub(super) answer: Option<(u64, &'a Answer)>,
    pub(super) position: Option<u64>,
    /// With its time.
    pub(super) snapshot: Option<(u64, Tally)>,
}

impl Declaration<'_> {
    pub(super) fn acknowledged(&self) -> Option<u64> {
        match self.answer {
            Some((at, Answer::Ok)) => Some(at),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Take<'a> {
    pub(super) scope: &'a str,
    pub(super) invoked: u64,
    pub(super) after: Option<u64>,
    pub(super) token: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Write<'a> {
    pub(super) leader: u32,
    pub(super) shape: &'a str,
    pub(super) rows: &'a [u64],
    pub(super) answer: Option<(u64, &'a Answer)>,
}

#[derive(Clone, Debug)]
pub(super) struct Committed<'a> {
    pub(super) id: u64,
    pub(super) lsn: u64,
    pub(super) scope: &'a str,
    pub(super) token: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub(super) kind: FaultKind,
    pub(super) target: Target,
    pub(super) begin: u64,
    pub(super) end: u64,
}

#[derive(Debug, Default)]
pub(super) struct History<'a> {
    pub(super) limit_ns: Option<u64>,
    /// Whether clients share server connections.
    pub(super) shares: bool,
    pub(super) pooled: bool,
    pub(super) leaders: HashMap<u32, Leader<'a>>,
    pub(super) declarations: HashMap<u64, Declaration<'a>>,
    pub(super) takes: HashMap<u64, Take<'a>>,
    pub(super) writes: HashMap<u64, Write<'a>>,
    pub(super) committed: Vec<Committed<'a>>,
    pub(super) commits: usize,
    pub(super) table: Option<Tally>,
    pub(super) appends: Vec<(u32, u64)>,
    pub(super) appended: Vec<(u32, u64, &'a Answer)>,
    pub(super) shared_row: Option<&'a [(u32, u64)]>,
    pub(super) faults: Vec<Fault>,
    pub(super) exempt: Exempt<'a>,
    /// Declarations by a listener whose connection was still open at a time.
    pub(super) open: Vec<(u64, u64)>,
    timelines: &'a [(u32, u64)],
    /// Declarations of which only the answer counts.
    lost: HashSet<u64>,
    lives: HashMap<u32, (u64, u64)>,
    /// Events of a leader or request that is missing.
    pub(super) orphans: Vec<&'a Event>,
}

impl<'a> History<'a> {
    /// Three passes, because the files of several processes may be merged in any order.
    pub(super) fn new(events: &'a [Event]) -> Self {
        let mut history = Self::default();
        for event in events {
            history.take_leaders(event);
            history.take_takes(event);
        }
        for event in events {
            history.take_requests(event);
        }
        for event in events {
            history.take_answers(event);
        }
        for id in &history.lost {
            if let Some(declaration) = history.declarations.get_mut(id) {
                declaration.snapshot = None;
            }
        }
        history
    }

    fn survives(&self, timeline: u32, lsn: u64) -> bool {
        let mut all = self.timelines.iter();
        all.any(|(own, end)| *own == timeline && lsn <= *end)
    }

    fn take_leaders(&mut self, event: &'a Event) {
        match event {
            Event::Run {
                takeover_timeout_ms,
                slack_ms,
                shares,
                pooled,
                ..
            } => {
                self.limit_ns = Some((takeover_timeout_ms + slack_ms) * 1_000_000);
                self.shares = *shares;
                self.pooled = *pooled;
            }
            Event::Survived { timelines } => self.timelines = timelines,
            Event::Leader {
                leader,
                scope,
                token,
            } => {
                let (scope, token) = (scope.as_str(), *token);
                self.leaders.insert(*leader, Leader { scope, token });
            }
            _ => {}
        }
    }

    fn take_requests(&mut self, event: &'a Event) {
        match event {
            Event::Declare {
                at,
                id,
                leader,
                proxy,
                pid,
            } => {
                let Some(who) = self.leaders.get(leader) else {
                    self.orphans.push(event);
                    return;
                };
                let declaration = Declaration {
                    leader: *leader,
                    scope: who.scope,
                    token: who.token,
                    proxy: *proxy,
                    pid: *pid,
                    invoked: *at,
                    answer: None,
                    position: None,
                    snapshot: None,
                };
                self.declarations.insert(*id, declaration);
                self.note_life(*leader, *at);
            }
            Event::Write {
                at,
                id,
                leader,
                shape,
                rows,
            } => {
                let write = Write {
                    leader: *leader,
                    shape,
                    rows,
                    answer: None,
                };
                self.writes.insert(*id, write);
                self.note_life(*leader, *at);
            }
            Event::Commit { lsn, rows } => {
                self.commits += 1;
                self.committed.extend(rows.iter().map(|row| Committed {
                    id: row.id,
                    lsn: *lsn,
                    scope: &row.scope,
                    token: row.token,
                }));
            }
            Event::Table { rows } => self.table = Some(*rows),
            Event::Append { writer, number } => self.appends.push((*writer, *number)),
            Event::SharedRow { entries } => self.shared_row = Some(entries),
            Event::Fault {
                kind,
                target,
                begin,
                end,
            } => self.faults.push(Fault {
                kind: *kind,
                target: *target,
                begin: *begin,
                end: *end,
            }),
            Event::Exempt { .. } => self.exempt.take(event),
            _ => {}
        }
    }

    fn take_takes(&mut self, event: &'a Event) {
        if let Event::Take {
            id,
            at,
            scope,
            after,
        } = event
        {
            let take = Take {
                scope,
                invoked: *at,
                after: *after,
                token: None,
            };
            self.takes.insert(*id, take);
        }
    }

    fn take_answers(&mut self, event: &'a Event) {
        match event {
            Event::Declared { at, id, answer } => match self.declarations.get_mut(id) {
                Some(declaration) => declaration.answer = Some((*at, answer)),
                None => self.orphans.push(event),
            },
            Event::Taken { id, token } => match self.takes.get_mut(id) {
                Some(take) => take.token = *token,
                None => self.orphans.push(event),
            },
            Event::Position { id, lsn, timeline } => {
                let survives = timeline.is_none_or(|own| self.survives(own, *lsn));
                match self.declarations.get_mut(id) {
                    Some(declaration) if survives => declaration.position = Some(*lsn),
                    // Its snapshot may be lost, and its position belongs to another log.
                    Some(_) => _ = self.lost.insert(*id),
                    None => self.orphans.push(event),
                }
            }
            Event::Snapshot { id, at, seen } => match self.declarations.get_mut(id) {
                Some(declaration) => declaration.snapshot = Some((*at, *seen)),
                None => self.orphans.push(event),
            },
            Event::Open { id, at } => match self.declarations.get(id) {
                Some(_) => self.open.push((*id, *at)),
                None => self.orphans.push(event),
            },
            Event::Written { at, id, answer } => match self.writes.get_mut(id) {
                Some(write) => {
                    write.answer = Some((*at, answer));
                    let leader = write.leader;
                    self.note_life(leader, *at);
                }
                None => self.orphans.push(event),
            },
            Event::Appended {
                writer,
                number,
                answer,
            } => self.appended.push((*writer, *number, answer)),
            _ => {}
        }
    }

    /// Whether an exemption of its scope overlapped a leader's life. Its declarations then count for nothing later,
    /// and a write that needs one may be refused.
    pub(super) fn has_seen_exemption(&self, leader: u32) -> bool {
        let lived = self.lives.get(&leader).zip(self.leaders.get(&leader));
        lived.is_some_and(|((from, to), leader)| {
            self.exempt.section(leader.scope, *from, *to).is_none()
        })
    }

    fn note_life(&mut self, leader: u32, at: u64) {
        let (from, to) = self.lives.entry(leader).or_insert((at, at));
        (*from, *to) = ((*from).min(at), (*to).max(at));
    }

    /// Adds contradictions that no behaviour of the proxy can explain.
    pub(super) fn contradictions(&self, violations: &mut Vec<Violation>) {
        let mut add = |what: String| {
            violations.push(Violation {
                rule: Rule::History,
                what,
            });
        };
        if self.limit_ns.is_none() {
            add("it does not say what was run".to_owned());
        }
        for event in &self.orphans {
            add(format!("nothing belongs to {event:?}"));
        }
        let mut attempted: HashMap<u64, &Write<'_>> = HashMap::new();
        for write in self.writes.values() {
            for id in write.rows {
                if attempted.insert(*id, write).is_some() {
                    add(format!("row {id} was attempted twice"));
                }
            }
        }
        let mut tally = Tally::default();
        let mut seen = HashSet::new();
        for row in &self.committed {
            tally.add(row.id);
            if !seen.insert(row.id) {
                add(format!("row {} was committed twice", row.id));
            }
            let writer = attempted.get(&row.id).map(|write| write.leader);
            match writer.and_then(|leader| self.leaders.get(&leader)) {
                None => add(format!("row {} was committed, and by nobody", row.id)),
                Some(leader) if (leader.scope, leader.token) != (row.scope, row.token) => {
                    add(format!(
                        "row {} says token {} of {}, its writer had token {} of {}",
                        row.id, row.token, row.scope, leader.token, leader.scope
                    ));
                }
                Some(_) => {}
            }
        }
        if self.table.is_some_and(|table| table != tally) {
            add(format!(
                "the log has {tally:?}, the table has {:?}",
                self.table
            ));
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts {
            declarations: self.declarations.len(),
            writes: self.writes.len(),
            commits: self.commits,
            lost: self.lost.len(),
            appended: self.shared_row.map_or(0, <[_]>::len),
            ..Counts::default()
        };
        let mut tokens = BTreeSet::new();
        for declaration in self.declarations.values() {
            count_error(&mut counts, declaration.answer);
            if declaration.acknowledged().is_some() {
                counts.acknowledged += 1;
                tokens.insert((declaration.scope, declaration.token));
            }
        }
        counts.takeovers = tokens.len();
        counts.terms = tokens.iter().filter(|(scope, _)| *scope == LED).count();
        counts.taken = self
            .takes
            .values()
            .filter(|take| take.token.is_some())
            .count();
        for write in self.writes.values() {
            count_error(&mut counts, write.answer);
            match write.answer.map(|(_, answer)| answer) {
                Some(Answer::Ok) => counts.confirmed += 1,
                Some(Answer::Error(code)) if code.starts_with("PF") => counts.refused += 1,
                _ => counts.unknown += 1,
            }
        }
        for fault in &self.faults {
            let name = format!("{:?} {}", fault.kind, fault.target.class()).to_lowercase();
            *counts.faults.entry(name).or_default() += 1;
        }
        counts
    }
}

fn count_error(counts: &mut Counts, answer: Option<(u64, &Answer)>) {
    let name = match answer.map(|(_, answer)| answer) {
        None => "no answer",
        Some(Answer::Ok) => return,
        Some(Answer::Error(code)) => code,
        Some(Answer::Lost) => "connection lost",
        Some(Answer::Silent) => "silence",
    };
    *counts.answers.entry(name.to_owned()).or_default() += 1;
}
