//! Several writers on one row, each with its own numbers: no confirmed number may be missing.
//!
//! The idea is the test of hashicorp/vault#23013.

use std::collections::{BTreeMap, HashSet};

use crate::proof::history::Answer;

use super::indexed::History;
use super::report::{Rule, Violation};

pub(super) fn nothing_lost(history: &History<'_>, violations: &mut Vec<Violation>) {
    let Some(entries) = history.shared_row else {
        return;
    };
    let mut add = |what: String| {
        violations.push(Violation {
            rule: Rule::Row,
            what,
        });
    };
    let mut sequences: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for (writer, number) in entries {
        sequences.entry(*writer).or_default().push(*number);
    }
    // A missing, repeated or misplaced number is a lost or a late write.
    for (writer, numbers) in &sequences {
        let gap = (1..).zip(numbers).find(|(due, number)| due != *number);
        if let Some((due, number)) = gap {
            add(format!(
                "writer {writer} has {number} where {due} was due, of {} numbers",
                numbers.len()
            ));
        }
    }
    let there: HashSet<(u32, u64)> = entries.iter().copied().collect();
    let attempted: HashSet<(u32, u64)> = history.appends.iter().copied().collect();
    for (writer, number, answer) in &history.appended {
        if **answer == Answer::Ok && !there.contains(&(*writer, *number)) {
            add(format!(
                "writer {writer}: {number} was confirmed and is not there"
            ));
        }
    }
    for (writer, number) in there.difference(&attempted) {
        violations.push(Violation {
            rule: Rule::History,
            what: format!("writer {writer}: {number} is there and was never written"),
        });
    }
}
