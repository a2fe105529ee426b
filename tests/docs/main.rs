//! The documentation is tested like the code. A reader walks each page: its blocks run in their order, on a separate
//! machine, after those of the pages before it.
//!
//! The words after each fence say what the reader does with the block ([`page::Kind`]). A `text` block after it is
//! its expected output, with `..` for anything; without one the block must succeed. A block that cannot be run is
//! marked `shown:` with the reason.
//!
//! Links between pages must lead somewhere, and the table of flags must match `serve --help`.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod alerts;
mod page;
mod room;
mod walk;

use std::collections::BTreeSet;

use page::Kind;
use pgpalisade_test_servers::proxy::subcommand;

/// One test for each walked page, with the pages that its reader has followed before.
macro_rules! walks {
    ($($name:ident: $($before:literal),* => $page:literal;)*) => {
        $(#[test]
        fn $name() {
            walk::walk(&[$($before,)* $page]);
        })*
        const WALKED: &[&str] = &[$($page),*];
    };
}

walks! {
    readme: "docs/start.md" => "README.md";
    start: => "docs/start.md";
    elections: "docs/start.md" => "docs/elections.md";
    guide: "docs/start.md" => "docs/guide.md";
    drivers: "docs/start.md" => "docs/drivers.md";
    policies: "docs/start.md" => "docs/policies.md";
    observe: "docs/start.md" => "docs/observe.md";
    tls: "docs/start.md" => "docs/tls.md";
    deployment: "docs/start.md", "docs/tls.md" => "docs/deployment.md";
    operations: "docs/start.md", "docs/tls.md" => "docs/operations.md";
    pooling: "docs/start.md" => "docs/pooling.md";
    console: "docs/start.md" => "docs/console.md";
    from_pgbouncer: "docs/start.md" => "docs/from-pgbouncer.md";
    stores: "docs/start.md" => "docs/stores.md";
    runbooks: "docs/start.md", "docs/policies.md" => "docs/runbooks.md";
    benchmark: "docs/start.md" => "docs/benchmark.md";
}

#[test]
fn every_page_is_walked() {
    for page in page::all() {
        let blocks = page.blocks();
        let is_run = blocks.iter().any(|block| block.kind != Kind::Shown);
        assert!(
            !is_run || WALKED.contains(&&*page.name),
            "{} has blocks that no test runs: add it to `walks!`",
            page.name
        );
    }
}

#[test]
fn the_table_of_flags_is_that_of_the_help() {
    let mut help = subcommand("serve");
    let help = help.arg("--help").output().expect("run pgpalisade").stdout;
    let help = String::from_utf8(help).expect("the help is text");
    let real: BTreeSet<String> = help.lines().filter_map(page::leading_flag).collect();
    let real: BTreeSet<&str> = real
        .iter()
        .map(String::as_str)
        .filter(|flag| !["--help", "--version", "--config"].contains(flag))
        .collect();
    let page = page::read("docs/operations.md");
    let rows: BTreeSet<String> = page
        .text
        .lines()
        .filter_map(|line| page::leading_flag(line.strip_prefix("| `")?))
        .collect();
    let rows: BTreeSet<&str> = rows.iter().map(String::as_str).collect();
    assert_eq!(
        rows, real,
        "docs/operations.md has other flags (left) than `serve --help` (right)"
    );
}

#[test]
fn links_lead_somewhere() {
    let broken: Vec<String> = page::all().iter().flat_map(page::broken_links).collect();
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}
