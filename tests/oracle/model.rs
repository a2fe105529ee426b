//! The model of PostgreSQL in the session's own tests, compared with the real one by the same scripts.
//!
//! `PGPALISADE_MODEL_SCRIPTS=100000 PGPALISADE_MODEL_SEED=7` runs more of them. The model's files are those of
//! `proxy/session/src/tests`.

#[path = "../../proxy/session/src/tests/conversation.rs"]
#[expect(dead_code, reason = "the session's tests say more")]
mod conversation;
#[path = "../../proxy/session/src/tests/frames.rs"]
mod frames;
#[path = "../../proxy/session/src/tests/postgres/mod.rs"]
#[expect(dead_code, reason = "the session's tests look closer at it")]
mod postgres;
#[path = "../../proxy/session/src/tests/sql.rs"]
mod sql;

use std::collections::BTreeMap;

use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::wire::{Batch, Message, Wire, pretty};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use conversation::{Client, Kind};
use frames::{empty, message, parts, query};
use sql::{DEFAULT_ACCESS, TOKEN};

const SCRIPTS: u64 = 1000;

const WORLD: &str = "
    CREATE TABLE t (n int);
    CREATE FUNCTION f() RETURNS text LANGUAGE plpgsql AS $$ BEGIN INSERT INTO t VALUES (1); RETURN 'f'; END $$;
    CREATE FUNCTION n() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN 'n'; END $$;
    CREATE FUNCTION g() RETURNS text LANGUAGE plpgsql
        AS $$ BEGIN PERFORM set_config('default_transaction_read_only', 'off', false); RETURN 'g'; END $$;
    CREATE FUNCTION h() RETURNS text LANGUAGE plpgsql
        AS $$ BEGIN PERFORM set_config('default_transaction_read_only', 'on', false); RETURN 'h'; END $$;
    CREATE FUNCTION l() RETURNS text LANGUAGE plpgsql
        AS $$ BEGIN PERFORM set_config('default_transaction_read_only', 'off', true); RETURN 'l'; END $$";

/// Queries that show the state of both.
const LOOKS: [&str; 3] = [
    "SHOW transaction_read_only",
    "SHOW default_transaction_read_only",
    "SHOW fencing.token",
];

/// Excluded from the scripts: such a name may be any prepared statement, even itself.
const BY_NAME: [&[u8]; 2] = [b"EXECUTE r", b"EXECUTE s"];

fn number(name: &str, otherwise: u64) -> u64 {
    let said = std::env::var(name).ok();
    said.map_or(otherwise, |said| said.parse().unwrap())
}

