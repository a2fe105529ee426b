//! The token of a session behaves like PostgreSQL's own custom settings.
//!
//! Sequences of SET, SET LOCAL, RESET, set_config, transaction control, savepoints and errors are generated, and run
//! in both protocols. On PostgreSQL `current_setting` tells the truth; through the proxy `SHOW fencing.status` shows
//! what it enforces. They must agree after every step. Each token has its own scope (`s34=34`), so that nothing is
//! refused.

use std::fmt::Write as _;

use pgpalisade_test_servers::machine::seed;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Message, Wire, pretty};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const SEQUENCES: usize = 40;
const STEPS: usize = 40;

/// Statements of a sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Start {
    /// The session has a token from its startup packet, and never runs read-only: everything is allowed.
    WithToken,
    /// The session starts read-only. Inside a transaction it must declare before its first query, and not inside a
    /// savepoint, so these are left out.
    WithoutToken,
}

#[test]
fn sessions_that_start_with_a_token() {
    run(Start::WithToken);
}

#[test]
fn sessions_that_start_without_a_token() {
    run(Start::WithoutToken);
}

fn run(start: Start) {
    let stage = Stage::start();
    let mut random = StdRng::seed_from_u64(seed());
    for _ in 0..SEQUENCES {
        sequence(&stage, start, &mut random);
    }
}

fn sequence(stage: &Stage, start: Start, random: &mut StdRng) {
    let mut parameters = vec![("user", "postgres"), ("database", "postgres")];
    if start == Start::WithToken {
        parameters.push(("fencing.token", "s1=1"));
    }
    let mut direct = Wire::login(&stage.postgres.tcp(), &parameters);
    let mut proxied = Wire::login(&stage.proxy.endpoint(), &parameters);
    let mut history = String::new();
    for _ in 0..STEPS {
        let (batch, words) = step(start, random);
        writeln!(history, "    {words}").unwrap();
        let (expected, got) = (direct.run(&batch), proxied.run(&batch));
        assert!(
            expected == got,
            "after\n{history}  direct:\n{}  through the proxy:\n{}",
            pretty(&expected),
            pretty(&got)
        );
        if expected.last().is_none_or(|last| last.body != b"E") {
            let (truth, view) = (setting(&mut direct), status(&mut proxied));
            assert_eq!(
                truth, view,
                "PostgreSQL's setting and the proxy's view, after\n{history}"
            );
        }
    }
    if start == Start::WithToken {
        direct.query("ROLLBACK");
        proxied.query("ROLLBACK");
        assert_eq!(
            setting(&mut direct),
            setting(&mut proxied),
            "the forwarded setting, after\n{history}"
        );
    }
}

/// PostgreSQL's value: `s34=34`, or `none`.
fn setting(wire: &mut Wire) -> String {
    let sql = "SELECT coalesce(nullif(current_setting('fencing.token', true), ''), 'none')";
    wire.rows(sql).remove(0).remove(0)
}

/// The proxy's value, in the same format.
fn status(wire: &mut Wire) -> String {
    let answer = wire.ok("SHOW fencing.status");
    let row = answer
        .iter()
        .find(|message| message.tag == b'D')
        .map(Message::row)
        .unwrap_or_default();
    let line = row.join(" ");
    let word = |name: &str| {
        line.split_whitespace()
            .find_map(|word| word.strip_prefix(name))
            .unwrap_or("?")
            .to_owned()
    };
    match word("state=").as_str() {
        "none" => "none".to_owned(),
        "current" => format!("{}={}", word("scope="), word("token=")),
        _ => format!("unexpected: {line}"),
    }
}

/// One write to the server, and its description for the history.
fn step(start: Start, random: &mut StdRng) -> (Batch, String) {
    let mut statements: Vec<String> = (0..random.random_range(1..=4))
        .map(|_| statement(start, random))
        .collect();
    leave_out_doubtful(start, &mut statements);
    // By names, the guard counts: `tests/mediation/names.rs`.
    match random.random_range(0..3) {
        0 => {
            let text = statements.join("; ");
            (Batch::new().query(&text), format!("Q {text}"))
        }
        1 => (
            Batch::new().query(&statements[0]),
            format!("Q {}", statements[0]),
        ),
        _ => {
            let pipeline = statements
                .iter()
                .fold(Batch::new(), |batch, text| batch.statement(text));
            (pipeline.sync(), format!("pipeline {statements:?}"))
        }
    }
}

/// These sessions may not write. After a statement that could have switched read-only mode off and the end of its
/// transaction, the text or pipeline must contain no further query. `tests/oracle/read_only_guard.rs` tests that.
fn leave_out_doubtful(start: Start, statements: &mut Vec<String>) {
    let (mut ran, mut doubtful) = (start == Start::WithToken, false);
    statements.retain(|text| {
        let query = text.starts_with("SELECT") && !text.contains("set_config");
        let ends = ["COMMIT", "END", "ROLLBACK", "ABORT"]
            .iter()
            .any(|word| text.starts_with(word));
        if query && doubtful {
            return false;
        }
        ran |= query || text == "RESET ALL" || text == "DISCARD ALL";
        // Statements that may undo the transaction's read-only mode.
        let undoes = text.ends_with("AND CHAIN") || text.starts_with("ROLLBACK TO");
        doubtful |= undoes || ends && ran;
        true
    });
    // DISCARD ALL ends read-only mode in the middle of a pipeline, and a Bind after it may run a function.
    if let Some(at) = statements.iter().position(|text| text == "DISCARD ALL") {
        statements.truncate(at + 1);
    }
}

fn statement(start: Start, random: &mut StdRng) -> String {
    let token = random.random_range(2..60);
    let value = format!("'s{token}={token}'");
    let savepoint = ["a", "b"][random.random_range(0..2)];
    let plain = start == Start::WithoutToken;
    match random.random_range(0..26) {
        0..=1 => format!("SET fencing.token = {value}"),
        2 => format!("SET SESSION \"fencing\".\"Token\" TO {value}"),
        3 => format!("set \"fencing.token\" = {value}"),
        4 => format!("SET /* a comment */ FENCING . token TO {value}"),
        5..=6 => format!("SET LOCAL fencing.token = {value}"),
        7 => "RESET fencing.token".to_owned(),
        8 => "SET fencing.token TO DEFAULT".to_owned(),
        9 => "RESET ALL".to_owned(),
        10 => "DISCARD ALL".to_owned(),
        11..=13 => {
            ["BEGIN", "START TRANSACTION", "BEGIN WORK"][random.random_range(0..3)].to_owned()
        }
        14..=15 => ["COMMIT", "END"][random.random_range(0..2)].to_owned(),
        16 => ["ROLLBACK", "ABORT"][random.random_range(0..2)].to_owned(),
        17 => ["COMMIT AND CHAIN", "ROLLBACK AND CHAIN"][random.random_range(0..2)].to_owned(),
        18 => "SHOW no_such_setting".to_owned(),
        19 => "SET work_mem = 'x'".to_owned(),
        _ if plain => format!("SET application_name = 'app {token}'"),
        20..=21 => format!("SAVEPOINT {savepoint}"),
        22 => format!("RELEASE {savepoint}"),
        23 => format!("ROLLBACK TO {savepoint}"),
        24 => format!(
            "SELECT pg_catalog.set_config('fencing.token', {value}, {})",
            random.random_bool(0.5)
        ),
        _ => "SELECT 1".to_owned(),
    }
}
