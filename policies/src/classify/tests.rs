//! Tables of texts and what they do. T1 to T27 are the traps in which other proxies were caught.
//!
//! | trap | where its test is, unless a name here, `classes.txt`, `controls.txt` or [`effects`] has it |
//! | --- | --- |
//! | T5: writes that no text shows | `tests/oracle/hidden.rs` |
//! | T8: the transaction of a pipeline | `tests/it/rejection_states.rs`: `in_a_pipeline` |
//! | T10: names of statements | `tests/it/rejection_states.rs`: `prepared_statements`; `tests/it/fencing/hidden.rs` |
//! | T18: comments as directives | `t13_t15_t18_comments_are_lexed_as_postgresql_does` |
//! | T19: long texts | `t19_long_texts_are_writes`; `tests/it/policy/long_texts.rs` |
//! | T20: replication connections that run SQL | `tests/it/policy/replication.rs` |
//! | T21: FunctionCall | `tests/oracle/hidden.rs`: `function_calls_are_refused_by_oid` |
//! | T22: Execute with a row limit | `tests/it/fencing/stale.rs`: `an_insert_suspended_by_a_row_limit` |
//! | T23: what a failed transaction takes | `tests/it/rejection_states.rs`: `in_a_failed_transaction` and the next |
//! | T24: decoding that gives up | `tests/it/garbage.rs`: `malformed_messages`, `random_bytes` |
//! | T26: leaving read-only mode | `classes.txt`; `tests/oracle` |
//! | T27: the transaction state after a refusal | `tests/it/rejection_states.rs`: PostgreSQL is the oracle |
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

mod effects;
mod generated;

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::weight::OPERATOR_RUN_MAX;
use super::*;
use crate::control::{Control, FencingVariable, Mistake};
use crate::effects::{Category, Class, Computes};

use Class::{Read, Write};

const SAFE: TextEncoding = TextEncoding::Utf8;
const UNSAFE: TextEncoding = TextEncoding::Other;

fn of(text: &str) -> Analysis {
    classify(text.as_bytes(), SAFE)
}

#[track_caller]
fn check(text: &str, expected: Class) {
    let verdict = of(text);
    assert_eq!(verdict.class(), expected, "{text}: {verdict:?}");
    assert_ne!(verdict.kind(), "unparsed", "{text}");
    for statement in &verdict.statements {
        assert_eq!(
            statement.effects.class == Write,
            statement.why.is_some(),
            "{text}: {statement:?}"
        );
    }
}

/// `classes.txt`. T1 and the like name traps, as above.
#[test]
fn each_text_has_its_class() {
    let rows = include_str!("tests/classes.txt").lines();
    let rows = rows.filter_map(|line| line.split_once(": ").filter(|_| !line.starts_with('#')));
    for (class, text) in rows.clone() {
        check(text, if class == "read" { Read } else { Write });
    }
    assert_eq!(rows.count(), 174, "the table is read wrongly");
    check("", Read);
}

#[track_caller]
fn check_opaque(text: &[u8], encoding: TextEncoding, why: Opaque) {
    let verdict = classify(text, encoding);
    assert_eq!(
        verdict,
        Analysis::opaque(why, b"select "),
        "{}",
        String::from_utf8_lossy(text)
    );
    assert_eq!(
        (
            verdict.class(),
            verdict.has_controls(),
            verdict.commits_midway()
        ),
        (Write, false, true)
    );
}

#[track_caller]
fn check_controls(text: &str, expected: &str) {
    let verdict = of(text);
    let statements = verdict.statements.iter();
    let controls = statements.flat_map(|statement| &statement.controls);
    let controls: Vec<_> = controls.map(|control| format!("{control:?}")).collect();
    assert_eq!(controls.join(", "), expected, "{text}: {verdict:?}");
}

