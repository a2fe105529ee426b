//! L3: messages that violate the protocol. PostgreSQL answers each with an error, and the session goes on.

use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Message, TRUSTED, Wire, pretty, tags};

/// Type and body. The test needs only some answer; PostgreSQL decides which.
const MALFORMED: [(u8, &[u8]); 41] = [
    (b'H', b"x"),
    (b'H', b"\0\0\0\0"),
    (b'S', b"x"),
    (b'D', b""),
    (b'D', b"X\0"),
    (b'D', b"S"),
    (b'D', b"Ss"),
    (b'D', b"Ss\0x"),
    (b'C', b""),
    (b'C', b"X\0"),
    (b'C', b"P"),
    (b'C', b"Ss\0x"),
    (b'E', b""),
    (b'E', b"\0"),
    (b'E', b"\0\0\0\0\0\0"),
    (b'E', b"s"),
    (b'B', b"\0\0"),
    (b'B', b"\0\0\0\x01"),
    (b'P', b"s\0SELECT 1"),
    (b'P', b"\0SELECT 1\0"),
    (b'Q', b""),
    (b'Q', b"SELECT 1"),
    (b'Q', b"SELECT 1\0\0"),
    (b'Q', b"SELECT 1\0SELECT 2\0"),
    (b'Q', b"SELECT '\xff\xfe'\0"),
    (b'P', b""),
    (b'P', b"name"),
    (b'P', b"name\0SELECT 1\0\xff\xff"),
    (b'P', b"name\0SELECT 1\0\0\x05\0\0"),
    (b'B', b"portal\0"),
    (b'B', b"\0\0\0\0\xff\xff"),
    (b'B', b"\0\0\0\0\0\x01\x7f\xff\xff\xff"),
    (b'D', b"Sno terminator"),
    (b'E', b"\0\0"),
    (b'E', b"portal\0\0\0\0\0\0"),
    (b'C', b"?\0"),
    (b'F', b""),
    (b'F', b"\0\0\0\x01\xff\xff\xff\xff"),
    (b'S', b"more"),
    (b'H', b"more"),
    (b'f', b"no terminator"),
];

/// Messages around a malformed one.
fn places(tag: u8, body: &[u8]) -> Vec<(&'static str, Batch)> {
    let new = Batch::new;
    let bad = || new().message(tag, body);
    let good = || new().statement("SELECT 1");
    vec![
        ("alone", bad().sync()),
        ("in front of a pipeline", bad().then(&good()).sync()),
        ("behind a pipeline", good().then(&bad()).sync()),
        ("between two", good().then(&bad()).then(&good()).sync()),
        ("in front of a Query", bad().query("SELECT 2").sync()),
        (
            "in a block",
            new().query("BEGIN").then(&bad()).sync().query("ROLLBACK"),
        ),
        ("twice", bad().then(&bad()).sync()),
    ]
}

#[test]
fn l3_is_answered_as_postgresql_does() {
    let stage = Stage::start();
    let mut wrong = Vec::new();
    for (tag, body) in MALFORMED {
        for (place, batch) in places(tag, body) {
            let mut direct = Wire::login(&stage.postgres.tcp(), &TRUSTED);
            // What is called, or cannot be read, might write.
            let mut proxied = match tag == b'F' || std::str::from_utf8(body).is_err() {
                true => stage.leader("1"),
                false => stage.plain(),
            };
            let (expected, got) = (direct.run_all(&batch), proxied.run_all(&batch));
            let states = |answer: &[Message]| -> Vec<String> {
                answer
                    .iter()
                    .filter(|message| message.tag == b'E')
                    .map(Message::sqlstate)
                    .collect()
            };
            if (tags(&expected), states(&expected)) != (tags(&got), states(&got)) {
                wrong.push(format!(
                    "'{}' with {}, {place}:\n  direct:\n{}  through the proxy:\n{}",
                    char::from(tag),
                    body.escape_ascii(),
                    pretty(&expected),
                    pretty(&got)
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
