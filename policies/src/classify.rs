//! From a SQL text to a verdict.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pg_query::protobuf::{
    CopyStmt, DeallocateStmt, DiscardMode, ExplainStmt, Node, PrepareStmt, TransactionStmt,
    TransactionStmtKind,
};
use pg_query::{LockMode, NodeEnum, ParserOptions};
use serde::Serialize;

use crate::effects::{Effects, Tables};
use crate::kinds;
use crate::set_config;
use crate::settings::{self, Literal, literal, parse_bool};
use crate::verdict::{
    Chain, Class, CommitsInside, Control, Opaque, Statement, Verdict, WriteReason,
};
use crate::walk::{UnknownShape, examine};

/// Texts longer than this many bytes are not parsed: they are writes.
pub const MAX_PARSED: usize = 64 * 1024;

/// Bytes of stack that [`classify`] needs for the worst text. A caller with less left gets a stack made for it,
/// which costs some ten microseconds: give worker threads twice this much.
pub const PARSER_STACK: usize = 4 * 1024 * 1024;

/// Operator characters in a row, at most.
const MAX_OPERATOR_RUN: usize = 256;

/// Whether, in the client's encoding, a byte below 0x80 is always a character of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TextEncoding {
    /// UTF-8, the single-byte encodings, EUC: it is.
    AsciiSafe,
    /// SJIS, BIG5, GBK, UHC, GB18030, JOHAB, SHIFT_JIS_2004, or not known: it may be the end of another character.
    Unsafe,
}

/// What the text does. Never fails: what is not understood is one write of kind "unparsed".
///
/// Takes about 20 microseconds for a short statement and some milliseconds for the longest that are parsed. Holds
/// for either value of `standard_conforming_strings`.
#[must_use]
pub fn classify(text: &[u8], encoding: TextEncoding) -> Verdict {
    understand(text, encoding).unwrap_or_else(Verdict::opaque)
}

fn understand(text: &[u8], encoding: TextEncoding) -> Result<Verdict, Opaque> {
    if text.len() > MAX_PARSED {
        return Err(Opaque::TooLong);
    }
    if text.contains(&0) {
        return Err(Opaque::Nul);
    }
    // PostgreSQL converts a text before it lexes it. ASCII alone comes out of that as it went in.
    if encoding == TextEncoding::Unsafe && !text.is_ascii() {
        return Err(Opaque::Encoding);
    }
    let text = str::from_utf8(text).map_err(|_| Opaque::NotUtf8)?;
    if has_long_operator_run(text.as_bytes()) {
        return Err(Opaque::Parser);
    }
    let verdict = parse(text, ParserOptions::DEFAULT);
    if !text.contains('\\') {
        return verdict;
    }
    let other = parse(text, ParserOptions::DISABLE_STANDARD_CONFORMING_STRINGS);
    if verdict == other {
        verdict
    } else {
        Err(Opaque::Backslash)
    }
}

/// PostgreSQL's lexer takes a run of operator characters as a whole, finds `/*` in it, and goes back to look at the
/// rest again: 60 kB of `/*/*/*` take it seconds. No operator is longer than 63 bytes, so a long run is a comment, or
/// in one, or an attack.
fn has_long_operator_run(text: &[u8]) -> bool {
    let mut run = 0_usize;
    text.iter().any(|byte| {
        let operator = matches!(
            byte,
            b'~' | b'!'
                | b'@'
                | b'#'
                | b'^'
                | b'&'
                | b'|'
                | b'`'
                | b'?'
                | b'+'
                | b'-'
                | b'*'
                | b'/'
                | b'%'
                | b'<'
                | b'>'
                | b'='
        );
        run = if operator { run + 1 } else { 0 };
        run > MAX_OPERATOR_RUN
    })
}

fn parse(text: &str, options: ParserOptions) -> Result<Verdict, Opaque> {
    // The decoder of the tree recurses up to 100 levels of some 25 KiB each and does not look at the stack. A stack
    // that cannot be had, and a tree that pg_query does not expect, are panics.
    let parsed = catch_unwind(AssertUnwindSafe(|| {
        stacker::maybe_grow(PARSER_STACK, 2 * PARSER_STACK, || parse_here(text, options))
    }));
    parsed.unwrap_or(Err(Opaque::Parser))
}

fn parse_here(text: &str, options: ParserOptions) -> Result<Verdict, Opaque> {
    let tree = pg_query::parse(text, options).map_err(|error| match error {
        pg_query::Error::Parse(_) => Opaque::Syntax,
        _ => Opaque::Parser,
    })?;
    let statements = tree
        .protobuf
        .stmts
        .iter()
        .map(|raw| statement(raw.stmt.as_deref()).map_err(|UnknownShape| Opaque::Parser))
        .collect::<Result<_, _>>()?;
    Ok(Verdict { statements })
}

