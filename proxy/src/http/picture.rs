//! The picture of the tables that the dashboard shows.
//!
//! It is made once for all clients, at a limited rate.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::readiness::Readiness;
use crate::console::{Facts, OVER_HTTP};

/// Pause between two tables of a picture, so that a core is taken only in short pieces.
const GAP: Duration = Duration::from_millis(10);
/// Shortest time between two pictures.
const EVERY: Duration = Duration::from_secs(1);
/// Factor of the time it took to make a picture, for which it stays valid. Bounds the share of time that pictures
/// take.
const SHARE: u32 = 10;
/// Longest time that a picture stays valid.
const OLDEST: Duration = Duration::from_secs(3);
/// Rows of one table in a picture. The total is reported too.
const ROWS_MAX: usize = 200;
/// A browser rounds numbers above it.
const EXACT_MAX: u64 = 1 << 53;

/// The last picture, and until when every client gets it.
#[derive(Debug, Default)]
pub(super) struct Pictures(Mutex<Option<(String, Instant)>>);

impl Pictures {
    /// The latest picture, with the time in milliseconds since the Unix epoch: a browser's clock may differ.
    pub(super) async fn latest(&self, facts: &Arc<Facts>, readiness: &Readiness) -> String {
        let mut last = self.0.lock().await;
        let valid = last.take().filter(|(_, until)| Instant::now() < *until);
        let picture = match valid {
            Some(picture) => picture,
            None => {
                let began = Instant::now();
                let picture = picture(facts, readiness).await.to_string();
                let valid_for = (began.elapsed() * SHARE).clamp(EVERY, OLDEST);
                (picture, Instant::now() + valid_for)
            }
        };
        let (picture, _) = last.insert(picture);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_millis();
        format!("{{\"now\":{now},\"picture\":{picture}}}")
    }
}

async fn picture(facts: &Arc<Facts>, readiness: &Readiness) -> Value {
    let mut picture = Map::new();
    picture.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
    let why_not = readiness.why_not().await;
    picture.insert("not_ready".to_owned(), why_not.into());
    for name in OVER_HTTP {
        let table = match facts.rows(name).await {
            Some(Ok(rows)) => shortened(name, rows),
            Some(Err(why)) => json!({ "why_not": why }),
            None => Value::Null,
        };
        picture.insert(name.to_owned(), table);
        sleep(GAP).await;
    }
    Value::Object(picture)
}

/// A row whose numbers a browser shows as they are: large ones, such as marks, are texts.
fn exact(mut row: Value) -> Value {
    for value in row.as_object_mut().into_iter().flat_map(Map::values_mut) {
        if let Some(large) = value.as_u64().filter(|number| *number > EXACT_MAX) {
            *value = large.to_string().into();
        }
    }
    row
}

/// The first rows, and the total. Of rejections the last ones, the newest first.
fn shortened(name: &str, rows: impl ExactSizeIterator<Item = Value>) -> Value {
    let total = rows.len();
    let rows = rows.map(exact);
    let rows: Vec<Value> = if name == "rejections" {
        let last = rows.skip(total.saturating_sub(ROWS_MAX));
        last.collect::<Vec<_>>().into_iter().rev().collect()
    } else {
        rows.take(ROWS_MAX).collect()
    };
    json!({ "rows": rows, "total": total })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_rounds_no_mark() {
        let row = json!({ "scope": "jobs", "mark": EXACT_MAX + 1, "sessions": 3, "stale": -1 });
        let shown =
            json!({ "scope": "jobs", "mark": "9007199254740993", "sessions": 3, "stale": -1 });
        let picture = shortened("scopes", [row].into_iter());
        assert_eq!(picture, json!({ "rows": [shown], "total": 1 }));
    }
}
