//! sqlx with its pool.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgDatabaseError, PgListener, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Error, Executor as _, PgConnection, Row as _};
use sqlx::{query, raw_sql};
use suite::{Cell, Connection, after_takeover, block_on, env, leader, refused, takeover, write};

const INSERT: &str = "INSERT INTO jobs VALUES ($1, $2)";

fn options(token: Option<&str>) -> PgConnectOptions {
    let url = format!("postgres://app:pencil@127.0.0.1:{}/app", env("PGPORT"));
    let options: PgConnectOptions = url.parse().unwrap();
    options.options(token.map(|token| ("fencing.token", token)))
}

/// As on the page: it connects to pgpalisade only.
async fn pool(token: &str) -> Result<PgPool, Error> {
    PgPoolOptions::new()
        .after_connect(|conn, _| {
            Box::pin(async { conn.execute("SHOW fencing.status").await.map(drop) })
        })
        .connect_with(options(Some(token)))
        .await
}

struct Sqlx(PgConnection);

impl Connection for Sqlx {
    type Error = Error;

    fn open(token: Option<&str>) -> Result<Self, Error> {
        block_on(options(token).connect()).map(Self)
    }

    fn run(&mut self, sql: &str) -> Result<(), Error> {
        block_on(query(AssertSqlSafe(sql)).execute(&mut self.0)).map(drop)
    }

    fn told(error: &Error) -> Option<[&str; 3]> {
        let told = error.as_database_error()?.downcast_ref::<PgDatabaseError>();
        let [detail, hint] = [told.detail(), told.hint()].map(Option::unwrap_or_default);
        Some([told.code(), detail, hint])
    }
}

fn batch() -> Cell {
    let mut c = leader::<Sqlx>()?.0;
    takeover("asleep");
    refused::<Sqlx>(block_on(raw_sql(AssertSqlSafe(suite::batch())).execute(&mut c)).map(drop))
}

fn copy() -> Cell {
    let mut c = leader::<Sqlx>()?.0;
    let copied = block_on(async {
        let mut copy = c.copy_in_raw("COPY jobs FROM STDIN").await?;
        copy.send(&b"copy\tlost\n"[..]).await?;
        takeover("");
        copy.send(&b"copy\tlost\n"[..]).await?;
        copy.finish().await
    });
    refused::<Sqlx>(copied.map(drop))
}

fn pooled() -> Cell {
    let pool = block_on(PgPool::connect_with(options(None)))?;
    after_takeover::<Sqlx>(|token, what| {
        block_on(async {
            let mut transaction = pool.begin().await?;
            let set = format!("SET LOCAL fencing.token = {token}");
            query(AssertSqlSafe(set)).execute(&mut *transaction).await?;
            let insert = query(INSERT).bind("pool").bind(what);
            insert.execute(&mut *transaction).await?;
            transaction.commit().await
        })
    })
}

fn prepared() -> Cell {
    suite::prepared::<Sqlx>(|c, what| {
        let insert = query(INSERT).bind("prepared").bind(what);
        block_on(insert.execute(&mut c.0)).map(drop)
    })
}

fn notify() -> Cell {
    block_on(async {
        let pool = pool(&takeover("")).await?;
        query(AssertSqlSafe(write("kept"))).execute(&pool).await?;
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen("jobs").await?;
        query("NOTIFY jobs, 'done'").execute(&pool).await?;
        let heard = tokio::time::timeout(Duration::from_secs(5), listener.recv()).await??;
        assert_eq!(heard.payload(), "done");
        Ok("ok")
    })
}

/// The only format of the driver.
fn binary() -> Cell {
    let mut c = leader::<Sqlx>()?.0;
    let (number, part, bytes) = (1i64 << 40, 0.25, &[0u8, 255][..]);
    let select = query("SELECT $1::bigint, $2::float8, $3::bytea");
    let select = select.bind(number).bind(part).bind(bytes);
    let row = block_on(select.fetch_one(&mut c))?;
    assert_eq!((row.get(0), row.get(1), row.get(2)), (number, part, bytes));
    Ok("ok")
}

fn main() {
    suite::run::<Sqlx>(
        "sqlx 0.9",
        &[
            ("batch", batch),
            ("copy", copy),
            ("pool", pooled),
            ("prepared", prepared),
            ("notify", notify),
            ("binary", binary),
        ],
        "autocommit cancel objects cursor attrs",
    );
}
