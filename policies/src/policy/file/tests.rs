//! Every error at once, each with its place. No file can make the parser panic.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

/// The proxy's rule: letters, digits and `_.:/-`.
fn check_scope(name: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "_.:/-".contains(c);
    if !name.is_empty() && name.chars().all(good) {
        Ok(())
    } else {
        Err("allowed are A-Z a-z 0-9 _ . : / -".to_owned())
    }
}

fn parse(text: &str) -> Result<Policy, PolicyErrors> {
    Policy::parse(text, &check_scope)
}

#[track_caller]
fn errors(text: &str) -> Vec<String> {
    let errors = parse(text).expect_err("errors");
    errors.to_string().lines().map(str::to_owned).collect()
}

/// Expects one error, whose text has these parts.
#[track_caller]
fn refuse(text: &str, parts: &[&str]) {
    let found = errors(text);
    assert_eq!(found.len(), 1, "{found:#?}");
    for part in parts {
        assert!(found[0].contains(part), "{part:?} in {:?}", found[0]);
    }
}

/// As [`refuse`], for rows of a file, with its lines in one, and the parts.
#[track_caller]
fn refuse_all(rows: &str) {
    for row in rows.lines().filter(|row| !row.is_empty()) {
        let (text, parts) = row.split_once(" => ").expect("parts");
        let parts: Vec<&str> = parts.split(" & ").collect();
        refuse(&(text.replace("; ", "\n") + "\n"), &parts);
    }
}

#[test]
fn an_empty_file_is_the_default() {
    assert_eq!(parse("").unwrap(), Policy::default());
    assert_eq!(parse("# nothing\n[defaults]\n").unwrap(), Policy::default());
}

