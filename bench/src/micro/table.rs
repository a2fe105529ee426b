//! The table of results, and the comparison with an earlier one.

use std::fmt::Write;

use crate::cases::Case;
use crate::csv::Row;
use crate::timing::Times;

/// What is shown as a change, in percent. Less than that is a hash table that lies otherwise.
const CHANGED: f64 = 1.0;

/// What was found of one case.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Figures {
    pub(crate) instructions: Option<f64>,
    pub(crate) times: Option<Times>,
}

pub(crate) fn of(cases: &[Case], figures: &[Figures]) -> String {
    let mut text = format!(
        "{:<20} {:>12} {:>10} {:>21} {:>8}  {}\n",
        "case", "instructions", "ns", "(min..max)", "goal", "what"
    );
    for (case, figures) in cases.iter().zip(figures) {
        text.push_str(&line(case, *figures));
    }
    text
}

fn line(case: &Case, figures: Figures) -> String {
    let times = figures.times;
    let or_dash = |figure: Option<String>| figure.unwrap_or_else(|| "-".to_owned());
    let spread = |times: Times| format!("({}..{})", number(times.least), number(times.most));
    let goal = case.goal_ns.zip(times).map(|(goal, times)| {
        let reached = if times.median < goal { "" } else { "NOT " };
        format!("{reached}< {goal}")
    });
    format!(
        "{:<20} {:>12} {:>10} {:>21} {:>8}  {}\n",
        case.name,
        or_dash(figures.instructions.map(number)),
        or_dash(times.map(|times| number(times.median))),
        or_dash(times.map(spread)),
        or_dash(goal),
        case.what
    )
}

/// Instructions against those of an earlier run.
pub(crate) fn comparison(before: &[Row], now: &[Row]) -> String {
    let mut text = format!(
        "{:<20} {:>12} {:>12} {:>9}\n",
        "case", "before", "now", "change"
    );
    let mut changed = 0;
    for row in now {
        let old = before.iter().find(|old| old.case == row.case);
        let old = old.and_then(|old| old.instructions);
        let percent = old
            .zip(row.instructions)
            .map(|(old, new)| (new / old - 1.0) * 100.0);
        let marked = percent.is_none_or(|percent| percent.abs() >= CHANGED);
        changed += usize::from(marked);
        let or_dash = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), number);
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{:<20} {:>12} {:>12} {:>9}{}",
            row.case,
            or_dash(old),
            or_dash(row.instructions),
            percent.map_or_else(|| "new".to_owned(), |percent| format!("{percent:+.1} %")),
            if marked { "  <" } else { "" }
        );
    }
    let _ = writeln!(
        text,
        "{changed} of {} changed by {CHANGED} % or more, or are new",
        now.len()
    );
    text
}

/// Three digits say enough of what is small.
fn number(figure: f64) -> String {
    match figure {
        small if small < 100.0 => format!("{small:.1}"),
        large => format!("{large:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::cases;

    #[test]
    fn a_goal_is_reached_by_the_median() {
        let mut case = cases().remove(0);
        let mut goal = |goal_ns, samples: &[f64]| {
            case.goal_ns = goal_ns;
            let times = Times::of(samples.to_vec());
            let figures = Figures {
                times,
                ..Figures::default()
            };
            let line = line(&case, figures);
            let words: Vec<&str> = line.split_whitespace().collect();
            let what = case.what.split_whitespace().count();
            words[4..words.len() - what].join(" ")
        };
        assert_eq!(goal(Some(10.0), &[50.0, 1.0, 9.9]), "< 10");
        assert_eq!(goal(Some(10.0), &[10.0, 10.0, 1.0]), "NOT < 10");
        assert_eq!(goal(None, &[1.0]), "-");
    }

    #[test]
    fn a_change_is_marked() {
        let row = |case: &str, instructions| Row {
            case: case.to_owned(),
            instructions: Some(instructions),
            times: None,
        };
        let before = [row("same", 1000.0), row("worse", 100.0), row("gone", 1.0)];
        let now = [row("same", 1001.0), row("worse", 150.0), row("fresh", 7.0)];
        let text = comparison(&before, &now);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1],
            "same                         1000         1001    +0.1 %"
        );
        assert_eq!(
            lines[2],
            "worse                         100          150   +50.0 %  <"
        );
        assert_eq!(
            lines[3],
            "fresh                           -          7.0       new  <"
        );
        assert_eq!(lines[4], "2 of 3 changed by 1 % or more, or are new");
    }
}