#[test]
fn it_says_what_postgresql_says() {
    let server = Postgres::start();
    server.sql(WORLD);
    let function = server.value("SELECT 'f()'::regprocedure::oid::int8");
    let function: u32 = function.parse().unwrap();
    let is_newer = server.version() >= 18;
    let first = number("PGPALISADE_MODEL_SEED", 1);
    let mut wrong = BTreeMap::new();
    for seed in first..first + number("PGPALISADE_MODEL_SCRIPTS", SCRIPTS) {
        let mut rng = StdRng::seed_from_u64(seed);
        let startup = [
            (DEFAULT_ACCESS, if rng.random() { "on" } else { "off" }),
            (TOKEN, if rng.random() { "5" } else { "" }),
        ];
        let script = script(&mut rng);
        let expect = really(&server, function, &startup, &script);
        let found = by_model(&startup, &script);
        if let Some((kind, difference)) = difference(&expect, &found, is_newer) {
            let told = || format!("seed {seed}, {startup:?}\n{}{difference}", shown(&script));
            wrong.entry(kind).or_insert_with(told);
        }
    }
    let wrong: Vec<_> = wrong.into_values().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Messages with state queries in between, and an end for everything they leave open.
fn script(rng: &mut StdRng) -> Vec<Vec<u8>> {
    let kind = if rng.random() {
        Kind::Any
    } else {
        Kind::Faithful
    };
    let mut script = Vec::new();
    for said in Client::talk(rng, kind) {
        if BY_NAME
            .iter()
            .any(|text| said.windows(text.len()).any(|at| at == *text))
        {
            continue;
        }
        let ends = matches!(said[0], b'Q' | b'S');
        script.push(said);
        if ends && rng.random_ratio(1, 3) {
            script.push(query(&LOOKS.join("; ")));
        }
    }
    script.extend([
        message(b'f', b"end\0"),
        empty(b'S'),
        query(&LOOKS.join("; ")),
    ]);
    script
}

fn by_model(startup: &[(&str, &str)], script: &[Vec<u8>]) -> Vec<Message> {
    let mut model = postgres::Postgres::new(startup);
    let mut said = Vec::new();
    for sent in script {
        let (tag, body) = parts(sent);
        model.read(tag, body);
        said.extend(model.take());
    }
    let messages = said.iter().map(|said| {
        let (tag, body) = parts(said);
        Message {
            tag,
            body: body.to_vec(),
        }
    });
    messages.collect()
}

fn really(
    server: &Postgres,
    function: u32,
    startup: &[(&str, &str)],
    script: &[Vec<u8>],
) -> Vec<Message> {
    let mut parameters = vec![("user", "postgres"), ("database", "postgres")];
    parameters.extend(startup);
    let mut wire = Wire::login(&server.socket(), &parameters);
    let batch = script
        .iter()
        .fold(Batch::new(), |batch, sent| match sent[0] {
            b'F' if sent.len() > 6 => batch.function_call(function, &[]),
            _ => batch.raw(sent),
        });
    wire.send(&batch.terminate());
    let mut said = wire.until_closed();
    said.retain(|message| !message.is_closed());
    said
}

/// Its kind, and the replies before it.
///
/// The model is that of PostgreSQL up to 17. A newer one runs what follows in a pipeline in a block of its own. So it
/// does not say that there is none (25P01), and a function call leaves the block open. It is compared up to there.
fn difference(expect: &[Message], found: &[Message], is_newer: bool) -> Option<(String, String)> {
    let compared = |said: &[Message]| -> Vec<(String, Message)> {
        let told = said
            .iter()
            .filter_map(|message| Some((line(message)?, message.clone())));
        told.take_while(|(line, _)| !line.starts_with("E 08P01 COPY"))
            .collect()
    };
    let (mut expect, mut found) = (compared(expect), compared(found));
    let line = |of: &[(String, Message)], at: usize| of.get(at).map(|(line, _)| line.clone());
    let no_block = (0..found.len()).find(|&at| {
        let is_left_open =
            || at > 0 && found[at - 1].0 == "V" && line(&expect, at).as_deref() == Some("Z T");
        found[at].0.ends_with(" 25P01") || (found[at].0 == "Z I" && is_left_open())
    });
    if let Some(at) = no_block.filter(|_| is_newer) {
        expect.truncate(at);
        found.truncate(at);
    }
    let at =
        (0..expect.len().max(found.len())).find(|&at| line(&expect, at) != line(&found, at))?;
    let around = |of: &[(String, Message)]| {
        let of = &of[at.saturating_sub(3).min(of.len())..(at + 2).min(of.len())];
        pretty(
            &of.iter()
                .map(|(_, message)| message.clone())
                .collect::<Vec<_>>(),
        )
    };
    let kind = format!("{:?} {:?}", line(&expect, at), line(&found, at));
    let (expect, found) = (around(&expect), around(&found));
    Some((kind, format!("PostgreSQL:\n{expect}the model:\n{found}")))
}

/// A message as far as the model reproduces it: only relevant settings, and only the SQLSTATE of errors.
fn line(message: &Message) -> Option<String> {
    let tag = char::from(message.tag);
    Some(match message.tag {
        b'S' => {
            let text = String::from_utf8_lossy(&message.body).into_owned();
            return text
                .starts_with(DEFAULT_ACCESS)
                .then(|| format!("S {text}"));
        }
        b'E' if message
            .field(b'M')
            .is_some_and(|text| text.contains("during COPY")) =>
        {
            "E 08P01 COPY".to_owned()
        }
        // PostgreSQL sometimes warns about a portal that ran the end of its own transaction.
        b'N' if message.sqlstate() == "01000" => return None,
        b'E' | b'N' => format!("{tag} {}", message.sqlstate()),
        b'D' => format!("D {:?}", message.row()),
        b'C' | b'Z' => format!("{tag} {}", String::from_utf8_lossy(&message.body)),
        _ => tag.to_string(),
    })
}

fn shown(script: &[Vec<u8>]) -> String {
    let lines = script.iter().map(|sent| {
        let (tag, body) = parts(sent);
        format!("    {} {}\n", char::from(tag), body.escape_ascii())
    });
    lines.collect()
}
