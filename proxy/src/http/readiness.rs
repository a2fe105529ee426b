//! Whether the proxy can serve and take over a token.

use std::time::Duration;

use pgpalisade_takeover::Takeover;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

/// Limit for an answer of the authority.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Further limit for the main thread to pass its answer on.
const SAID_WITHIN: Duration = Duration::from_millis(200);
/// Shortest interval between questions to the authority, however many requests there are.
const ASK_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Readiness {
    takeover: Takeover,
    shutdown: CancellationToken,
    /// Time and error of the last question to the authority. Concurrent requests share its answer.
    asked: Mutex<Option<(Instant, Option<String>)>>,
}

impl Readiness {
    pub(super) fn new(takeover: Takeover, shutdown: CancellationToken) -> Self {
        Self {
            takeover,
            shutdown,
            asked: Mutex::default(),
        }
    }

    pub(super) async fn why_not(&self) -> Option<String> {
        if self.shutdown.is_cancelled() {
            return Some(String::from("the proxy is shutting down"));
        }
        if self.takeover.primary().is_none() {
            let why = self.takeover.why_no_primary();
            return Some(format!(
                "there is no control connection to a primary: {why}"
            ));
        }
        self.ask_authority().await
    }

    async fn ask_authority(&self) -> Option<String> {
        let mut asked = self.asked.lock().await;
        if let Some((when, answer)) = &*asked
            && when.elapsed() < ASK_EVERY
        {
            return answer.clone();
        }
        let deadline = Instant::now() + ANSWER_WITHIN;
        // The main thread gets a little more time than the authority.
        let asked_until = deadline + SAID_WITHIN;
        let answer = timeout_at(asked_until, self.takeover.ask_authority(deadline)).await;
        let wrong = match answer {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(String::from("the main thread does not answer")),
        };
        *asked = Some((Instant::now(), wrong.clone()));
        wrong
    }
}