#[test]
fn each_text_has_its_controls() {
    let (mut group, mut count) = (None, 0);
    for line in include_str!("tests/controls.txt").lines() {
        if line.is_empty() {
            group = None;
        }
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (text, expected) = match (line.split_once("=>"), group) {
            (Some(("", expected)), _) => {
                group = Some(expected.trim());
                continue;
            }
            (Some((text, expected)), None) => (text.trim_end(), expected.trim()),
            (_, group) => (line, group.expect("a group")),
        };
        count += 1;
        let text = text.replace("\\n", "\n").replace("\\r", "\r");
        let mut classes = [("read:", Read), ("write:", Write)].into_iter();
        let class = classes.find(|(word, _)| expected.starts_with(word));
        let controls = class.map_or(expected, |(word, class)| {
            check(&text, class);
            expected.trim_start_matches(word).trim_start()
        });
        check_controls(&text, controls);
    }
    assert_eq!(count, 156, "the table is read wrongly");
}

#[test]
fn t1_what_does_not_parse_is_a_write() {
    for row in [
        "selec 1 => syntax error at or near \"selec\"",
        "select 1; selec 1 => syntax error at or near \"selec\"",
        "START_REPLICATION SLOT x LOGICAL 0/0 => syntax error at or near \"START_REPLICATION\"",
        "select (1 => syntax error at end of input",
        "select (1 = 2 )) => syntax error at or near \")\"",
        // No literal is shown: it may be secret, or belong to another text of this form.
        "select 1 'secret' => syntax error",
        "select 1 E'secret' => syntax error",
        "select 1 $$secret$$ => syntax error",
        "select 1 2345 => syntax error",
        "select 'secret => unterminated quoted string",
        "select 1 \"secret => unterminated quoted identifier",
        "SET fencing.token = scheduler=34 => syntax error at or near \"=\"",
    ] {
        let (text, error) = row.split_once(" => ").unwrap();
        let verdict = of(text);
        let Some(WriteReason::Syntax(found)) = verdict.why() else {
            panic!("{text}: {verdict:?}");
        };
        assert_eq!(&*found.error, error, "{text}");
        assert_eq!(found.names_ours, text.contains("fencing."), "{text}");
        assert_eq!(
            (verdict.class(), verdict.has_controls()),
            (Write, false),
            "{text}"
        );
        assert!(verdict.commits_midway(), "{text}");
    }
    check_opaque(b"select 1\0delete from t", SAFE, Opaque::Nul);
    check_opaque(b"select '\xff'", SAFE, Opaque::NotUtf8);
    check_opaque("select 'é'".as_bytes(), UNSAFE, Opaque::Encoding);
    assert_eq!(classify(b"select 1", UNSAFE).class(), Read);
    assert_eq!(of("select 'é'").class(), Read);
}

#[test]
fn t4_a_function_is_named() {
    let verdict = of("select nextval('s')");
    let why = verdict.why().unwrap().to_string();
    assert!(why.contains("nextval") && why.contains("sequence"), "{why}");
}

#[test]
fn t7_t8_all_statements_of_a_text() {
    check("select 1; select 2; delete from t", Write);
    check("begin; select 1; commit", Read);
    let verdict = of("select 1; delete from t; show x");
    let kinds: Vec<_> = verdict
        .statements
        .iter()
        .map(|statement| statement.kind)
        .collect();
    assert_eq!(kinds, ["SELECT", "DELETE", "SHOW"]);
    assert_eq!(
        (verdict.kind(), of("").kind(), of("delete from t").kind()),
        ("multi", "empty", "DELETE")
    );
}

