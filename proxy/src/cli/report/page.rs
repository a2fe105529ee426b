//! A report for people.

use std::fmt::Write as _;

use pgpalisade_fence::readable::wrapped;
use pgpalisade_rejection_log::report::{Advice, Finding, Summary};

use crate::cli::text::{counted, plain, second, table};

/// Width of lines of text.
const COLUMNS: usize = 100;

pub(super) fn page(summary: &Summary) -> String {
    head(summary) + &verdict(&summary.verdict)
}

fn head(summary: &Summary) -> String {
    let total = summary.total;
    let (refused, observed) = (total.refused, total.observed);
    let mut text = counted(total.total(), "record");
    if let (Some(first), Some(last)) = (total.first, total.last) {
        let _ = write!(text, ", {} to {} UTC", second(first), second(last));
    }
    let _ = write!(
        text,
        "\n  refused   {refused}\n  observed  {observed}  (let pass, and recorded)\n"
    );
    let read = &summary.understood;
    for (count, what) in [
        (read.filtered_out, "records that the flags leave out"),
        (read.torn_ends, "incomplete last lines"),
    ] {
        if count > 0 {
            let _ = writeln!(text, "  without   {count}  {what}");
        }
    }
    text
}

fn verdict(verdict: &Advice) -> String {
    let mut text = format!(
        "\n{}",
        wrapped(&format!("Verdict: {}", verdict.headline), "", COLUMNS)
    );
    for finding in &verdict.findings {
        text.push_str(&describe(finding));
    }
    if !verdict.cautions.is_empty() {
        text.push('\n');
    }
    for caution in &verdict.cautions {
        text.push_str(&wrapped(&format!("Note: {caution}"), "  ", COLUMNS));
    }
    text
}

fn describe(finding: &Finding) -> String {
    let mut text = format!(
        "\n{}: {} refused, {} observed\n",
        plain(&finding.kind),
        finding.count.refused,
        finding.count.observed
    );
    text.push_str(&wrapped(finding.advice, "  ", COLUMNS));
    let or_dash = |name: &Option<String>| name.clone().unwrap_or_else(|| "-".to_owned());
    let rows = finding.who.iter().map(|row| {
        [
            row.count.total().to_string(),
            row.count.last.map(second).unwrap_or_default(),
            row.who.user.clone(),
            or_dash(&row.who.application),
            row.who.database.clone(),
            or_dash(&row.who.scope),
        ]
    });
    let head = ["COUNT", "LAST", "USER", "APPLICATION", "DATABASE", "SCOPE"];
    for line in table(head, rows).lines() {
        let _ = writeln!(text, "  {line}");
    }
    if finding.others.total() > 0 {
        let _ = writeln!(text, "  {} more of others", finding.others.total());
    }
    text
}