#[test]
fn all_errors_come_at_once_with_their_places() {
    let text = "\
[default]
writes = \"token\"

[defaults]
writes = \"tokn\"
reads = true
mode = \"strict\"
scope = \"a b\"
refuse = [\"ddl\", \"copy-programm\", 5, \"xyzzy\"]
allow = [\"ddl\"]

[tokens]
max_step = 0
max_token = \"7\"

[scope.a]
tables = [\"jobs\", \"public.Jobs\", \"public.jobs\", \"public.jobs\"]
mod = \"observe\"
max_steps = 3

[scope.\"b c\"]
tables = []

[[session]]
writes = \"allow\"

[[session]]
match = {}
name = \"\"

[[session]]
match = { users = \"x\", network = [\"10.1.2.3/8\", \"nonsense\"], user = \"\" }
write = \"allow\"
";
    let expect = "\
1:2: unknown key \"default\" (did you mean \"defaults\"?)
5:10: defaults.writes: \"tokn\" is not a valid value (did you mean \"token\"? write \"token\", \"allow\" or \"refuse\")
6:9: defaults.reads: is true or false (write \"allow\" or \"current\")
7:8: defaults.mode: \"strict\" is not a valid value (write \"enforce\" or \"observe\")
8:9: defaults.scope: \"a b\" is not a valid scope name (allowed are A-Z a-z 0-9 _ . : / -)
9:18: defaults.refuse: \"copy-programm\" is not a kind of statement (did you mean \"copy-program\"?)
9:35: defaults.refuse: is a number (write kinds of statements)
9:38: defaults.refuse: \"xyzzy\" is not a kind of statement (write some of: ddl, roles, server, maintenance, truncate, \
copy-program, copy-file, do, call, lock, notify, prepare-transaction, prepared-transactions, function-call, \
replication, unparsed)
10:10: defaults refuses and allows \"ddl\" (remove one)
13:12: tokens.max_step: 0 is out of range (write a number from 1 to 9223372036854775807)
14:13: tokens.max_token: is a string (write a whole number from 1)
17:11: scope.a.tables: \"jobs\" names no schema (write schema.table, such as public.jobs, or *.jobs for every schema)
17:19: scope.a.tables: \"public.Jobs\" has capital letters (write jobs, as PostgreSQL does with a name that is not \
quoted, or \"Jobs\" for one that was quoted when it was created)
17:49: scope.a.tables: is listed twice (remove one)
18:1: unknown key \"scope.a.mod\" (did you mean \"mode\"?)
19:1: unknown key \"scope.a.max_steps\" (did you mean \"max_step\"?)
21:8: \"b c\" is not a valid scope name (allowed are A-Z a-z 0-9 _ . : / -)
22:10: scope.b c.tables: is empty (leave the key out instead)
24:1: the rule has no match (write match = { user = \"...\" }; what holds for every session belongs below [defaults])
28:9: session.match is empty (name a user, database, application_name, cn or network; what holds for \
every session belongs below [defaults])
29:8: session.name: is not a valid name (write 1 to 63 bytes without control characters, or leave it out)
32:11: unknown key \"session.match.users\" (did you mean \"user\"?)
32:35: session.match.network: \"10.1.2.3/8\" has address bits beyond its prefix (write 10.0.0.0/8, or \
10.1.2.3/32 for that address alone)
32:49: session.match.network: \"nonsense\" is not a network (write an address and a prefix, such as 10.0.0.0/8, \
192.0.2.7/32 or fd00::/8)
32:69: session.match.user: is an empty name (write a name, or a part of it with *)
33:1: unknown key \"session.write\" (did you mean \"writes\"?)";
    let found = errors(text);
    let expect: Vec<&str> = expect.lines().collect();
    assert_eq!(found, expect, "{found:#?}");
}

#[test]
fn errors_of_syntax_do_not_hide_the_rest() {
    let found = errors("[defaults]\nwrites = = \"token\"\nmod = \"observe\"\n");
    assert!(found[0].starts_with("2:"), "{found:?}");
    assert!(found[0].ends_with("(this is not TOML)"), "{found:?}");
    let last = found.last().unwrap();
    assert_eq!(
        last,
        "3:1: unknown key \"defaults.mod\" (did you mean \"mode\"?)"
    );
    let twice = errors("[defaults]\nwrites = \"token\"\nwrites = \"allow\"\n");
    assert!(twice[0].starts_with("3:1: duplicate key"), "{twice:?}");
}

#[test]
fn tables_of_the_wrong_shape_say_how_to_write_them() {
    refuse_all(
        r#"
defaults = 1 => 1:12: defaults is not a table & below [defaults]
[session]; match = { user = "a" } => 1:1: & [[session]], with two brackets
session = [1] => 1:12: session is not a table
[[session]]; match = "app" => 2:9: session.match is not a table & { user =
[scope]; tables = ["a.b"] => 2:1: scope.tables is not in a scope & [scope.NAME]
[scope]; a = 1 => 2:5: scope.a is not a table & [scope.a]
[[scope.a]] => scope.a is not a table
tokens = [] => tokens is not a table
"#,
    );
}

#[test]
fn keys_of_another_table_are_unknown() {
    refuse_all(
        r#"
writes = "token" => 1:1: unknown key "writes" (valid here: defaults,
[tokens]; writes = "token" => unknown key "tokens.writes"
[defaults]; max_step = 1 => unknown key "defaults.max_step"
[defaults]; match = 1 => unknown key "defaults.match"
"#,
    );
}

/// For each key, a value of a wrong type is an error about this key.
#[test]
fn every_key_of_the_table_is_read() {
    for key in &POLICY_KEYS {
        let (table, name) = key.name.rsplit_once('.').unwrap();
        let header = match table {
            "session" if name != "match" => "[[session]]\nmatch = { user = \"a\" }".to_owned(),
            "session" => "[[session]]".to_owned(),
            "session.match" => "[[session]]\n[session.match]".to_owned(),
            table => format!("[{}]", table.replace("NAME", "s")),
        };
        let written = key.name.replace("NAME", "s");
        let found = errors(&format!("{header}\n{name} = 1979-05-27\n"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains(&format!(": {written}")),
            "{}: {found:?}",
            key.name
        );
        assert!(
            found[0].contains(key.values) || ["match", "holders"].contains(&name),
            "{}: {found:?}",
            key.name
        );
    }
}

#[test]
fn scopes_with_the_same_tables_are_one() {
    let text = "[scope.a]\ntables = [\"a.x\", \"b.*\"]\n[scope.b]\ntables = [\"b.*\", \"a.x\"]\n";
    refuse(
        text,
        &[
            "3:8: ",
            "\"b\" lists exactly the tables of scope \"a\"",
            "use one scope",
        ],
    );
    // Overlap is allowed: such a table needs both tokens.
    assert!(parse("[scope.a]\ntables = \"a.*\"\n[scope.b]\ntables = [\"a.x\"]\n").is_ok());
}

#[test]
fn two_rules_of_one_name_are_an_error() {
    let rule = "[[session]]\nname = \"r\"\nmatch = { user = \"a\" }\n";
    refuse(
        &format!("{rule}{}", rule.replace("\"a\"", "\"b\"")),
        &["4:1: ", "named \"r\"", "line 1"],
    );
}

#[test]
fn a_file_without_end_is_not_read() {
    refuse(
        &"#".repeat(POLICY_BYTES_MAX + 1),
        &["1:1: ", "larger than 16777216 bytes"],
    );
    assert!(parse(&"#".repeat(POLICY_BYTES_MAX)).is_ok());
}

#[test]
fn more_than_a_thousand_of_anything_is_refused() {
    let rules = |count: usize| {
        let rule = |at| format!("[[session]]\nmatch = {{ user = \"u{at}\" }}\n");
        (0..count).map(rule).collect::<String>()
    };
    assert!(parse(&rules(LIST_MAX)).is_ok());
    refuse(
        &rules(LIST_MAX + 1),
        &["2001:1: there are more than 1000 rules"],
    );
    let scopes = |count| {
        let scope = |at| format!("[scope.s{at}]\ntables = \"s{at}.jobs\"\n");
        (0..count).map(scope).collect::<String>()
    };
    let policy = parse(&scopes(SCOPES_MAX)).unwrap();
    assert_eq!(policy.scopes().len(), SCOPES_MAX + 1, "and the default");
    refuse(
        &scopes(SCOPES_MAX + 1),
        &["200001:8: there are more than 100000 scopes"],
    );
    let tables: Vec<String> = (0..=LIST_MAX).map(|at| format!("\"a.t{at}\"")).collect();
    let text = format!("[scope.a]\ntables = [{}]\n", tables.join(","));
    refuse(&text, &["has more than 1000 entries"]);
}

#[test]
fn numbers_are_taken_as_toml_writes_them() {
    let policy =
        parse("[tokens]\nmax_step = 1_000\nmax_token = 0xff\n[scope.a]\nmax_step = 5\n").unwrap();
    let bounds = |max_step, max_token| TokenBounds {
        max_step: Some(max_step),
        max_token: Some(max_token),
        numbers: None,
        prepared: None,
        lock_delay: None,
        max_scopes: None,
    };
    let other = TokenBounds {
        max_scopes: Some(10_002),
        ..bounds(1000, 255)
    };
    assert_eq!(policy.bounds("other"), other);
    assert_eq!(policy.bounds("a"), bounds(5, 255));
    refuse_all(
        r#"
[tokens]; max_step = 9223372036854775808 => 2:12: & out of range
[tokens]; max_step = -1 => 2:12: & out of range
"#,
    );
}

#[test]
fn a_lock_delay_has_seconds() {
    let text = "[tokens]\nlock_delay = \"30s\"\n[scope.a]\nlock_delay = \"3600s\"\n[scope.b]\nmax_step = 5\n";
    let policy = parse(text).unwrap();
    let delays = ["a", "b", "other"].map(|scope| policy.bounds(scope).lock_delay);
    assert_eq!(delays, [3600, 30, 30].map(|s| Some(Duration::from_secs(s))));
    for wrong in ["30", "0s", "3601s", "+5s", "5 s", "5m", "s", ""] {
        let text = format!("[tokens]\nlock_delay = \"{wrong}\"\n");
        refuse(
            &text,
            &["2:14: ", "is not a time", "from \"1s\" to \"3600s\""],
        );
    }
    refuse("[tokens]\nlock_delay = 30\n", &["2:14: ", "\"30s\""]);
}

#[test]
fn a_scope_may_want_only_numbers_that_were_issued() {
    let text =
        "[tokens]\nnumbers = \"issued\"\n[scope.a]\nnumbers = \"any\"\n[scope.b]\nmax_step = 5\n";
    let policy = parse(text).unwrap();
    let numbers = ["a", "b", "other"].map(|scope| policy.bounds(scope).numbers);
    let issued = || Some(Numbers::Issued);
    assert_eq!(numbers, [Some(Numbers::Any), issued(), issued()]);
    refuse(
        "[tokens]\nnumbers = \"none\"\n",
        &["2:11: ", "\"any\" or \"issued\""],
    );
}

#[test]
fn a_scope_may_take_the_number_of_an_election() {
    let text = "[tokens]\nmax_step = 5\nmax_token = 9\n[scope.a]\nnumbers = { etcd_election = \"/e\" }\n\
                [scope.b]\nmax_step = 7\n";
    let policy = parse(text).unwrap();
    let [a, b] = ["a", "b"].map(|scope| policy.bounds(scope));
    assert_eq!(a.election().map(|name| &**name), Some("/e"));
    // Its numbers jump, so they have no limits.
    assert_eq!((a.max_step, a.max_token), (None, None));
    assert_eq!(
        (b.max_step, b.max_token, b.election()),
        (Some(7), Some(9), None)
    );
    let elected = policy.elected().iter();
    let elected: Vec<_> = elected
        .map(|elected| {
            (
                &*elected.scope,
                &*elected.election,
                elected.line,
                elected.column,
            )
        })
        .collect();
    assert_eq!(elected, [("a", "/e", 5, 29)]);
    refuse_all(
        r#"
[scope.a]; numbers = { etcd_election = "" } => 2:29: & scope.a.numbers.etcd_election: is not a valid name
[scope.a]; numbers = { etcd_election = 3 } => 2:29: & is a number (write the name of an election)
[scope.a]; numbers = { etcd_election = 0.5 } => 2:29: & is a number with a fraction or an exponent
[scope.a]; numbers = { etcd_electoin = "/e" } => 2:13: & did you mean "etcd_election"?
[scope.a]; numbers = {} => 2:11: & scope.a.numbers is empty (write { etcd_election
[scope.a]; numbers = "/e" => 2:11: & { etcd_election =
[scope.a]; numbers = { etcd_election = "/e" }; max_step = 5 => 2:29: & its own max_step
[scope.a]; numbers = { etcd_election = "/e" }; max_token = 5 => 2:29: & its own max_step or max_token
"#,
    );
    // An election belongs to one scope, whose marks follow it.
    let general = "[tokens]\nnumbers = { etcd_election = \"/e\" }\n";
    refuse(general, &["2:11: ", "an election below [scope.NAME]"]);
    let many = |count| {
        let scope = |n| format!("[scope.s{n}]\nnumbers = {{ etcd_election = \"/e\" }}\n");
        (0..count).map(scope).collect::<String>()
    };
    parse(&many(100)).unwrap();
    refuse(
        &many(101),
        &["202:29: ", "more than 100 scopes have an election"],
    );
}

const WARNED: &str = "\
[defaults]
writes = \"allow\"
mode = \"observe\"
allow = [\"replication\"]
[scope.a]
tables = \"a.*\"
mode = \"observe\"
[[session]]
match = { user = \"app*\" }
writes = \"allow\"
mode = \"observe\"
refuse = [\"ddl\"]
allow = [\"do\", \"replication\"]
[[session]]
match = { user = \"app1\", database = \"d\" }
";

/// A rule that never matches is no error: a catch-all rule put on top in an emergency must load.
#[test]
fn what_may_surprise_is_warned_of() {
    let policy = parse(WARNED).unwrap();
    let warnings: Vec<String> = policy.warnings().iter().map(ToString::to_string).collect();
    let begins = [
        "2:10: defaults.writes = \"allow\" switches PostgreSQL's read-only mode off",
        "3:8: defaults.mode = \"observe\" refuses nothing",
        "4:10: replication connections are not fenced",
        "7:8: scope.a.mode = \"observe\" refuses nothing",
        "10:10: writes = \"allow\" lets these sessions bypass the fence",
        "11:8: session.mode = \"observe\" refuses nothing",
        "13:16: replication connections are not fenced",
        "14:1: this rule never matches: the one in line 8 comes first",
    ];
    assert_eq!(warnings.len(), begins.len(), "{warnings:#?}");
    for (warning, begin) in warnings.iter().zip(begins) {
        assert!(warning.starts_with(begin), "{warning}");
        assert!(warning.ends_with(')'), "it says what to do: {warning}");
    }
    let quiet = WARNED
        .replace("\"allow\"", "\"token\"")
        .replace("observe", "enforce")
        .replace("\"replication\"", "\"notify\"");
    let quiet = quiet.replace("app*", "app");
    assert_eq!(parse(&quiet).unwrap().warnings(), []);
}

pub(in crate::policy) fn examples() -> Vec<(String, String)> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            found.push((name, std::fs::read_to_string(&path).unwrap()));
        }
    }
    found.sort();
    found
}

#[test]
fn examples_are_without_errors_and_warnings() {
    let examples = examples();
    let names: Vec<&str> = examples.iter().map(|(name, _)| &**name).collect();
    let expect = [
        "cron-leader",
        "migration-runner",
        "outbox-relay",
        "read-replicas",
        "sharded-scheduler",
    ];
    assert_eq!(names, expect);
    for (name, text) in &examples {
        let policy = parse(text).unwrap_or_else(|errors| panic!("{name}:\n{errors}"));
        assert_eq!(policy.warnings(), [], "{name}");
    }
}

/// Nothing panics, and every error has a place in the text.
#[test]
fn damaged_files_give_errors_with_places() {
    const ROUNDS: usize = 3000;
    let seed = std::env::var("PGPALISADE_SEED").ok();
    let seed = seed.map_or_else(rand::random, |seed| seed.parse().expect("a number"));
    println!("PGPALISADE_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut texts: Vec<String> = examples().into_iter().map(|(_, text)| text).collect();
    texts.push(WARNED.to_owned());
    let (mut good, mut bad) = (0, 0);
    for _ in 0..ROUNDS {
        let text = damage(&texts, &mut rng);
        let lines: Vec<&str> = text.split('\n').collect();
        let place_is_there = |remark: &Remark| {
            let line = lines.get(remark.line as usize - 1);
            line.is_some_and(|line| (remark.column as usize) <= line.chars().count() + 1)
        };
        let remarks = match parse(&text) {
            Ok(policy) => {
                good += 1;
                policy.warnings().to_vec()
            }
            Err(errors) => {
                bad += 1;
                assert!(!errors.0.is_empty());
                errors.0
            }
        };
        for remark in remarks {
            assert!(place_is_there(&remark), "{remark}\n{text}");
            assert!(remark.message.ends_with(')'), "says what to do: {remark}");
        }
    }
    assert!(
        good > ROUNDS / 100 && bad > ROUNDS / 3,
        "{good} good, {bad} bad"
    );
}

fn damage(texts: &[String], rng: &mut StdRng) -> String {
    const PIECES: [&str; 19] = [
        "[", "]", "[[", "]]", "{", "}", "=", "\"", "'", "\n", "#", ".", ",", "*", "\\", "\0", "é",
        "1e999", "\"\"\"",
    ];
    const LONG_PIECES: [&str; 5] = [
        "\u{1f600}",
        "[scope.x]\n",
        "[[session]]\n",
        "match = {}",
        "tables = \"a.b\"\n",
    ];
    let pieces = [&PIECES[..], &LONG_PIECES].concat();
    let mut chars: Vec<char> = texts[rng.random_range(0..texts.len())].chars().collect();
    for _ in 0..rng.random_range(1..4) {
        let at = rng.random_range(0..=chars.len());
        let until = (at + rng.random_range(0..12)).min(chars.len());
        let other = &texts[rng.random_range(0..texts.len())];
        let piece: Vec<char> = match rng.random_range(0..4) {
            0 => pieces[rng.random_range(0..pieces.len())].chars().collect(),
            1 => Vec::new(),
            2 => {
                let skipped = rng.random_range(0..other.chars().count());
                other.chars().skip(skipped).take(40).collect()
            }
            _ => vec![char::from(rng.random_range(32..127_u8))],
        };
        chars.splice(at..until, piece);
    }
    chars.into_iter().collect()
}

#[test]
fn the_table_of_keys_is_that_of_the_documentation() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/policies.md");
    let page = std::fs::read_to_string(page).unwrap();
    let section = page.split("\n## Keys\n").nth(1).unwrap();
    let section = section.split("\n### ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let rows: Vec<(String, String)> = rows
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
            let last = cells.last().unwrap().replace('`', "");
            (cells[0].replace('`', ""), last)
        })
        .collect();
    let keys = POLICY_KEYS.iter();
    let expect: Vec<(String, String)> = keys
        .map(|key| (key.name.to_owned(), key.default.to_owned()))
        .collect();
    assert_eq!(rows, expect);
    for category in Category::iter() {
        let row = format!("\n| `{category}` | ");
        assert!(
            page.contains(&row),
            "docs/policies.md has no row for {category}"
        );
    }
}

const WHO: &str = "\
[tokens]
scopes = \"listed\"
[scope.jobs]
holders = { user = [\"lead*\"], network = \"10.0.0.0/8\" }
[scope.bills]
[defaults]
declare = \"transaction\"
[[session]]
match = { user = \"reports\" }
writes = \"refuse\"
[[session]]
match = { user = \"lead2\" }
declare = [\"bills\"]
[[session]]
match = { user = \"lead3\" }
declare = \"session\"
[[session]]
match = { user = \"none\" }
declare = []
";

#[test]
fn who_may_declare_what_and_for_how_long() {
    use crate::control::Lifetime::{Local, Session};
    let policy = std::sync::Arc::new(parse(WHO).unwrap());
    assert_eq!(policy.warnings(), []);
    let who = |user| crate::Who {
        user,
        database: "d",
        application_name: None,
        common_name: None,
        client: Some([10, 1, 2, 3].into()),
    };
    for row in [
        "lead1 jobs Local",
        r#"lead1 jobs Session => declare = "transaction" ([defaults], line 7)"#,
        r#"other jobs Local => the holders of scope "jobs" (line 4)"#,
        "other bills Local",
        "other default Local",
        r#"other new Local => tokens.scopes = "listed", line 2"#,
        r#"reports bills Local => writes = "refuse" (session rule 1, line 8)"#,
        "lead2 bills Local",
        "lead2 bills Session => transaction",
        "lead2 jobs Local => lets these sessions declare bills (session rule 2, line 11)",
        "lead3 jobs Session",
        "none bills Local => declare no scope",
    ] {
        let (asked, refused) = row.split_once(" => ").unwrap_or((row, ""));
        let [user, scope, lifetime] = asked.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let lifetime = if lifetime == "Local" { Local } else { Session };
        let answer = policy.for_session(&who(user)).may_declare(scope, lifetime);
        let why = answer.map_or_else(|no| no.why, |()| String::new());
        let is_expected = why.contains(refused) && why.is_empty() == refused.is_empty();
        assert!(is_expected, "{row}: {why}");
    }
    let free = std::sync::Arc::new(Policy::default());
    let free = free.for_session(&who("x"));
    assert_eq!(free.may_declare("anything", Session), Ok(()));
}

#[test]
fn holders_are_matched_as_sessions_are() {
    let policy = std::sync::Arc::new(
        parse("[scope.a]\nholders = { application_name = \"cron*\", database = \"d\" }\n").unwrap(),
    );
    let may = |application_name, database, client: Option<[u8; 4]>| {
        let who = crate::Who {
            user: "u",
            database,
            application_name,
            common_name: None,
            client: client.map(Into::into),
        };
        let session = policy.for_session(&who);
        session.may_declare("a", crate::Lifetime::Session).is_ok()
    };
    assert!(may(Some("cron-1"), "d", None));
    assert!(!may(Some("cron-1"), "e", None));
    assert!(!may(None, "d", None));
}

#[test]
fn what_is_wrong_about_declaring_is_said() {
    refuse_all(
        r#"
[defaults]; declare = "sesion" => 2:11: defaults.declare: "sesion" is not a valid value & did you mean "session"?
[defaults]; declare = true => 2:11: & write "session", "transaction" or a list of scopes
[defaults]; declare = ["a b"] => 2:12: & is not a valid scope name
[tokens]; scopes = "list" => 2:10: tokens.scopes: "list" & did you mean "listed"?
[tokens]; max_scopes = 0 => 2:14: & out of range
[tokens]; prepared_transactions = "rollback" => 2:25: & did you mean "roll-back"?
[scope.a]; holders = { usr = "x" } => 2:13: unknown key "scope.a.holders.usr" (did you mean "user"?)
[scope.a]; holders = {} => 2:11: scope.a.holders is empty
[scope.a]; holders = "x" => 2:11: scope.a.holders is not a table & write holders = { user
[tokens]; scopes = "listed"; [scope.jobs]; [defaults]; declare = ["job"] => 5:12: & did you mean "jobs"?
[tokens]; scopes = "listed"; [defaults]; scope = "jobs"; declare = ["default"] => 5:12: & add [scope.default]
"#,
    );
}

#[test]
fn what_surprises_about_declaring_is_warned_of() {
    let warned = |text: &str| -> Vec<String> {
        let policy = parse(text).unwrap();
        policy.warnings().iter().map(ToString::to_string).collect()
    };
    let several = warned("[scope.a]\n[scope.b]\n");
    assert!(
        matches!(several.as_slice(), [one] if one.contains("2:8: ") && one.contains("depose any leader")),
        "{several:?}"
    );
    assert_eq!(
        warned("[scope.a]\n[scope.b]\nholders = { user = \"b\" }\n").len(),
        0
    );
    assert_eq!(warned("[scope.a]\n").len(), 0);
    let reader =
        "[[session]]\nmatch = { user = \"r\" }\nreads = \"current\"\nwrites = \"refuse\"\n";
    assert_eq!(warned(reader).len(), 1);
    assert_eq!(warned(&format!("{reader}declare = [\"a\"]\n")).len(), 0);
    let rolls =
        "[defaults]\ndeclare = []\n[tokens]\nprepared_transactions = \"roll-back\"\n[scope.a]\n";
    assert_eq!(warned(rolls).len(), 0);
    assert_eq!(warned(&format!("{rolls}[scope.b]\n")).len(), 1);
}