#[test]
fn t9_t10_prepared_statements() {
    let prepare = |text: &str, expected: &str, class| {
        let verdict = of(text);
        let [Control::Prepare { name, effects }] = &*verdict.statements[0].controls else {
            panic!("{text}: {verdict:?}");
        };
        assert_eq!((&**name, effects.class), (expected, class), "{text}");
    };
    prepare("prepare p as select 1", "p", Read);
    prepare("prepare p (int) as update t set a = $1", "p", Write);
    prepare("PREPARE \"P\" as select nextval('s')", "P", Write);
    prepare(
        "prepare P as select set_config('transaction_read_only', 'off', true)",
        "p",
        Write,
    );
    check("prepare p as delete from t", Read);
    check("execute p(1)", Read);
    check("execute p(nextval('s'))", Write);
    check("explain analyze execute p(nextval('s'))", Write);
    check("create table t as execute p", Write);
    let name = "x".repeat(80);
    let seems = of("prepare p as select set_config('fencing.token', $1, false)");
    assert!(matches!(
        &*seems.statements[0].controls,
        [
            Control::Prepare { .. },
            Control::Mistake(Mistake::DoesNotDeclare(FencingVariable::Token))
        ]
    ));
    let cut = format!("Execute {{ name: {:?} }}", &name[..63]);
    check_controls(&format!("execute {name}"), &cut);
}

#[test]
fn t13_t15_t18_comments_are_lexed_as_postgresql_does() {
    check("SELECT 1 --/*\n; DELETE FROM users --*/", Write);
    check("select 1 /* /* ; delete from t */ ; delete from t */", Read);
    check("select 1 /* /* */ */; delete from t", Write);
    check("select 1 --x\r; delete from t", Write);
    for directive in [
        "pgdog_role: replica",
        "NO LOAD BALANCE",
        "fencing.token = 9",
    ] {
        check(&format!("/* {directive} */ delete from t"), Write);
        check(&format!("delete from t -- {directive}"), Write);
        check(&format!("/* {directive} */ select 1"), Read);
    }
}

#[test]
fn t16_t17_lexing_that_depends_on_the_session() {
    check_opaque(
        b"SELECT 'a\\'' ; DELETE FROM t9; -- '",
        SAFE,
        Opaque::Backslash,
    );
    check_opaque(b"select 'C:\\'", SAFE, Opaque::Backslash);
    let mistake = classify(b"set fencing.token = '3\\4'", SAFE);
    assert_eq!(
        *mistake.statements[0].controls,
        [Control::Mistake(Mistake::Unreadable(Opaque::Backslash))]
    );
    check("select 'a\\b'", Read);
    check("select e'a\\'b'", Read);
    check_opaque(
        b"SELECT E'\x83\\' ; DELETE FROM t --'",
        UNSAFE,
        Opaque::Encoding,
    );
    check_opaque(
        b"SELECT E'\x83\\' ; DELETE FROM t --'",
        SAFE,
        Opaque::NotUtf8,
    );
}

/// Texts that are not read are searched for words that matter.
#[test]
fn words_in_what_is_not_read() {
    use Category::{PrepareTransaction, Unparsed};
    let names = &[Control::MayChangeNames][..];
    let named = "select 'a\\'; Prepare/* a name? */Transaction 'b'";
    let spaced = "select 'a\\'; prepare\t\n\u{b} TRANSACTION 'b'";
    let reset = "prepare p as select 'a\\'; reset transaction_read_only";
    for (text, category, controls) in [
        ("select 'a\\'", Unparsed, &[][..]),
        ("PREPARE TRANSACTION 'a\\'", PrepareTransaction, names),
        (named, PrepareTransaction, names),
        (spaced, PrepareTransaction, names),
        (reset, Unparsed, names),
        ("deallocate p; select 'a\\'", Unparsed, names),
    ] {
        let verdict = classify(text.as_bytes(), SAFE);
        let statement = &verdict.statements[0];
        assert!(statement.is_unread(), "{text}");
        assert_eq!(statement.effects.category, Some(category), "{text}");
        assert_eq!(*statement.controls, *controls, "{text}");
    }
    // Its names stand for other letters, which the server folds and truncates by its own encoding.
    for text in ["select * from u&\"\\00e9\"", "SELECT * FROM U&\"x\""] {
        let other = classify(text.as_bytes(), TextEncoding::Other);
        assert!(other.statements[0].is_unread(), "{text}");
        assert!(
            !classify(text.as_bytes(), SAFE).statements[0].is_unread(),
            "{text}"
        );
    }
}

