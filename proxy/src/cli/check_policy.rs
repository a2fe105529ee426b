//! `pgpalisade check --policy FILE`: whether a policy file is valid, and nothing else.

use std::io::{self, Write};
use std::path::Path;

use pgpalisade_policies::{Policy, Remark};
use serde::Serialize;

use super::text::{plain, print_json};
use super::{Failure, failed, tell};
use crate::policy_file::{self, Placed, PolicyFileErrors};

/// How the result is told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    Json,
}

/// Whether warnings fail the check.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Warnings {
    Pass,
    Fail,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    /// The exit code is 0.
    passed: bool,
    file: String,
    errors: Vec<Told>,
    warnings: Vec<Told>,
    /// The first is that of sessions that name none.
    scopes: Vec<String>,
    rules: Vec<Rule>,
    /// They count only in a proxy whose marks are in etcd.
    elections: Vec<Election>,
}

#[derive(Serialize)]
struct Told {
    line: u32,
    column: u32,
    message: String,
}

#[derive(Serialize)]
struct Election {
    scope: String,
    election: String,
    line: u32,
}

#[derive(Serialize)]
struct Rule {
    number: usize,
    name: Option<String>,
    line: u32,
}

/// Reads the file, and tells.
pub(super) fn run(path: &Path, form: Form, warnings: Warnings) -> Result<(), Failure> {
    let read = policy_file::read(path);
    let passed = match &read {
        Ok(policy) => policy.warnings().is_empty() || warnings == Warnings::Pass,
        Err(_) => false,
    };
    let told = match (form, &read) {
        (Form::Json, read) => print_json(&report(path, passed, read)),
        (Form::Text, Ok(policy)) => summarize(path, policy),
        (Form::Text, Err(errors)) => {
            tell(&errors.to_string());
            Ok(())
        }
    };
    told.map_err(failed)?;
    match passed {
        true => Ok(()),
        false => Err(Failure::Told),
    }
}

fn report(path: &Path, passed: bool, read: &Result<Policy, PolicyFileErrors>) -> Report {
    let told = |remarks: &[Remark]| {
        let told = remarks.iter().map(|remark| Told {
            line: remark.line,
            column: remark.column,
            message: remark.message.clone(),
        });
        told.collect::<Vec<_>>()
    };
    let policy = read.as_ref().ok();
    let rules = policy.into_iter().flat_map(Policy::rules);
    let elected = policy.into_iter().flat_map(Policy::elected);
    Report {
        passed,
        file: path.display().to_string(),
        errors: read
            .as_ref()
            .err()
            .map_or_else(Vec::new, |errors| told(&errors.remarks)),
        warnings: policy.map_or_else(Vec::new, |policy| told(policy.warnings())),
        scopes: policy.map_or_else(Vec::new, |policy| {
            policy
                .scopes()
                .iter()
                .map(|name| name.to_string())
                .collect()
        }),
        rules: rules
            .map(|rule| Rule {
                number: rule.number,
                name: rule.name.as_deref().map(str::to_owned),
                line: rule.line,
            })
            .collect(),
        elections: elected
            .map(|elected| Election {
                scope: elected.scope.to_string(),
                election: elected.election.to_string(),
                line: elected.line,
            })
            .collect(),
    }
}

fn summarize(path: &Path, policy: &Policy) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let scopes: Vec<&str> = policy.scopes().iter().map(|name| &**name).collect();
    writeln!(stdout, "scopes    {}", scopes.join(", "))?;
    for rule in policy.rules() {
        let name = rule.name.as_deref().unwrap_or("without a name");
        writeln!(
            stdout,
            "rule {:<4} {} (line {})",
            rule.number,
            plain(name),
            rule.line
        )?;
    }
    for elected in policy.elected() {
        writeln!(
            stdout,
            "election  {} for scope {}, of the etcd that keeps the marks",
            plain(&elected.election),
            plain(&elected.scope)
        )?;
    }
    for warning in policy.warnings() {
        writeln!(
            stdout,
            "warning   {}",
            plain(&Placed(path, warning).to_string())
        )?;
    }
    let warnings = match policy.warnings().len() {
        0 => "no warnings".to_owned(),
        1 => "1 warning".to_owned(),
        n => format!("{n} warnings"),
    };
    writeln!(
        stdout,
        "\n{} is valid, {warnings}",
        plain(&path.display().to_string())
    )
}
