//! Input of a client before its session: length word, request codes, parameter list.
//!
//! An accepted list reads back the same, and a parameter that the proxy adds must be the one that counts.

#![cfg_attr(feature = "libfuzzer", no_main)]

use libfuzzer_sys::fuzz_target;
use pgpalisade_wire::startup::{self, STARTUP_PACKET_MAX, StartupMessage, StartupPacket};

#[cfg(not(feature = "libfuzzer"))]
const fn main() {}

fuzz_target!(|data: &[u8]| {
    // As a connection reads it: first the length, then that many bytes.
    if let Ok(Some(len)) = startup::packet_len(data) {
        assert!(
            (8..=STARTUP_PACKET_MAX).contains(&len),
            "length {len} was let through"
        );
        if let Some(packet) = data.get(..len) {
            look(packet);
        }
    }
    // With a correct length, so that the fuzzer need not find it.
    if data.len() <= STARTUP_PACKET_MAX - 4 {
        let mut packet = (data.len() as u32 + 4).to_be_bytes().to_vec();
        packet.extend_from_slice(data);
        look(&packet);
    }
});

fn look(packet: &[u8]) {
    let Ok(StartupPacket::Startup(message)) = startup::parse(packet) else {
        return;
    };
    assert_eq!(message.packet(), packet);

    let names_and_values: usize = message
        .pairs()
        .map(|(name, value)| name.len() + value.len() + 2)
        .sum();
    assert_eq!(
        4 + 4 + names_and_values + 1,
        packet.len(),
        "bytes that no parameter accounts for"
    );

    let Ok(longer) = message.with_parameter("default_transaction_read_only", b"on") else {
        return;
    };
    assert_eq!(startup::packet_len(&longer), Ok(Some(longer.len())));
    let Ok(StartupPacket::Startup(added)) = startup::parse(&longer) else {
        panic!("a packet with one more parameter is no startup packet any more");
    };
    assert_eq!(added.get("default_transaction_read_only"), Some(&b"on"[..]));
    assert!(same_before(message, added));
}

/// Whether `added` has the parameters of `message`, in the same order, and one more.
fn same_before(message: StartupMessage<'_>, added: StartupMessage<'_>) -> bool {
    let before: Vec<_> = message.pairs().collect();
    let after: Vec<_> = added.pairs().collect();
    after.len() == before.len() + 1 && after.starts_with(&before)
}
