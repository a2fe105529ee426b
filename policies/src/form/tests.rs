//! Oracles: PostgreSQL's lexer for constants, and the classifier for forms.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_wrap,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

use pg_query::protobuf::Token;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::*;
use crate::functions::names_that_look_at_argument;
use crate::{Class, TextEncoding, VerdictCache, classify};

const SAFE: TextEncoding = TextEncoding::Utf8;

/// The form as a text, with `{n}` for a number and `{s}` for a string. `None` if the text has none, or no constant.
fn form(text: &str) -> Option<String> {
    let text = text.as_bytes();
    if !has_form(text) {
        return None;
    }
    let mut form = Vec::new();
    let mut at = 0;
    for (place, constant) in constants(text) {
        form.extend_from_slice(&text[at..place.start]);
        form.extend_from_slice(match constant {
            Constant::Integer => b"{n}",
            Constant::Text => b"{s}",
        });
        at = place.end;
    }
    form.extend_from_slice(&text[at..]);
    (at > 0).then(|| String::from_utf8(form).unwrap())
}

fn share(some: &str, other: &str) -> bool {
    let forms = (form(some), form(other));
    let share = forms.0.is_some() && forms.0 == forms.1;
    if forms.0.is_some() && forms.1.is_some() {
        let (some, other) = (some.as_bytes(), other.as_bytes());
        let constants: Vec<_> = constants(some).collect();
        assert_eq!(are_alike(some, &constants, other), share, "{forms:?}");
    }
    share
}

#[test]
fn texts_that_differ_in_plain_constants_share() {
    for row in [
        "select 1 ~ select 2",
        "select 1 ~ select 2147483647",
        "select 0 ~ select 0000000012",
        "select a from t where id=4711; ~ select a from t where id=9;",
        "select -1, +2 ~ select -3, +4",
        "select a[1:2], b[3] ~ select a[0:7], b[8]",
        "select x::varchar(10) ~ select x::varchar(20)",
        "select x::numeric(10,2) ~ select x::numeric(12,4)",
        "select 1::bigint ~ select 2::bigint",
        "select 1*2/3%4<5 ~ select 6*7/8%9<1",
        "select a from t1 limit 10 ;  ~ select a from t1 limit 20 ; ",
        "\n UPDATE t SET n = n + 1 WHERE id = 5 ~ \n UPDATE t SET n = n + 7 WHERE id = 6",
        "delete from t where id in (1, 2) ~ delete from t where id in (3, 4)",
        "with a as (select 1) select * from a ~ with a as (select 2) select * from a",
        "values (1), (2) ~ values (3), (4)",
        "select $1 + 5 ~ select $1 + 6",
        "select 'a' ~ select 'it''s'",
        "select '' ~ select 'abc'",
        "select 'a'||'b' ~ select 'x'||'y'",
        "select '2024-01-01'::date ~ select '2025-12-31'::date",
        "select date '2024-01-01' ~ select date '2025-12-31'",
        "select 'a\"b' , \"c\" ~ select 'x' , \"c\"",
        "select \"it's\", 1, 'a' ~ select \"it's\", 2, 'b'",
        "select e'a', 1 ~ select e'a', 2",
        "insert into t values ('a',1,'b') ~ insert into t values ('c',2,'d')",
        "select 1e5, 3 ~ select 1e5, 4",
    ] {
        let (some, other) = row.split_once(" ~ ").unwrap();
        assert!(
            share(some, other),
            "{some:?} {:?}\n{other:?} {:?}",
            form(some),
            form(other)
        );
        assert_eq!(
            classify(some.as_bytes(), SAFE),
            classify(other.as_bytes(), SAFE)
        );
    }
}