/// What a statement was found to do.
#[derive(Default)]
struct Findings {
    why: Option<WriteReason>,
    controls: Vec<Control>,
    /// A better word than the name of the node.
    kind: Option<&'static str>,
}

impl Findings {
    fn read() -> Self {
        Self::default()
    }

    fn write(why: WriteReason) -> Self {
        Self {
            why: Some(why),
            ..Self::default()
        }
    }

    fn control(control: Control) -> Self {
        Self {
            controls: vec![control],
            ..Self::default()
        }
    }

    fn because(self, why: Option<WriteReason>) -> Self {
        Self { why, ..self }
    }

    fn named(self, kind: &'static str) -> Self {
        Self {
            kind: Some(kind),
            ..self
        }
    }

    fn class(&self) -> Class {
        if self.why.is_some() {
            Class::Write
        } else {
            Class::Read
        }
    }
}

fn effects(class: Class) -> Effects {
    match class {
        Class::Read => Effects {
            reads: Tables::Unknown,
            ..Effects::none()
        },
        Class::Write => Effects::unknown(None),
    }
}

fn statement(node: Option<&Node>) -> Result<Statement, UnknownShape> {
    let node = node
        .and_then(|node| node.node.as_ref())
        .ok_or(UnknownShape)?;
    let found = look(node)?;
    let class = found.class();
    let commits_inside = match class {
        Class::Read => CommitsInside::No,
        Class::Write => kinds::commits_inside(node),
    };
    Ok(Statement {
        effects: effects(class),
        kind: found.kind.unwrap_or_else(|| kinds::name(node)),
        controls: found.controls.into(),
        commits_inside,
        why: found.why,
    })
}

/// The allow-list of reads, by kind of statement.
fn look(node: &NodeEnum) -> Result<Findings, UnknownShape> {
    use NodeEnum as N;
    Ok(match node {
        N::SelectStmt(select) => Findings {
            why: writes_inside(&**select)?,
            controls: set_config::of_select(select),
            kind: None,
        },
        N::TransactionStmt(transaction) => look_transaction(transaction),
        N::VariableSetStmt(set) => {
            let effect = settings::variable_set(set);
            let controls = effect.control.into_iter().collect();
            Findings {
                why: effect.why,
                controls,
                kind: None,
            }
        }
        N::VariableShowStmt(show) => {
            let control = settings::fencing_show(&show.name).map(Control::ShowFencing);
            Findings {
                controls: control.into_iter().collect(),
                ..Findings::read()
            }
        }
        N::ExplainStmt(explain) => look_explain(explain)?,
        N::CopyStmt(copy) => look_copy(copy)?,
        N::DeclareCursorStmt(declare) => look_query(declare.query.as_deref())?,
        N::PrepareStmt(prepare) => look_prepare(prepare)?,
        N::ExecuteStmt(execute) => Findings::control(Control::Execute {
            name: execute.name.as_str().into(),
        })
        .because(writes_inside(&execute.params)?),
        N::DeallocateStmt(deallocate) => Findings::control(look_deallocate(deallocate)),
        N::DiscardStmt(discard) if discard.target == DiscardMode::DiscardAll as i32 => {
            Findings::control(Control::DiscardAll)
        }
        // DISCARD TEMP drops tables of this session alone; PostgreSQL too allows it to a read-only transaction.
        N::DiscardStmt(_)
        | N::FetchStmt(_)
        | N::ClosePortalStmt(_)
        | N::ListenStmt(_)
        | N::UnlistenStmt(_)
        | N::ConstraintsSetStmt(_) => Findings::read(),
        N::LockStmt(lock) if lock.mode == LockMode::AccessShareLock as i32 => Findings::read(),
        N::LockStmt(_) => Findings::write(WriteReason::LockMode),
        other => Findings::write(WriteReason::Kind(kinds::name(other))),
    })
}

/// The first thing in a subtree that makes it a write where it is executed.
fn writes_inside<T: Serialize + ?Sized>(node: &T) -> Result<Option<WriteReason>, UnknownShape> {
    Ok(examine(node)?.write)
}

/// A query inside another statement: only SELECT is a read. What it does to the session does not bind.
fn look_query(query: Option<&Node>) -> Result<Findings, UnknownShape> {
    let query = query
        .and_then(|query| query.node.as_ref())
        .ok_or(UnknownShape)?;
    Ok(match query {
        NodeEnum::SelectStmt(select) => Findings::read().because(writes_inside(&**select)?),
        other => Findings::write(WriteReason::Contains(kinds::name(other))),
    })
}

fn look_prepare(prepare: &PrepareStmt) -> Result<Findings, UnknownShape> {
    let class = look_query(prepare.query.as_deref())?.class();
    let effects = Arc::new(effects(class));
    Ok(Findings::control(Control::Prepare {
        name: prepare.name.as_str().into(),
        effects,
    }))
}

