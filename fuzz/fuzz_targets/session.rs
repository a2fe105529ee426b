//! Messages of both sides for one session, in any order.
//!
//! The session's own output stays within bounds and consists of whole messages. A message passes without a token only
//! if its type or text allows it. A message that ends the session ends it for good.

#![cfg_attr(feature = "libfuzzer", no_main)]

use std::cell::RefCell;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use pgpalisade_authority::{Backend, Cluster, Mark, Scope, Token};
use pgpalisade_fence::mark_cache::MarkCache;
use pgpalisade_fence::{Basis, Fence, Identified, SessionFence, TokenValue};
use pgpalisade_policies::{Mode, Policy, VerdictCache, Who, classify};
use pgpalisade_session::access_mode::Reported;
use pgpalisade_session::action::{Action, Disposition, Prerequisite};
use pgpalisade_session::frame::Frame;
use pgpalisade_session::text_settings::Reports;
use pgpalisade_session::token_request::{Obtained, TokenRequest};
use pgpalisade_session::{Beginning, Session};
use pgpalisade_wire::frontend;
use pgpalisade_wire::header::{self, HEADER_LEN, Header};

/// A few statements, or one error with an excerpt.
const SAID_MAX: usize = 64 * 1024;

/// Messages that run a statement, or carry its data. Each needs a permit.
const RUNNING: &[u8] = b"QEFdc";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    Nothing,
    Token,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    GoesOn,
    Ends,
}

#[cfg(not(feature = "libfuzzer"))]
const fn main() {}

fuzz_target!(|data: &[u8]| {
    let Some((&start, mut rest)) = data.split_first() else {
        return;
    };
    let fence = fence();
    let mut session = session(fence.clone());
    let holds = match start & 1 {
        0 => Holds::Nothing,
        _ => Holds::Token,
    };
    if holds == Holds::Token {
        hold(&mut session, &fence);
    }
    if start & 2 == 2 {
        raise(&fence, 6);
    }
    let verdicts = RefCell::new(VerdictCache::new(1 << 20));
    // The first byte of each message gives its sender and its pieces.
    while let Some((&how, bytes)) = rest.split_first() {
        let Some((header, message)) = next(bytes) else {
            return;
        };
        rest = &bytes[message.len()..];
        let course = match how & 1 {
            0 => on_client(&mut session, header, message, how, &verdicts, holds),
            _ => on_server(&mut session, header, message),
        };
        if course == Course::Ends {
            return;
        }
    }
});

/// The first message, as far as its bytes are there: the rest of it has yet to arrive.
fn next(bytes: &[u8]) -> Option<(Header, &[u8])> {
    let header = header::parse(bytes, frontend::body_max).ok()??;
    Some((header, &bytes[..header.frame_len().min(bytes.len())]))
}

fn on_client(
    session: &mut Session,
    header: Header,
    message: &[u8],
    how: u8,
    verdicts: &RefCell<VerdictCache>,
    holds: Holds,
) -> Course {
    let frame = match how & 2 {
        0 => Frame::new(header, message),
        _ => Frame::new(header, message).without_room(),
    };
    let action = session.on_frontend(frame, verdicts);
    said(session);
    match action {
        Action::Forward(permit) => {
            if holds == Holds::Nothing && RUNNING.contains(&header.tag) {
                assert_ne!(permit.basis(), Basis::Token);
                assert_ne!(permit.basis(), Basis::Exempt);
            }
            // No other type can change data.
            assert!(b"QPBDECSHFdcf".contains(&header.tag));
        }
        Action::Need(prerequisite) => satisfy(session, prerequisite),
        Action::End(_) | Action::Terminate => return Course::Ends,
        Action::Discard | Action::AwaitFront | Action::AwaitWhole => {}
    }
    said(session);
    Course::GoesOn
}

fn on_server(session: &mut Session, header: Header, message: &[u8]) -> Course {
    let body = &message[HEADER_LEN..];
    if body.len() < header.body_len && session.understands(header.tag) {
        return Course::GoesOn;
    }
    let course = match session.on_backend(header.tag, body) {
        Disposition::Relay | Disposition::Drop => Course::GoesOn,
        Disposition::Terminated => match session.on_terminated(body) {
            None => Course::GoesOn,
            Some(_) => Course::Ends,
        },
        Disposition::End(_) => Course::Ends,
    };
    said(session);
    course
}

/// Satisfies a prerequisite in the shortest way. The fuzzer provides its replies next.
fn satisfy(session: &mut Session, prerequisite: Prerequisite) {
    match prerequisite {
        Prerequisite::Replies => session.ask_for_replies(),
        Prerequisite::Verdict(unread) => {
            session.on_verdict(Arc::new(classify(&unread.text, unread.encoding)))
        }
        Prerequisite::History => session.on_history("[]".to_owned()),
        Prerequisite::Access(change) => {
            session.begin_set_access(change);
            let _ = session.end_set_access(change);
        }
        Prerequisite::Tokens(_, _) => {
            let rejection = session_fence().changes_by_name();
            rejection
                .into_iter()
                .for_each(|why| session.refuse_waiting(why));
        }
    }
}

fn said(session: &mut Session) {
    let output = session.output();
    assert!(output.to_server.len() <= SAID_MAX && output.to_client.len() <= SAID_MAX);
    for bytes in [&output.to_server, &output.to_client] {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let header = header::parse(rest, |_| SAID_MAX).unwrap().unwrap();
            rest = &rest[header.frame_len()..];
        }
    }
    *output = Default::default();
}

fn session(fence: SessionFence) -> Session {
    Session::new(Beginning {
        fence,
        scope: None,
        backend_pid: 7,
        reported: Reported::default(),
        texts: Reports::default(),
    })
}

fn hold(session: &mut Session, fence: &SessionFence) {
    let value = TokenValue::parse("5", &Scope::default()).unwrap().unwrap();
    let wanted = TokenRequest::new(fence, value);
    let identified = Identified {
        backend: Backend {
            pid: 7,
            started_us: 1,
        },
        cluster: Cluster {
            system_identifier: 1,
            timeline: 1,
            postmaster_us: 0,
        },
    };
    session
        .on_declared(&wanted, identified, Ok(Obtained::default()))
        .unwrap();
    session.start_with(&wanted);
}

fn raise(fence: &SessionFence, mark: u64) {
    let mark = Mark::new(Token::new(mark).unwrap(), 1, "fuzz".to_owned());
    fence.fence().mark(&Scope::default()).raise(&mark);
}

fn fence() -> SessionFence {
    let fence = session_fence();
    raise(&fence, 5);
    fence
}

fn session_fence() -> SessionFence {
    let policy = Policy::parse("", &|_| Ok(())).unwrap();
    let fence = Fence::new(policy, Arc::new(MarkCache::default()), Mode::Enforce).unwrap();
    Arc::new(fence).for_session(&Who {
        user: "u",
        database: "d",
        application_name: None,
        client: None,
        common_name: None,
    })
}
