//! Finds the store in a database, creates it on first use, and refuses an unsuitable one.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::connection::{ConnectionError, Purpose, StoreConnection, get};
use super::options::{Options, SCHEMA};
use super::own::Locks;
use crate::owned::Strange;
use crate::{AuthorityError, AuthorityId};

/// The format that this version writes. Any other is refused.
pub(super) const FORMAT: i32 = 6;
const TABLES: &str = include_str!("tables.sql");
const FUNCTIONS: &str = include_str!("functions.sql");
/// First key of the advisory lock for creating a store; the second is a hash of the schema's name.
const MAKING: i32 = 0x7067_7061;
/// Another proxy created the store in the meantime.
const ALREADY_MADE: &str = "PFA04";

/// Reason why the store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum PostgresOpenError {
    /// No connection, or no answer in time.
    #[error("the PostgreSQL authority at {place} cannot be reached: {why}")]
    Unreachable {
        /// Location of the store.
        place: String,
        /// Reason of the failure.
        why: String,
    },
    /// The server is unsuitable: a standby, too old, or with an encoding other than UTF8.
    #[error("the PostgreSQL authority at {place} cannot be used: {why}")]
    Unsuitable {
        /// Location of the server.
        place: String,
        /// The reason, and the remedy.
        why: String,
    },
    /// The role may not create or use the schema.
    #[error("the PostgreSQL authority at {place}: {why}; have a superuser run: {sql}")]
    Rights {
        /// Location of the server.
        place: String,
        /// The server's message.
        why: String,
        /// SQL that grants the right.
        sql: String,
    },
    /// Another version of this program wrote the store.
    #[error(
        "the PostgreSQL authority at {place} has format {found}, and this version uses {FORMAT}; use the version of \
            pgpalisade that wrote it"
    )]
    OtherFormat {
        /// Location of the server.
        place: String,
        /// The format in the schema.
        found: i32,
    },
    /// Another role could run code through the store.
    #[error("the PostgreSQL authority at {place} is {why}")]
    NotOurs {
        /// Location of the server.
        place: String,
        /// Foreign objects with their owners, and the remedy.
        why: Strange,
    },
    /// The schema is not ours, or is damaged.
    #[error(
        "the PostgreSQL authority at {place} is damaged or not an authority: {why}; restore it from a backup"
    )]
    Damaged {
        /// Location of the server.
        place: String,
        /// Description of the damage.
        why: String,
    },
}

/// Connects, and creates the store if missing. Several processes may do so at once.
pub(super) async fn open(options: &Options) -> Result<AuthorityId, PostgresOpenError> {
    let link = StoreConnection::connect(options, Purpose::Steps)
        .await
        .map_err(|error| open_error(options, error))?;
    if let Some(identity) = find(&link, options).await? {
        return Ok(identity);
    }
    let made = make(&link, options).await;
    // Even after an error: another proxy may have been faster.
    match (find(&link, options).await?, made) {
        (Some(identity), _) => Ok(identity),
        (None, Err(error)) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            Err(rights(&link, options, &error).await)
        }
        (None, Err(error)) => Err(open_error(options, error)),
        (None, Ok(())) => Err(PostgresOpenError::Damaged {
            place: options.to_string(),
            why: "it was removed while it was created".into(),
        }),
    }
}

pub(super) async fn verify(
    link: &StoreConnection,
    options: &Options,
    identity: AuthorityId,
) -> Result<(), AuthorityError> {
    let place = options.to_string();
    let why = match find(link, options).await {
        Ok(Some(found)) if found == identity => return Ok(()),
        Ok(Some(found)) => format!("is now authority {found}, was {identity}"),
        Ok(None) => "the schema is gone".into(),
        Err(
            PostgresOpenError::Unreachable { why, .. } | PostgresOpenError::Unsuitable { why, .. },
        ) => {
            return Err(AuthorityError::Unavailable(format!("{place}: {why}")));
        }
        Err(error) => error.to_string(),
    };
    Err(AuthorityError::Damaged(format!("{place}: {why}")))
}

pub(super) async fn find(
    link: &StoreConnection,
    options: &Options,
) -> Result<Option<AuthorityId>, PostgresOpenError> {
    match read_identity(link, options).await {
        Ok(None) => Ok(None),
        Ok(Some((FORMAT, identity))) => Ok(Some(identity)),
        Ok(Some((found, _))) => Err(PostgresOpenError::OtherFormat {
            place: options.to_string(),
            found,
        }),
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            Err(rights(link, options, &error).await)
        }
        Err(error) => Err(open_error(options, error)),
    }
}

