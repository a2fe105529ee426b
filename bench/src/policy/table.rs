//! The table of results.

use crate::cases::Case;

pub(crate) fn head_of_times() -> String {
    format!(
        "{:<22} {:>10} {:>21} {:>10}  {}\n",
        "case", "ns/call", "(min..max)", "goal", "what"
    )
}

pub(crate) fn line_of_times(case: &Case, samples: &[f64]) -> String {
    let (least, most) = (samples.first(), samples.last());
    let median = samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN);
    let spread = least
        .zip(most)
        .map(|(least, most)| format!("({}..{})", number(*least), number(*most)));
    let goal = case.goal_ns.map_or_else(
        || "-".to_owned(),
        |goal| match median < goal {
            true => format!("< {goal}"),
            false => format!("NOT < {goal}"),
        },
    );
    format!(
        "{:<22} {:>10} {:>21} {:>10}  {}\n",
        case.name,
        number(median),
        spread.unwrap_or_default(),
        goal,
        case.what
    )
}

pub(crate) fn head_of_instructions() -> String {
    format!("{:<22} {:>17}  {}\n", "case", "instructions/call", "what")
}

pub(crate) fn line_of_instructions(case: &Case, per_call: f64) -> String {
    format!("{:<22} {per_call:>17.1}  {}\n", case.name, case.what)
}

/// Three digits say enough.
fn number(nanoseconds: f64) -> String {
    match nanoseconds {
        ns if ns < 100.0 => format!("{ns:.1}"),
        ns => format!("{ns:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_goal_is_reached_by_the_median() {
        let case = |goal_ns| Case {
            name: "n",
            what: "w",
            goal_ns,
            run: Box::new(|_| Duration::ZERO),
        };
        let goal = |goal_ns, samples: &[f64]| {
            let line = line_of_times(&case(goal_ns), samples);
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(3..words.len() - 1).unwrap().join(" ")
        };
        assert_eq!(goal(Some(10.0), &[1.0, 9.9, 50.0]), "< 10");
        assert_eq!(goal(Some(10.0), &[1.0, 10.0, 10.0]), "NOT < 10");
        assert_eq!(goal(None, &[1.0]), "-");
    }
}
