//! A file in which a program writes its fencing token while it leads.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pgpalisade_authority::{Election, Mandate, Standing, Token};
use rustix::fs::OFlags;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Time for which the file's last number counts, if the file cannot be read.
const SURE_FOR: Duration = Duration::from_secs(1);

/// No number is longer, with white space around it.
const LENGTH_MAX: u64 = 64;

/// The replica leads while the file exists and holds a number. A number that is only half written is lower than the
/// whole, so it gives no right that the program does not have.
#[derive(Debug)]
pub struct NumberFile {
    path: PathBuf,
    /// For one read at a time: each that hangs holds a thread.
    turn: Arc<Semaphore>,
}

impl NumberFile {
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        let turn = Arc::new(Semaphore::new(1));
        Self { path, turn }
    }
}

#[async_trait]
impl Election for NumberFile {
    fn look_every(&self) -> Duration {
        LOOK_EVERY
    }

    async fn read(&self) -> Result<Standing, String> {
        let sure_until = Instant::now() + SURE_FOR;
        let (path, shown) = (self.path.clone(), self.path.display());
        let late = || format!("{shown} cannot be read in time");
        let turn = Arc::clone(&self.turn).try_acquire_owned();
        let turn = turn.map_err(|_| late())?;
        // A file on a network may hang.
        let reading = spawn_blocking(move || {
            let _turn = turn;
            read(&path)
        });
        let text = timeout(SURE_FOR, reading).await.ok().and_then(Result::ok);
        let text = match text.ok_or_else(late)? {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Standing::Waits("there is no such file".to_owned()));
            }
            text => text.map_err(|error| format!("{shown}: {error}"))?,
        };
        let text = text.trim();
        if text.is_empty() {
            return Ok(Standing::Waits("the file is empty".to_owned()));
        }
        let number = text.parse::<Token>();
        let number = number.map_err(|error| format!("{shown}: {error}"))?;
        let mandate = Mandate {
            id: number.to_string(),
            number: Some(number),
        };
        Ok(Standing::Leads {
            mandate,
            sure_until,
        })
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut options = OpenOptions::new();
    // Opening a FIFO would wait for its writer.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = options.read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = String::new();
    file.take(LENGTH_MAX).read_to_string(&mut text)?;
    Ok(text)
}