fn look_deallocate(deallocate: &DeallocateStmt) -> Control {
    if deallocate.isall {
        Control::DeallocateAll
    } else {
        Control::Deallocate {
            name: deallocate.name.as_str().into(),
        }
    }
}

fn look_copy(copy: &CopyStmt) -> Result<Findings, UnknownShape> {
    if copy.is_from {
        return Ok(Findings::write(WriteReason::Kind("COPY FROM")).named("COPY FROM"));
    }
    if copy.is_program || !copy.filename.is_empty() {
        return Ok(Findings::write(WriteReason::CopyToServer).named("COPY TO"));
    }
    let found = match copy.query.as_deref() {
        Some(query) => look_query(Some(query))?,
        None => Findings::read(),
    };
    Ok(found.named("COPY TO"))
}

/// What an EXPLAIN executes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Executes {
    Nothing,
    TheStatement,
    NotKnown,
}

fn look_explain(explain: &ExplainStmt) -> Result<Findings, UnknownShape> {
    let query = explain
        .query
        .as_deref()
        .and_then(|query| query.node.as_ref())
        .ok_or(UnknownShape)?;
    let executes = executes(&explain.options);
    let found = match query {
        NodeEnum::ExecuteStmt(_) => look(query)?,
        _ if executes == Executes::Nothing => Findings::read(),
        // What ANALYZE executes of set_config does not bind.
        _ => Findings {
            controls: Vec::new(),
            ..look(query)?
        },
    };
    Ok(match executes {
        Executes::Nothing | Executes::TheStatement => Findings {
            kind: Some("EXPLAIN"),
            ..found
        },
        Executes::NotKnown => Findings {
            why: Some(WriteReason::ExplainOption),
            ..found
        }
        .named("EXPLAIN"),
    })
}

/// ANALYZE counts unless it is switched off in so many words, also where another option switches it off later.
/// <https://www.postgresql.org/docs/current/sql-explain.html>
fn executes(options: &[Node]) -> Executes {
    const HARMLESS: [&str; 10] = [
        "verbose",
        "costs",
        "settings",
        "generic_plan",
        "buffers",
        "wal",
        "timing",
        "summary",
        "memory",
        "format",
    ];
    let mut executes = Executes::Nothing;
    for option in options {
        let Some(NodeEnum::DefElem(option)) = &option.node else {
            return Executes::NotKnown;
        };
        let switched_off = match option.arg.as_deref().map(literal) {
            Some(Some(Literal::Boolean(value))) => !value,
            Some(Some(Literal::Integer(0))) => true,
            Some(Some(Literal::Text(text))) => parse_bool(text) == Some(false),
            _ => false,
        };
        match option.defname.as_str() {
            "analyze" if switched_off => {}
            "analyze" => executes = Executes::TheStatement,
            // It needs ANALYZE, and sends the rows nowhere.
            "serialize" => {}
            known if HARMLESS.contains(&known) => {}
            _ => return Executes::NotKnown,
        }
    }
    executes
}

fn look_transaction(stmt: &TransactionStmt) -> Findings {
    use TransactionStmtKind as K;
    let chain = if stmt.chain { Chain::Yes } else { Chain::No };
    let savepoint = || stmt.savepoint_name.as_str().into();
    let kind = K::try_from(stmt.kind).unwrap_or(K::Undefined);
    match kind {
        K::TransStmtBegin | K::TransStmtStart => {
            let modes = settings::transaction_modes(&stmt.options);
            Findings::control(Control::Begin { access: modes.last })
                .because(modes.lifts.then_some(WriteReason::LiftsReadOnly))
                .named("BEGIN")
        }
        K::TransStmtCommit => Findings::control(Control::Commit { chain }).named("COMMIT"),
        K::TransStmtRollback => Findings::control(Control::Rollback { chain }).named("ROLLBACK"),
        K::TransStmtSavepoint => {
            Findings::control(Control::Savepoint(savepoint())).named("SAVEPOINT")
        }
        K::TransStmtRelease => Findings::control(Control::Release(savepoint())).named("RELEASE"),
        K::TransStmtRollbackTo => {
            Findings::control(Control::RollbackTo(savepoint())).named("ROLLBACK TO")
        }
        K::TransStmtPrepare => Findings::control(Control::PrepareTransaction)
            .because(Some(WriteReason::Kind("PREPARE TRANSACTION")))
            .named("PREPARE TRANSACTION"),
        K::TransStmtCommitPrepared => {
            Findings::write(WriteReason::Kind("COMMIT PREPARED")).named("COMMIT PREPARED")
        }
        K::TransStmtRollbackPrepared => {
            Findings::write(WriteReason::Kind("ROLLBACK PREPARED")).named("ROLLBACK PREPARED")
        }
        K::Undefined => Findings::write(WriteReason::Kind("TRANSACTION")),
    }
}

#[cfg(test)]
mod tests;
