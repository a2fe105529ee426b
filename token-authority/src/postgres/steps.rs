//! Arguments of the server's functions, and meaning of their rows.

use std::collections::BTreeSet;

use tokio::sync::oneshot;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::connection::{Arguments, ConnectionError, first, get};
use super::options::SCHEMA;
use crate::record::{cut_by, json};
use crate::takeovers::History;
use crate::{
    AuthorityError, Backend, Claim, Cluster, Declaration, DeclareOutcome, Declared, Drained,
    Enrolled, Incarnation, Mark, Rank, Registered, Repaired, Scope, TakeoverRecord, Token,
};

pub(super) type AnswerSender<T> = oneshot::Sender<Result<T, AuthorityError>>;

/// Argument of a step with its type.
pub(super) type Value = (Box<dyn ToSql + Sync + Send>, Type);

pub(super) fn value(of: Type, value: impl ToSql + Sync + Send + 'static) -> Value {
    (Box::new(value), of)
}

pub(super) fn integer(number: impl Into<Option<i64>>) -> Value {
    value(Type::INT8, number.into())
}

pub(super) fn text(text: impl Into<Option<String>>) -> Value {
    value(Type::TEXT, text.into())
}

/// One part of several records, as an array.
fn column<T: ToSql + Sync + Send + 'static>(of: Type, values: impl Iterator<Item = T>) -> Value {
    value(of, values.collect::<Vec<T>>())
}

/// Cluster as stored. PostgreSQL shows the system identifier as the same 64 bits with a sign.
pub(super) fn cluster_values(cluster: Option<Cluster>) -> [Value; 3] {
    [
        integer(cluster.map(|cluster| cluster.system_identifier.cast_signed())),
        integer(cluster.map(|cluster| cluster.timeline.into())),
        integer(cluster.map(|cluster| cluster.postmaster_us)),
    ]
}

pub(super) fn rank_values(rank: Rank) -> [Value; 2] {
    let incarnation = integer(i64::from(rank.incarnation.get()));
    [incarnation, integer(number(rank.token))]
}

/// Sessions as columns.
pub(super) fn backends(gone: impl IntoIterator<Item = Backend>) -> [Value; 2] {
    let gone = gone.into_iter();
    let (pids, starts): (Vec<i32>, Vec<i64>) = gone.map(|b| (b.pid, b.started_us)).unzip();
    [
        value(Type::INT4_ARRAY, pids),
        value(Type::INT8_ARRAY, starts),
    ]
}

/// Steps that share one commit, as columns for the server's function.
pub(super) fn together(declarations: &[Declaration], gone: BTreeSet<Backend>) -> Vec<Value> {
    let all = || declarations.iter();
    // Mark that a take follows, 0 for none and NULL for any; also NULL if not a take.
    let after = |declaration: &Declaration| match declaration.claim {
        Claim::After(mark) => Some(mark.map_or(0, number)),
        Claim::Token(_) | Claim::Next | Claim::Lease(_) => None,
    };
    let mut columns = vec![
        column(Type::TEXT_ARRAY, all().map(|d| d.scope.to_string())),
        // NULL if only the server can determine the token.
        column(Type::INT8_ARRAY, all().map(|d| d.claim.token().map(number))),
        column(Type::INT4_ARRAY, all().map(|d| d.backend.pid)),
        column(Type::INT8_ARRAY, all().map(|d| d.backend.started_us)),
        column(
            Type::INT8_ARRAY,
            all().map(|d| d.cluster.system_identifier.cast_signed()),
        ),
        column(
            Type::INT8_ARRAY,
            all().map(|d| i64::from(d.cluster.timeline)),
        ),
        column(Type::INT8_ARRAY, all().map(|d| d.cluster.postmaster_us)),
        column(Type::TEXT_ARRAY, all().map(|d| without_nul(cut_by(&d.by)))),
        column(Type::INT8_ARRAY, all().map(|d| d.max_step.map(most))),
        // Whether a stale session is registered.
        column(Type::BOOL_ARRAY, all().map(|d| d.stale_token().is_some())),
        column(Type::BOOL_ARRAY, all().map(|d| d.claim.is_take())),
        column(Type::INT8_ARRAY, all().map(after)),
        column(
            Type::TEXT_ARRAY,
            all().map(|d| d.take.map(|id| id.to_string())),
        ),
        column(Type::INT8_ARRAY, all().map(|d| d.max_token.map(most))),
    ];
    columns.extend(backends(gone));
    columns
}