/// The server reads it by `standard_conforming_strings`, which a reload can change unnoticed.
#[test]
fn a_backslash_is_no_doubt_where_its_meaning_does_not_matter() {
    const SEED: u64 = 4;
    for text in [
        "select 'C:\\dir\\'",
        "SELECT 'a\\'' ; DELETE FROM t9; -- '",
        "SELECT 'a\\'; DELETE FROM t9; --'",
        // The content of a string counts here.
        "select nextval('jobs\\x2eseq')",
        "select set_config('search\\x5fpath', 'x', false)",
    ] {
        check_opaque(text.as_bytes(), SAFE, Opaque::Backslash);
    }
    // Outside of a string it is a mistake, whatever the server's settings.
    for text in [
        "select 1\\deallocate",
        "select \\1",
        "\\x",
        "select a \\ execute b",
    ] {
        let why = classify(text.as_bytes(), SAFE).statements[0].why.clone();
        assert!(
            matches!(why, Some(WriteReason::Syntax(_))),
            "{text}: {why:?}"
        );
    }
    let mut random = StdRng::seed_from_u64(SEED);
    for _ in 0..256 {
        let bytes: [u8; 16] = random.random();
        let literal: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        check(&format!("select '\\x{literal}'::bytea"), Read);
    }
}

#[test]
fn t19_long_texts_are_writes() {
    let safe = SAFE;
    let string = |length: usize| format!("select '{}'", "x y ".repeat(length / 4));
    let fits = string(MAX_PARSED - 16);
    assert_eq!(
        (fits.len() / 16, of(&fits).class()),
        (MAX_PARSED / 16 - 1, Read)
    );
    check_opaque(string(MAX_PARSED).as_bytes(), safe, Opaque::TooLong);
    // Only real tokens count.
    let values = |times: usize| format!("select 1{}", ",1".repeat(times));
    check(&values(32_000), Read);
    check_opaque(values(33_000).as_bytes(), safe, Opaque::Parser);
    // Half of them are in a string only while standard_conforming_strings is on.
    let hidden = format!("select 'a\\', '{}'", ", 1".repeat(33_000));
    check_opaque(hidden.as_bytes(), safe, Opaque::Parser);
}

#[test]
fn pg_dump_reads() {
    let text = "SELECT set_config(name, 'view, foreign-table', false) FROM pg_settings \
                WHERE name = 'restrict_nonsystem_relation_kind'";
    check(text, Read);
    let settings = &of(text).statements[0].effects.settings;
    assert_eq!(&**settings, ["restrict_nonsystem_relation_kind".into()]);
    for (part, other) in [
        ("restrict_nonsystem_relation_kind", "transaction_read_only"),
        ("WHERE name =", "WHERE name <>"),
        ("WHERE name =", "WHERE setting ="),
        ("(name,", "(setting,"),
        ("(name,", "(lower(name),"),
        ("pg_settings", "my.pg_settings"),
        ("pg_settings", "pg_settings, others"),
        ("'view, foreign-table'", "writes()"),
        ("WHERE", "FOR UPDATE -- WHERE"),
        ("relation_kind'", "relation_kind' ORDER BY lo_unlink(1)"),
        ("relation_kind'", "relation_kind' LIMIT lo_unlink(1)"),
        ("relation_kind'", "relation_kind' OFFSET lo_unlink(1)"),
        ("false) FROM", "false) FILTER (WHERE lo_unlink(1) > 0) FROM"),
        ("false) FROM", "false ORDER BY lo_unlink(1)) FROM"),
        (
            "= 'restrict_nonsystem_relation_kind'",
            "= 'restrict_nonsystem_relation_kind' OR true",
        ),
    ] {
        let changed = text.replace(part, other);
        assert_ne!(changed, text);
        check(&changed, Write);
    }
}

