//! Tables of a world, and the scopes of each.

/// Schema and name, with the scopes that list the table in the policy.
const TABLES: [(&str, &str, &str); 15] = [
    ("a", "jobs", "a"),
    ("a", "shared", "a"),
    ("b", "jobs", "b"),
    ("b", "shared", "a b"),
    ("b", "queue", "b"),
    ("b", "invoices", "b"),
    ("jobs", "queue", "a"),
    ("jobs", "done", "b"),
    ("bill", "invoices", "a"),
    ("public", "queue", ""),
    ("public", "invoices", ""),
    // Names that are truncated, or differ in another encoding.
    (LONG, "jobs", "a"),
    ("\u{e4}", "jobs", "b"),
    ("\u{c3}\u{a4}", "jobs", "a"),
    ("\u{c3}\u{a4}", "queue", "a"),
];

const LONG: &str = "lllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllll";

/// Sixty times `n`: the next characters are at the limit of 63 bytes.
const STEM: &str = "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn";

/// Ends of the names in schema `mixed`. A name that PostgreSQL confuses with an earlier one belongs to the later
/// scope.
const CUT: [(&str, &str); 6] = [
    // In LATIN1 63 bytes including the `b`, in UTF-8 excluding it.
    ("n\u{e4}b", "a"),
    ("n\u{e4}", "b"),
    // The same in EUC_JP.
    ("\u{9ad8}b", "a"),
    ("\u{9ad8}", "b"),
    // In SQL_ASCII half of the letter remains.
    ("nn\u{e4}", ""),
    ("nn", "b"),
];

const LETTER: &str = "\u{e4}";
const OTHER_LETTERS: [&str; 5] = [
    "\u{c3}\u{a4}",
    "\u{cc44}",
    "\u{76f2}",
    "\u{8fb0}",
    "\u{ff83}\u{ff64}",
];

/// Without a schema or with bytes beyond ASCII.
pub const NAMES: [&str; 5] = ["jobs", "queue", "invoices", "shared", "done"];

pub const SCHEMAS: [&str; 7] = ["a", "b", "public", "jobs", "bill", LETTER, LONGER];

const LONGER: &str = "llllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllll";

/// Names that read differently in another encoding of the client or database.
pub fn names_beyond_ascii() -> Vec<String> {
    let mut names = vec![
        format!("mixed.{LETTER}"),
        format!("mixed.\"{LETTER}\""),
        format!("\"{LETTER}\".jobs"),
    ];
    let cut = CUT.map(|(end, _)| format!("mixed.{STEM}{end}"));
    names.extend(cut.into_iter().filter(|name| !name.is_ascii()));
    names
}

/// `free` may write all tables outside of scopes, `careful` must not even read without a token.
pub fn policy() -> String {
    let quoted = |schema: &str, name: &str| format!("'\"{schema}\".\"{name}\"'");
    let others = OTHER_LETTERS.map(|name| quoted("mixed", name)).join(", ");
    let cut = CUT.iter().filter(|(_, scope)| *scope == "b");
    let cut: Vec<_> = cut
        .map(|(end, _)| quoted("mixed", &format!("{STEM}{end}")))
        .collect();
    format!(
        "[defaults]
         writes = \"allow\"
         [scope.a]
         tables = ['a.*', '*.shared', 'jobs.queue', 'bill.invoices', '{LONG}.*', '\"\u{c3}\u{a4}\".*', {others},
             'mixed.*\u{e4}b', 'mixed.*\u{9ad8}b']
         [scope.b]
         tables = ['b.*', 'jobs.done', '{LETTER}.*', {}, {}]
         [[session]]
         match = {{ user = \"postgres\" }}
         writes = \"token\"
         [[session]]
         match = {{ user = \"careful\" }}
         scope = \"b\"
         writes = \"token\"
         reads = \"current\"",
        quoted("mixed", LETTER),
        cut.join(", "),
    )
}

/// One statement for each table. It fails if the database's encoding lacks a letter.
pub fn statements() -> Vec<String> {
    let schemas = [
        "jobs",
        "bill",
        "mixed",
        LONG,
        LETTER,
        "\u{c3}\u{a4}",
        "a",
        "b",
    ];
    let mut made: Vec<_> = schemas
        .map(|schema| format!("CREATE SCHEMA \"{schema}\""))
        .into();
    let mut table = |schema: &str, name: &str, scopes: &str| {
        let name = format!("\"{schema}\".\"{name}\"");
        made.push(format!("CREATE TABLE IF NOT EXISTS {name} (LIKE log)"));
        made.push(format!("COMMENT ON TABLE {name} IS '{scopes}'"));
    };
    for (schema, name, scopes) in TABLES {
        table(schema, name, scopes);
    }
    for name in OTHER_LETTERS {
        table("mixed", name, "a");
    }
    table("mixed", LETTER, "b");
    for (end, scopes) in CUT {
        table("mixed", &format!("{STEM}{end}"), scopes);
    }
    made
}
