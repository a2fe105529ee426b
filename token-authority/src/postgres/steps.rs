//! Arguments of the server's functions, and meaning of their rows.

use std::collections::BTreeSet;

use tokio::sync::oneshot;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::connection::{Arguments, ConnectionError, get};
use super::options::SCHEMA;
use crate::record::cut_by;
use crate::{
    AuthorityError, Backend, Claim, Cluster, Declaration, DeclareOutcome, Declared, Drained,
    Enrolled, Incarnation, Mark, Registered, Repair, Repaired, Scope, Token,
};

pub(super) type AnswerSender<T> = oneshot::Sender<Result<T, AuthorityError>>;

pub(super) struct Declare {
    pub(super) declaration: Declaration,
    pub(super) reply: AnswerSender<Declared>,
}

pub(super) struct Forget {
    pub(super) gone: Vec<Backend>,
    pub(super) reply: AnswerSender<()>,
}

/// Steps that share one commit, as columns for the server's function.
#[derive(Default)]
pub(super) struct Together {
    scopes: Vec<String>,
    /// NULL if only the server can determine the token.
    tokens: Vec<Option<i64>>,
    takes: Takes,
    pids: Vec<i32>,
    starts: Vec<i64>,
    systems: Vec<i64>,
    timelines: Vec<i64>,
    postmasters: Vec<i64>,
    bys: Vec<String>,
    max_steps: Vec<Option<i64>>,
    /// Whether a stale session is registered.
    registers: Vec<bool>,
    gone: Backends,
}

#[derive(Default)]
struct Takes {
    /// Mark that the take follows, 0 for none and NULL for any; also NULL if not a take.
    after: Vec<Option<i64>>,
    is_take: Vec<bool>,
    ids: Vec<Option<String>>,
    max_tokens: Vec<Option<i64>>,
}

impl Takes {
    fn push(&mut self, declaration: &Declaration) {
        self.after.push(match declaration.claim {
            Claim::After(mark) => Some(mark.map_or(0, number)),
            Claim::Token(_) | Claim::Next | Claim::Lease(_) => None,
        });
        self.is_take.push(declaration.claim.is_take());
        self.ids.push(declaration.take.map(|id| id.to_string()));
        self.max_tokens.push(declaration.max_token.map(most));
    }
}

#[derive(Default)]
pub(super) struct Backends {
    pids: Vec<i32>,
    starts: Vec<i64>,
}

impl Backends {
    pub(super) fn arguments(&self) -> [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] {
        [
            (&self.pids, Type::INT4_ARRAY),
            (&self.starts, Type::INT8_ARRAY),
        ]
    }
}

impl FromIterator<Backend> for Backends {
    fn from_iter<I: IntoIterator<Item = Backend>>(backends: I) -> Self {
        let mut columns = Self::default();
        for backend in backends {
            columns.pids.push(backend.pid);
            columns.starts.push(backend.started_us);
        }
        columns
    }
}

impl Together {
    pub(super) fn new(declares: &[Declare], gone: BTreeSet<Backend>) -> Self {
        let mut columns = Self {
            gone: gone.into_iter().collect(),
            ..Self::default()
        };
        for Declare { declaration, .. } in declares {
            columns.scopes.push(declaration.scope.as_str().to_owned());
            columns.tokens.push(declaration.claim.token().map(number));
            columns.takes.push(declaration);
            columns.pids.push(declaration.backend.pid);
            columns.starts.push(declaration.backend.started_us);
            let [system, timeline, postmaster] = cluster_columns(declaration.cluster);
            columns.systems.push(system);
            columns.timelines.push(timeline);
            columns.postmasters.push(postmaster);
            columns.bys.push(without_nul(cut_by(&declaration.by)));
            columns.max_steps.push(declaration.max_step.map(most));
            let registers = declaration.stale_token().is_some();
            columns.registers.push(registers);
        }
        columns
    }

    pub(super) fn arguments(&self) -> Vec<(&(dyn tokio_postgres::types::ToSql + Sync), Type)> {
        let mut arguments: Vec<(&(dyn tokio_postgres::types::ToSql + Sync), Type)> = vec![
            (&self.scopes, Type::TEXT_ARRAY),
            (&self.tokens, Type::INT8_ARRAY),
            (&self.pids, Type::INT4_ARRAY),
            (&self.starts, Type::INT8_ARRAY),
            (&self.systems, Type::INT8_ARRAY),
            (&self.timelines, Type::INT8_ARRAY),
            (&self.postmasters, Type::INT8_ARRAY),
            (&self.bys, Type::TEXT_ARRAY),
            (&self.max_steps, Type::INT8_ARRAY),
            (&self.registers, Type::BOOL_ARRAY),
            (&self.takes.is_take, Type::BOOL_ARRAY),
            (&self.takes.after, Type::INT8_ARRAY),
            (&self.takes.ids, Type::TEXT_ARRAY),
            (&self.takes.max_tokens, Type::INT8_ARRAY),
        ];
        arguments.extend(self.gone.arguments());
        arguments
    }
}