#[test]
fn constants_compute_nothing() {
    let computes = |text: &str| of(text).statements[0].computes;
    for text in [
        "select 1",
        "select 1, 'x' as a, null, 1.5, true, b'01'",
        "values (1, 'a'), (2, 'b')",
        "select",
        "select 1 union all select 2 limit 1",
    ] {
        assert_eq!(computes(text), Computes::Nothing, "{text}");
        assert!(!of(text).statements[0].may_hide_a_write(), "{text}");
    }
    for text in [
        "select f()",
        "select 1 + 1",
        "select -a",
        "select 'x'::d",
        "select date '2020-01-01'",
        "select $1",
        "select a from t",
        "table t",
        "select current_user",
        "select 1 where exists (select f())",
        "select array[1]",
        "select 1 order by 1",
        "select set_config('search_path', 's', false)",
        "prepare p as select 1",
        "execute p(1)",
        "explain analyze select 1",
        "declare c cursor for select 1",
        "fetch c",
        "do 'begin end'",
    ] {
        assert_eq!(computes(text), Computes::Anything, "{text}");
        assert!(of(text).statements[0].may_hide_a_write(), "{text}");
    }
}

/// These statements steer however their text is read; that does not hold for constants.
#[test]
fn what_only_steers_computes_nothing() {
    for text in [
        "begin",
        "rollback to s",
        "set fencing.token = 34",
        "set search_path = s",
        "select pg_catalog.set_config('fencing.token', '34', false)",
        "select pg_catalog.set_config('fencing.token', '', false)",
        "select pg_catalog.set_config('fencing.token', '34'::pg_catalog.text, 'f'::boolean)",
        "show all",
        "discard all",
        "lock table t",
    ] {
        let verdict = of(text);
        for verdict in [verdict.in_doubt(Opaque::Encoding), verdict] {
            let [statement] = &*verdict.statements else {
                panic!("{text}");
            };
            assert_eq!(statement.computes, Computes::Steers, "{text}");
            assert!(!statement.may_hide_a_write(), "{text}");
        }
    }
    let constant = of("select 1").in_doubt(Opaque::Encoding);
    assert!(constant.statements[0].may_hide_a_write());
    // The path may lead to something of a user.
    for text in [
        "select set_config('fencing.token', '34', false)",
        "select set_config('fencing.token', '', false)",
        "select set_config('fencing.token', ' ', true)",
        "select set_config('fencing.scope', 's', false)",
        "select pg_catalog.set_config('fencing.token'::text, '', false)",
        "select pg_catalog.set_config('fencing.token', null, 'f'::bool)",
        "select pg_catalog.set_config('fencing.token', '', false), set_config('fencing.scope', '', false)",
    ] {
        assert!(of(text).statements[0].may_hide_a_write(), "{text}");
    }
}

#[test]
fn what_states_a_default_access_mode() {
    let states = |text: &str| {
        let verdict = classify(text.as_bytes(), SAFE);
        verdict.statements[0].may_state_default_access()
    };
    for text in [
        "set default_transaction_read_only = on",
        "set session characteristics as transaction read only",
        "set local default_transaction_read_only = on",
        "set local \"Default_Transaction_Read_Only\" to default",
        "select set_config('Transaction_Read_Only', 'on', true)",
        "select set_config('default_transaction_read_only', 'on', false)",
        "select set_config($1, 'on', false)",
    ] {
        assert!(states(text), "{text}");
    }
    let resets = |text: &str| {
        let verdict = classify(text.as_bytes(), SAFE);
        verdict.statements[0].may_reset_default_access()
    };
    for text in [
        "reset default_transaction_read_only",
        "set default_transaction_read_only to default",
        "reset all",
        "discard all",
        "reset all; select 'a\\'",
        "this is no statement",
    ] {
        assert!(resets(text) && !states(text), "{text}");
    }
    for text in ["select 1", "reset work_mem"] {
        assert!(!resets(text), "{text}");
    }
    for text in [
        "set transaction read only",
        "set transaction_read_only = on",
        "begin read only",
        "set local work_mem = '1MB'",
        "select set_config('work_mem', '1MB', true)",
        "show transaction_read_only",
        "select 1",
    ] {
        assert!(!states(text), "{text}");
    }
}

