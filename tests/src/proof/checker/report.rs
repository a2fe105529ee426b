//! What the checker found, for people.

use std::collections::BTreeMap;
use std::fmt;

/// What can be violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Write fence.
    G1,
    /// No late surprise.
    G2,
    /// Marks only rise.
    G3,
    /// Honest errors, and durable confirmations.
    G4,
    /// No self-fencing.
    G5,
    /// Bounded takeover.
    G6,
    /// Nobody shares a token that was taken, and nobody takes behind another mark than the one that was named.
    Take,
    /// Nothing lost in the shared row.
    Row,
    /// The history contradicts itself.
    History,
}

/// One violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Of what.
    pub rule: Rule,
    /// What was seen, with the numbers to look for in the history.
    pub what: String,
}

/// How much the history has of everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Declarations that were sent.
    pub declarations: usize,
    /// Those that were answered with success.
    pub acknowledged: usize,
    /// Different tokens among them.
    pub takeovers: usize,
    /// Those that were acknowledged where a failover has lost what they saw.
    pub lost: usize,
    /// Tokens that were taken, not brought.
    pub taken: usize,
    /// The longest time to the answer of a declaration, without the times in which a fault stood in its way, in
    /// milliseconds.
    pub slowest_ms: u64,
    /// Writes that were sent.
    pub writes: usize,
    /// Those confirmed.
    pub confirmed: usize,
    /// Those refused by the fence.
    pub refused: usize,
    /// Those of which the client does not know.
    pub unknown: usize,
    /// Transactions that inserted rows.
    pub commits: usize,
    /// Numbers in the shared row.
    pub appended: usize,
    /// Answers other than success, by SQLSTATE or in words.
    pub answers: BTreeMap<String, usize>,
    /// Faults by kind and target.
    pub faults: BTreeMap<String, usize>,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What there was.
    pub counts: Counts,
    /// What was wrong.
    pub violations: Vec<Violation>,
}

/// How many violations of one rule are shown.
const SHOWN_MAX: usize = 10;

impl Report {
    /// The violations of one rule.
    pub fn of(&self, rule: Rule) -> usize {
        self.violations
            .iter()
            .filter(|violation| violation.rule == rule)
            .count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = &self.counts;
        writeln!(f, "declarations   {}", counts.declarations)?;
        writeln!(f, "  acknowledged {}", counts.acknowledged)?;
        let (takeovers, taken) = (counts.takeovers, counts.taken);
        writeln!(f, "  takeovers    {takeovers}, {taken} of them by a take")?;
        if counts.lost > 0 {
            writeln!(
                f,
                "  lost         {} on a timeline that has ended",
                counts.lost
            )?;
        }
        writeln!(f, "  slowest      {} ms", counts.slowest_ms)?;
        writeln!(f, "writes         {}", counts.writes)?;
        writeln!(f, "  confirmed    {}", counts.confirmed)?;
        writeln!(f, "  rejections   {}", counts.refused)?;
        writeln!(f, "  unknown      {}", counts.unknown)?;
        writeln!(f, "commits        {}", counts.commits)?;
        writeln!(f, "shared row     {} numbers", counts.appended)?;
        writeln!(f, "errors         {}", list(&counts.answers))?;
        let faults: usize = counts.faults.values().sum();
        writeln!(f, "faults         {faults}")?;
        for (name, count) in &counts.faults {
            writeln!(f, "  {name:30} {count}")?;
        }
        writeln!(f, "violations     {}", self.violations.len())?;
        let mut shown: BTreeMap<Rule, usize> = BTreeMap::new();
        for violation in &self.violations {
            let already = shown.entry(violation.rule).or_default();
            *already += 1;
            if *already <= SHOWN_MAX {
                writeln!(f, "  {:?}: {}", violation.rule, violation.what)?;
            }
        }
        for (rule, count) in shown.iter().filter(|(_, count)| **count > SHOWN_MAX) {
            writeln!(f, "  {rule:?}: and {} more", count - SHOWN_MAX)?;
        }
        Ok(())
    }
}

fn list(counts: &BTreeMap<String, usize>) -> String {
    let words: Vec<String> = counts
        .iter()
        .map(|(name, count)| format!("{name}: {count}"))
        .collect();
    words.join(", ")
}
