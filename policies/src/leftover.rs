//! What a statement leaves in the server's session after its transaction, so far as its text shows.
//!
//! A pool that lends a server connection for a transaction lets the client keep it as long as such a thing is there.
//! What a function leaves is not seen here: a reset removes it before another client gets the connection.
//! <https://www.postgresql.org/docs/current/sql-discard.html>

use std::ops::Range;

use pg_query::NodeEnum;
use pg_query::protobuf::{DoStmt, Node, VariableSetKind, VariableSetStmt};
use strum::{IntoStaticStr, VariantArray};

use crate::control::Control;
use crate::effects::Effects;
use crate::functions::{self, Reach};
use crate::set_config;
use crate::settings::{self, Literal, Setting, literal};
use crate::temporary;

/// Bit of `DECLARE .. WITH HOLD` (`CURSOR_OPT_HOLD` in PostgreSQL's `parsenodes.h`).
const WITH_HOLD: i32 = 0x20;

/// A thing that outlives its transaction. The later ones matter more: what is left by several texts is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Leftover {
    /// A setting of the session, or its role.
    Setting,
    /// A statement of SQL PREPARE.
    Statement,
    /// A cursor WITH HOLD.
    Cursor,
    /// A temporary table, view or sequence.
    Temporary,
    /// LISTEN
    Channel,
    /// A session-level advisory lock.
    Lock,
    /// Perhaps any of these, or nothing: a text was not read.
    Unread,
    /// What no reset removes: a library (LOAD), a connection of dblink, a replication origin, a temporary replication
    /// slot, a backup that has begun.
    Process,
}

impl Leftover {
    /// Whether it may be there after a reset.
    #[must_use]
    pub fn outlives_resets(self) -> bool {
        self >= Self::Unread
    }

    pub const ALL: &[Self] = Self::VARIANTS;

    /// Name for programs.
    #[must_use]
    pub fn kind(self) -> &'static str {
        self.into()
    }

    /// Name for people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Setting => "a setting",
            Self::Statement => "a prepared statement",
            Self::Cursor => "a cursor WITH HOLD",
            Self::Temporary => "a temporary table",
            Self::Channel => "LISTEN",
            Self::Lock => "an advisory lock",
            Self::Unread => "perhaps anything (a text was not read)",
            Self::Process => "a library, a connection or a slot",
        }
    }
}

/// A setting of the session that a statement sets and does nothing else, so that it can be set again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Assignment {
    /// By the same statement, which is at these bytes of its text.
    Set { name: Box<str>, at: Range<usize> },
    /// By another text, which calls no function of a user.
    SetByCall { name: Box<str>, again: Box<str> },
    /// `client_encoding` to UTF-8, which it is already nearly always.
    Utf8,
    /// Back to its value at the start.
    Reset(Box<str>),
}

impl Assignment {
    /// Name in lower case.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Set { name, .. } | Self::SetByCall { name, .. } | Self::Reset(name) => name,
            Self::Utf8 => "client_encoding",
        }
    }
}

/// Settings that do more than to have a value, by which texts are read, that are looked up by another one, or that have
/// a second name.
const NOT_RUN_AGAIN: [&str; 13] = [
    "role",
    "session_authorization",
    "client_encoding",
    "seed",
    "transaction_read_only",
    "transaction_isolation",
    "transaction_deferrable",
    "default_transaction_read_only",
    "default_text_search_config",
    "sort_mem",
    "vacuum_mem",
    // Each new connection would end with the first error.
    "exit_on_error",
    // PostgreSQL refuses it once there were temporary tables.
    "temp_buffers",
];

