//! `pgpalisade explain`: what a policy says about a statement, and why.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use pgpalisade_authority::Scope;
use pgpalisade_fence::rejection::Rejection;
use pgpalisade_fence::{Guard, TokenValue};
use pgpalisade_policies::{
    Class, Control, Effects, FencingVariable, MAX_PARSED, Mode, ObjectName, Policy, Requirement,
    ScopeId, SessionPolicy, Statement, Tables, TextEncoding, Who, classify,
};

use super::explained::{Explained, ExplainedSession, ExplainedStatement};
use super::text::Output;
use super::{Failure, failed};
use crate::policy_file;

/// One byte more than is parsed: the rest of a longer text changes nothing.
const SQL_BYTES_MAX: u64 = MAX_PARSED as u64 + 1;

/// Show what a policy does with a statement, and why
///
/// Asks no server. For each statement of the text: what it does, the rule that decides, what the session must hold,
/// and what happens. Exits with 1 if the text cannot be read, with 2 if the command line or the policy file is wrong,
/// else with 0.
#[derive(Debug, clap::Args)]
pub(super) struct ExplainArgs {
    /// The policy file; without it, the default policy
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The user that the session logs in as
    #[arg(long, value_name = "NAME")]
    user: String,
    /// The database [default: the user's name, as for every client]
    #[arg(long, value_name = "NAME")]
    database: Option<String>,
    /// The application_name of its connection string
    #[arg(long, value_name = "NAME")]
    application_name: Option<String>,
    /// The common name in the client certificate [default: none]
    #[arg(long, value_name = "NAME")]
    cn: Option<String>,
    /// The address that it comes from [default: a unix socket]
    #[arg(long, value_name = "IP")]
    client: Option<IpAddr>,
    /// The tokens that it has declared: 34, or scheduler=34,billing=7
    #[arg(long, value_name = "TOKENS")]
    token: Option<String>,
    #[command(flatten)]
    output: Output,
    /// The text; - reads it from standard input
    #[arg(value_name = "SQL")]
    sql: String,
}

pub(super) fn run(args: &ExplainArgs) -> Result<(), Failure> {
    let policy = match &args.policy {
        Some(path) => {
            let read = policy_file::read(path);
            read.map_err(|errors| Failure::Usage(errors.to_string()))?
                .policy
        }
        None => Policy::default(),
    };
    let session = Arc::new(policy).for_session(&Who {
        user: &args.user,
        database: args.database.as_deref().unwrap_or(&args.user),
        application_name: args.application_name.as_deref(),
        common_name: args.cn.as_deref(),
        client: args.client,
    });
    let mut holder = SimulatedSession::new(&session, args.token.as_deref())?;
    let sql = text(&args.sql).map_err(failed)?;
    let verdict = classify(&sql, TextEncoding::Utf8);
    let mut prepared = HashMap::new();
    let statements = verdict.statements.iter().map(|statement| {
        let explained = explain(&session, statement, &holder, &prepared);
        holder.guard = holder.guard.after(statement);
        follow(statement, &mut holder, &mut prepared);
        explained
    });
    let explained = Explained {
        statements: statements.collect(),
        session: ExplainedSession::of(&session),
    };
    args.output.print(&explained, Explained::describe)
}

