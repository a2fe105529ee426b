//! Checks before the measurement: both paths work, only one of them is the proxy, both lead to the same server, and a
//! given token is the current one.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pgpalisade_authority::{Scope, Token};
use pgpalisade_tls::ConnectError;
use serde::Serialize;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::BenchError;
use super::error::{Said, current};
use super::load::{IDENTIFIER, MARK, SCOPE, SERVER, STATUS};
use super::target::{BenchTarget, Path};

/// Limit for a login, and for an answer.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Time that a session gets to end.
const GOODBYE: Duration = Duration::from_secs(2);

/// A session, with its driver on this runtime.
pub(super) struct BenchConnection {
    pub(super) client: Client,
    driver: JoinHandle<()>,
    /// Error that ended the session while it was idle; its next statement only learns that it is closed.
    last_words: Arc<OnceLock<Said>>,
}

impl BenchConnection {
    pub(super) async fn open(target: &BenchTarget) -> Result<Self, BenchError> {
        let (path, address) = (target.path, target.address.clone());
        let opened = timeout(ANSWER_WITHIN, target.login().connect()).await;
        let opened = opened.map_err(|_| BenchError::Silent {
            path,
            address: address.clone(),
            within: ANSWER_WITHIN,
        })?;
        let (client, connection) = opened.map_err(|error| BenchError::Login {
            path,
            address,
            said: match error {
                ConnectError::Server(error) => Said::by(&error),
                ConnectError::Files(error) => Said::of_this_side(&error),
            },
        })?;
        let last_words = Arc::new(OnceLock::new());
        let heard = Arc::clone(&last_words);
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                let _first = heard.set(Said::by(&error));
            }
        });
        Ok(Self {
            client,
            driver,
            last_words,
        })
    }

    pub(super) fn failed(&self, path: Path, error: &tokio_postgres::Error) -> BenchError {
        match self.last_words.get().filter(|_| error.is_closed()) {
            Some(said) => BenchError::Failed {
                path,
                said: said.clone(),
            },
            None => BenchError::failed(path, error),
        }
    }

    /// Ends the session. The server has heard of it when this returns.
    pub(super) async fn close(self) {
        drop(self.client);
        let abort = self.driver.abort_handle();
        if timeout(GOODBYE, self.driver).await.is_err() {
            abort.abort();
        }
    }

    /// The one value of a SHOW; `None` if the server does not know the setting.
    async fn show(&self, path: Path, sql: &str) -> Result<Option<String>, BenchError> {
        match within(path, self.client.query_typed(sql, &[])).await? {
            Ok(rows) => {
                let value = rows.first().map(|row| row.try_get(0));
                value
                    .transpose()
                    .map_err(|error| BenchError::failed(path, &error))
            }
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_OBJECT) => Ok(None),
            Err(error) => Err(BenchError::failed(path, &error)),
        }
    }
}

/// Bounds the wait for an answer.
pub(super) async fn within<T>(
    path: Path,
    answer: impl Future<Output = T>,
) -> Result<T, BenchError> {
    let stuck = |_| BenchError::Stuck {
        path,
        within: ANSWER_WITHIN,
    };
    timeout(ANSWER_WITHIN, answer).await.map_err(stuck)
}

/// Facts about both paths.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Survey {
    pub(crate) direct: Way,
    pub(crate) proxied: Way,
    pub(crate) same_server: Proof,
}

/// Facts about one path.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Way {
    pub(crate) address: String,
    pub(crate) server_version: String,
    /// `SHOW fencing.status` of the measured sessions; `None` for the direct path.
    pub(crate) fencing_status: Option<String>,
}

/// Evidence that two sessions have the same server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Proof {
    /// The cluster's identifier, and the start of the server.
    IdentifierAndStart,
    /// The start only: the role may not read the identifier.
    Start,
}

/// The server of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ServerIdentity {
    version: String,
    started_us: i64,
    standby: bool,
    /// `None` if the role may not read it.
    identifier: Option<i64>,
}

impl ServerIdentity {
    fn describe(&self) -> String {
        let kind = if self.standby {
            "a standby"
        } else {
            "a primary"
        };
        let identifier = match self.identifier {
            Some(identifier) => format!(" with system identifier {}", identifier.cast_unsigned()),
            None => String::new(),
        };
        let started = crate::rejection::utc(self.started_us);
        format!("{kind}{identifier}, started at {started}")
    }
}

