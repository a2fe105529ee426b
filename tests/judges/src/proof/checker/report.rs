//! The checker's findings, for people.

use std::collections::BTreeMap;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    G1,
    G2,
    G3,
    G4,
    G5,
    G6,
    /// No taken token is shared, and a take follows only the mark that it names.
    Take,
    /// A listener's connections are closed before the next term begins.
    Term,
    Row,
    History,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    /// With the numbers to look for in the history.
    pub what: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub declarations: usize,
    pub acknowledged: usize,
    pub takeovers: usize,
    /// Acknowledged declarations whose snapshot a failover has lost.
    pub lost: usize,
    /// Tokens taken from the store, not given by an election.
    pub taken: usize,
    /// Tokens given by listeners.
    pub terms: usize,
    /// Longest declaration, without the times in which a fault blocked it.
    pub slowest_ms: u64,
    pub writes: usize,
    pub confirmed: usize,
    pub refused: usize,
    pub unknown: usize,
    pub commits: usize,
    /// Numbers in the shared row.
    pub appended: usize,
    /// Answers other than success, by SQLSTATE or in words.
    pub answers: BTreeMap<String, usize>,
    /// By kind and target.
    pub faults: BTreeMap<String, usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub counts: Counts,
    pub violations: Vec<Violation>,
}

/// For each rule.
const SHOWN_MAX: usize = 10;

impl Report {
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
        if counts.terms > 0 {
            writeln!(f, "  terms        {} of listeners", counts.terms)?;
        }
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
