//! A file that grows, and that other programs rotate.

use std::fs::{self, File, Metadata};
use std::io::{self, BufReader, Seek, SeekFrom, Stdout, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pgpalisade_rejection_log::line::{self, Read};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Printer;

/// Interval between looks for more.
const EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// The file with this name, or the one that had it before a rotation.
pub(super) struct Followed {
    path: PathBuf,
    file: BufReader<File>,
    line: Vec<u8>,
}

impl Followed {
    pub(super) fn from_start(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_path_buf(),
            file: BufReader::new(File::open(path)?),
            line: Vec::new(),
        })
    }

    /// Skips what the file already holds.
    pub(super) fn from_end(path: &Path) -> io::Result<Self> {
        let mut followed = Self::from_start(path)?;
        followed.file.seek(SeekFrom::End(0))?;
        Ok(followed)
    }

    /// Prints new lines, until an error or until the reader is gone.
    pub(super) fn print<W: Write>(
        mut self,
        printer: &mut Printer<W>,
        out: &Stdout,
    ) -> io::Result<()> {
        loop {
            self.print_lines(printer)?;
            if let Some(next) = self.successor() {
                // The proxy writes its last line to the old file before it creates the new one.
                self.print_lines(printer)?;
                self.file = BufReader::new(next);
                continue;
            }
            self.start_over_if_truncated()?;
            printer.out.flush()?;
            // Without it, a closed reader is noticed only at the next line.
            let mut reader = [PollFd::new(out, PollFlags::empty())];
            match poll(&mut reader, Some(&EVERY)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Prints all complete lines. An incomplete one is read again later.
    fn print_lines<W: Write>(&mut self, printer: &mut Printer<W>) -> io::Result<()> {
        loop {
            match line::read(&mut self.file, &mut self.line)? {
                Read::Line => printer.line(&self.line)?,
                Read::TooLong => printer.foreign += 1,
                Read::End => return Ok(()),
                Read::Torn => {
                    let back = i64::try_from(self.line.len()).map_err(io::Error::other)?;
                    return self.file.seek_relative(-back);
                }
            }
        }
    }

    /// The file that has the name now, if it is another one.
    fn successor(&self) -> Option<File> {
        let ours = self.file.get_ref().metadata().ok()?;
        if is_same(&ours, &fs::metadata(&self.path).ok()?) {
            return None;
        }
        File::open(&self.path).ok()
    }

    /// Starts over if the file is shorter than the part already read: it was emptied.
    fn start_over_if_truncated(&mut self) -> io::Result<()> {
        if self.file.get_ref().metadata()?.len() < self.file.stream_position()? {
            self.file.seek(SeekFrom::Start(0))?;
        }
        Ok(())
    }
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}
