//! tokio-postgres with deadpool.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use deadpool_postgres::{Manager, Pool, PoolError};
use futures_util::{SinkExt as _, TryStreamExt as _, join};
use suite::{Cell, Connection, after_takeover, block_on, env, follow};
use suite::{leader, refused, slow, takeover, write};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{sleep, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Error, NoTls};

/// A client, and what its connection says beside the answers.
struct Connected {
    client: Client,
    notes: UnboundedReceiver<String>,
}

fn text(options: &str) -> String {
    let port = env("PGPORT");
    format!("host=127.0.0.1 port={port} user=app password=pencil dbname=app {options}")
}

impl Connected {
    fn open_with(options: &str) -> Result<Self, Error> {
        let (client, mut connection) = block_on(tokio_postgres::connect(&text(options), NoTls))?;
        let (send, notes) = unbounded_channel();
        block_on(async {
            tokio::spawn(async move {
                while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                    if let AsyncMessage::Notification(note) = message {
                        let _ = send.send(note.payload().to_owned());
                    }
                }
            })
        });
        Ok(Self { client, notes })
    }
}

impl Connection for Connected {
    type Error = Error;

    fn open(token: Option<&str>) -> Result<Self, Error> {
        let options = token.map(|token| format!("options='-c fencing.token={token}'"));
        Self::open_with(&options.unwrap_or_default())
    }

    fn run(&mut self, sql: &str) -> Result<(), Error> {
        block_on(async {
            // The runtime of a program runs, and hears of the end.
            sleep(Duration::from_millis(20)).await;
            self.client.batch_execute(sql).await
        })
    }

    fn told(error: &Error) -> Option<[&str; 3]> {
        let told = error.as_db_error()?;
        let [detail, hint] = [told.detail(), told.hint()].map(Option::unwrap_or_default);
        Some([told.code().code(), detail, hint])
    }
}

/// Futures that are awaited together are a pipeline.
fn batch() -> Cell {
    let c = leader::<Connected>()?.client;
    takeover("asleep");
    block_on(async {
        let insert = c
            .prepare("INSERT INTO jobs SELECT 'batch', 'lost' FROM pg_sleep($1)")
            .await?;
        let (slow, late) = join!(c.execute(&insert, &[&10f64]), c.execute(&insert, &[&0f64]));
        refused::<Connected>(late.map(drop))?;
        refused::<Connected>(slow.map(drop))
    })
}

fn copy() -> Cell {
    let c = leader::<Connected>()?.client;
    let copied = block_on(async {
        let mut sink = pin!(c.copy_in::<_, &[u8]>("COPY jobs FROM STDIN").await?);
        sink.send(b"copy\tlost\n").await?;
        takeover("");
        sink.send(b"copy\tlost\n").await?;
        sink.finish().await
    });
    refused::<Connected>(copied.map(drop))
}

fn pool() -> Cell {
    let pool = Pool::builder(Manager::new(text("").parse()?, NoTls)).max_size(2);
    let pool = pool.build()?;
    after_takeover::<Connected>(|token, what| {
        block_on(async {
            let mut c = match pool.get().await {
                Err(PoolError::Backend(error)) => return Err(error),
                c => c.unwrap(),
            };
            let transaction = c.transaction().await?;
            let set = format!("SET LOCAL fencing.token = {token}");
            transaction.batch_execute(&set).await?;
            transaction.batch_execute(&write(what)).await?;
            transaction.commit().await
        })
    })
}

fn prepared() -> Cell {
    let mut c = Connected::open(Some(&takeover("")))?;
    let text = "INSERT INTO jobs VALUES ('prepared', $1)";
    let mut insert = block_on(c.client.prepare(text))?;
    block_on(c.client.execute(&insert, &[&"kept"]))?;
    let token = takeover("");
    refused::<Connected>(block_on(c.client.execute(&insert, &[&"lost"])).map(drop))?;
    if c.client.is_closed() {
        c = Connected::open(Some(&token))?;
        insert = block_on(c.client.prepare(text))?;
    } else {
        c.run(&format!("SET fencing.token = {token}"))?;
    }
    block_on(c.client.execute(&insert, &[&"kept"]))?;
    block_on(c.client.execute(&insert, &[&"kept"]))?;
    Ok("ok")
}

fn cancel() -> Cell {
    let mut c = leader::<Connected>()?;
    let cancel = c.client.cancel_token();
    let later = async {
        sleep(Duration::from_secs(1)).await;
        cancel.cancel_query(NoTls).await
    };
    let slow = slow();
    let (answer, sent) = block_on(async { join!(c.client.batch_execute(&slow), later) });
    sent?;
    assert_eq!(answer.unwrap_err().code(), Some(&SqlState::QUERY_CANCELED));
    c.run(&write("kept"))?;
    Ok("ok")
}

fn notify() -> Cell {
    let mut c = leader::<Connected>()?;
    c.run("LISTEN jobs")?;
    c.run("NOTIFY jobs, 'done'")?;
    let heard = block_on(async { timeout(Duration::from_secs(5), c.notes.recv()).await })?;
    assert_eq!(heard.as_deref(), Some("done"));
    Ok("ok")
}

/// A portal, which is read in parts.
fn cursor() -> Cell {
    let mut c = Connected::open(Some(&takeover("")))?.client;
    block_on(async {
        let transaction = c.transaction().await?;
        let rows = transaction
            .bind("SELECT generate_series(1, 1000)", &[])
            .await?;
        let first = transaction.query_portal(&rows, 10).await?;
        assert_eq!(first.last().unwrap().get::<_, i32>(0), 10);
        transaction.batch_execute(&write("kept")).await?;
        let rest = transaction.query_portal_raw(&rows, 990).await?;
        let rest: Vec<_> = rest.try_collect().await?;
        assert_eq!(rest.last().unwrap().get::<_, i32>(0), 1000);
        transaction.commit().await?;
        Ok("ok")
    })
}

/// The only format of the driver.
fn binary() -> Cell {
    let c = leader::<Connected>()?.client;
    let (number, part, bytes) = (1i64 << 40, 0.25, &[0u8, 255][..]);
    let row = block_on(c.query_one(
        "SELECT $1::bigint, $2::float8, $3::bytea",
        &[&number, &part, &bytes],
    ))?;
    assert_eq!((row.get(0), row.get(1), row.get(2)), (number, part, bytes));
    Ok("ok")
}

fn main() {
    suite::run::<Connected>(
        "tokio-postgres 0.7 with deadpool",
        &[
            ("batch", batch),
            ("copy", copy),
            ("pool", pool),
            ("prepared", prepared),
            ("cancel", cancel),
            ("notify", notify),
            ("cursor", cursor),
            ("binary", binary),
            ("attrs", || {
                follow(Connected::open_with("target_session_attrs=read-write")?)
            }),
        ],
        "autocommit objects",
    );
}
