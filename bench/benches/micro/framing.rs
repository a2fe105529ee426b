//! Cost of cutting bytes into messages, and of the ledger of messages in flight.

use bytes::{BufMut, BytesMut};
use divan::Bencher;
use divan::counter::ItemsCount;
use pgpalisade_session::in_flight::{InFlight, Request};
use pgpalisade_session::ledger::Ledger;
use pgpalisade_wire::backend::{self, tag};
use pgpalisade_wire::frontend::{self, FrontendTag};
use pgpalisade_wire::header::{self, HEADER_LEN, Header};

use super::INSERT;

const BUFFER: usize = 16 * 1024;

/// Of a prepared statement with one parameter.
const REQUEST: [(u8, &[u8]); 4] = [
    (b'B', b"\0s1\0\0\0\0\x01\0\0\0\x0212\0\0"),
    (b'D', b"P\0"),
    (b'E', b"\0\0\0\0\0"),
    (b'S', b""),
];

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

/// As many whole messages as fit, and their number.
fn fill(messages: &[(u8, &[u8])]) -> (Vec<u8>, usize) {
    let mut buffer = BytesMut::new();
    let mut count = 0;
    for (tag, body) in messages.iter().cycle() {
        if buffer.len() + HEADER_LEN + body.len() > BUFFER {
            break;
        }
        buffer.put_u8(*tag);
        buffer.put_i32(i32::try_from(body.len() + 4).expect("a short message"));
        buffer.put_slice(body);
        count += 1;
    }
    (buffer.to_vec(), count)
}

/// Walks a buffer from message to message, and returns their number.
fn walk(buffer: &[u8], body_max: impl Fn(u8) -> usize, look: impl Fn(&Header, &[u8])) -> usize {
    let (mut rest, mut found) = (buffer, 0);
    while let Ok(Some(header)) = header::parse(rest, &body_max) {
        let Some((message, behind)) = rest.split_at_checked(header.frame_len()) else {
            break;
        };
        look(&header, message);
        (rest, found) = (behind, found + 1);
    }
    found
}

#[divan::bench]
fn requests_in_a_buffer(bencher: Bencher<'_, '_>) {
    let (buffer, count) = fill(&REQUEST);
    bencher.counter(ItemsCount::new(count)).bench(|| {
        let look = |header: &Header, message: &[u8]| {
            divan::black_box((message.len(), FrontendTag::from_byte(header.tag).is_ok()));
        };
        assert_eq!(
            walk(divan::black_box(&buffer), frontend::body_max, look),
            count
        );
    });
}

#[divan::bench]
fn answers_in_a_buffer(bencher: Bencher<'_, '_>) {
    let (buffer, count) = fill(&ANSWER);
    bencher.counter(ItemsCount::new(count)).bench(|| {
        let look = |header: &Header, message: &[u8]| {
            divan::black_box((message.len(), header.tag == tag::READY_FOR_QUERY));
        };
        assert_eq!(
            walk(divan::black_box(&buffer), backend::body_max, look),
            count
        );
    });
}

#[divan::bench]
fn parse_message(bencher: Bencher<'_, '_>) {
    let body = [&b"s1\0"[..], INSERT.as_bytes(), &[0; 3]].concat();
    bencher.bench(|| frontend::parse(divan::black_box(&body)).is_ok());
}

/// All sent before the first reply.
#[divan::bench(args = [1, 1_000])]
fn ledger_of_a_pipeline(bencher: Bencher<'_, '_>, requests: usize) {
    let mut ledger = Ledger::default();
    bencher.counter(ItemsCount::new(requests)).bench_local(|| {
        for _ in 0..requests {
            ledger.push(InFlight::client(Request::Bind, None));
            ledger.push(InFlight::client(Request::Execute, None));
        }
        for _ in 0..requests {
            divan::black_box(ledger.on_reply(tag::BIND_COMPLETE));
            divan::black_box(ledger.on_reply(tag::COMMAND_COMPLETE));
        }
        assert!(ledger.is_empty());
    });
}
