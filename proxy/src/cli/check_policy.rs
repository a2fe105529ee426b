//! `pgpalisade check --policy FILE`: whether a policy file is valid, and nothing else.

use std::path::Path;

use pgpalisade_policies::{Policy, Remark};
use serde::Serialize;

use super::text::{Output, counted, plain};
use super::{Failure, tell};
use crate::policy_file::{self, Placed};

#[derive(Serialize)]
struct PolicyJson<'a> {
    passed: bool,
    file: String,
    errors: &'a [Remark],
    warnings: &'a [Remark],
}

/// With `strict`, a warning is a failure.
pub(super) fn run(path: &Path, output: &Output, strict: bool) -> Result<(), Failure> {
    let read = policy_file::read(path).map(|loaded| loaded.policy);
    let passed = match &read {
        Ok(policy) => !strict || policy.warnings().is_empty(),
        Err(_) => false,
    };
    match &read {
        Err(errors) if !output.json => tell(&errors.to_string()),
        read => {
            let report = PolicyJson {
                passed,
                file: path.display().to_string(),
                errors: read
                    .as_ref()
                    .map_or_else(|errors| &*errors.remarks, |_| &[]),
                warnings: read.as_ref().map_or(&[], Policy::warnings),
            };
            output.print(&report, summarize)?;
        }
    }
    if passed { Ok(()) } else { Err(Failure::Told) }
}

fn summarize(policy: &PolicyJson<'_>) -> String {
    let mut text = String::new();
    for warning in policy.warnings {
        let warning = Placed(Path::new(&policy.file), warning).to_string();
        text.push_str(&format!("warning   {}\n", plain(&warning)));
    }
    let warnings = match policy.warnings.len() {
        0 => "no warnings".to_owned(),
        n => counted(n, "warning"),
    };
    text + &format!("{} is valid, {warnings}\n", plain(&policy.file))
}