/// The setting of a SET, RESET or set_config.
pub(crate) fn assignment(node: &NodeEnum, at: Range<usize>) -> Option<Assignment> {
    let assignment = match node {
        NodeEnum::VariableSetStmt(set) if is_for_session(set) && !temporary::is_made_by(node) => {
            if is_utf8(set) {
                return Some(Assignment::Utf8);
            }
            let name = set.name.to_ascii_lowercase().into();
            match VariableSetKind::try_from(set.kind).ok()? {
                VariableSetKind::VarSetValue => Assignment::Set { name, at },
                // JDBC sets the isolation level so.
                VariableSetKind::VarSetMulti => {
                    let mut names = settings::names(set);
                    let name = names.pop().filter(|_| names.is_empty())?;
                    Assignment::Set { name, at }
                }
                VariableSetKind::VarSetDefault | VariableSetKind::VarReset => {
                    Assignment::Reset(name)
                }
                _ => return None,
            }
        }
        NodeEnum::SelectStmt(select) => {
            let (name, again) = set_config::assigned(select)?;
            if select.target_list.iter().any(temporary::is_made_by_call) {
                return None;
            }
            Assignment::SetByCall { name, again }
        }
        _ => return None,
    };
    (!NOT_RUN_AGAIN.contains(&assignment.name())).then_some(assignment)
}

/// Whether it is SET client_encoding or SET NAMES with a name of UTF-8. PostgreSQL ignores all but letters and digits.
fn is_utf8(set: &VariableSetStmt) -> bool {
    let value = match set.args.as_slice() {
        [only] if set.name.eq_ignore_ascii_case("client_encoding") => literal(only),
        _ => None,
    };
    let Some(Literal::Text(value)) = value else {
        return false;
    };
    let letters = value.bytes().filter(u8::is_ascii_alphanumeric);
    let name: Vec<u8> = letters.map(|byte| byte.to_ascii_lowercase()).collect();
    matches!(&*name, b"utf8" | b"unicode")
}

pub(crate) fn of(node: &NodeEnum, effects: &Effects, controls: &[Control]) -> Option<Leftover> {
    use NodeEnum as N;
    let seen = match node {
        N::VariableSetStmt(_) if temporary::is_made_by(node) => return Some(Leftover::Temporary),
        N::VariableSetStmt(set) => return is_for_session(set).then_some(Leftover::Setting),
        N::DiscardStmt(_) | N::TransactionStmt(_) => return None,
        // ANALYZE runs it.
        N::ExplainStmt(explain) => {
            let query = explain.query.as_ref().and_then(|query| query.node.as_ref());
            query.and_then(|query| of(query, effects, controls))
        }
        N::PrepareStmt(prepare) => {
            let query = prepare.query.as_ref().and_then(|query| query.node.as_ref());
            let run = controls.iter().find_map(|control| match control {
                Control::Prepare { effects, .. } => Some(effects),
                _ => None,
            });
            // What EXECUTE leaves.
            let left = query.zip(run).and_then(|(query, run)| of(query, run, &[]));
            left.max(Some(Leftover::Statement))
        }
        N::DoStmt(block) => of_block(block),
        N::DeclareCursorStmt(declare) => {
            (declare.options & WITH_HOLD != 0).then_some(Leftover::Cursor)
        }
        N::ListenStmt(_) => Some(Leftover::Channel),
        N::LoadStmt(_) => Some(Leftover::Process),
        _ => temporary::is_made_by(node).then_some(Leftover::Temporary),
    };
    seen.max(of_functions(node, effects))
}

/// What the words of a DO block leave that no reset removes.
fn of_block(block: &DoStmt) -> Option<Leftover> {
    let bodies = block.args.iter().filter_map(|arg| match &arg.node {
        Some(NodeEnum::DefElem(element)) => element.arg.as_ref()?.node.as_ref(),
        _ => None,
    });
    let mut words = bodies.flat_map(|body| match body {
        NodeEnum::String(body) => body
            .sval
            .split(|letter: char| !(letter.is_alphanumeric() || letter == '_'))
            .collect(),
        _ => Vec::new(),
    });
    let lasts = |word: &str| {
        word.eq_ignore_ascii_case("load")
            || of_name(&word.to_ascii_lowercase()) == Some(Leftover::Process)
    };
    words.any(lasts).then_some(Leftover::Process)
}

