//! `pgpalisade explain`: what a policy says about a statement, and why.

use std::io::{self, Read};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use pgpalisade_authority::Token;
use pgpalisade_fence::rejection::{Rejection, RejectionKind};
use pgpalisade_fence::{
    Admitted, Fence, GrantMode, Guard, HeldToken, HeldTokens, Leave, Name, Pipeline, Plan,
    PreparedNames, PreparedText, ServerText, SessionFence, SessionState, Situation, TokenValue,
    Unmet,
};
use pgpalisade_policies::{
    Analysis, Class, Control, Effects, MAX_PARSED, Mode, ObjectName, Policy, Requirement,
    Statement, Tables, TextEncoding, Who, classify,
};
use pgpalisade_wire::header::Header;

use super::explained::{Explained, ExplainedSession, ExplainedStatement, scope_name};
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
    let fence = Fence::new(policy, Arc::default(), Mode::Enforce);
    let fence = Arc::new(fence.map_err(|error| Failure::Usage(error.to_string()))?);
    let session = fence.for_session(&Who {
        user: &args.user,
        database: args.database.as_deref().unwrap_or(&args.user),
        application_name: args.application_name.as_deref(),
        common_name: args.cn.as_deref(),
        client: args.client,
    });
    let sql = text(&args.sql).map_err(failed)?;
    let verdict = classify(&sql, TextEncoding::Utf8);
    let mut run = DryRun::new(&session, args.token.as_deref(), verdict.statements.len())?;
    let statements = verdict.statements.iter();
    let explained = Explained {
        statements: statements.map(|one| run.explain(one)).collect(),
        session: ExplainedSession::of(session.rules()),
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

/// Decides as the proxy does for a session that has just logged in, with an authority that accepts every token.
struct DryRun<'a> {
    session: &'a SessionFence,
    state: SessionState,
    accepted: Vec<Arc<HeldTokens>>,
    /// Number of statements of the text.
    statements: usize,
    /// Statements of the text that passed.
    passed: Vec<Statement>,
}

struct Outcome {
    words: String,
    /// The mode that decides it.
    mode: Mode,
    rejection: Option<Box<Rejection>>,
}

impl Outcome {
    fn passes(words: &str, mode: Mode) -> Self {
        Self {
            words: words.to_owned(),
            mode,
            rejection: None,
        }
    }

    fn of(rejection: Box<Rejection>, mode: Mode) -> Self {
        let what = match mode {
            Mode::Enforce => "refused",
            Mode::Observe => "passes, recorded as",
        };
        let sqlstate = rejection.kind.sqlstate();
        Self {
            words: format!("{what}: {sqlstate}, {}", rejection.message),
            mode,
            rejection: Some(rejection),
        }
    }
}

/// The text has the names of its own PREPAREs only.
struct NoNames;

impl PreparedNames for NoNames {
    fn find(&self, _: Name<'_>) -> Option<&PreparedText> {
        None
    }
}

impl<'a> DryRun<'a> {
    fn new(
        session: &'a SessionFence,
        token: Option<&str>,
        statements: usize,
    ) -> Result<Self, Failure> {
        let value = TokenValue::parse(token.unwrap_or_default(), session.default_scope());
        let value = value.map_err(|error| Failure::Usage(format!("--token: {error}")))?;
        let mut run = Self {
            session,
            state: SessionState::new(None),
            accepted: Vec::new(),
            statements,
            passed: Vec::new(),
        };
        if let Some(value) = value {
            run.accept(&value);
        }
        let startup = run.accepted.first().cloned();
        run.state.start_with(startup, ServerText::Tokens);
        Ok(run)
    }

    fn accept(&mut self, value: &TokenValue) {
        let held = value.claims().iter().map(|(scope, claim)| HeldToken {
            mark: self.session.fence().mark(scope),
            token: claim.token().unwrap_or(Token::MIN),
            timeline: 0,
            grant: GrantMode::Enforced,
        });
        self.accepted
            .push(Arc::new(HeldTokens::new(held.collect())));
    }

