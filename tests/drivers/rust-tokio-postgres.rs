//! tokio-postgres.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::process::Command;
use std::time::Duration;

use futures_util::{SinkExt as _, TryStreamExt as _, join};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Error, NoTls};

type Cell = Result<&'static str, Box<dyn std::error::Error>>;

fn env(name: &str) -> String {
    std::env::var(name).unwrap()
}

/// Deposes everybody, and returns the token of the new leader.
fn takeover(when: &str) -> String {
    let output = Command::new(env("TAKEOVER"))
        .args(when.split_whitespace())
        .output()
        .unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A client, and what its connection says beside the answers.
struct Connected {
    client: Client,
    notes: UnboundedReceiver<String>,
}

async fn open(token: Option<&str>, more: &str) -> Result<Connected, Error> {
    let options = token.map_or(String::new(), |token| {
        format!("options='-c fencing.token={token}'")
    });
    let port = env("PGPORT");
    let text =
        format!("host=127.0.0.1 port={port} user=app password=pencil dbname=app {options} {more}");
    let (client, mut connection) = tokio_postgres::connect(&text, NoTls).await?;
    let (send, notes) = unbounded_channel();
    tokio::task::spawn_local(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(note) = message {
                let _ = send.send(note.payload().to_owned());
            }
        }
    });
    Ok(Connected { client, notes })
}

async fn connect(token: &str) -> Result<Client, Error> {
    Ok(open(Some(token), "").await?.client)
}

/// How the driver tells of the fence: the SQLSTATE, (the SQLSTATE) if only the message has it, or lost.
fn refused<T>(result: Result<T, Error>) -> Cell {
    let Err(error) = result else {
        return Err("nothing was refused".into());
    };
    match error.code().map(SqlState::code) {
        Some("PF001") => Ok("PF001"),
        Some("PF002") => Ok("PF002"),
        Some("08007") => Ok("08007"),
        _ if error.to_string().contains("PF001: ") => Ok("(PF001)"),
        _ if error.is_closed() => Ok("lost"),
        _ => Err(error.into()),
    }
}

async fn transaction(client: &mut Client, token: &str, sql: &str) -> Result<(), Error> {
    let transaction = client.transaction().await?;
    transaction
        .batch_execute(&format!("SET LOCAL fencing.token = {token}"))
        .await?;
    transaction.batch_execute(sql).await?;
    transaction.commit().await
}

struct Suite {
    kept: String,
    lost: String,
    slow: String,
}

impl Suite {
    fn of(now: &str) -> Self {
        Self {
            kept: format!("INSERT INTO jobs VALUES ('{now}', 'kept')"),
            lost: format!("INSERT INTO jobs VALUES ('{now}', 'lost')"),
            slow: format!("INSERT INTO jobs SELECT '{now}', 'lost' FROM pg_sleep(10)"),
        }
    }

    async fn shares(&self) -> Cell {
        let c = connect(&takeover("")).await?;
        c.batch_execute(&self.kept).await?;
        Ok(if takeover("keeps") == "0" {
            "ok"
        } else {
            "keeps"
        })
    }

    async fn string(&self) -> Cell {
        connect(&takeover(""))
            .await?
            .batch_execute(&self.kept)
            .await?;
        Ok("ok")
    }

    async fn set(&self) -> Cell {
        let c = open(None, "").await?.client;
        c.batch_execute(&format!("SET fencing.token = {}", takeover("")))
            .await?;
        c.batch_execute(&self.kept).await?;
        Ok("ok")
    }

    async fn local(&self) -> Cell {
        let mut c = open(None, "").await?.client;
        transaction(&mut c, &takeover(""), &self.kept).await?;
        assert_eq!(refused(c.batch_execute(&self.lost).await)?, "PF002");
        Ok("ok")
    }

    async fn old_string(&self) -> Cell {
        let old = takeover("");
        self.string().await?;
        refused(connect(&old).await)
    }