/// Whether SET or RESET has an effect beyond its transaction, other than on the client's tokens.
fn is_for_session(set: &VariableSetStmt) -> bool {
    let kind = VariableSetKind::try_from(set.kind).unwrap_or(VariableSetKind::Undefined);
    match (kind, set.name.as_str()) {
        // RESET ALL removes more than it leaves.
        (VariableSetKind::VarResetAll, _) => false,
        (VariableSetKind::VarSetMulti, name) => name == "SESSION CHARACTERISTICS",
        // No client takes them along, so nothing differs from what another connection has.
        (
            VariableSetKind::VarSetDefault | VariableSetKind::VarReset,
            "role" | "session_authorization",
        ) => false,
        // They end with the transaction, as what SET TRANSACTION sets.
        (_, "transaction_isolation" | "transaction_read_only" | "transaction_deferrable") => false,
        (_, name) => !set.is_local && !is_ours(name),
    }
}

fn is_ours(name: &str) -> bool {
    matches!(
        Setting::named(name),
        Setting::Fencing(_) | Setting::Reserved
    )
}

/// What a function of this name leaves, in any schema: another function of the name costs only the connection.
pub(crate) fn of_name(name: &str) -> Option<Leftover> {
    match name {
        "pg_advisory_lock"
        | "pg_advisory_lock_shared"
        | "pg_try_advisory_lock"
        | "pg_try_advisory_lock_shared" => Some(Leftover::Lock),
        "dblink_connect"
        | "dblink_connect_u"
        | "pg_replication_origin_session_setup"
        | "pg_create_physical_replication_slot"
        | "pg_create_logical_replication_slot"
        | "pg_copy_physical_replication_slot"
        | "pg_copy_logical_replication_slot"
        | "pg_backup_start"
        | "pg_start_backup"
        | "sepgsql_setcon"
        | "isn_weak" => Some(Leftover::Process),
        "setseed" | "set_limit" => Some(Leftover::Setting),
        _ => {
            let runs_text =
                functions::writer(name).is_some_and(|it| matches!(it.reach, Reach::Text));
            runs_text.then_some(Leftover::Unread)
        }
    }
}

fn of_functions(node: &NodeEnum, effects: &Effects) -> Option<Leftover> {
    let functions = effects.functions.iter();
    let of_function = functions
        .filter_map(|function| of_name(&function.name))
        .max();
    let is_set = effects.settings.iter().any(|name| !is_ours(name));
    let sets = effects.writes_pg_settings() || (is_set && !sets_only_locally(node));
    of_function.max(sets.then_some(Leftover::Setting))
}

/// Whether a SELECT is nothing but calls of set_config whose last argument is `true`.
fn sets_only_locally(node: &NodeEnum) -> bool {
    let NodeEnum::SelectStmt(select) = node else {
        return false;
    };
    set_config::is_plain(select)
        && !select.target_list.is_empty()
        && select.target_list.iter().all(is_local_call)
}

fn is_local_call(target: &Node) -> bool {
    match set_config::call(target).map(|call| call.args.as_slice()) {
        Some([name, value, local]) => {
            is_simple(name)
                && is_simple(value)
                && matches!(literal(local), Some(Literal::Boolean(true)))
                && !temporary::is_made_by_call(target)
        }
        _ => false,
    }
}

/// Whether nothing runs for a value: a constant, a parameter, or a function that is a keyword, such as `current_user`.
fn is_simple(value: &Node) -> bool {
    match &value.node {
        Some(NodeEnum::ParamRef(_) | NodeEnum::SqlvalueFunction(_)) => true,
        Some(NodeEnum::TypeCast(cast)) => cast.arg.as_deref().is_some_and(is_simple),
        _ => literal(value).is_some(),
    }
}

#[cfg(test)]
mod tests {
    use crate::{TextEncoding, classify};

