//! Output of the demo: numbered steps, statements and answers.

use std::io::{self, Write};

pub(super) struct Page<W> {
    out: W,
    step: usize,
}

impl<W: Write> Page<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, step: 0 }
    }

    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    pub(super) fn step(&mut self, text: &str) -> io::Result<()> {
        self.step += 1;
        self.line(&format!("\n{}. {text}", self.step))
    }

    pub(super) fn says(&mut self, who: &str, sql: &str) -> io::Result<()> {
        self.line(&format!("   {who}> {sql}"))
    }

    pub(super) fn answer(&mut self, text: &str) -> io::Result<()> {
        self.line(&format!("      {text}"))
    }

    /// A line of an error, as psql prints it.
    pub(super) fn refusal(&mut self, name: &str, text: &str) -> io::Result<()> {
        self.line(&format!("      {name}:  {text}"))
    }

    pub(super) fn note(&mut self, text: &str) -> io::Result<()> {
        self.line(&format!("   {text}"))
    }
}
