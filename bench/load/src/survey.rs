//! Checks before the measurement: both paths work, only one of them is the proxy, both lead to the same server, and a
//! given token is the current one.

use pgpalisade_authority::utc;
use pgpalisade_authority::{Scope, Token};
use serde::Serialize;

use crate::connection::{ANSWER_WITHIN, BenchConnection};
use crate::error::BenchError;
use crate::statements::{MARK, SCOPE, SERVER, STATUS};
use crate::target::BenchTarget;

#[derive(Debug, Clone, Serialize)]
pub struct Survey {
    pub direct: Way,
    pub proxied: Way,
}

#[derive(Debug, Clone, Serialize)]
pub struct Way {
    pub address: String,
    /// PostgreSQL's, as in `15.20`.
    pub server_version: String,
    /// `SHOW fencing.status` of the measured sessions; `None` for the direct path.
    pub fencing_status: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ServerIdentity {
    version: String,
    started_us: i64,
    standby: bool,
}

impl ServerIdentity {
    fn describe(&self) -> String {
        let kind = if self.standby {
            "a standby"
        } else {
            "a primary"
        };
        let started = utc(self.started_us);
        format!("{kind}, started at {started}")
    }
}

pub(crate) async fn look(
    direct: &BenchTarget,
    proxied: &BenchTarget,
) -> Result<Survey, BenchError> {
    let direct_server = {
        let connection = BenchConnection::open(direct).await?;
        let server = server(&connection).await?;
        if connection.show(STATUS).await?.is_some() {
            return Err(BenchError::DirectIsProxied(direct.address.clone()));
        }
        connection.close().await;
        server
    };
    let connection = BenchConnection::open(&proxied.undeclared(None)).await?;
    if connection.show(STATUS).await?.is_none() {
        return Err(BenchError::NoProxy(proxied.address.clone()));
    }
    let proxied_server = server(&connection).await?;
    check_same(&direct_server, &proxied_server)?;
    share_only(proxied, &connection).await?;
    connection.close().await;
    let connection = BenchConnection::open(proxied).await?;
    let fencing_status = connection.show(STATUS).await?;
    connection.close().await;
    Ok(Survey {
        direct: Way {
            address: direct.address.clone(),
            server_version: direct_server.version,
            fencing_status: None,
        },
        proxied: Way {
            address: proxied.address.clone(),
            server_version: proxied_server.version,
            fencing_status,
        },
    })
}

async fn server(connection: &BenchConnection) -> Result<ServerIdentity, BenchError> {
    let failed = |error| connection.failed(&error);
    let rows = connection.query(SERVER).await?.map_err(failed)?;
    let row = rows
        .first()
        .ok_or_else(|| connection.stuck(ANSWER_WITHIN))?;
    let version: String = row.try_get(0).map_err(failed)?;
    Ok(ServerIdentity {
        // Debian appends its own version in brackets.
        version: version.split(' ').next().unwrap_or_default().to_owned(),
        started_us: row.try_get(1).map_err(failed)?,
        standby: row.try_get(2).map_err(failed)?,
    })
}

/// Two servers do not start in the same microsecond.
fn check_same(direct: &ServerIdentity, proxied: &ServerIdentity) -> Result<(), BenchError> {
    if direct.started_us == proxied.started_us {
        return Ok(());
    }
    let (direct, proxied) = (direct.describe(), proxied.describe());
    Err(BenchError::OtherServer(direct, proxied))
}

/// Refuses tokens above the mark, which would end the leader's sessions. `asking` is a session of the proxy without a
/// token.
async fn share_only(proxied: &BenchTarget, asking: &BenchConnection) -> Result<(), BenchError> {
    let own = own_scope(asking).await?;
    for (scope, token) in proxied.tokens(&own)? {
        let mark = if scope == own {
            mark(asking).await?
        } else {
            let connection = BenchConnection::open(&proxied.undeclared(Some(&scope))).await?;
            let mark = mark(&connection).await?;
            connection.close().await;
            mark
        };
        match mark {
            None => return Err(BenchError::NoMark(scope)),
            Some(mark) if token > mark => return Err(BenchError::Takeover { scope, token, mark }),
            // The proxy refuses a lower token, and names the one that deposed it.
            Some(_) => {}
        }
    }
    Ok(())
}

async fn own_scope(connection: &BenchConnection) -> Result<Scope, BenchError> {
    let own = connection.show(SCOPE).await?;
    Ok(Scope::new(&own.unwrap_or_default()).unwrap_or_default())
}

async fn mark(connection: &BenchConnection) -> Result<Option<Token>, BenchError> {
    let mark = connection.show(MARK).await?;
    Ok(mark.and_then(|mark| mark.parse().ok()))
}
