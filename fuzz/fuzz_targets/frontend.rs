//! A stream of messages from a client in a session.
//!
//! The stream is cut into the same frames wherever the network cuts it. No frame is larger than PostgreSQL accepts,
//! and no decoder returns bytes from outside its body.

#![cfg_attr(feature = "libfuzzer", no_main)]

use libfuzzer_sys::fuzz_target;
use pgpalisade_wire::frontend::{self, FrontendTag, Target};
use pgpalisade_wire::header::{self, HEADER_LEN};

#[cfg(not(feature = "libfuzzer"))]
const fn main() {}

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    while let Some((tag, frame)) = next(rest) {
        let body = &frame[HEADER_LEN..];
        let Ok(tag) = FrontendTag::from_byte(tag) else {
            break; // the proxy closes the connection here
        };
        decode(tag, body);
        rest = &rest[frame.len()..];
    }
    // Every decoder on any bytes, so that the fuzzer need not find the header.
    for tag in b"BCdcfDEHFPpQSX"
        .iter()
        .filter_map(|tag| FrontendTag::from_byte(*tag).ok())
    {
        decode(tag, data);
    }
});

/// The first whole frame, or `None` if the stream ends or is refused.
fn next(stream: &[u8]) -> Option<(u8, &[u8])> {
    for cut in 0..HEADER_LEN.min(stream.len() + 1) {
        let part = &stream[..cut];
        let found = header::parse(part, frontend::body_max);
        assert_eq!(found, Ok(None), "decided on {cut} bytes");
    }
    let header = header::parse(stream, frontend::body_max).ok()??;
    assert!(header.body_len <= frontend::body_max(header.tag));
    assert_eq!(header.frame_len(), HEADER_LEN + header.body_len);
    Some((header.tag, stream.get(..header.frame_len())?))
}

fn decode(tag: FrontendTag, body: &[u8]) {
    match tag {
        FrontendTag::Query => {
            if let Ok(text) = frontend::query(body) {
                assert_eq!(text.len() + 1, body.len());
                inside(text, body);
            }
        }
        FrontendTag::Parse => {
            if let Ok((name, text)) = frontend::parse(body) {
                inside(name, body);
                inside(text, body);
            }
        }
        FrontendTag::Bind => {
            let Some((portal, statement)) = frontend::bind(body) else {
                return;
            };
            inside(portal, body);
            inside(statement, body);
            // More bytes after the names change nothing: the proxy reads a prefix.
            let mut longer = body.to_vec();
            longer.push(0);
            assert_eq!(frontend::bind(&longer), Some((portal, statement)));
        }
        FrontendTag::Execute => {
            if let Ok(portal) = frontend::execute(body) {
                assert_eq!(portal.len() + 5, body.len());
                inside(portal, body);
            }
        }
        FrontendTag::Describe | FrontendTag::Close => {
            if let Ok(Target::Statement(name) | Target::Portal(name)) = frontend::target(b'D', body)
            {
                assert_eq!(name.len() + 2, body.len());
                inside(name, body);
            }
        }
        _ => {}
    }
}

/// Checks a string of the protocol: a part of the body, without NUL.
fn inside(text: &[u8], body: &[u8]) {
    assert!(body.as_ptr_range().start <= text.as_ptr_range().start);
    assert!(text.as_ptr_range().end <= body.as_ptr_range().end);
    assert!(!text.contains(&0));
}