#[test]
fn what_commits_midway() {
    for text in [
        "call p()",
        "do $$ begin end $$",
        "vacuum",
        "analyze",
        "create index concurrently i on t (a)",
        "drop index concurrently i",
        "reindex database d",
        "reindex table concurrently t",
        "cluster",
        "alter table t detach partition p concurrently",
        "create database d",
        "alter system set fsync = off",
        "commit prepared 'x'",
        "copy t to '/x'",
        "selec",
        "insert into t values (1); commit; insert into t values (2)",
        "begin; insert into t values (1)",
    ] {
        assert!(of(text).commits_midway(), "{text}");
    }
    for text in [
        "select 1",
        "commit",
        "begin read write",
        "insert into t values (1)",
        "insert into t values (1); delete from t",
        "create index i on t (a)",
        "drop index i",
        "drop table t",
        "alter table t add a int",
        "copy t from stdin",
        "select 1; set fencing.token = 3",
        "prepare transaction 'x'",
    ] {
        assert!(!of(text).commits_midway(), "{text}");
    }
}

/// Deep and wide texts are answered soon, on the stack of an ordinary thread.
#[test]
fn hostile_texts_are_answered_on_a_small_stack() {
    let deep = |open: &str, close: &str, times: usize| {
        format!("select {}1{}", open.repeat(times), close.repeat(times))
    };
    let mut texts = vec![];
    for times in [15, 20, 30, 46, 60, 100, 1_000, 5_000, 30_000] {
        texts.extend([
            deep("(", ")", times),
            deep("1+", "", times),
            deep("- ", "", times),
            deep("not ", "", times),
            deep("(select ", ")", times),
            deep("array[", "]", times),
            deep("case when a then ", " end", times),
            deep("f(", ")", times),
            deep("", "::int", times),
            deep("", " union select 1", times),
            deep("", " from a, lateral (select 1", times),
            deep("true and ", "", times),
            deep("", ", 1", times),
            format!(
                "with a as ({} select 1{}) select 1",
                "with a as (".repeat(times),
                ") select 1".repeat(times)
            ),
            "(".repeat(times),
            "/*".repeat(times),
            ";".repeat(times),
            "select 1;".repeat(times),
            "'".repeat(times),
            "\\".repeat(times),
            format!("explain {}select 1", "explain ".repeat(times)),
            format!("select 1 from t{}", " join t on true".repeat(times)),
        ]);
    }
    // One that needs a larger stack, and one that has just enough.
    for stack in [2 << 20, PARSER_STACK + (128 << 10)] {
        let texts = texts.clone();
        let run = std::thread::Builder::new()
            .stack_size(stack)
            .spawn(move || answer_all(&texts));
        run.unwrap().join().unwrap();
    }
}

fn answer_all(texts: &[String]) {
    for text in texts {
        let start = Instant::now();
        let class = classify(text.as_bytes(), SAFE).class();
        let took = start.elapsed();
        let begin: String = text.chars().take(40).collect();
        assert!(
            took < Duration::from_secs(10),
            "{begin}: {class:?} after {took:?}"
        );
    }
}

