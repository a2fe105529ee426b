//! Many writers of every shape at full speed, a takeover among them, and a check of their replies.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pgpalisade_test_servers::machine::{PATIENCE, seed};
use pgpalisade_test_servers::stage::{Stage, leader};
use pgpalisade_test_servers::wire::{Batch, Endpoint, Message, Wire, pretty};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::SETUP;

const ROUNDS: u64 = 12;

#[derive(Clone, Copy, Debug)]
enum Shape {
    Autocommit,
    Extended,
    Transaction,
    OneString,
    OnePipeline,
    CommitAndChain,
    Copy,
    Procedure,
}

const SHAPES: [Shape; 8] = [
    Shape::Autocommit,
    Shape::Extended,
    Shape::Transaction,
    Shape::OneString,
    Shape::OnePipeline,
    Shape::CommitAndChain,
    Shape::Copy,
    Shape::Procedure,
];

/// A writer's rows by reply.
#[derive(Debug, Default)]
struct WriterRows {
    committed: Vec<u64>,
    fenced: Vec<u64>,
    last: Vec<Message>,
}

#[test]
fn writers_of_every_shape() {
    let procedure = "CREATE PROCEDURE put(n int) LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO jobs VALUES (n); COMMIT; PERFORM 1; END $$";
    let stage = Stage::with(&format!("{SETUP}; {procedure}"));
    let ids = AtomicU64::new(1);
    let mut random = StdRng::seed_from_u64(seed());
    for token in 1..=ROUNDS {
        let delay = Duration::from_micros(random.random_range(20_000..120_000));
        round(&stage, token, delay, &ids);
    }
}

fn round(stage: &Stage, token: u64, delay: Duration, ids: &AtomicU64) {
    let endpoint = stage.proxy.endpoint();
    let (told, snapshot) = std::thread::scope(|scope| {
        let writers: Vec<_> = SHAPES
            .into_iter()
            .map(|shape| {
                let wire = leader(&endpoint, &token.to_string());
                scope.spawn(move || (shape, write_until_ended(wire, shape, ids)))
            })
            .collect();
        // Not for synchronisation: it moves the takeover to a random point of the writers' work.
        std::thread::sleep(delay);
        let snapshot = take_over_and_look(&endpoint, token + 1);
        let told: Vec<(Shape, WriterRows)> = writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .collect();
        (told, snapshot)
    });
    let end = ids_in(&mut stage.postgres.admin());
    assert_eq!(
        snapshot, end,
        "G1, G2: the new leader's first snapshot has every commit of the old one"
    );
    for (shape, told) in told {
        for id in &told.committed {
            assert!(
                end.contains(id),
                "{shape:?}: {id} was confirmed and is not there"
            );
        }
        for id in &told.fenced {
            assert!(
                !end.contains(id),
                "G4: {shape:?}: {id} is there and was said to be fenced:\n{}",
                pretty(&told.last)
            );
        }
        println!(
            "token {token} {shape:?}: {} committed, {} fenced",
            told.committed.len(),
            told.fenced.len()
        );
    }
}

fn take_over_and_look(endpoint: &Endpoint, token: u64) -> Vec<u64> {
    let mut wire = leader(endpoint, &token.to_string());
    ids_in(&mut wire)
}

fn ids_in(wire: &mut Wire) -> Vec<u64> {
    wire.rows("SELECT id FROM jobs ORDER BY id")
        .concat()
        .iter()
        .map(|id| id.parse().unwrap())
        .collect()
}

/// Writes row after row until the session is ended, which the takeover must do.
fn write_until_ended(mut wire: Wire, shape: Shape, ids: &AtomicU64) -> WriterRows {
    let mut told = WriterRows::default();
    let mut open = Vec::new();
    if matches!(shape, Shape::CommitAndChain) {
        let answer = wire.query("BEGIN");
        if answer.iter().any(|message| message.tag == b'E') {
            return ended(told, open, answer);
        }
    }
    let begin = Instant::now();
    loop {
        assert!(
            begin.elapsed() < PATIENCE,
            "{shape:?}: the takeover has not ended the session"
        );
        let id = ids.fetch_add(1, Ordering::Relaxed);
        open.push(id);
        let mut answers = Vec::new();
        for (batch, replies) in messages(shape, id) {
            wire.send(&batch);
            for _ in 0..replies {
                answers = wire.until_ready();
                if answers
                    .iter()
                    .any(|message| message.tag == b'E' || message.is_closed())
                {
                    return ended(told, open, answers);
                }
            }
        }
        drop(answers);
        told.committed.append(&mut open);
    }
}

fn ended(mut told: WriterRows, open: Vec<u64>, last: Vec<Message>) -> WriterRows {
    let error = last.iter().find(|message| message.tag == b'E');
    let Some(error) = error else {
        panic!("the session ended without a word:\n{}", pretty(&last))
    };
    match error.sqlstate().as_str() {
        "PF001" => told.fenced = open,
        "08007" => {}
        other => panic!("unexpected {other}:\n{}", pretty(&last)),
    }
    told.last = last;
    told
}

/// Messages for one row, and the ReadyForQuery expected before the next is sent.
fn messages(shape: Shape, id: u64) -> Vec<(Batch, usize)> {
    let insert = format!("INSERT INTO jobs VALUES ({id})");
    let query = |sql: &str| (Batch::new().query(sql), 1);
    match shape {
        Shape::Autocommit => vec![query(&insert)],
        Shape::Extended => vec![(Batch::new().statement(&insert).sync(), 1)],
        Shape::Transaction => vec![query("BEGIN"), query(&insert), query("COMMIT")],
        Shape::OneString => vec![query(&format!("BEGIN; {insert}; COMMIT"))],
        Shape::OnePipeline => {
            let all = Batch::new()
                .statement("BEGIN")
                .sync()
                .statement(&insert)
                .sync()
                .statement("COMMIT")
                .sync();
            vec![(all, 3)]
        }
        Shape::CommitAndChain => vec![query(&insert), query("COMMIT AND CHAIN")],
        Shape::Copy => {
            let line = format!("{id}\n");
            let copy = Batch::new()
                .query("COPY jobs (id) FROM STDIN")
                .copy_data(line.as_bytes())
                .copy_done();
            vec![(copy, 1)]
        }
        Shape::Procedure => vec![query(&format!("CALL put({id})"))],
    }
}