    async fn old_set(&self) -> Cell {
        let (old, token, c) = (takeover(""), takeover(""), open(None, "").await?.client);
        let cell = refused(c.batch_execute(&format!("SET fencing.token = {old}")).await)?;
        refused(c.batch_execute(&self.lost).await)?;
        c.batch_execute(&format!("SET fencing.token = {token}"))
            .await?;
        c.batch_execute(&self.kept).await?;
        Ok(cell)
    }

    async fn old_local(&self) -> Cell {
        let (old, token, mut c) = (takeover(""), takeover(""), open(None, "").await?.client);
        let cell = refused(transaction(&mut c, &old, &self.lost).await)?;
        transaction(&mut c, &token, &self.kept).await?;
        Ok(cell)
    }

    /// A connection that holds the token and has written.
    async fn leader(&self) -> Result<Client, Error> {
        let c = connect(&takeover("")).await?;
        c.batch_execute(&self.kept).await?;
        Ok(c)
    }

    async fn idle(&self) -> Cell {
        let c = self.leader().await?;
        takeover("");
        tokio::time::sleep(Duration::from_millis(20)).await;
        refused(c.batch_execute(&self.lost).await)
    }

    async fn transaction(&self) -> Cell {
        let mut c = self.leader().await?;
        let transaction = c.transaction().await?;
        transaction.batch_execute(&self.lost).await?;
        takeover("");
        refused(transaction.commit().await)
    }

    async fn statement(&self) -> Cell {
        let c = self.leader().await?;
        takeover("asleep");
        refused(c.batch_execute(&self.slow).await)
    }

    /// Futures that are awaited together are a pipeline.
    async fn batch(&self) -> Cell {
        let c = self.leader().await?;
        takeover("asleep");
        let insert = c
            .prepare("INSERT INTO jobs SELECT 'batch', 'lost' FROM pg_sleep($1)")
            .await?;
        let (slow, late) = join!(c.execute(&insert, &[&10f64]), c.execute(&insert, &[&0f64]));
        refused(late)?;
        refused(slow)
    }

    async fn copy(&self) -> Cell {
        let c = self.leader().await?;
        let mut sink = pin!(c.copy_in::<_, &[u8]>("COPY jobs FROM STDIN").await?);
        sink.send(b"copy\tlost\n").await?;
        takeover("");
        refused(
            async {
                sink.send(b"copy\tlost\n").await?;
                sink.finish().await
            }
            .await,
        )
    }

    async fn fields(&self) -> Cell {
        let (old, c) = (takeover(""), self.leader().await?);
        let error = c
            .batch_execute(&format!("SET fencing.token = {old}"))
            .await
            .unwrap_err();
        let told = error.as_db_error().unwrap();
        assert_eq!(told.code().code(), "PF001");
        assert!(told.detail().unwrap().starts_with("The mark of scope "));
        assert!(
            told.hint()
                .unwrap()
                .starts_with("This process is no longer the leader. ")
        );
        Ok("ok")
    }

    async fn prepared(&self) -> Cell {
        let mut c = connect(&takeover("")).await?;
        let text = "INSERT INTO jobs VALUES ('prepared', $1)";
        let mut insert = c.prepare(text).await?;
        c.execute(&insert, &[&"kept"]).await?;
        let token = takeover("");
        refused(c.execute(&insert, &[&"lost"]).await)?;
        if c.is_closed() {
            c = connect(&token).await?;
            insert = c.prepare(text).await?;
        } else {
            c.batch_execute(&format!("SET fencing.token = {token}"))
                .await?;
        }
        c.execute(&insert, &[&"kept"]).await?;
        c.execute(&insert, &[&"kept"]).await?;
        Ok("ok")
    }

