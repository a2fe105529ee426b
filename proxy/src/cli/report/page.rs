//! A report for people.

use std::fmt::Write as _;

use pgpalisade_fence::readable::wrapped;
use pgpalisade_rejection_log::report::{
    Advice, Count, Finding, First, KindKey, NameKey, StatementShape, Summary, TallyRow, Top,
};

use crate::cli::text::{counted, plain, second, shown, table};

/// Width of lines of text.
const COLUMNS: usize = 100;

pub(super) fn page(summary: &Summary) -> String {
    let mut text = head(summary);
    if summary.total.total() > 0 {
        text.push_str(&kinds(summary));
        for (name, section) in [
            ("SCOPE", &summary.scopes),
            ("USER", &summary.users),
            ("APPLICATION", &summary.applications),
            ("DATABASE", &summary.databases),
            ("CLIENT", &summary.clients),
        ] {
            text.push_str(&names(name, section));
        }
        text.push_str(&statements(summary));
    }
    text.push_str(&verdict(&summary.verdict));
    text
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
        (read.dropped, "records that the proxy dropped"),
        (
            read.unauthenticated,
            "refusals before the login was authenticated",
        ),
        (read.foreign_lines, "lines that are not records"),
        (read.torn_ends, "incomplete last lines"),
    ] {
        if count > 0 {
            let _ = writeln!(text, "  without   {count}  {what}");
        }
    }
    text
}

fn kinds(summary: &Summary) -> String {
    let row = |found: &TallyRow<KindKey>| {
        let [refused, observed, first, last] = cells(&found.count);
        let KindKey { kind, sqlstate } = found.key.clone();
        [refused, observed, first, last, sqlstate, kind]
    };
    let head = ["REFUSED", "OBSERVED", "FIRST", "LAST", "SQLSTATE", "KIND"];
    format!("\n{}", table(head, summary.kinds.iter().map(row)))
}

fn names(name: &str, section: &Top<NameKey>) -> String {
    let row = |name: &str, count: &Count| {
        let [refused, observed, first, last] = cells(count);
        [refused, observed, first, last, name.to_owned()]
    };
    let named =
        |found: &TallyRow<NameKey>| row(found.key.name.as_deref().unwrap_or("-"), &found.count);
    let others = &section.others;
    let others = (others.total() > 0).then(|| row("(others)", others));
    let head = ["REFUSED", "OBSERVED", "FIRST", "LAST", name];
    let rows = section.rows.iter().map(named).chain(others);
    format!("\n{}", table(head, rows))
}

fn statements(summary: &Summary) -> String {
    let found = &summary.statements;
    let mut text = String::new();
    for row in &found.top.rows {
        text.push_str(&statement(row));
    }
    for (count, what) in [
        (found.top.others.total(), "of other statements"),
        (
            found.without_statement,
            "about no statement: a session that was ended, or its startup",
        ),
    ] {
        if count > 0 {
            let _ = writeln!(text, "{} {what}", counted(count, "record"));
        }
    }
    format!("\nSTATEMENTS\n{text}")
}

fn statement(row: &TallyRow<StatementShape, First>) -> String {
    let example = &row.value.example;
    let who = [
        Some(example.user.as_str()),
        example.application.as_deref(),
        example.client.as_deref(),
    ];
    let who: Vec<&str> = who.into_iter().flatten().collect();
    let [refused, observed, first, last] = cells(&row.count);
    format!(
        "{}\n    refused {refused}, observed {observed}, {first} to {last}\n    {}: {}\n",
        shown(&row.key.shape),
        plain(&who.join(", ")),
        shown(&example.statement),
    )
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
            row.key.user.clone(),
            or_dash(&row.key.application),
            row.key.database.clone(),
            or_dash(&row.key.scope),
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

fn cells(count: &Count) -> [String; 4] {
    [
        count.refused.to_string(),
        count.observed.to_string(),
        count.first.map(second).unwrap_or_default(),
        count.last.map(second).unwrap_or_default(),
    ]
}
