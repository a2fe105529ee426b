//! Output of the demo: numbered steps, statements and answers, in colour on a terminal only.

use std::io::{self, Write};

/// Steps, with escape sequences for colours: its output removes them where they are not shown.
pub(super) struct Page<W> {
    out: W,
    step: usize,
}

const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";

fn paint(colour: &str, text: &str) -> String {
    format!("\x1b[{colour}m{text}\x1b[0m")
}

impl<W: Write> Page<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, step: 0 }
    }

    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    pub(super) fn title(&mut self, text: &str) -> io::Result<()> {
        let text = paint(BOLD, text);
        self.line(&text)
    }

    pub(super) fn step(&mut self, text: &str) -> io::Result<()> {
        self.step += 1;
        let text = paint(BOLD, &format!("{}. {text}", self.step));
        self.line(&format!("\n{text}"))
    }

    pub(super) fn says(&mut self, who: &str, sql: &str) -> io::Result<()> {
        let who = paint(DIM, &format!("{who}>"));
        self.line(&format!("   {who} {sql}"))
    }

    pub(super) fn answer(&mut self, text: &str) -> io::Result<()> {
        let text = paint(GREEN, text);
        self.line(&format!("      {text}"))
    }

    /// A line of an error, as psql prints it.
    pub(super) fn refusal(&mut self, name: &str, text: &str) -> io::Result<()> {
        let line = paint(RED, &format!("{name}:  {text}"));
        self.line(&format!("      {line}"))
    }

    pub(super) fn note(&mut self, text: &str) -> io::Result<()> {
        let text = paint(DIM, text);
        self.line(&format!("   {text}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_always_ended_and_nothing_without_them() {
        let mut out = Vec::new();
        let mut page = Page::new(&mut out);
        page.step("first").unwrap();
        page.says("A", "SELECT 1").unwrap();
        page.step("second").unwrap();
        page.refusal("ERROR", "PF001").unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("\x1b[31mERROR:  PF001\x1b[0m"));
        let (begun, ended) = (
            text.matches("\x1b[").count(),
            text.matches("\x1b[0m").count(),
        );
        assert_eq!(begun, 2 * ended);
        let plain = anstream::adapter::strip_str(&text).to_string();
        let expect = "\n1. first\n   A> SELECT 1\n\n2. second\n      ERROR:  PF001\n";
        assert_eq!(plain, expect);
    }
}