#[derive(Default)]
pub(super) struct Marks {
    scopes: Vec<String>,
    tokens: Vec<i64>,
    raised_ats: Vec<i64>,
    raised_bys: Vec<String>,
    incarnations: Vec<i64>,
    repairs: Vec<Option<String>>,
}

impl Marks {
    pub(super) fn new(marks: &[(Scope, Mark)]) -> Result<Self, ConnectionError> {
        let mut columns = Self::default();
        for (scope, mark) in marks {
            columns.scopes.push(scope.as_str().to_owned());
            columns.tokens.push(number(mark.token));
            columns.raised_ats.push(mark.raised_at);
            columns.raised_bys.push(without_nul(&mark.raised_by));
            columns.incarnations.push(mark.incarnation.get().into());
            let repair = mark.repair.as_deref().map(repair_text).transpose()?;
            columns.repairs.push(repair);
        }
        Ok(columns)
    }

    pub(super) fn arguments(&self) -> [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 6] {
        [
            (&self.scopes, Type::TEXT_ARRAY),
            (&self.tokens, Type::INT8_ARRAY),
            (&self.raised_ats, Type::INT8_ARRAY),
            (&self.raised_bys, Type::TEXT_ARRAY),
            (&self.incarnations, Type::INT8_ARRAY),
            (&self.repairs, Type::TEXT_ARRAY),
        ]
    }
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
pub(super) fn number(token: Token) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

/// Cluster as stored. PostgreSQL shows the 64 bits of the system identifier with a sign.
pub(super) fn cluster_columns(cluster: Cluster) -> [i64; 3] {
    [
        cluster.system_identifier.cast_signed(),
        cluster.timeline.into(),
        cluster.postmaster_us,
    ]
}

/// Replaces NUL, which PostgreSQL's text cannot hold.
pub(super) fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

pub(super) fn declared(row: &Row) -> Result<(usize, Declared), ConnectionError> {
    let place: i64 = get(row, 0)?;
    let place = usize::try_from(place - 1)
        .map_err(|_| ConnectionError::Record(format!("an answer with place {place}")))?;
    let verdict: &str = get(row, 1)?;
    let outcome = match verdict {
        "other" => {
            let recorded = cluster(row, 7)?;
            return Ok((place, Declared::OtherCluster { recorded }));
        }
        "stale" => {
            let mark = mark(row, 2)?;
            return Ok((place, Declared::Stale { mark }));
        }
        "far" => {
            let mark = mark(row, 2)?;
            return Ok((place, Declared::TooFar { mark }));
        }
        "lower" => {
            let mark = some_mark(row, 2)?;
            return Ok((place, Declared::MarkIsLower { mark }));
        }
        "raised" => DeclareOutcome::Raised,
        "current" => DeclareOutcome::Current,
        other => return Err(ConnectionError::Record(format!("an answer {other:?}"))),
    };
    let declared = Declared::Accepted {
        mark: mark(row, 2)?,
        outcome,
        lower: lower(row)?,
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
    let sessions = columns.map(|((backend, rank), since)| session(backend, rank, since));
    sessions.collect()
}

pub(super) fn repaired(rows: &[Row]) -> Result<Repaired, ConnectionError> {
    let row = rows.first().ok_or_else(ConnectionError::no_row)?;
    match get::<&str>(row, 0)? {
        "other" => Ok(Repaired::OtherCluster {
            recorded: cluster(row, 1)?,
        }),
        "changed" => Ok(Repaired::Changed {
            mark: some_mark(row, 4)?,
        }),
        "done" => {
            let mut lower = Vec::new();
            for row in rows {
                if get::<Option<i32>>(row, 9)?.is_some() {
                    lower.push(registered(row, 9)?);
                }
            }
            Ok(Repaired::Done {
                mark: mark(row, 4)?,
                lower,
            })
        }
        other => Err(ConnectionError::Record(format!("an answer {other:?}"))),
    }
}

pub(super) fn drained(rows: &[Row]) -> Result<Drained, ConnectionError> {
    let left: Result<Vec<_>, _> = rows.iter().map(|row| registered(row, 0)).collect();
    let left = left?;
    Ok(if left.is_empty() {
        Drained::Complete
    } else {
        Drained::Left(left)
    })
}

pub(super) fn enrolled(rows: &[Row]) -> Result<Enrolled, ConnectionError> {
    let row = rows.first().ok_or_else(ConnectionError::no_row)?;
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
pub(super) const SESSION: &str = "s.pid, s.started_us, s.token, s.incarnation, s.since";

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

pub(super) fn repair_text(repair: &Repair) -> Result<String, ConnectionError> {
    serde_json::to_string(repair).map_err(|error| ConnectionError::Record(error.to_string()))
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
