//! Arguments of the server's functions, and meaning of their rows.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::connection::{Arguments, ConnectionError, get};
use super::options::SCHEMA;
use crate::record::{cut_by, json};
use crate::takeovers::History;
use crate::{
    AuthorityError, Backend, Claim, Cluster, Declaration, Mark, Rank, Scope, TakeoverRecord, Token,
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

/// The call of a server's function, with its answer as JSON.
pub(super) fn call(function: &str, arguments: &Arguments<'_>) -> String {
    let places: Vec<String> = (1..=arguments.len()).map(|n| format!("${n}")).collect();
    let (answer, places) = (answer(function), places.join(", "));
    format!("SELECT ({answer})::text FROM {SCHEMA}.{function}({places}) AS f")
}

/// The answer of a function in the form of the type that it is read as.
fn answer(function: &str) -> String {
    let mark = mark("o_");
    let recorded = cluster("o_system", "o_timeline", "o_postmaster");
    match function {
        "declare_and_forget" => {
            let lower = session("u.", "u.");
            format!(
                "json_build_array(o_place - 1, json_build_object(
                    'verdict', CASE WHEN o_verdict IN ('raised', 'current') THEN 'accepted' ELSE o_verdict END,
                    'outcome', o_verdict, 'mark', {mark}, 'recorded', {recorded},
                    'lower', coalesce((SELECT json_agg({lower})
                        FROM unnest(o_pids, o_starts, o_tokens, o_incarnations, o_sinces)
                            AS u (pid, started_us, token, incarnation, since)), '[]')))"
            )
        }
        "drained" => format!("coalesce(json_agg({}), '[]')", session("o_", "o_")),
        "enrol" | "recover" => format!(
            "CASE WHEN o_accepted THEN '\"Accepted\"'
                ELSE json_build_object('Refused', json_build_object('recorded', {recorded})) END"
        ),
        // The rows differ in their sessions only.
        "repair" => format!(
            "json_build_object(
                'verdict', min(o_verdict), 'mark', json_agg({mark}) -> 0, 'recorded', json_agg({recorded}) -> 0,
                'lower', coalesce(json_agg({}) FILTER (WHERE o_pid IS NOT NULL), '[]'))",
            session("o_", "o_session_")
        ),
        _ => "f".to_owned(),
    }
}

/// A mark as JSON, from columns that begin so; NULL for none.
pub(super) fn mark(of: &str) -> String {
    format!(
        "CASE WHEN {of}token IS NOT NULL THEN json_build_object(
            'token', {of}token, 'incarnation', {of}incarnation, 'raised_at', {of}raised_at,
            'raised_by', {of}raised_by, 'repair', {of}repair::json) END"
    )
}

/// A session as JSON, from columns that begin so, with a rank in others.
fn session(of: &str, rank: &str) -> String {
    format!(
        "json_build_object(
            'backend', json_build_object('pid', {of}pid, 'started_us', {of}started_us),
            'token', {rank}token, 'incarnation', {rank}incarnation, 'since', {of}since)"
    )
}

/// A cluster as JSON, from these columns; NULL for none. PostgreSQL shows the 64 bits of the system identifier with a
/// sign.
fn cluster(system: &str, timeline: &str, postmaster: &str) -> String {
    format!(
        "CASE WHEN {system} IS NOT NULL THEN json_build_object(
            'system_identifier', {system} + CASE WHEN {system} < 0 THEN 18446744073709551616 ELSE 0 END,
            'timeline', {timeline}, 'postmaster_us', {postmaster}) END"
    )
}

/// The cluster of the store `s`.
pub(super) fn recorded() -> String {
    cluster("s.system_identifier", "s.timeline", "s.postmaster_us")
}

/// One JSON value.
pub(super) fn read<T: DeserializeOwned>(row: &Row) -> Result<T, ConnectionError> {
    let json: &str = get(row, 0)?;
    serde_json::from_str(json)
        .map_err(|error| ConnectionError::Record(format!("an answer: {error}")))
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

pub(super) fn all_sessions() -> String {
    let session = session("s.", "s.");
    format!("SELECT json_build_array(s.scope, {session})::text FROM {SCHEMA}.sessions s")
}

pub(super) fn all_marks() -> String {
    let mark = mark("m.");
    format!("SELECT json_build_array(m.scope, {mark})::text FROM {SCHEMA}.marks m")
}

/// The history of a scope, or the latest ones.
pub(super) fn histories(of: Option<&Scope>) -> String {
    let which = match of {
        // Scope names need no quoting.
        Some(scope) => format!("WHERE t.scope = '{scope}'"),
        None => format!("ORDER BY t.noted_at DESC LIMIT {}", TakeoverRecord::LISTED),
    };
    format!("SELECT json_build_array(t.scope, t.history)::text FROM {SCHEMA}.takeovers t {which}")
}

/// One record.
pub(super) fn all_clusters() -> String {
    format!(
        "SELECT coalesce({}, 'null')::text FROM {SCHEMA}.store s",
        recorded()
    )
}

pub(super) fn takeovers(read: Vec<(Scope, String)>) -> Vec<(Scope, TakeoverRecord)> {
    let histories = read.into_iter().map(|(scope, json)| {
        let history = History::read(&scope, json.as_bytes());
        (scope, history)
    });
    History::list(histories)
}
