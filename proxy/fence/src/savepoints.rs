//! Savepoints of the open transaction, with the values that a ROLLBACK TO restores.
//!
//! Each text of several statements copies them and searches them for a name, so only the latest are kept. Nothing is
//! lost while nothing was set between the forgotten ones: then they all restore the same values.

use std::collections::VecDeque;

/// Number of savepoints that are kept.
const KEPT_MAX: usize = 64;

#[derive(Debug, Clone)]
struct Savepoint<V> {
    name: Box<str>,
    state: State<V>,
}

/// Values in force at a savepoint.
#[derive(Debug, Clone)]
struct State<V> {
    /// Number of changes before it. Two savepoints have the same only if nothing was set between them.
    changes: u64,
    values: V,
}

#[derive(Debug, Clone)]
enum Forgotten<V> {
    None,
    /// All of them restore this.
    Alike(State<V>),
    Unlike,
}

/// Result of a ROLLBACK TO.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Back<V> {
    /// There is no such savepoint.
    Nothing,
    Values(V),
    Unknown,
}

/// The savepoints of a transaction.
#[derive(Debug, Clone)]
pub(super) struct Savepoints<V> {
    changes: u64,
    kept: VecDeque<Savepoint<V>>,
    forgotten: Forgotten<V>,
}

impl<V: Clone> Savepoints<V> {
    pub(super) const fn new() -> Self {
        Self {
            changes: 0,
            kept: VecDeque::new(),
            forgotten: Forgotten::None,
        }
    }

    /// Notes that something is set.
    pub(super) const fn changed(&mut self) {
        self.changes += 1;
    }

    /// SAVEPOINT.
    pub(super) fn push(&mut self, name: &str, values: V) {
        if self.kept.len() == KEPT_MAX
            && let Some(oldest) = self.kept.pop_front()
        {
            match &self.forgotten {
                Forgotten::None => self.forgotten = Forgotten::Alike(oldest.state),
                Forgotten::Alike(state) if state.changes == oldest.state.changes => {}
                Forgotten::Alike(_) | Forgotten::Unlike => self.forgotten = Forgotten::Unlike,
            }
        }
        self.kept.push_back(Savepoint {
            name: name.into(),
            state: State {
                changes: self.changes,
                values,
            },
        });
    }

    /// RELEASE: what happened since then belongs to the outer level.
    pub(super) fn release(&mut self, name: &str) {
        match self.find(name) {
            Some(at) => self.kept.truncate(at),
            None if matches!(self.forgotten, Forgotten::None) => {}
            None => self.kept.clear(),
        }
    }

    /// ROLLBACK TO: the savepoint itself stays.
    pub(super) fn rollback_to(&mut self, name: &str) -> Back<V> {
        let state = match (self.find(name), &self.forgotten) {
            (Some(at), _) => {
                self.kept.truncate(at + 1);
                self.kept.back().map(|savepoint| savepoint.state.clone())
            }
            (None, Forgotten::None) => return Back::Nothing,
            (None, Forgotten::Alike(state)) => {
                self.kept.clear();
                Some(state.clone())
            }
            (None, Forgotten::Unlike) => {
                self.kept.clear();
                None
            }
        };
        match state {
            Some(State { changes, values }) => {
                self.changes = changes;
                Back::Values(values)
            }
            None => Back::Unknown,
        }
    }

    pub(super) fn for_each(&mut self, mut change: impl FnMut(&mut V)) {
        for savepoint in &mut self.kept {
            change(&mut savepoint.state.values);
        }
        if let Forgotten::Alike(state) = &mut self.forgotten {
            change(&mut state.values);
        }
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.kept
            .iter()
            .rposition(|savepoint| *savepoint.name == *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More savepoints than are kept: each of these values in turn, set `times` savepoints after the last.
    fn many(values: &[u8], times: usize) -> Savepoints<u8> {
        let mut savepoints = Savepoints::new();
        for value in values {
            savepoints.changed();
            for at in 0..times {
                savepoints.push(&format!("{value}.{at}"), *value);
            }
        }
        savepoints
    }

    #[test]
    fn those_that_are_forgotten_bring_back_what_they_all_do() {
        let mut alike = many(&[1, 2], KEPT_MAX);
        assert_eq!(alike.kept.len(), KEPT_MAX);
        assert_eq!(alike.rollback_to("2.0"), Back::Values(2));
        assert_eq!(alike.kept.len(), 1);
        assert_eq!(alike.rollback_to("1.7"), Back::Values(1));
        assert_eq!(alike.kept.len(), 0);
        // This is another change, though it has the number of an earlier one.
        alike.changed();
        alike.push("later", 3);
        assert_eq!(alike.rollback_to("1.0"), Back::Values(1));
        let mut unlike = many(&[1, 2, 3], KEPT_MAX);
        assert_eq!(unlike.rollback_to("3.0"), Back::Values(3));
        assert_eq!(unlike.rollback_to("2.0"), Back::Unknown);
        // It is gone with the savepoint before it; an older one of its name may be meant.
        assert_eq!(unlike.rollback_to("3.0"), Back::Unknown);
    }

    #[test]
    fn a_release_of_one_that_is_forgotten_forgets_the_later_ones() {
        let mut savepoints = many(&[1, 2], KEPT_MAX);
        savepoints.release("1.0");
        assert_eq!(savepoints.rollback_to("2.0"), Back::Values(1));
        let mut few = many(&[1], 2);
        few.release("unknown");
        assert_eq!(few.rollback_to("unknown"), Back::Nothing);
        assert_eq!(few.rollback_to("1.1"), Back::Values(1));
    }
}