#[test]
fn constants_beyond_ascii_become_ascii() {
    for (text, expect) in [
        (
            &b"select 'caf\xe9', 'it''s \xe9\xff', 1 from t;"[..],
            &b"select 'cafx', 'it''s xx', 1 from t;"[..],
        ),
        (
            b"insert into t values ('\xe9')",
            b"insert into t values ('x')",
        ),
        (
            "select a from t where b = 'é'".as_bytes(),
            b"select a from t where b = 'xx'",
        ),
    ] {
        assert_eq!(with_ascii_constants(text).unwrap(), expect);
    }
    for text in [
        &b"select \xe9"[..],
        b"select 'x' as \xe9",
        b"select '\xe9' from \"\xe9\"",
        b"select '\xe9' -- \xe9",
        b"select '\xe9' /* x */",
        b"select e'\xe9'",
        b"select n'\xe9'",
        b"select \xe9'\xe9'",
        b"select '\xe9'\xe9",
        b"select $$\xe9$$",
        b"select '\xe9",
        b"select '\xe9'; select 1",
        b"select '\xe9', u&\"!00e9\" from t",
        b"select '\xe9\\'",
        b"select nextval('\xe9')",
        b"select set_config('a.b', '\xe9', false)",
        b"select '\xe9', 'fencing.token'",
        b"set application_name = '\xe9'",
        b"do '\xe9'",
        b"select '\xe9\0'",
        // A backslash in UTF-8, which stands before the quote while standard_conforming_strings is off.
        b"select '\x81_', ' ; delete from t --'",
    ] {
        assert_eq!(with_ascii_constants(text), None, "{}", text.escape_ascii());
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn texts_that_differ_in_anything_else_do_not() {
    let long = |byte: &str| format!("select '{}'", byte.repeat(OPERATOR_RUN_MAX + 1));
    let huge = |number: &str| format!("select {number}{}", " ".repeat(MAX_PARSED_INLINE));
    let (long, huge) = ([long("a"), long("b")], [huge("1"), huge("2")]);
    for row in [
        // Parts of a name or a parameter.
        "select $1 ~ select $2",
        "select a$1 ~ select a$2",
        "select * from t1 ~ select * from t2",
        "select t.c1 ~ select t.c2",
        "select a_1 ~ select a_2",
        "select \"1\" ~ select \"2\"",
        "select \"a\"\" 1 \" ~ select \"a\"\" 2 \"",
        "select é1 ~ select é2",
        "select é 1 ~ select é 2",
        // Numbers that are no int4, or that some versions read differently.
        "select 1e5 ~ select 1e6",
        "select 1e-5 ~ select 1e-6",
        "select 1E+5 ~ select 1E+6",
        "select 1.5 ~ select 1.6",
        "select .5 ~ select .6",
        "select 5. ~ select 6.",
        "select 1..2 ~ select 1..3",
        "select 0x1F ~ select 0x2F",
        "select 0x11 ~ select 0x12",
        "select 0b01 ~ select 0b10",
        "select 0o17 ~ select 0o16",
        "select 1_000 ~ select 2_000",
        "select 1a ~ select 2a",
        "select 12345678901 ~ select 12345678902",
        "select 12345678901 ~ select 1",
        "select 2147483648 ~ select 1",
        "select 00000000001 ~ select 1",
        "select a 1'b' ~ select a 2'b'",
        "select 'b'1 ~ select 'b'2",
        "select 1\"b\" ~ select 2\"b\"",
        "select ?1 ~ select ?2",
        // Not plain strings.
        "select '1' ~ select 1",
        "select E'1' ~ select E'2'",
        "select e'\\'', 1, ' ~ select e'\\'', 2, '",
        "select '\\', 1 ~ select '\\', 2",
        "select U&'\\0031' ~ select U&'\\0032'",
        "select U&'a' uescape '!' ~ select U&'a' uescape '?'",
        "select N'1' ~ select N'2'",
        "select B'1' ~ select B'0'",
        "select X'1' ~ select X'2'",
        "select B'1'\n'0' ~ select B'1'\n'1'",
        "select 'a'\n'b' ~ select 'a'\n'c'",
        "select 'a'\n'b' ~ select 'c'\n'b'",
        "select 'a ~ select 'b",
        "select ' 1  ~ select ' 2 ",
        "select 'é' ~ select 'è'",
        &long.join(" ~ "),
        // Dollar quotes.
        "select $$ 1 $$ ~ select $$ 2 $$",
        "select $a$ 1 $a$ ~ select $a$ 2 $a$",
        "select $a$'$a$, 1, ' ~ select $a$'$a$, 2, '",
        "select $1$$ 1 $$ ~ select $1$$ 2 $$",
        "select $1$..$1$ ~ select $2$..$2$",
        // Comments.
        "select a --1 ~ select a --2",
        "select a -- 1 ~ select a -- 2",
        "select a --'\n, 1 --' ~ select a --'\n, 2 --'",
        "select a /*1*/ ~ select a /*2*/",
        "select a /* 1 */ ~ select a /* 2 */",
        "select a /*'*/ , 1 /*'*/ ~ select a /*'*/ , 2 /*'*/",
        // Bytes that are not plain.
        "select\u{b}1 ~ select\u{b}2",
        "select 1\u{c}+1 ~ select 2\u{c}+1",
        "select 1\u{7f} ~ select 2\u{7f}",
        "select 1 \0 ~ select 2 \0",
        // Values that the grammar or the walk looks at.
        "select 1::float(10) ~ select 1::float(60)",
        "select a::FLOAT \n(\t24 ) ~ select a::FLOAT \n(\t25 )",
        "explain (analyze 0) delete from t ~ explain (analyze 1) delete from t",
        "alter table t alter column 1 set statistics 1 ~ alter table t alter column 0 set statistics 1",
        "select 1; explain (analyze 0) delete from t ~ select 1; explain (analyze 1) delete from t",
        "select nextval('a') ~ select nextval('b')",
        "select \"setval\"('a', 1) ~ select \"setval\"('b', 1)",
        "select NextVal('a') ~ select NextVal('b')",
        // Texts that the scan does not clear.
        "set fencing.token = 34 ~ set fencing.token = 35",
        "select set_config('work_mem', '1', false) ~ select set_config('fencing.token', '1', false)",
        "select 'fencing', 1 ~ select 'fencing', 2",
        "begin; select 1 ~ begin; select 2",
        "prepare a as select 1 ~ prepare a as select 2",
        "declare c cursor for select 1 ~ declare c cursor for select 2",
        "fetch 1 from c ~ fetch 2 from c",
        "select 1; select 1 ~ select 2; select 2",
        "(select 1) ~ (select 2)",
        "1 ~ 2",
        " ~  ",
        &huge.join(" ~ "),
    ] {
        let (some, other) = row.split_once(" ~ ").unwrap();
        assert!(!share(some, other), "{some:?} {other:?} {:?}", form(some));
    }
}

/// A text with a function whose argument the walk looks at has no form.
#[test]
fn no_text_has_a_form_in_which_a_string_counts() {
    let names: Vec<_> = names_that_look_at_argument().collect();
    assert!(names.contains(&"nextval") && names.contains(&"set_config"));
    for name in names {
        assert!(form("select f('a')").is_some());
        for text in [
            format!("select {name}('a')"),
            format!("select \"{name}\"('a')"),
            format!("select {}('a')", name.to_uppercase()),
        ] {
            assert_eq!(form(&text), None);
        }
    }
}

/// Statements with places for constants, and for similar text.
const STATEMENTS: &[&str] = &[
    "select a from t where id = {} and b = {}",
    "select a.b, c from a where {} < d and e in ({}, {}) order by 1 limit {} offset {}",
    "insert into t values ({}, {}), ({}, {})",
    "insert into t{} (a) values ({}) on conflict (a) do update set a = {} returning {}",
    "UPDATE t SET a = a + {} WHERE b = ${} AND c{} = {}",
    "delete from t where a = {} and b like {} escape {}",
    "with a as (insert into t values ({}) returning id) select {} from a, b",
    "merge into t using s on t.id = {} when matched then update set a = {}",
    "values ({}, {})",
    "select {}",
    "select {}{}",
    "select {} {}",
    "select {}\n{}, {}",
    "select {}e{}",
    "select {}e-{}",
    "select {}.{}",
    "select 0x{}, 1_{}, {}_0",
    "select a{}, {}a, a_{}",
    "select a[{}:{}], b[{}]",
    "select x::varchar({}), x::float({}), {}::int",
    "select x::float ( {} ), {}",
    "select interval({}) {}, time({}) {}, current_time({})",
    "select $a${}$a$, {}",
    "select $${}$$, {}",
    "select a --{}\n, {}",
    "select /*{}*/ {}",
    "select e'{}', {}",
    "select '{}', {}",
    "select '{}', '{}'",
    "select \"{}\", {}",
    "select u&'{}', {}",
    "select n'{}', b'{}', x'{}', {}",
    "select date {}, {}::regclass, cast({} as text)",
    "select f({}, {}), count(*) filter (where a = {})",
    "select nextval({})",
    "select setval({}, {})",
    "select \"nextval\"({}), {}",
    "select u&\"next\\0076al\"({}), {}",
    "select set_config({}, {}, false)",
    "select dblink_exec({}, {}), lo_open({}, {})",
    "select pg_notify({}, {}), pg_terminate_backend({})",
    "select a from t where b = {} for update",
    "select {} into t2 from t where b = {}",
    "select * from json_table({}, {} columns (a int path {}))",
    "explain (analyze {}) delete from t where a = {}",
    "explain analyze select {}",
    "alter table t alter column {} set statistics {}",
    "create table t{} (a int default {})",
    "create table p partition of t for values with (modulus {}, remainder {})",
    "copy t to {}",
    "copy (select {}) to {}",
    "fetch {} from c",
    "declare c cursor for select {}",
    "prepare p as select {}",
    "execute p({})",
    "set fencing.token = {}",
    "set transaction_read_only = {}",
    "begin; update t set a = {}",
    "select {}; select {}",
    "call p({})",
    "do {}",
];

/// Plain values for these places.
const PLAIN: &[&str] = &[
    "0",
    "1",
    "2",
    "24",
    "25",
    "53",
    "54",
    "4711",
    "65536",
    "2147483647",
    "00",
    "0007",
    "'a'",
    "'b'",
    "''",
    "'it''s'",
    "'on'",
    "'1'",
    "'s'",
    "'public.s'",
];

/// Values that no form may leave out, and fragments of text.
const ODD: &[&str] = &[
    "0x1F", "0b1", "1e5", "1.5", ".5", "5.", "1_0", "$1", "$2", "-1", "t1", "e'a'", "e'\\''",
    "'\\'", "u&'a'", "N'a'", "b'1'", "'--'", "'/*'", "'$$'", "$$a$$", "--1\n", "/*1*/", "\"1\"",
    "'é'", "é", "null", "true", ";", "", " ", "\n", "'", "\"", "$", "\\", "explain", "e", "E", "-",
    "+", "/", "*", "--", "\u{b}", "\u{c}",
];
const ODD_AND_LONG: &[&str] = &[
    "2147483648",
    "99999999999",
    "'fencing.token'",
    "'nextval'",
    "'set_config'",
    "nextval('s')",
    "1::float(30)",
];

/// Two texts of one statement.
fn two_texts(random: &mut StdRng) -> [String; 2] {
    let all = [PLAIN, ODD, ODD_AND_LONG].concat();
    let mut statement = (*STATEMENTS.choose(random).unwrap()).to_owned();
    // Damaged by a character or two.
    for _ in 0..random.random_range(0..4_usize).saturating_sub(2) {
        let at = random.random_range(0..=statement.len());
        if statement.is_char_boundary(at) {
            statement.insert_str(at, all.choose(random).unwrap());
        }
    }
    let mut texts = [String::new(), String::new()];
    for (place, piece) in statement.split("{}").enumerate() {
        if place > 0 {
            let values = match random.random_range(0..4) {
                0 => &all[..],
                _ => PLAIN,
            };
            let value = values.choose(random).unwrap();
            texts[0].push_str(value);
            let same = random.random_bool(0.4);
            texts[1].push_str(if same {
                value
            } else {
                values.choose(random).unwrap()
            });
        }
        texts.iter_mut().for_each(|text| text.push_str(piece));
    }
    texts
}

/// After another text, the cache says of a text what the classifier says.
#[test]
fn texts_of_one_form_have_one_verdict() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (mut shared, mut reads, mut parsed) = (0, 0, 0);
    for _ in 0..80_000 {
        let [some, other] = two_texts(&mut random);
        if some == other || !share(&some, &other) {
            continue;
        }
        let mut cache = VerdictCache::new(1 << 20);
        cache.get_or_classify(some.as_bytes(), SAFE);
        let cached = cache.get_or_classify(other.as_bytes(), SAFE);
        let verdict = classify(other.as_bytes(), SAFE);
        assert_eq!(*cached, verdict, "seed {seed}: {some:?} {other:?}");
        assert_eq!(cache.stats().hits_by_form, 1);
        assert!(!verdict.has_controls(), "seed {seed}: {some:?} {other:?}");
        shared += 1;
        reads += usize::from(verdict.class() == Class::Read);
        parsed += usize::from(verdict.kind() != "unparsed");
    }
    println!("{shared} shared, {reads} of them reads, {parsed} parsed");
    // The generator must reach all of them, or the test proves nothing.
    assert!(reads > 500 && parsed > reads + 300 && shared > parsed + 300);
}

/// Every omitted constant is one whole token.
#[test]
fn constants_are_what_the_lexer_says() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (mut integers, mut strings) = (0, 0);
    for _ in 0..20_000 {
        let [text, _] = two_texts(&mut random);
        // A text that the lexer refuses is refused with any constants.
        let Ok(scanned) = pg_query::scan(&text) else {
            continue;
        };
        if !has_form(text.as_bytes()) {
            continue;
        }
        for (Range { start, end }, constant) in constants(text.as_bytes()) {
            let kind = match constant {
                Constant::Integer => Token::Iconst,
                Constant::Text => Token::Sconst,
            };
            integers += usize::from(constant == Constant::Integer);
            strings += usize::from(constant == Constant::Text);
            let found = scanned.tokens.iter().any(|token| {
                (token.start, token.end, token.token) == (start as i32, end as i32, kind as i32)
            });
            assert!(found, "seed {seed}: {text:?} {:?}", &text[start..end]);
        }
    }
    println!("{integers} integers, {strings} strings");
    assert!(integers > 3_000 && strings > 3_000);
}
