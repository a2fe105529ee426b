//! Bytes to messages.

use std::hint::black_box;

use bytes::{BufMut, BytesMut};
use pgpalisade::wire::frontend::FrontendTag;
use pgpalisade::wire::header::{self, HEADER_LEN};
use pgpalisade::wire::{backend, frontend, startup};

use super::{Case, INSERT, Made, repeat};

/// As much as the proxy reads at once.
const BUFFER: usize = 16 * 1024;

/// Bind, Describe, Execute, Sync of a prepared statement with one parameter.
const REQUEST: [(u8, &[u8]); 4] = [
    (b'B', b"\0s1\0\0\0\0\x01\0\0\0\x0212\0\0"),
    (b'D', b"P\0"),
    (b'E', b"\0\0\0\0\0"),
    (b'S', b""),
];

/// What it is answered: BindComplete, RowDescription, DataRow, CommandComplete, ReadyForQuery.
const ANSWER: [(u8, &[u8]); 5] = [
    (b'2', b""),
    (
        b'T',
        b"\0\x01abalance\0\0\0\x40\0\0\x03\0\0\0\x17\0\x04\xff\xff\xff\xff\0\0",
    ),
    (b'D', b"\0\x01\0\0\0\x010"),
    (b'C', b"SELECT 1\0"),
    (b'Z', b"I"),
];

/// Messages in [`BUFFER`]. The loops below must find exactly so many.
const REQUESTS: u32 = 1_524;
const ANSWERS: u32 = 1_153;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "framing-frontend",
            "a message in 16 KiB of Bind, Describe, Execute, Sync",
            frontend_messages,
        )
        .times(REQUESTS),
        Case::new(
            "framing-backend",
            "a message in 16 KiB of their answers, a row each",
            backend_messages,
        )
        .times(ANSWERS),
        Case::new(
            "framing-startup",
            "a startup packet with six parameters, three of them looked for",
            startup_packet,
        ),
        Case::new("framing-query", "the text of a Query of 100 bytes", || {
            let body = [INSERT.as_bytes(), &[0]].concat();
            frontend::query(&body)?;
            Ok(repeat(move || {
                let _ = black_box(frontend::query(black_box(&body)));
            }))
        }),
        Case::new(
            "framing-parse",
            "name and text of a Parse of 100 bytes",
            || {
                let body = [&b"s1\0"[..], INSERT.as_bytes(), &[0; 3]].concat();
                frontend::parse(&body)?;
                Ok(repeat(move || {
                    let _ = black_box(frontend::parse(black_box(&body)));
                }))
            },
        ),
        Case::new("framing-bind", "the two names of a Bind", || {
            let [(_, body), ..] = REQUEST;
            frontend::bind(body).ok_or("the Bind has no names")?;
            Ok(repeat(move || {
                black_box(frontend::bind(black_box(body)));
            }))
        }),
    ]
}

/// Whole messages, as many as fit.
fn fill(messages: &[(u8, &[u8])]) -> Vec<u8> {
    let mut buffer = BytesMut::new();
    for (tag, body) in messages.iter().cycle() {
        if buffer.len() + HEADER_LEN + body.len() > BUFFER {
            break;
        }
        buffer.put_u8(*tag);
        buffer.put_i32(i32::try_from(body.len() + 4).unwrap_or(i32::MAX));
        buffer.put_slice(body);
    }
    buffer.to_vec()
}

/// As `relay/requests.rs` goes from message to message.
fn frontend_messages() -> Made {
    let buffer = fill(&REQUEST);
    let walk = move || {
        let (mut rest, mut found) = (&*buffer, 0);
        while let Ok(Some(header)) = header::parse(rest, frontend::body_max) {
            let Some((message, behind)) = rest.split_at_checked(header.frame_len()) else {
                break;
            };
            let tag = FrontendTag::from_byte(header.tag);
            let _ = black_box((message, tag));
            (rest, found) = (behind, found + 1);
        }
        found
    };
    counted(walk, REQUESTS)
}

/// As `relay/replies.rs` does.
fn backend_messages() -> Made {
    let buffer = fill(&ANSWER);
    let walk = move || {
        let (mut rest, mut found) = (&*buffer, 0);
        while let Ok(Some(header)) = header::parse(rest, backend::body_max) {
            let Some((message, behind)) = rest.split_at_checked(header.frame_len()) else {
                break;
            };
            black_box((message, header.tag == backend::tag::READY_FOR_QUERY));
            (rest, found) = (behind, found + 1);
        }
        found
    };
    counted(walk, ANSWERS)
}

fn counted(walk: impl Fn() -> u32 + 'static, expect: u32) -> Made {
    match walk() {
        found if found == expect => Ok(repeat(move || {
            black_box(walk());
        })),
        found => Err(format!("the buffer has {found} messages, not {expect}").into()),
    }
}

fn startup_packet() -> Made {
    let mut packet = BytesMut::new();
    packet.put_slice(&[0, 0, 0, 0, 0, 3, 0, 0]);
    for text in [
        "user",
        "app",
        "database",
        "shop",
        "application_name",
        "worker",
        "client_encoding",
        "UTF8",
        "DateStyle",
        "ISO",
        "options",
        "-c fencing.token=34",
    ] {
        packet.put_slice(text.as_bytes());
        packet.put_u8(0);
    }
    packet.put_u8(0);
    let len = u32::try_from(packet.len())?.to_be_bytes();
    packet.iter_mut().zip(len).for_each(|(to, byte)| *to = byte);
    let read = move || {
        let startup::StartupPacket::Startup(message) = startup::parse(black_box(&packet)).ok()?
        else {
            return None;
        };
        let wanted = ["user", "database", "options"];
        Some(wanted.map(|name| message.get(name).map(<[u8]>::len)))
    };
    match read() {
        Some([Some(3), Some(4), Some(19)]) => Ok(repeat(move || {
            black_box(read());
        })),
        other => Err(format!("the packet is read as {other:?}").into()),
    }
}