/// Marks as columns.
pub(super) fn mark_columns(marks: &[(Scope, Mark)]) -> [Value; 6] {
    let all = || marks.iter().map(|(_, mark)| mark);
    [
        column(
            Type::TEXT_ARRAY,
            marks.iter().map(|(scope, _)| scope.to_string()),
        ),
        column(Type::INT8_ARRAY, all().map(|mark| number(mark.token))),
        column(Type::INT8_ARRAY, all().map(|mark| mark.raised_at)),
        column(
            Type::TEXT_ARRAY,
            all().map(|mark| without_nul(&mark.raised_by)),
        ),
        column(
            Type::INT8_ARRAY,
            all().map(|mark| i64::from(mark.incarnation.get())),
        ),
        column(
            Type::TEXT_ARRAY,
            all().map(|mark| mark.repair.as_ref().map(json)),
        ),
    ]
}

/// `SELECT * FROM function($1, ...)`.
pub(super) fn call(function: &str, arguments: &Arguments<'_>) -> String {
    let places: Vec<String> = (1..=arguments.len()).map(|n| format!("${n}")).collect();
    format!("SELECT * FROM {SCHEMA}.{function}({})", places.join(", "))
}

/// Limit as a bigint: no step is longer than a token.
fn most(bound: u64) -> i64 {
    i64::try_from(bound).unwrap_or(i64::MAX)
}

/// Token as a bigint, which holds every token.
fn number(token: Token) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

/// Replaces NUL, which PostgreSQL's text cannot hold.
pub(super) fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

pub(super) fn declared(row: &Row) -> Result<(usize, Declared), ConnectionError> {
    let place: i64 = get(row, 0)?;
    let place = usize::try_from(place - 1)
        .map_err(|_| ConnectionError::Record(format!("an answer with place {place}")))?;
    let accepted = |outcome| -> Result<Declared, ConnectionError> {
        let (mark, lower) = (mark(row, 2)?, lower(row)?);
        Ok(Declared::Accepted {
            mark,
            outcome,
            lower,
        })
    };
    let declared = match get(row, 1)? {
        "other" => Declared::OtherCluster {
            recorded: cluster(row, 7)?,
        },
        "stale" => Declared::Stale {
            mark: mark(row, 2)?,
        },
        "far" => Declared::TooFar {
            mark: mark(row, 2)?,
        },
        "lower" => Declared::MarkIsLower {
            mark: some_mark(row, 2)?,
        },
        "raised" => accepted(DeclareOutcome::Raised)?,
        "current" => accepted(DeclareOutcome::Current)?,
        other => return Err(ConnectionError::Record(format!("an answer {other:?}"))),
    };
    Ok((place, declared))
}

/// Columns 10 to 14: arrays of pid, start, token, incarnation, since, or NULL.
fn lower(row: &Row) -> Result<Vec<Registered>, ConnectionError> {
    let Some(pids) = get::<Option<Vec<i32>>>(row, 10)? else {
        return Ok(Vec::new());
    };
    let (starts, tokens): (Vec<i64>, Vec<i64>) = (get(row, 11)?, get(row, 12)?);
    let (incarnations, sinces): (Vec<i64>, Vec<i64>) = (get(row, 13)?, get(row, 14)?);
    let backends = pids.into_iter().zip(starts);
    let ranks = tokens.into_iter().zip(incarnations);
    let columns = backends.zip(ranks).zip(sinces);
    columns
        .map(|((backend, rank), since)| session(backend, rank, since))
        .collect()
}

pub(super) fn repaired(rows: &[Row]) -> Result<Repaired, ConnectionError> {
    let row = first(rows)?;
    match get::<&str>(row, 0)? {
        "other" => Ok(Repaired::OtherCluster {
            recorded: cluster(row, 1)?,
        }),
        "changed" => Ok(Repaired::Changed {
            mark: some_mark(row, 4)?,
        }),
        "done" => {
            let is_there = get::<Option<i32>>(row, 9)?.is_some();
            let sessions = rows.iter().filter(|_| is_there);
            Ok(Repaired::Done {
                mark: mark(row, 4)?,
                // One row without a session, if none was registered.
                lower: sessions
                    .map(|row| registered(row, 9))
                    .collect::<Result<_, _>>()?,
            })
        }
        other => Err(ConnectionError::Record(format!("an answer {other:?}"))),
    }
}

pub(super) fn drained(rows: &[Row]) -> Result<Drained, ConnectionError> {
    let left = rows.iter().map(|row| registered(row, 0));
    left.collect::<Result<_, _>>().map(Drained::of)
}

/// The one value of an answer.
pub(super) fn is_true(rows: &[Row]) -> Result<bool, ConnectionError> {
    get(first(rows)?, 0)
}

pub(super) fn enrolled(rows: &[Row]) -> Result<Enrolled, ConnectionError> {
    let row = first(rows)?;
    if get(row, 0)? {
        return Ok(Enrolled::Accepted);
    }
    match cluster(row, 1)? {
        Some(recorded) => Ok(Enrolled::Refused { recorded }),
        None => Err(ConnectionError::Record("refused for no cluster".into())),
    }
}

