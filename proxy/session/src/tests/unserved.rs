//! A client without a server connection.

use bytes::BytesMut;

use super::super::unserved::Needs;
use super::frames::split;
use super::subject::{Holds, Subject};
use crate::wire::frontend::FrontendTag;

/// Types of the answers to each message of these types, `.` if it needs a server.
fn answers(subject: Subject, owed: &[u8], messages: &str) -> String {
    let (mut client, _) = subject.session.part().unwrap();
    if !owed.is_empty() {
        client.owe(owed);
    }
    let answers = messages.bytes().map(|tag| {
        let mut out = BytesMut::new();
        let tag = FrontendTag::from_byte(tag).unwrap();
        if client.answer(tag, &mut out) == Needs::Server {
            return ".".to_owned();
        }
        let answers = split(&out).into_iter();
        answers.map(|message| char::from(message[0])).collect()
    });
    answers.collect::<Vec<_>>().join(" ")
}

#[test]
fn an_error_is_answered_as_by_the_server() {
    let error = super::frames::message(b'E', b"\0");
    for (messages, expect) in [
        ("QQ", "EZ ."),
        ("FQ", "EZ ."),
        ("SQ", "EZ ."),
        ("PBDESQ", "E    Z ."),
        ("BQFHCSP", "E     Z ."),
        // Messages that run nothing are not answered.
        ("HdcfQQ", "    EZ ."),
        ("PdcfSQ", "E    Z ."),
    ] {
        let subject = Subject::new(Holds::None);
        assert_eq!(answers(subject, &error, messages), expect, "{messages}");
    }
    // Without an error only data are dropped.
    let found = answers(Subject::new(Holds::None), b"", "dcfQPSH");
    assert_eq!(found, "   . . . .");
}
