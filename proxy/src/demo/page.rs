//! Output of the demo: numbered steps, statements and answers, in colour on a terminal only.

use std::io::{self, IsTerminal, Write};

pub(super) struct Page<W> {
    out: W,
    ink: Ink,
    step: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ink {
    Colour,
    Plain,
}

const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";

impl Ink {
    pub(super) fn for_stdout() -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let dumb = set("TERM").is_some_and(|term| term == "dumb");
        if io::stdout().is_terminal() && set("NO_COLOR").is_none() && !dumb {
            Self::Colour
        } else {
            Self::Plain
        }
    }

    fn paint(self, colour: &str, text: &str) -> String {
        match self {
            Self::Colour => format!("\x1b[{colour}m{text}\x1b[0m"),
            Self::Plain => text.to_owned(),
        }
    }
}

impl<W: Write> Page<W> {
    pub(super) fn new(out: W, ink: Ink) -> Self {
        Self { out, ink, step: 0 }
    }

    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    pub(super) fn title(&mut self, text: &str) -> io::Result<()> {
        let text = self.ink.paint(BOLD, text);
        self.line(&text)
    }

    pub(super) fn step(&mut self, text: &str) -> io::Result<()> {
        self.step += 1;
        let text = self.ink.paint(BOLD, &format!("{}. {text}", self.step));
        self.line(&format!("\n{text}"))
    }

    pub(super) fn says(&mut self, who: &str, sql: &str) -> io::Result<()> {
        let who = self.ink.paint(DIM, &format!("{who}>"));
        self.line(&format!("   {who} {sql}"))
    }

    pub(super) fn answer(&mut self, text: &str) -> io::Result<()> {
        let text = self.ink.paint(GREEN, text);
        self.line(&format!("      {text}"))
    }

    pub(super) fn refusal(&mut self, lines: &[String]) -> io::Result<()> {
        for line in lines {
            let line = self.ink.paint(RED, line);
            self.line(&format!("      {line}"))?;
        }
        Ok(())
    }

    pub(super) fn note(&mut self, text: &str) -> io::Result<()> {
        let text = self.ink.paint(DIM, text);
        self.line(&format!("   {text}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(ink: Ink) -> String {
        let mut out = Vec::new();
        let mut page = Page::new(&mut out, ink);
        page.step("first").unwrap();
        page.says("A", "SELECT 1").unwrap();
        page.step("second").unwrap();
        page.refusal(&["ERROR".into()]).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn plain_without_escapes() {
        assert_eq!(
            written(Ink::Plain),
            "\n1. first\n   A> SELECT 1\n\n2. second\n      ERROR\n"
        );
    }

    #[test]
    fn colour_is_always_ended() {
        let text = written(Ink::Colour);
        assert!(text.contains("\x1b[31mERROR\x1b[0m"));
        assert_eq!(
            text.matches("\x1b[").count(),
            2 * text.matches("\x1b[0m").count()
        );
    }
}
