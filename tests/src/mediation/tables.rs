//! The tables of a world, and to which scopes each of them belongs.

/// By schema and name, with the scopes that list it in the policy: none, one or two.
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
    // Schemas whose names are cut, or are others in another encoding.
    (LONG, "jobs", "a"),
    ("\u{e4}", "jobs", "b"),
    ("\u{c3}\u{a4}", "jobs", "a"),
    ("\u{c3}\u{a4}", "queue", "a"),
];

/// A schema's name as long as one may be.
const LONG: &str = "lllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllll";

/// Sixty times `n`: what follows is at the limit of 63 bytes.
const STEM: &str = "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn";

/// Ends of the names in schema `mixed`. A name that PostgreSQL takes for an earlier one belongs to the later scope.
const CUT: [(&str, &str); 6] = [
    // In LATIN1 63 bytes with the `b`, in UTF-8 without it.
    ("n\u{e4}b", "a"),
    ("n\u{e4}", "b"),
    // The same in EUC_JP.
    ("\u{9ad8}b", "a"),
    ("\u{9ad8}", "b"),
    // In SQL_ASCII half of the letter stays.
    ("nn\u{e4}", ""),
    ("nn", "b"),
];

/// What the two bytes of this letter in UTF-8 are in LATIN1, EUC_KR, EUC_CN, EUC_JP and SJIS; belongs to `a`.
const LETTER: &str = "\u{e4}";
const OTHER_LETTERS: [&str; 5] = [
    "\u{c3}\u{a4}",
    "\u{cc44}",
    "\u{76f2}",
    "\u{8fb0}",
    "\u{ff83}\u{ff64}",
];

/// Names as statements of the conversations have them, without a schema or with bytes beyond ASCII.
pub const NAMES: [&str; 5] = ["jobs", "queue", "invoices", "shared", "done"];

/// The schemas that a search path may have.
pub const SCHEMAS: [&str; 7] = ["a", "b", "public", "jobs", "bill", LETTER, LONGER];

/// It is cut to `LONG`.
const LONGER: &str = "llllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllll";

/// Names that another encoding, of the client or of the database, reads otherwise.
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

/// Who may write what: `free` whatever no scope lists, `careful` must not even read without a token.
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

/// Makes them, one statement each: what a database's encoding has no letters for fails.
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