async fn read_identity(
    link: &StoreConnection,
    options: &Options,
) -> Result<Option<(i32, AuthorityId)>, ConnectionError> {
    let bound = options.timeout();
    let table = format!("{SCHEMA}.store");
    if let Some(strange) = link.strange(bound).await {
        return Err(strange);
    }
    let there = "SELECT to_regclass($1) IS NOT NULL";
    let rows = link.ask(bound, there, &[(&table, Type::TEXT)]).await?;
    if !get::<bool>(rows.first().ok_or_else(ConnectionError::no_row)?, 0)? {
        return Ok(None);
    }
    let asked = format!("SELECT format, identity FROM {table}");
    let rows = link.own(bound, Locks::Identity, &asked, &[]).await?;
    let row = rows
        .first()
        .ok_or_else(|| ConnectionError::Record("its table \"store\" is empty".into()))?;
    let bytes: &[u8] = get(row, 1)?;
    let bytes = <[u8; 16]>::try_from(bytes)
        .map_err(|_| ConnectionError::Record("its identity does not have 16 bytes".into()))?;
    Ok(Some((get(row, 0)?, AuthorityId::from_bytes(bytes))))
}

async fn make(link: &StoreConnection, options: &Options) -> Result<(), ConnectionError> {
    let scripts = [TABLES, FUNCTIONS]
        .concat()
        .replace("@schema@", SCHEMA)
        .replace("@channel@", &format!("'{SCHEMA}'"))
        .replace("@format@", &FORMAT.to_string())
        .replace("@identity@", &AuthorityId::random().to_string());
    let all = format!(
        "SELECT pg_advisory_xact_lock({MAKING}, hashtext('{SCHEMA}'));
         DO $$ BEGIN
         IF to_regclass('{SCHEMA}.store') IS NOT NULL THEN
            RAISE EXCEPTION 'the store is there already' USING ERRCODE = '{ALREADY_MADE}';
         END IF;
         IF to_regnamespace('{SCHEMA}') IS NULL THEN
            CREATE SCHEMA {SCHEMA};
         END IF;
         END $$;
         {scripts}"
    );
    // One message is one transaction.
    let bound: Duration = options.timeout() * 2;
    link.script(bound, &all).await
}

/// The refusal, with SQL for an owner to run.
async fn rights(
    link: &StoreConnection,
    options: &Options,
    error: &ConnectionError,
) -> PostgresOpenError {
    let asked = "SELECT quote_ident(current_user), to_regnamespace($1) IS NOT NULL";
    let answer = link
        .ask(options.timeout(), asked, &[(&SCHEMA, Type::TEXT)])
        .await;
    let known = answer.ok().and_then(|rows| {
        let row = rows.first()?;
        Some((get::<String>(row, 0).ok()?, get::<bool>(row, 1).ok()?))
    });
    let (role, there) = known.unwrap_or_else(|| ("the role of the DSN".into(), false));
    PostgresOpenError::Rights {
        place: options.to_string(),
        why: error.to_string(),
        sql: if there {
            format!(
                "GRANT USAGE, CREATE ON SCHEMA \"{SCHEMA}\" TO {role}; \
                 GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA \"{SCHEMA}\" TO {role};"
            )
        } else {
            format!("CREATE SCHEMA \"{SCHEMA}\" AUTHORIZATION {role};")
        },
    }
}

pub(super) fn open_error(options: &Options, error: ConnectionError) -> PostgresOpenError {
    let place = options.to_string();
    let why = error.to_string();
    match error {
        ConnectionError::Standby | ConnectionError::TooOld(_) | ConnectionError::Encoding(_) => {
            PostgresOpenError::Unsuitable { place, why }
        }
        ConnectionError::Strange(why) => PostgresOpenError::NotOurs { place, why },
        ConnectionError::Record(_) => PostgresOpenError::Damaged { place, why },
        ConnectionError::Broken(_) => PostgresOpenError::Unreachable { place, why },
        ConnectionError::Refused(refusal) => match refusal.code().code() {
            "42501" => PostgresOpenError::Rights {
                place,
                why,
                sql: format!(
                    "GRANT USAGE ON SCHEMA \"{SCHEMA}\" TO the_role; \
                     GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA \"{SCHEMA}\" TO the_role;"
                ),
            },
            "42703" | "42P01" | "42883" | "3F000" => PostgresOpenError::Damaged { place, why },
            _ => PostgresOpenError::Unreachable { place, why },
        },
    }
}
