//! A file in which a program writes its fencing token while it leads.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use pgpalisade_authority::{Election, Mandate, Token};
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
pub struct NumberFile(pub PathBuf);

#[async_trait]
impl Election for NumberFile {
    fn look_every(&self) -> Duration {
        LOOK_EVERY
    }

    async fn read(&self) -> Result<Option<(Mandate, Instant)>, String> {
        let (path, sure_until) = (self.0.clone(), Instant::now() + SURE_FOR);
        // A file on a network may hang.
        let reading = timeout(SURE_FOR, spawn_blocking(move || read(&path)));
        let text = reading.await.ok().and_then(Result::ok);
        let text = text.ok_or_else(|| format!("{} cannot be read in time", self.0.display()))?;
        let text = match text {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| format!("{}: {error}", self.0.display()))?,
        };
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        let number = text.parse::<Token>();
        let number = number.map_err(|error| format!("{}: {error}", self.0.display()))?;
        let mandate = Mandate {
            id: number.to_string(),
            number: Some(number),
        };
        Ok(Some((mandate, sure_until)))
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?
        .take(LENGTH_MAX)
        .read_to_string(&mut text)?;
    Ok(text)
}