fn text(sql: &str) -> io::Result<Vec<u8>> {
    if sql != "-" {
        return Ok(sql.as_bytes().to_vec());
    }
    let mut text = Vec::new();
    io::stdin().take(SQL_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}

/// Tokens that the session holds before a statement, and whether the read-only guard is certain.
struct SimulatedSession {
    guard: Guard,
    session_scope: Scope,
    startup: Vec<Scope>,
    now: Vec<Scope>,
}

impl SimulatedSession {
    fn new(session: &SessionPolicy, token: Option<&str>) -> Result<Self, Failure> {
        let name = scope_name(session, session.scope());
        let usage = |error: &dyn std::fmt::Display| Failure::Usage(format!("--token: {error}"));
        let session_scope = Scope::new(name).map_err(|error| usage(&error))?;
        let value = TokenValue::parse(token.unwrap_or_default(), &session_scope);
        let startup = scopes(value.map_err(|error| usage(&error))?);
        Ok(Self {
            guard: Guard::SURE,
            session_scope,
            now: startup.clone(),
            startup,
        })
    }

    fn holds(&self, scope: &str) -> bool {
        self.now.iter().any(|held| held.as_str() == scope)
    }
}

fn scopes(value: Option<TokenValue>) -> Vec<Scope> {
    let claims = value.map_or_else(Vec::new, |value| value.claims().to_vec());
    claims.into_iter().map(|(scope, _)| scope).collect()
}

/// Applies a statement: declared tokens and prepared statements. ROLLBACK is not simulated.
fn follow(
    statement: &Statement,
    holder: &mut SimulatedSession,
    prepared: &mut HashMap<Box<str>, Arc<Effects>>,
) {
    for control in &statement.controls {
        match control {
            Control::SetFencing {
                variable: FencingVariable::Token,
                value,
                ..
            } => {
                if let Ok(value) = TokenValue::parse(value, &holder.session_scope) {
                    holder.now = scopes(value);
                }
            }
            Control::ResetFencing {
                variable: FencingVariable::Token,
                ..
            }
            | Control::ResetAll
            | Control::DiscardAll => holder.now.clone_from(&holder.startup),
            Control::Prepare { name, effects } => {
                prepared.insert(name.clone(), Arc::clone(effects));
            }
            _ => {}
        }
    }
}

fn explain(
    session: &SessionPolicy,
    statement: &Statement,
    holder: &SimulatedSession,
    prepared: &HashMap<Box<str>, Arc<Effects>>,
) -> ExplainedStatement {
    let executed = statement.controls.iter().find_map(|control| match control {
        Control::Execute { name } => Some(match prepared.get(name) {
            Some(effects) => Effects::clone(effects),
            // As the proxy does.
            None => Effects::unknown(None),
        }),
        _ => None,
    });
    let effects = executed.as_ref().unwrap_or(&statement.effects);
    let decision = session.decision(effects);
    let (outcome, mode) = refused_for_controls(session, statement, holder)
        .or_else(|| read_only(session, statement, &decision.requirement, holder))
        .unwrap_or_else(|| outcome(session, &decision.requirement, holder));
    ExplainedStatement {
        kind: statement.kind,
        class: effects.class.into(),
        why: match (&executed, &statement.why) {
            (Some(_), None) => Some("it executes a prepared statement".to_owned()),
            (_, why) => why.as_ref().map(ToString::to_string),
        },
        category: effects.category.map(Into::into),
        writes: tables(&effects.writes, effects.class),
        reads: tables(&effects.reads, Class::Write),
        functions: effects.functions.iter().map(ToString::to_string).collect(),
        settings: effects.settings.iter().map(|s| s.to_string()).collect(),
        because: decision.because,
        needs: needs(session, &decision.requirement),
        mode: mode.into(),
        outcome,
    }
}

/// `None` if the text does not tell. A read has no tables to report.
fn tables(tables: &Tables, class: Class) -> Option<Vec<String>> {
    match (tables, class) {
        (_, Class::Read) => Some(Vec::new()),
        (Tables::Named(names), Class::Write) => {
            Some(names.iter().map(ObjectName::to_string).collect())
        }
        (Tables::Unknown, Class::Write) => None,
    }
}

fn scope_name(session: &SessionPolicy, scope: ScopeId) -> &str {
    let scopes = session.policy().scopes();
    scopes.get(scope.index()).map_or("", |name| &**name)
}

fn needs(session: &SessionPolicy, requirement: &Requirement) -> String {
    match requirement {
        Requirement::Free => "nothing".to_owned(),
        Requirement::Current(scopes) => {
            let scopes = scopes.as_slice().iter();
            let names: Vec<&str> = scopes.map(|scope| scope_name(session, *scope)).collect();
            format!("the current token of {}", names.join(" and of "))
        }
        Requirement::Refuse(_) => "no token helps".to_owned(),
    }
}

fn refused(mode: Mode, why: &str) -> (String, Mode) {
    match mode {
        Mode::Enforce => (format!("refused: {why}"), mode),
        Mode::Observe => (format!("passes, recorded as: {why}"), mode),
    }
}

/// Refusal for what the statement does to the session: a control that only looks like a declaration, or a forbidden
/// one.
fn refused_for_controls(
    session: &SessionPolicy,
    statement: &Statement,
    holder: &SimulatedSession,
) -> Option<(String, Mode)> {
    statement.controls.iter().find_map(|control| match control {
        Control::Mistake(mistake) => {
            let why = Rejection::mistake(mistake).message;
            Some(refused(session.mode(None), &format!("PF003, {why}")))
        }
        Control::SetFencing {
            variable: FencingVariable::Token,
            value,
            lifetime,
        } => match TokenValue::parse(value, &holder.session_scope) {
            Err(error) => Some(refused(session.mode(None), &format!("PF003, {error}"))),
            Ok(value) => scopes(value).iter().find_map(|scope| {
                let why = session.may_declare(scope.as_str(), *lifetime).err()?.why;
                Some(refused(
                    session.mode(Some(scope.as_str())),
                    &format!("PF005, {why}"),
                ))
            }),
        },
        _ => None,
    })
}

/// Outcome of a statement that the policy admits, in a session under the read-only guard.
fn read_only(
    session: &SessionPolicy,
    statement: &Statement,
    requirement: &Requirement,
    holder: &SimulatedSession,
) -> Option<(String, Mode)> {
    let scopes = session.read_only_until()?;
    let mut open = scopes.iter().map(|scope| scope_name(session, *scope));
    let is_free = matches!(requirement, Requirement::Free);
    if !is_free || !statement.may_hide_a_write() || open.any(|scope| holder.holds(scope)) {
        return None;
    }
    Some(if holder.guard.in_doubt().is_some() {
        let why =
            "PF002, a transaction ends earlier in the same query, so read-only mode is in doubt";
        refused(Mode::Enforce, why)
    } else {
        (
            "passes; PostgreSQL refuses a write that it hides (25006)".to_owned(),
            session.mode(None),
        )
    })
}

/// The outcome, and the mode that decides it.
fn outcome(
    session: &SessionPolicy,
    requirement: &Requirement,
    holder: &SimulatedSession,
) -> (String, Mode) {
    let general = session.mode(None);
    match requirement {
        Requirement::Free => ("passes".to_owned(), general),
        Requirement::Refuse(_) => refused(general, "PF005, refused by the policy"),
        Requirement::Current(scopes) => {
            let names = || scopes.as_slice().iter().map(|s| scope_name(session, *s));
            let mode = |name: &str| session.mode(Some(name));
            let missing: Vec<&str> = names().filter(|name| !holder.holds(name)).collect();
            // An enforced scope decides.
            let mut wanting = missing.iter().copied();
            let first = wanting
                .find(|name| mode(name) == Mode::Enforce)
                .or(missing.first().copied());
            if let Some(name) = first {
                return refused(mode(name), &format!("PF002, no token for scope {name:?}"));
            }
            let enforced = names().any(|name| mode(name) == Mode::Enforce);
            if enforced {
                let words = "passes if its tokens are current, else PF001";
                (words.to_owned(), Mode::Enforce)
            } else {
                ("passes".to_owned(), Mode::Observe)
            }
        }
    }
}
