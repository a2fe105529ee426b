//! One session that repeats the statement of the load.

use tokio_postgres::Statement as Prepared;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use crate::connection::BenchConnection;
use crate::error::{BenchError, said};
use crate::statements::{LoadStatement, Protocol, Workload};
use crate::target::{BenchTarget, Path};

const ONE: i32 = 1;

pub(crate) struct LoadClient {
    connection: BenchConnection,
    sent: Sent,
}

enum Sent {
    Simple(&'static str),
    Extended(&'static str),
    Prepared(Prepared),
}

impl LoadClient {
    /// Logs in, and prepares the session for the workload.
    pub(crate) async fn open(
        target: &BenchTarget,
        workload: Workload,
        protocol: Protocol,
    ) -> Result<Self, BenchError> {
        let connection = BenchConnection::open(target).await?;
        for sql in workload.preparation() {
            let done = connection.query(sql).await?;
            done.map_err(|error| may_not_write(target.path, &error))?;
        }
        let LoadStatement {
            literal,
            parameterised,
        } = workload.statement();
        let sent = match protocol {
            Protocol::Simple => Sent::Simple(literal),
            Protocol::Extended => Sent::Extended(parameterised),
            Protocol::Prepared => {
                let prepared = connection
                    .client()
                    .prepare_typed(parameterised, &[Type::INT4]);
                let prepared = connection.within(prepared).await?;
                Sent::Prepared(prepared.map_err(|error| connection.failed(&error))?)
            }
        };
        Ok(Self { connection, sent })
    }

    /// Sends the statement once and awaits its answer. The turn bounds the wait.
    pub(crate) async fn ask(&self) -> Result<(), BenchError> {
        let client = self.connection.client();
        let answered = match &self.sent {
            Sent::Simple(sql) => client.simple_query(sql).await.map(drop),
            Sent::Extended(sql) => {
                let parameters = [(&ONE as &(dyn ToSql + Sync), Type::INT4)];
                client.execute_typed(sql, &parameters).await.map(drop)
            }
            Sent::Prepared(statement) => client.execute(statement, &[&ONE]).await.map(drop),
        };
        answered.map_err(|error| self.connection.failed(&error))
    }

    /// Ends the session, and with it its temporary table.
    pub(crate) async fn close(self) {
        self.connection.close().await;
    }
}

/// Error of a session's first write. Through the proxy, PF002 means that it has no token.
fn may_not_write(path: Path, error: &tokio_postgres::Error) -> BenchError {
    match (path, error.code().map(SqlState::code)) {
        (Path::Proxied, Some("PF002")) => BenchError::NoToken(said(error)),
        _ => BenchError::Failed(path, said(error)),
    }
}