/// Checks both paths without declaring or writing anything.
pub(super) async fn look(
    direct: &BenchTarget,
    proxied: &BenchTarget,
) -> Result<Survey, BenchError> {
    let direct_server = {
        let connection = BenchConnection::open(direct).await?;
        let server = server(&connection, Path::Direct).await?;
        if connection.show(Path::Direct, STATUS).await?.is_some() {
            return Err(BenchError::DirectIsProxied(direct.address.clone()));
        }
        connection.close().await;
        server
    };
    let connection = BenchConnection::open(&proxied.undeclared(None)).await?;
    if connection.show(Path::Proxied, STATUS).await?.is_none() {
        return Err(BenchError::NoProxy(proxied.address.clone()));
    }
    let proxied_server = server(&connection, Path::Proxied).await?;
    let same_server = same(&direct_server, &proxied_server)?;
    share_only(proxied, &connection).await?;
    connection.close().await;
    let connection = BenchConnection::open(proxied).await?;
    let fencing_status = connection.show(Path::Proxied, STATUS).await?;
    connection.close().await;
    Ok(Survey {
        direct: Way {
            address: direct.address.to_string(),
            server_version: direct_server.version,
            fencing_status: None,
        },
        proxied: Way {
            address: proxied.address.to_string(),
            server_version: proxied_server.version,
            fencing_status,
        },
        same_server,
    })
}

async fn server(connection: &BenchConnection, path: Path) -> Result<ServerIdentity, BenchError> {
    let client = &connection.client;
    let failed = |error| BenchError::failed(path, &error);
    let rows = within(path, client.query_typed(SERVER, &[]))
        .await?
        .map_err(failed)?;
    let row = rows.first().ok_or(BenchError::Stuck {
        path,
        within: ANSWER_WITHIN,
    })?;
    let version: String = row.try_get(0).map_err(failed)?;
    let identifier = match within(path, client.query_typed(IDENTIFIER, &[])).await? {
        Ok(rows) => rows
            .first()
            .map(|row| row.try_get(0))
            .transpose()
            .map_err(failed)?,
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => None,
        Err(error) => return Err(failed(error)),
    };
    Ok(ServerIdentity {
        // Debian adds its own version in brackets.
        version: version.split(' ').next().unwrap_or_default().to_owned(),
        started_us: row.try_get(1).map_err(failed)?,
        standby: row.try_get(2).map_err(failed)?,
        identifier,
    })
}

/// A standby has the identifier of its primary, so the start of the server must be the same too.
fn same(direct: &ServerIdentity, proxied: &ServerIdentity) -> Result<Proof, BenchError> {
    let identifiers = direct.identifier.zip(proxied.identifier);
    let differ = identifiers.is_some_and(|(some, other)| some != other);
    if differ || (direct.started_us, direct.standby) != (proxied.started_us, proxied.standby) {
        return Err(BenchError::OtherServer {
            direct: direct.describe(),
            proxied: proxied.describe(),
        });
    }
    Ok(match identifiers {
        Some(_) => Proof::IdentifierAndStart,
        None => Proof::Start,
    })
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
    let own = connection.show(Path::Proxied, SCOPE).await?;
    Ok(Scope::new(&own.unwrap_or_default()).unwrap_or_default())
}

async fn mark(connection: &BenchConnection) -> Result<Option<Token>, BenchError> {
    let mark = connection.show(Path::Proxied, MARK).await?;
    Ok(mark.and_then(|mark| mark.parse().ok()))
}

/// Advice for the command line if a session was refused because it has no token.
pub(super) async fn token_hint(proxied: &BenchTarget) -> Result<String, BenchError> {
    let connection = BenchConnection::open(&proxied.undeclared(None)).await?;
    let own = own_scope(&connection).await?;
    let hint = match mark(&connection).await? {
        Some(mark) => format!("add --token {}", current(&own, &mark)),
        None => format!(
            "none has been declared in scope \"{own}\" yet, so let the leader declare one, or for a trial run psql -c \
             \"SET fencing.token = '{own}=1'\" through the proxy, and add --token {own}=1"
        ),
    };
    connection.close().await;
    Ok(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(identifier: Option<i64>, started_us: i64, standby: bool) -> ServerIdentity {
        ServerIdentity {
            version: "15.20".to_owned(),
            started_us,
            standby,
            identifier,
        }
    }

    #[test]
    fn the_same_server_or_not() {
        use Proof::{IdentifierAndStart, Start};
        let cases = [
            (
                server(Some(1), 5, false),
                server(Some(1), 5, false),
                Some(IdentifierAndStart),
            ),
            (
                server(Some(1), 5, false),
                server(None, 5, false),
                Some(Start),
            ),
            (server(None, 5, false), server(None, 5, false), Some(Start)),
            (server(Some(1), 5, false), server(Some(2), 5, false), None),
            (server(Some(1), 5, false), server(Some(1), 6, false), None),
            (server(Some(1), 5, false), server(Some(1), 5, true), None),
            (server(None, 5, false), server(None, 6, false), None),
        ];
        for (direct, proxied, expect) in cases {
            assert_eq!(
                same(&direct, &proxied).ok(),
                expect,
                "{direct:?}, {proxied:?}"
            );
        }
    }
}
