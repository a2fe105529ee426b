//! PAUSE and RESUME.

use std::time::Duration;

use pgpalisade_fence::readable::counted;
use pgpalisade_server::pause::Traffic;
use tokio::time::Instant;

use super::{Console, ConsoleError, SEE_LOG};

const PAUSED_WITHIN: Duration = Duration::from_secs(60);
const PAUSED_LOOK_EVERY: Duration = Duration::from_millis(50);

impl Console {
    /// Holds new transactions, and answers once no transaction is open.
    pub(super) async fn pause(&self) -> Result<(), ConsoleError> {
        let (pause, until) = (&self.facts.shared.pause, Instant::now() + PAUSED_WITHIN);
        pause.order(Traffic::Held);
        loop {
            let obeyed = tokio::time::timeout_at(until, pause.obeyed()).await;
            let order = obeyed.map_err(|_| stuck())?;
            if order.traffic == Traffic::Flows {
                return Err(overtaken("another operator resumed all sessions"));
            }
            // After the workers have obeyed, and before checking that this order is still the last one.
            let clients = self.facts.shared.connected.all();
            let busy = clients.iter().filter(|client| client.state().is_busy());
            let busy = busy.count();
            if busy == 0 && pause.is_last(&order) {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(ConsoleError::new("55006", format!(
                        "no transaction begins any more, but {} did not end in time",
                        counted(busy, "session")
                    )).hint("SHOW SESSIONS shows them. PAUSE waits again, KILL ends one, RESUME lets all continue."));
            }
            tokio::time::sleep(PAUSED_LOOK_EVERY).await;
        }
    }

    pub(super) async fn resume(&self) -> Result<(), ConsoleError> {
        self.facts.shared.pause.order(Traffic::Flows);
        let obeyed = tokio::time::timeout(PAUSED_WITHIN, self.facts.shared.pause.obeyed()).await;
        match obeyed.map_err(|_| stuck())?.traffic {
            Traffic::Flows => Ok(()),
            Traffic::Held => Err(overtaken("another operator paused all sessions")),
        }
    }
}

fn overtaken(how: &str) -> ConsoleError {
    let hint = "The metric pgpalisade_paused shows the present state, and SHOW DATABASES while clients are connected.";
    ConsoleError::new("57014", how).hint(hint)
}

/// A worker that does not answer serves no session either.
pub(super) fn stuck() -> ConsoleError {
    ConsoleError::new("58000", "a worker thread does not answer").hint(SEE_LOG)
}
