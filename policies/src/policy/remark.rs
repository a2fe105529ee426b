//! Remarks about a policy file, with their places.

use std::error::Error;
use std::fmt;
use std::ops::Range;

use serde::Serialize;

/// An error in a policy file, or something legal but surprising.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remark {
    pub line: u32,
    pub column: u32,
    /// The problem, and in parentheses what to do.
    pub message: String,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

/// All errors in a policy file, never empty. One line for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyErrors(pub Vec<Remark>);

impl fmt::Display for PolicyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, remark) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{remark}")?;
        }
        Ok(())
    }
}

impl Error for PolicyErrors {}

/// A problem with a value, before its place is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ValueError {
    pub(super) what: String,
    pub(super) to_do: String,
}

impl ValueError {
    pub(super) fn new(what: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            to_do: to_do.into(),
        }
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.what, self.to_do)
    }
}

/// Finds lines and columns in a text.
#[derive(Debug)]
pub(super) struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let breaks = text.match_indices('\n').map(|(index, _)| index + 1);
        Self {
            text,
            starts: std::iter::once(0).chain(breaks).collect(),
        }
    }

    pub(super) fn remark(&self, at: &Range<usize>, message: impl fmt::Display) -> Remark {
        let line = self.starts.partition_point(|start| *start <= at.start);
        let begin = self.starts.get(line.saturating_sub(1)).copied();
        let before = self.text.get(begin.unwrap_or_default()..at.start);
        Remark {
            line: count(line),
            column: count(before.unwrap_or_default().chars().count() + 1),
            message: message.to_string(),
        }
    }

    pub(super) fn line(&self, at: &Range<usize>) -> u32 {
        count(self.starts.partition_point(|start| *start <= at.start))
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_in_lines_and_characters() {
        let text = "é = 1\n\nxy";
        let lines = Lines::new(text);
        let place = |at: usize| {
            let remark = lines.remark(&(at..at), "");
            assert_eq!(remark.line, lines.line(&(at..at)));
            (remark.line, remark.column)
        };
        assert_eq!(place(0), (1, 1));
        assert_eq!(place(2), (1, 2), "é is one character of two bytes");
        assert_eq!(place(6), (1, 6), "the line break itself");
        assert_eq!(place(7), (2, 1));
        assert_eq!(place(9), (3, 2));
        assert_eq!(place(text.len()), (3, 3), "the end of the file");
    }
}