/// A session in five columns from `at`: pid, start, token, incarnation, since.
pub(super) fn registered(row: &Row, at: usize) -> Result<Registered, ConnectionError> {
    let backend = (get(row, at)?, get(row, at + 1)?);
    let rank = (get(row, at + 2)?, get(row, at + 3)?);
    session(backend, rank, get(row, at + 4)?)
}

fn session(
    (pid, started_us): (i32, i64),
    (token, incarnation): (i64, i64),
    since: i64,
) -> Result<Registered, ConnectionError> {
    Ok(Registered {
        backend: Backend { pid, started_us },
        token: stored_token(token)?,
        incarnation: stored_incarnation(incarnation)?,
        since,
    })
}

pub(super) const MARK: &str = "m.token, m.incarnation, m.raised_at, m.raised_by, m.repair";
const SESSION: &str = "s.pid, s.started_us, s.token, s.incarnation, s.since";

/// All records of a kind: the query, and the meaning of its rows.
pub(super) type All<T> = (String, fn(&Row) -> Result<T, ConnectionError>);

pub(super) fn all_sessions() -> All<(Scope, Registered)> {
    let sql = format!("SELECT s.scope, {SESSION} FROM {SCHEMA}.sessions s");
    (sql, |row| Ok((scope(row, 0)?, registered(row, 1)?)))
}

pub(super) fn all_marks() -> All<(Scope, Mark)> {
    let sql = format!("SELECT m.scope, {MARK} FROM {SCHEMA}.marks m");
    (sql, |row| Ok((scope(row, 0)?, mark(row, 1)?)))
}

/// The history of a scope, or the latest ones.
pub(super) fn histories(of: Option<&Scope>) -> All<(Scope, History)> {
    let which = match of {
        // Scope names need no quoting.
        Some(scope) => format!("WHERE t.scope = '{scope}'"),
        None => format!("ORDER BY t.noted_at DESC LIMIT {}", TakeoverRecord::LISTED),
    };
    let sql = format!("SELECT t.scope, t.history FROM {SCHEMA}.takeovers t {which}");
    (sql, history)
}

fn history(row: &Row) -> Result<(Scope, History), ConnectionError> {
    let scope = scope(row, 0)?;
    let history = History::read(&scope, get::<&str>(row, 1)?.as_bytes());
    Ok((scope, history))
}

/// One record.
pub(super) fn all_clusters() -> All<Option<Cluster>> {
    let sql = format!("SELECT {CLUSTER} FROM {SCHEMA}.store s");
    (sql, |row| cluster(row, 0))
}

/// Mark in five columns from `at`: token, incarnation, time, author, the last repair as JSON.
pub(super) fn mark(row: &Row, at: usize) -> Result<Mark, ConnectionError> {
    let repair = match get::<Option<&str>>(row, at + 4)? {
        Some(json) => serde_json::from_str(json)
            .map_err(|error| ConnectionError::Record(format!("a repair: {error}")))?,
        None => None,
    };
    Ok(Mark {
        token: stored_token(get(row, at)?)?,
        incarnation: stored_incarnation(get(row, at + 1)?)?,
        raised_at: get(row, at + 2)?,
        raised_by: get(row, at + 3)?,
        repair,
    })
}

/// As [`mark`]; NULL for none.
fn some_mark(row: &Row, at: usize) -> Result<Option<Mark>, ConnectionError> {
    match get::<Option<i64>>(row, at)? {
        Some(_) => mark(row, at).map(Some),
        None => Ok(None),
    }
}

pub(super) const CLUSTER: &str = "s.system_identifier, s.timeline, s.postmaster_us";

/// Cluster in three columns from `at`, NULL if none is recorded.
pub(super) fn cluster(row: &Row, at: usize) -> Result<Option<Cluster>, ConnectionError> {
    let (system, timeline): (Option<i64>, Option<i64>) = (get(row, at)?, get(row, at + 1)?);
    let (Some(system), Some(timeline)) = (system, timeline) else {
        return Ok(None);
    };
    let timeline = u32::try_from(timeline)
        .map_err(|_| ConnectionError::Record(format!("a timeline {timeline}")))?;
    Ok(Some(Cluster {
        system_identifier: system.cast_unsigned(),
        timeline,
        postmaster_us: get(row, at + 2)?,
    }))
}

pub(super) fn scope(row: &Row, at: usize) -> Result<Scope, ConnectionError> {
    let name: &str = get(row, at)?;
    Scope::new(name).map_err(|error| ConnectionError::Record(format!("scope {name:?}: {error}")))
}

fn stored_token(value: i64) -> Result<Token, ConnectionError> {
    let value =
        u64::try_from(value).map_err(|_| ConnectionError::Record(format!("a token {value}")))?;
    Token::new(value).map_err(|error| ConnectionError::Record(format!("token {value}: {error}")))
}

fn stored_incarnation(value: i64) -> Result<Incarnation, ConnectionError> {
    u32::try_from(value)
        .map(Incarnation::new)
        .map_err(|_| ConnectionError::Record(format!("an incarnation {value}")))
}
