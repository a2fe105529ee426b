//! Finds the store in a database, creates it on first use, and refuses an unsuitable one.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::connection::{ConnectionError, Purpose, StoreConnection, first, get, within};
use super::options::{Options, SCHEMA};
use super::own::Locks;
use crate::{AuthorityError, AuthorityId, OpenError};

/// The format that this version writes. Any other is refused.
pub(super) const FORMAT: i32 = 6;
const TABLES: &str = include_str!("tables.sql");
const FUNCTIONS: &str = include_str!("functions.sql");
/// First key of the advisory lock for creating a store; the second is a hash of the schema's name.
const MAKING: i32 = 0x7067_7061;
/// Another proxy created the store in the meantime.
const ALREADY_MADE: &str = "PFA04";

/// Why the store cannot be opened: the rest of a sentence that begins with its place.
pub(super) enum OpenFault {
    /// The server cannot be reached, or cannot hold a store: it is a standby, too old, or has another encoding.
    Server(&'static str, String),
    /// The store, or what there is in its place.
    Store(String),
}

impl OpenFault {
    pub(super) fn at(self, options: &Options) -> OpenError {
        let rest = match self {
            Self::Server(cannot, why) => format!(" cannot be {cannot}: {why}"),
            Self::Store(rest) => rest,
        };
        OpenError::Unusable(format!("the PostgreSQL authority at {options}{rest}"))
    }

    pub(super) fn unreachable(why: String) -> Self {
        Self::Server("reached", why)
    }

    fn damaged(why: &str) -> Self {
        Self::Store(format!(
            " is damaged or not an authority: {why}; restore it from a backup"
        ))
    }

    /// The role may not create or use the schema, until somebody runs this.
    fn rights(why: &str, sql: &str) -> Self {
        Self::Store(format!(": {why}; have a superuser run: {sql}"))
    }
}

/// Connects, and creates the store if missing. Several processes may do so at once.
pub(super) async fn open(options: &Options) -> Result<AuthorityId, OpenFault> {
    let link = StoreConnection::connect(options, Purpose::Steps).await?;
    let bound = options.timeout;
    if let Some(identity) = find(&link, bound).await? {
        return Ok(identity);
    }
    let made = make(&link, bound).await;
    // Even after an error: another proxy may have been faster.
    match (find(&link, bound).await?, made) {
        (Some(identity), _) => Ok(identity),
        (None, Err(error)) => Err(refused(&link, bound, error).await),
        (None, Ok(())) => Err(OpenFault::damaged("it was removed while it was created")),
    }
}

pub(super) async fn verify(
    link: &StoreConnection,
    options: &Options,
    identity: AuthorityId,
) -> Result<(), AuthorityError> {
    let why = match find(link, options.timeout).await {
        Ok(Some(found)) if found == identity => return Ok(()),
        Ok(Some(found)) => format!("is now authority {found}, was {identity}"),
        Ok(None) => "the schema is gone".into(),
        Err(OpenFault::Server(_, why)) => {
            return Err(AuthorityError::Unavailable(format!("{options}: {why}")));
        }
        Err(fault) => fault.at(options).to_string(),
    };
    Err(AuthorityError::Damaged(format!("{options}: {why}")))
}

pub(super) async fn find(
    link: &StoreConnection,
    bound: Duration,
) -> Result<Option<AuthorityId>, OpenFault> {
    match read_identity(link, bound).await {
        Ok(None) => Ok(None),
        Ok(Some((FORMAT, identity))) => Ok(Some(identity)),
        Ok(Some((found, _))) => Err(OpenFault::Store(format!(
            " has format {found}, and this version uses {FORMAT}; use the version of pgpalisade that wrote it"
        ))),
        Err(error) => Err(refused(link, bound, error).await),
    }
}

async fn read_identity(
    link: &StoreConnection,
    bound: Duration,
) -> Result<Option<(i32, AuthorityId)>, ConnectionError> {
    let table = format!("{SCHEMA}.store");
    if let Some(strange) = link.strange(bound).await {
        return Err(strange);
    }
    let there = "SELECT to_regclass($1) IS NOT NULL";
    let rows = link.ask(bound, there, &[(&table, Type::TEXT)]).await?;
    if !get::<bool>(first(&rows)?, 0)? {
        return Ok(None);
    }
    let asked = format!("SELECT format, identity FROM {table}");
    let rows = link.own(bound, Locks::Identity, &asked, &[]).await?;
    let record = |why: &str| ConnectionError::Record(why.to_owned());
    let row = rows
        .first()
        .ok_or_else(|| record("its table \"store\" is empty"))?;
    let bytes = <[u8; 16]>::try_from(get::<&[u8]>(row, 1)?)
        .map_err(|_| record("its identity does not have 16 bytes"))?;
    Ok(Some((get(row, 0)?, AuthorityId::from_bytes(bytes))))
}

async fn make(link: &StoreConnection, bound: Duration) -> Result<(), ConnectionError> {
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
    let made = async { Ok(link.client.batch_execute(&all).await?) };
    within(bound * 2, made).await?;
    link.unwarned()
}

/// The fault; if rights are missing, with SQL for an owner to run.
async fn refused(link: &StoreConnection, bound: Duration, error: ConnectionError) -> OpenFault {
    if error.code() != Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        return error.into();
    }
    let asked = "SELECT quote_ident(current_user), to_regnamespace($1) IS NOT NULL";
    let answer = link.ask(bound, asked, &[(&SCHEMA, Type::TEXT)]).await;
    let known = answer.ok().and_then(|rows| {
        let row = rows.first()?;
        Some((get::<String>(row, 0).ok()?, get::<bool>(row, 1).ok()?))
    });
    let (role, there) = known.unwrap_or_else(|| ("the role of the DSN".into(), false));
    let sql = if there {
        granting("USAGE, CREATE", &role)
    } else {
        format!("CREATE SCHEMA \"{SCHEMA}\" AUTHORIZATION {role};")
    };
    OpenFault::rights(&error.to_string(), &sql)
}

/// SQL that grants rights on the schema, and all on its tables.
fn granting(rights: &str, role: &str) -> String {
    format!(
        "GRANT {rights} ON SCHEMA \"{SCHEMA}\" TO {role}; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA \"{SCHEMA}\" TO {role};"
    )
}

impl From<ConnectionError> for OpenFault {
    fn from(error: ConnectionError) -> Self {
        let why = error.to_string();
        match error {
            ConnectionError::Unsuitable(_) => Self::Server("used", why),
            ConnectionError::Strange(_) => Self::Store(format!(" is {why}")),
            ConnectionError::Record(_) => Self::damaged(&why),
            ConnectionError::Broken(_) => Self::unreachable(why),
            ConnectionError::Refused(refusal) => match refusal.code().code() {
                "42501" => Self::rights(&why, &granting("USAGE", "the_role")),
                "42703" | "42P01" | "42883" | "3F000" => Self::damaged(&why),
                _ => Self::unreachable(why),
            },
        }
    }
}