    fn explain(&mut self, statement: &Statement) -> ExplainedStatement {
        let executed = self.executed(statement);
        let effects = executed.as_ref().unwrap_or(&statement.effects);
        let decision = self.session.rules().decision(effects);
        let outcome = self.decide(statement, &decision.requirement);
        let told = outcome.rejection.as_deref();
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
            needs: self.needs(&decision.requirement),
            mode: outcome.mode.into(),
            outcome: outcome.words,
            detail: told.map(|told| told.detail.clone()),
            hint: told.map(|told| told.hint.clone()),
        }
    }

    /// Effects of what an EXECUTE runs.
    fn executed(&self, statement: &Statement) -> Option<Effects> {
        let executed = statement
            .controls
            .iter()
            .find_map(|control| match control {
                Control::Execute { name } => Some(name),
                _ => None,
            })?;
        let mut before = self.passed.iter().rev().flat_map(|one| &one.controls);
        let prepared = before.find_map(|control| match control {
            Control::Prepare { name, effects } if name == executed => Some(effects),
            _ => None,
        });
        let effects = prepared.map(|effects| Effects::clone(effects));
        // As the proxy does.
        Some(effects.unwrap_or_else(Effects::without_text))
    }

    /// What happens to a statement after those of its text that passed.
    fn decide(&mut self, statement: &Statement, requirement: &Requirement) -> Outcome {
        self.passed.push(statement.clone());
        let text = Analysis::new(std::mem::take(&mut self.passed).into());
        let outcome = loop {
            match self.plan(&text) {
                Err(Unmet::Declare(value)) if !value.takes() => self.accept(&value),
                Err(Unmet::Declare(_)) => break Outcome::passes("passes", self.session.mode(None)),
                // The proxy sends a BEGIN without READ WRITE in its place.
                Err(Unmet::Refuse(rejection)) if self.begins_read_only(statement, &rejection) => {
                    break Outcome::passes("passes; begins read-only", self.session.mode(None));
                }
                Err(Unmet::Refuse(rejection)) => break Outcome::of(rejection, Mode::Enforce),
                Ok((admitted, plan)) => {
                    break match admitted.observed {
                        Some(rejection) => Outcome::of(rejection, Mode::Observe),
                        None => self.passes(statement, requirement, &plan),
                    };
                }
            }
        };
        self.passed = text.statements.into();
        if outcome.rejection.is_some() && outcome.mode == Mode::Enforce {
            self.passed.pop();
        }
        outcome
    }

    fn begins_read_only(&self, statement: &Statement, rejection: &Rejection) -> bool {
        use RejectionKind::{NoToken, Policy};
        let is_begin = matches!(&*statement.controls, [Control::Begin { .. }]);
        is_begin && self.statements == 1 && matches!(rejection.kind, NoToken | Policy)
    }

    fn plan(&self, text: &Analysis) -> Result<(Admitted, Plan), Unmet> {
        let situation = Situation {
            fence: self.session,
            state: &self.state,
            accepted: &self.accepted,
            wrote: false,
            pipeline: Pipeline::Closed,
            guard: Guard::SURE,
            names: Some(&NoNames),
        };
        let message = Header {
            tag: b'Q',
            body_len: 0,
        };
        situation.plan(message, text)
    }

    fn passes(&self, statement: &Statement, requirement: &Requirement, plan: &Plan) -> Outcome {
        let mode = self.session.mode(None);
        match requirement {
            Requirement::Current(scopes) => {
                let rules = self.session.rules();
                let mut names = scopes.as_slice().iter().map(|id| scope_name(rules, *id));
                if names.any(|name| rules.mode(Some(name)) == Mode::Enforce) {
                    let words = "passes if its tokens are current, else PF001";
                    Outcome::passes(words, Mode::Enforce)
                } else {
                    Outcome::passes("passes", Mode::Observe)
                }
            }
            _ if plan.leave == Leave::Read && statement.may_hide_a_write() => {
                let words = "passes; PostgreSQL refuses a write that it hides (25006)";
                Outcome::passes(words, mode)
            }
            _ => Outcome::passes("passes", mode),
        }
    }

    fn needs(&self, requirement: &Requirement) -> String {
        match requirement {
            Requirement::Free => "nothing".to_owned(),
            Requirement::Current(scopes) => {
                let scopes = scopes.as_slice().iter();
                let names = scopes.map(|scope| scope_name(self.session.rules(), *scope));
                let names: Vec<&str> = names.collect();
                format!("the current token of {}", names.join(" and of "))
            }
            Requirement::Refuse(_) => "no token helps".to_owned(),
        }
    }
}

/// `None` if the text does not tell. A read has no tables to report.
fn tables(tables: &Tables, class: Class) -> Option<Vec<String>> {
    match class {
        Class::Read => Some(Vec::new()),
        Class::Write => tables.are_named().then(|| {
            let names = tables.names().iter();
            names.map(ObjectName::to_string).collect()
        }),
    }
}