    async fn cancel(&self) -> Cell {
        let c = self.leader().await?;
        let cancel = c.cancel_token();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            cancel.cancel_query(NoTls).await.unwrap();
        });
        let error = c.batch_execute(&self.slow).await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED));
        c.batch_execute(&self.kept).await?;
        Ok("ok")
    }

    async fn notify(&self) -> Cell {
        let Connected { client, mut notes } = open(Some(&takeover("")), "").await?;
        client.batch_execute("LISTEN jobs").await?;
        client.batch_execute("NOTIFY jobs, 'done'").await?;
        let heard = tokio::time::timeout(Duration::from_secs(5), notes.recv()).await?;
        assert_eq!(heard.as_deref(), Some("done"));
        client.batch_execute(&self.kept).await?;
        Ok("ok")
    }

    /// A portal, which is read in parts.
    async fn cursor(&self) -> Cell {
        let mut c = connect(&takeover("")).await?;
        let transaction = c.transaction().await?;
        let rows = transaction
            .bind("SELECT generate_series(1, 1000)", &[])
            .await?;
        let first = transaction.query_portal(&rows, 10).await?;
        assert_eq!(first.last().unwrap().get::<_, i32>(0), 10);
        transaction.batch_execute(&self.kept).await?;
        let rest: Vec<_> = transaction
            .query_portal_raw(&rows, 990)
            .await?
            .try_collect()
            .await?;
        assert_eq!(rest.last().unwrap().get::<_, i32>(0), 1000);
        transaction.commit().await?;
        Ok("ok")
    }

    /// The only format of the driver.
    async fn binary(&self) -> Cell {
        let c = self.leader().await?;
        let bytes: &[u8] = &[0, 255];
        let row = c
            .query_one(
                "SELECT $1::bigint, $2::float8, $3::bytea",
                &[&(1i64 << 40), &0.25, &bytes],
            )
            .await?;
        assert_eq!(
            (row.get(0), row.get(1), row.get(2)),
            (1i64 << 40, 0.25, bytes)
        );
        Ok("ok")
    }

    async fn attrs(&self) -> Cell {
        let c = open(None, "target_session_attrs=read-write").await?.client;
        c.batch_execute(&format!("SET fencing.token = {}", takeover("")))
            .await?;
        c.batch_execute(&self.kept).await?;
        Ok("ok")
    }

    fn run<'a>(&'a self, now: &str) -> Pin<Box<dyn Future<Output = Cell> + 'a>> {
        match now {
            "shares" => Box::pin(self.shares()),
            "string" => Box::pin(self.string()),
            "set" => Box::pin(self.set()),
            "local" => Box::pin(self.local()),
            "old-string" => Box::pin(self.old_string()),
            "old-set" => Box::pin(self.old_set()),
            "old-local" => Box::pin(self.old_local()),
            "idle" => Box::pin(self.idle()),
            "transaction" => Box::pin(self.transaction()),
            "statement" => Box::pin(self.statement()),
            "batch" => Box::pin(self.batch()),
            "copy" => Box::pin(self.copy()),
            "fields" => Box::pin(self.fields()),
            "prepared" => Box::pin(self.prepared()),
            "cancel" => Box::pin(self.cancel()),
            "notify" => Box::pin(self.notify()),
            "cursor" => Box::pin(self.cursor()),
            "binary" => Box::pin(self.binary()),
            "attrs" => Box::pin(self.attrs()),
            _ => Box::pin(async { Ok("n/a tokio-postgres has none") }),
        }
    }
}

const ALL: &str = "shares string set local old-string old-set old-local idle transaction statement batch copy fields \
                   prepared cancel notify cursor binary attrs autocommit pool objects";

fn main() {
    println!("version: tokio-postgres 0.7");
    let only: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    for now in ALL
        .split(' ')
        .filter(|now| only.is_empty() || only.iter().any(|one| one == now))
    {
        let suite = Suite::of(now);
        // A panic fails the task only.
        let now = now.to_owned();
        let cell = tokio::task::LocalSet::new().block_on(&runtime, async {
            let name = now.clone();
            tokio::task::spawn_local(async move {
                suite.run(&name).await.map_err(|error| error.to_string())
            })
            .await
        });
        match cell {
            Ok(Ok(cell)) => println!("{now}: {cell}"),
            Ok(Err(error)) => println!("{now}: FAILED {}", error.replace('\n', " ")),
            Err(error) => println!("{now}: FAILED {error}"),
        }
    }
}