    /// What is left, and a statement.
    const LEFT: &str = r#"
nothing   SELECT 1
nothing   INSERT INTO t VALUES (1)
nothing   SET LOCAL work_mem = '1MB'
nothing   SET TRANSACTION READ ONLY
nothing   SET TRANSACTION SNAPSHOT 'x'
nothing   SET fencing.token = 5
nothing   SET FENCING.scope = 'a'
nothing   RESET fencing.token
nothing   RESET ALL
nothing   DISCARD ALL
nothing   DISCARD TEMP
nothing   BEGIN READ WRITE
nothing   SET CONSTRAINTS ALL DEFERRED
nothing   SET transaction_isolation = 'serializable'
Setting   SET work_mem = '1MB'
Setting   RESET work_mem
Setting   SET search_path TO a, b
Setting   SET search_path TO pg_catalog, pg_temp
Temporary SET search_path TO pg_temp, a
Temporary SET LOCAL Search_Path = 'pg_temp'
Temporary SET SCHEMA 'pg_temp_3'
Temporary SET LOCAL search_path = "$user", pg_temp
Setting   SELECT set_config('search_path', ' PG_TEMP', true)
Setting   SELECT set_config('search_path'::text, '"$user", "pg_temp"', true)
Setting   SELECT set_config($1, 'pg_temp', true)
Setting   SELECT rank('a', 'b', true) WITHIN GROUP (ORDER BY set_config('work_mem', '1MB', false))
nothing   SET LOCAL search_path = app, pg_temp
nothing   SELECT set_config('search_path', 'app, pg_temp', true)
nothing   SELECT set_config('search_path', $1, true)
nothing   SELECT set_config('search_path', 'a', true)
nothing   SELECT set_config('a.b', $1::text, true)
nothing   SELECT set_config('a.b', '42'::text, true)
nothing   SELECT set_config('a.b', current_user, true)
Setting   SELECT set_config('a.b', 'x', true) ORDER BY set_config('work_mem', '1MB', false)
Unread    SELECT query_to_xml('SELECT f()', true, true, '')
Unread    SELECT ts_rewrite('a'::tsquery, 'SELECT f()')
Temporary CREATE FUNCTION d.pg_temp.f() RETURNS int LANGUAGE sql RETURN 1
Setting   SET TIME ZONE 'UTC'
Setting   SET NAMES 'UTF8'
Setting   SET ROLE r
Setting   SET SESSION AUTHORIZATION r
nothing   SET SESSION AUTHORIZATION DEFAULT
nothing   RESET SESSION AUTHORIZATION
nothing   RESET ROLE
Setting   SET ROLE NONE
Setting   RESET client_encoding
Setting   SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY
nothing   SELECT set_config('a.b', $1, true)
nothing   SELECT set_config('a.b', 'x', true), set_config('a.c', 'y', true)
Setting   SELECT set_config('a.b', set_config('a.c', 'x', false), true)
Setting   SELECT set_config('a.b', $1, false)
Setting   SELECT set_config('a.b', 'x', $1)
nothing   SELECT set_config($1, $2, true)
Setting   VALUES (set_config('role', 'r', false))
Setting   SELECT set_config('a.b', 'x', false) UNION SELECT 'y'
Setting   SELECT 'y' EXCEPT SELECT set_config('a.b', 'x', false)
Setting   SELECT set_config('a.b', 'x', true) FROM t
nothing   SELECT set_config('fencing.token', '5', false)
Statement PREPARE s AS SELECT 1
nothing   DECLARE c CURSOR FOR SELECT 1
Cursor    DECLARE c CURSOR WITH HOLD FOR SELECT 1
Channel   LISTEN c
nothing   NOTIFY c
nothing   UNLISTEN *
Process   LOAD 'x'
nothing   DO 'BEGIN PERFORM 1; END'
Process   DO 'BEGIN LOAD ''x''; END'
Process   DO LANGUAGE plpgsql $$BEGIN PERFORM public.DBLINK_CONNECT('c', ''); END$$
nothing   DO 'BEGIN INSERT INTO downloads (payload) SELECT 1; END'
# What outlives a reset counts, whatever else is there.
Process   CREATE TEMP TABLE t AS SELECT dblink_connect('c', '')
Process   DECLARE c CURSOR WITH HOLD FOR SELECT dblink_connect('c', '')
Process   SELECT pg_advisory_lock(1), public.dblink_connect('c', '')
Process   EXPLAIN ANALYZE SELECT pg_advisory_lock(1), pg_replication_origin_session_setup('o')
Process   PREPARE s AS SELECT dblink_connect('c', '')
nothing   CREATE TABLE t (a int)
Temporary CREATE TEMP TABLE t (a int)
Temporary CREATE TABLE pg_temp.t (a int)
Temporary CREATE TEMP TABLE t (a int) ON COMMIT DELETE ROWS
nothing   CREATE TEMP TABLE t (a int) ON COMMIT DROP
nothing   CREATE TEMP TABLE t ON COMMIT DROP AS SELECT 1
Temporary CREATE TEMP TABLE t AS SELECT 1
Temporary SELECT 1 INTO TEMP t
nothing   SELECT 1 INTO t
Temporary SELECT 1 AS x INTO TEMP t UNION ALL SELECT 2
Temporary CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql RETURN 1
nothing   CREATE FUNCTION f() RETURNS int LANGUAGE sql RETURN 1
Temporary CREATE DOMAIN pg_temp.d AS int
Temporary CREATE AGGREGATE pg_temp.s(int) (sfunc = int4pl, stype = int)
Temporary CREATE TYPE pg_temp.e AS ENUM ('a')
Temporary CREATE TYPE pg_temp.c AS (a int)
Setting   UPDATE pg_settings SET setting = '1' WHERE name = 'work_mem'
Process   SELECT pg_replication_origin_session_setup('o')
Process   SELECT pg_create_physical_replication_slot('s', true, true)
# Not read.
Unread    SET work_mem = 'é\'
Temporary CREATE TEMP VIEW v AS SELECT 1
Temporary CREATE TEMP SEQUENCE s
Lock      SELECT pg_advisory_lock(1)
Lock      SELECT (1::bigint).pg_advisory_lock
Setting   SELECT x.setseed FROM f() AS x
nothing   UPDATE quotas AS q SET a = q.set_limit
Process   SELECT 1 WHERE ('c'::text).dblink_connect IS NULL
nothing   SELECT pg_advisory_lock, j['setseed'] FROM setseed
Temporary CREATE FOREIGN TABLE pg_temp.f (a int) SERVER s
Temporary IMPORT FOREIGN SCHEMA a FROM SERVER s INTO pg_temp
Temporary CREATE STATISTICS pg_temp.s ON a, b FROM t
Temporary CREATE CONVERSION pg_temp.c FOR 'UTF8' TO 'LATIN1' FROM f
Lock      SELECT 1 WHERE pg_catalog.pg_try_advisory_lock_shared(1)
nothing   SELECT pg_advisory_xact_lock(1)
Process   SELECT dblink_connect('x')
Setting   SELECT setseed(0.5)
Setting   SELECT set_limit(0.5)
Process   SELECT isn_weak(true)
Lock      EXPLAIN ANALYZE SELECT pg_advisory_lock(1)
Temporary EXPLAIN ANALYZE CREATE TEMP TABLE t AS SELECT 1
Lock      INSERT INTO t SELECT pg_advisory_lock(1)"#;

    #[test]
    fn what_outlives_its_transaction() {
        for row in LEFT
            .lines()
            .filter(|row| !row.is_empty() && !row.starts_with('#'))
        {
            let (expect, text) = row.split_once(' ').unwrap();
            let analysis = classify(text.trim_start().as_bytes(), TextEncoding::Utf8);
            let [statement] = &*analysis.statements else {
                panic!("{text}");
            };
            let found = statement
                .leaves
                .map_or("nothing".to_owned(), |left| format!("{left:?}"));
            assert_eq!(found, expect, "{text}");
        }
    }
}