/// The lexer reads such a run once per `/*` in it.
#[test]
fn long_runs_of_operator_characters_are_not_parsed() {
    let run = |length: usize| format!("select 1 /*{}*/", "-".repeat(length - 4));
    check(&run(OPERATOR_RUN_MAX), Read);
    let safe = SAFE;
    check_opaque(run(OPERATOR_RUN_MAX + 1).as_bytes(), safe, Opaque::Parser);
    check_opaque("/*".repeat(30_000).as_bytes(), safe, Opaque::Parser);
}

/// No fragment, repeated, keeps a thread busy.
#[test]
fn repetition_is_not_expensive() {
    let short = [
        "/*", "*/", "/*/", "--", "--\n", "+", "-", "+-", "=+", "@-", "'", "''", "'a' ", "'a'\n",
        "e'", "\\'", "\"", "\"\"", "$", "$a", "$a$", "$$", "$1", "U&'", "u&\"", "0x", "1.", ".",
        "1e", "1_", "a.", "a", "a,", "(", ")", "[", "]", "{", ":", "::", ":=", ",", ";", " ", "\n",
        "\t \n", "\u{c}", "é", "not ", "select ", "select(", "x'", "b'1", "n'", "is null ",
        "set a=1;", "a=>", "any(", "row(", "exists(", "not a ", "'a'/**/ ", "'a' --\n", "*", "<",
        "/", "!", "a b,", "a(", "a()", "over(", "case ", "when ", "or a=1 ", "explain ",
    ];
    let long = [
        "u&\"a\" uescape '!' ",
        "select 1;",
        "between 1 and ",
        "at time zone ",
        "with a as (",
        "values(1),",
        "case a when 1 then 2 end,",
        "delete from t;",
        "prepare a as ",
    ];
    let mut slowest = (Duration::ZERO, String::new());
    for head in ["", "select ", "select 1 ", "select '", "/* "] {
        for fragment in short.iter().chain(&long) {
            let text = format!(
                "{head}{}",
                fragment.repeat((20_000 / fragment.len()).max(1))
            );
            let start = Instant::now();
            let verdict = of(&text);
            let took = start.elapsed();
            drop(verdict);
            if took > slowest.0 {
                slowest = (took, format!("{head}{fragment}"));
            }
        }
    }
    println!("slowest: {slowest:?}");
    assert!(slowest.0 < Duration::from_secs(5), "{slowest:?}");
}

/// Statements of ordinary size are understood on a small stack too.
#[test]
fn ordinary_depth_is_understood_on_a_small_stack() {
    let run = std::thread::Builder::new().stack_size(2 << 20).spawn(|| {
        check(&format!("select {}1", "1 + ".repeat(40)), Read);
        check(
            &format!("select * from t{}", " join t on true".repeat(40)),
            Read,
        );
        check(
            &format!("select {}1{}", "(select ".repeat(12), ")".repeat(12)),
            Read,
        );
        check(
            &format!(
                "select {}nextval('s'){}",
                "(select ".repeat(12),
                ")".repeat(12)
            ),
            Write,
        );
        check(&format!("select {}true", "a and ".repeat(500)), Read);
        check(
            &format!("insert into t values {}(1)", "(1), ".repeat(5_000)),
            Write,
        );
    });
    run.unwrap().join().unwrap();
}

/// A text that names a `fencing.` setting and is not understood is no declaration.
#[test]
fn what_is_not_understood_and_names_our_settings_is_a_mistake() {
    let unsafe_lexing = TextEncoding::Other;
    for (text, expect) in [
        ("SET FENCING.token = 5; SELECT 'é'", true),
        ("SELECT 'é', 'fencing.'", true),
        ("SELECT 'é', 'fencing'", false),
    ] {
        let verdict = classify(text.as_bytes(), unsafe_lexing);
        assert_eq!(verdict.has_controls(), expect, "{text}");
        assert_eq!(verdict.class(), Write, "{text}");
    }
    // PostgreSQL refuses it, in its own words.
    assert!(!classify(b"SET fencing.token = = 5", unsafe_lexing).has_controls());
}
