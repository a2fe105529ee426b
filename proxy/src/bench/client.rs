//! One session that repeats the statement of the load.

use tokio_postgres::Statement as Prepared;
use tokio_postgres::types::{ToSql, Type};

use super::BenchError;
use super::error::Said;
use super::load::{LoadStatement, Protocol, Workload};
use super::survey::{BenchConnection, within};
use super::target::{BenchTarget, Path};

/// The value of `$1`.
const ONE: i32 = 1;

/// A session that is ready to be measured.
pub(super) struct LoadClient {
    path: Path,
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
    pub(super) async fn open(
        target: &BenchTarget,
        workload: Workload,
        protocol: Protocol,
    ) -> Result<Self, BenchError> {
        let path = target.path;
        let failed = |error| BenchError::failed(path, &error);
        let connection = BenchConnection::open(target).await?;
        for sql in workload.preparation() {
            let done = within(path, connection.client.execute_typed(sql, &[])).await?;
            done.map_err(|error| may_not_write(path, &error))?;
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
                    .client
                    .prepare_typed(parameterised, &[Type::INT4]);
                Sent::Prepared(within(path, prepared).await?.map_err(failed)?)
            }
        };
        Ok(Self {
            path,
            connection,
            sent,
        })
    }

    /// Sends the statement once and awaits its answer. The turn bounds the wait.
    pub(super) async fn ask(&self) -> Result<(), BenchError> {
        let client = &self.connection.client;
        let answered = match &self.sent {
            Sent::Simple(sql) => client.simple_query(sql).await.map(drop),
            Sent::Extended(sql) => {
                let parameters = [(&ONE as &(dyn ToSql + Sync), Type::INT4)];
                client.execute_typed(sql, &parameters).await.map(drop)
            }
            Sent::Prepared(statement) => client.execute(statement, &[&ONE]).await.map(drop),
        };
        answered.map_err(|error| self.connection.failed(self.path, &error))
    }

    /// Ends the session, and with it its temporary table.
    pub(super) async fn close(self) {
        self.connection.close().await;
    }
}

/// Error of a session's first write. Through the proxy, PF002 means that the session has no token; the hint is added
/// later.
fn may_not_write(path: Path, error: &tokio_postgres::Error) -> BenchError {
    let said = Said::by(error);
    match (path, said.code.as_str()) {
        (Path::Proxied, "PF002") => BenchError::NoToken {
            said,
            hint: String::new(),
        },
        _ => BenchError::Failed { path, said },
    }
}
