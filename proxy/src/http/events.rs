//! Events of the dashboard: a picture of the tables, sent as server-sent events when it changes.
//!
//! It is made once for all clients, at a limited rate.
//! <https://html.spec.whatwg.org/multipage/server-sent-events.html>

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http_body_util::channel::{Channel, Sender};
use hyper::HeaderMap;
use hyper::body::Bytes;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::access::{Access, HttpAccess, Peer};
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
/// Interval of a sign of life if nothing changes.
const SIGN_EVERY: Duration = Duration::from_secs(5);
/// Rows of one table in a picture. The total is reported too.
const ROWS_MAX: usize = 200;

/// What is shown, and to whom.
pub(super) struct Shown {
    pub(super) access: Access,
    pub(super) facts: Arc<Facts>,
    pub(super) readiness: Readiness,
    pub(super) pictures: Pictures,
}

/// The last picture, shared by all clients.
#[derive(Debug, Default)]
pub(super) struct Pictures(Mutex<Option<Picture>>);

#[derive(Debug, Clone)]
struct Picture {
    content: Bytes,
    /// Milliseconds since the Unix epoch.
    made_at: u128,
    /// Until then every client gets it.
    until: Instant,
}

impl Pictures {
    async fn latest(&self, shown: &Shown) -> Picture {
        let mut last = self.0.lock().await;
        if let Some(picture) = &*last
            && Instant::now() < picture.until
        {
            return picture.clone();
        }
        let began = Instant::now();
        let content = Bytes::from(picture(shown).await.to_string());
        let until = Instant::now() + (began.elapsed() * SHARE).clamp(EVERY, OLDEST);
        let picture = Picture {
            content,
            made_at: now_ms(),
            until,
        };
        *last = Some(picture.clone());
        picture
    }
}

async fn picture(shown: &Shown) -> Value {
    let mut picture = Map::new();
    picture.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
    let why_not = shown.readiness.why_not().await;
    picture.insert("not_ready".to_owned(), why_not.into());
    for name in OVER_HTTP {
        let table = match shown.facts.rows(name).await {
            Some(Ok(rows)) => shortened(name, rows),
            Some(Err(why)) => json!({ "why_not": why }),
            None => Value::Null,
        };
        picture.insert(name.to_owned(), table);
        sleep(GAP).await;
    }
    Value::Object(picture)
}

/// The first rows, and the total. Of rejections the last ones, the newest first.
fn shortened(name: &str, rows: impl ExactSizeIterator<Item = Value>) -> Value {
    let total = rows.len();
    let rows: Vec<Value> = if name == "rejections" {
        let last = rows.skip(total.saturating_sub(ROWS_MAX));
        last.collect::<Vec<_>>().into_iter().rev().collect()
    } else {
        rows.take(ROWS_MAX).collect()
    };
    json!({ "rows": rows, "total": total })
}

/// A body that streams events until the client leaves, or loses its rights. They follow from its TLS handshake and
/// these fields of the request.
pub(super) fn body(shown: Arc<Shown>, peer: Peer, fields: HeaderMap) -> Channel<Bytes, Infallible> {
    let (sender, body) = Channel::new(1);
    tokio::spawn(send(sender, shown, peer, fields));
    body
}

async fn send(mut to: Sender<Bytes, Infallible>, shown: Arc<Shown>, peer: Peer, fields: HeaderMap) {
    let mut sent = Bytes::new();
    let mut sent_at = Instant::now();
    while shown.access.rights(peer, &fields) == HttpAccess::Read {
        let picture = shown.pictures.latest(&shown).await;
        let (content, made_at) = (picture.content, picture.made_at);
        // Without the time, which would make every picture differ.
        if content != sent || sent_at.elapsed() >= SIGN_EVERY {
            let mut event = format!("id: {made_at}\n");
            if content != sent {
                event.push_str(&format!("data: {}\n", String::from_utf8_lossy(&content)));
            }
            // A client that reads slowly gets fewer events.
            if to.send_data(format!("{event}\n").into()).await.is_err() {
                return;
            }
            (sent, sent_at) = (content, Instant::now());
        }
        sleep(EVERY).await;
    }
}

fn now_ms() -> u128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_millis()
}
