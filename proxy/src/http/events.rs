//! What the dashboard shows, sent again whenever it has changed: server-sent events.
//!
//! Everybody who watches gets the same picture, which is made once for all of them, and not more often than it is
//! cheap. <https://html.spec.whatwg.org/multipage/server-sent-events.html>

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http_body_util::channel::{Channel, Sender};
use hyper::HeaderMap;
use hyper::body::Bytes;
use serde_json::{Map, Value};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::access::{Peer, Rights};
use super::answers::Answers;

/// Time between two tables of a picture. A core that is taken in short pieces is missed by nobody who works.
const GAP: Duration = Duration::from_millis(10);
/// Time between two pictures, at least.
const EVERY: Duration = Duration::from_secs(1);
/// Where to make one takes long, it is shown for so many times as long, so that it takes little of the time.
const SHARE: u32 = 10;
/// A picture is not older than this.
const OLDEST: Duration = Duration::from_secs(3);
/// A sign of life where nothing has changed.
const SIGN_EVERY: Duration = Duration::from_secs(5);
/// Rows of one table in a picture. How many there are is told.
const ROWS_MAX: usize = 200;

/// What is in a picture.
const TABLES: [&str; 6] = [
    "scopes",
    "takeovers",
    "overlaps",
    "rejections",
    "sessions",
    "proxies",
];

/// The last picture, for all who watch.
#[derive(Debug, Default)]
pub(super) struct Pictures(Mutex<Option<Picture>>);

#[derive(Debug, Clone)]
struct Picture {
    content: Bytes,
    /// When it was made, milliseconds since the Unix epoch.
    made_at: u128,
    /// Until then it is shown to whoever asks.
    until: Instant,
}

impl Pictures {
    async fn latest(&self, answers: &Answers) -> Picture {
        let mut last = self.0.lock().await;
        if let Some(picture) = &*last
            && Instant::now() < picture.until
        {
            return picture.clone();
        }
        let began = Instant::now();
        let content = Bytes::from(picture(answers).await.to_string());
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

async fn picture(answers: &Answers) -> Value {
    let mut picture = Map::new();
    picture.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
    picture.insert("not_ready".to_owned(), answers.why_not_ready().await.into());
    for name in TABLES {
        let table = match answers.facts.rows(name).await {
            Some(Ok(rows)) => shortened(name, rows),
            Some(Err(why)) => Map::from_iter([("why_not".to_owned(), why.into())]).into(),
            None => Value::Null,
        };
        picture.insert(name.to_owned(), table);
        sleep(GAP).await;
    }
    Value::Object(picture)
}

/// The first rows, and how many there are. Of rejections the last ones, with the newest first.
fn shortened(name: &str, rows: impl ExactSizeIterator<Item = Value>) -> Value {
    let total = rows.len();
    let rows: Vec<Value> = if name == "rejections" {
        let last = rows.skip(total.saturating_sub(ROWS_MAX));
        last.collect::<Vec<_>>().into_iter().rev().collect()
    } else {
        rows.take(ROWS_MAX).collect()
    };
    Map::from_iter([
        ("rows".to_owned(), rows.into()),
        ("total".to_owned(), total.into()),
    ])
    .into()
}

/// A body that shows what there is, until whoever reads it goes, or may not read it any more by what was shown: in the
/// handshake, and in these fields of the request.
pub(super) fn body(
    answers: Arc<Answers>,
    peer: Peer,
    fields: HeaderMap,
) -> Channel<Bytes, Infallible> {
    let (sender, body) = Channel::new(1);
    tokio::spawn(send(sender, answers, peer, fields));
    body
}

async fn send(
    mut to: Sender<Bytes, Infallible>,
    answers: Arc<Answers>,
    peer: Peer,
    fields: HeaderMap,
) {
    let mut sent = Bytes::new();
    let mut sent_at = Instant::now();
    while answers.access.rights(peer, &fields) == Rights::Read {
        let Picture {
            content, made_at, ..
        } = answers.pictures.latest(&answers).await;
        // The time is not in the picture, or it would always be another one.
        let event = match content == sent {
            false => format!(
                "id: {made_at}\ndata: {}\n\n",
                String::from_utf8_lossy(&content)
            ),
            true if sent_at.elapsed() >= SIGN_EVERY => format!("id: {made_at}\n\n"),
            true => String::new(),
        };
        if !event.is_empty() {
            // Whoever reads slowly gets less.
            if to.send_data(event.into()).await.is_err() {
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
