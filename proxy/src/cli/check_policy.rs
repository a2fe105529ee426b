//! `pgpalisade check --policy FILE`: whether a policy file is valid, and nothing else.

use std::fmt::Write as _;
use std::path::Path;

use pgpalisade_policies::{Policy, Remark, SessionRule};
use serde::Serialize;

use super::text::{Output, counted, plain};
use super::{Failure, tell};
use crate::policy_file::{self, Placed, PolicyFileErrors};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Warnings {
    Pass,
    Fail,
}

#[derive(Serialize)]
struct PolicyJson<'a> {
    passed: bool,
    file: String,
    errors: &'a [Remark],
    warnings: &'a [Remark],
    /// The first is the scope of sessions without one.
    scopes: &'a [Box<str>],
    rules: Vec<&'a SessionRule>,
    /// In force only with marks in etcd.
    elections: Vec<Election<'a>>,
}

#[derive(Serialize)]
struct Election<'a> {
    scope: &'a str,
    election: &'a str,
    line: u32,
}

pub(super) fn run(path: &Path, output: &Output, warnings: Warnings) -> Result<(), Failure> {
    let read = policy_file::read(path);
    let passed = match &read {
        Ok(policy) => policy.warnings().is_empty() || warnings == Warnings::Pass,
        Err(_) => false,
    };
    match &read {
        Err(errors) if !output.json => tell(&errors.to_string()),
        read => output.print(&report(path, passed, read), summarize)?,
    }
    if passed { Ok(()) } else { Err(Failure::Told) }
}

fn report<'a>(
    path: &Path,
    passed: bool,
    read: &'a Result<Policy, PolicyFileErrors>,
) -> PolicyJson<'a> {
    let (policy, errors) = (read.as_ref().ok(), read.as_ref().err());
    let elected = policy.into_iter().flat_map(Policy::elected);
    PolicyJson {
        passed,
        file: path.display().to_string(),
        errors: errors.map_or(&[], |errors| &errors.remarks),
        warnings: policy.map_or(&[], Policy::warnings),
        scopes: policy.map_or(&[], Policy::scopes),
        rules: policy.into_iter().flat_map(Policy::rules).collect(),
        elections: elected
            .map(|elected| Election {
                scope: &elected.scope,
                election: &elected.election,
                line: elected.line,
            })
            .collect(),
    }
}

fn summarize(policy: &PolicyJson<'_>) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let scopes: Vec<&str> = policy.scopes.iter().map(|name| &**name).collect();
    let _ = writeln!(text, "scopes    {}", scopes.join(", "));
    for rule in &policy.rules {
        let name = rule.name.as_deref().unwrap_or("without a name");
        let _ = writeln!(
            text,
            "rule {:<4} {} (line {})",
            rule.number,
            plain(name),
            rule.line
        );
    }
    for elected in &policy.elections {
        let _ = writeln!(
            text,
            "election  {} for scope {}, of the etcd that keeps the marks",
            plain(elected.election),
            plain(elected.scope)
        );
    }
    for warning in policy.warnings {
        let _ = writeln!(
            text,
            "warning   {}",
            plain(&Placed(Path::new(&policy.file), warning).to_string())
        );
    }
    let warnings = match policy.warnings.len() {
        0 => "no warnings".to_owned(),
        n => counted(n, "warning"),
    };
    let _ = writeln!(text, "\n{} is valid, {warnings}", plain(&policy.file));
    text
}
