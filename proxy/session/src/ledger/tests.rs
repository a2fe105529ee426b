//! Conversations in the order in which both sides send: what is in flight, and where each reply goes.

use pgpalisade_policies::{TextEncoding, classify};

use super::super::name_change::NameChange;
use super::*;
use crate::fence::Leave;
use crate::rejection::Rejection;
use std::sync::Arc;

/// Event of a conversation.
enum Event {
    /// Requests of the client, one letter each: `Q` Query, `F` FunctionCall, `S` Sync, `P` Parse, `B` Bind, `C`
    /// Close, `D` Describe, `E` Execute, `c` CopyDone; `q` a malformed Query, `m` another malformed one. Those of the
    /// proxy: `p` Parse, `s` Sync, and `x` a Parse that fails in place of a request of the client.
    Sent(&'static str),
    /// Replies by their type bytes, all relayed.
    Relayed(&'static str),
    /// Replies by their type bytes, all dropped.
    Swallowed(&'static str),
    /// An ErrorResponse that is replaced by another one for the client.
    Replaced,
    /// Requests in flight now, in the letters of `Sent`, and the server's treatment of more.
    Now(&'static str, ServerMode),
}

use Event::{Now, Relayed, Replaced, Sent, Swallowed};
use ServerMode::{Normal, SkippingToSync};

const COPY_IN: ServerMode = ServerMode::CopyIn { has_data: false };

fn refusal() -> Box<Rejection> {
    Box::new(Rejection::token_change_after_write())
}

fn request(letter: char) -> InFlight {
    match letter {
        'Q' => InFlight::client(Request::Query, None),
        'F' => InFlight::client(Request::FunctionCall, None),
        'S' => InFlight::client(Request::Sync, None),
        'P' => InFlight::client(Request::Parse, None),
        'B' => InFlight::client(Request::Bind, None),
        'C' => InFlight::client(Request::Close, None),
        'D' => InFlight::client(Request::Describe, None),
        'E' => InFlight::client(Request::Execute, None),
        'm' => InFlight::client(Request::Malformed, None),
        'q' => InFlight::client(Request::MalformedQuery, None),
        'h' => InFlight::client(Request::MalformedFlush, None),
        'p' => InFlight::proxy(Request::Parse),
        's' => InFlight::proxy(Request::Sync),
        'x' => InFlight {
            error: Some(refusal()),
            ..InFlight::proxy(Request::Parse)
        },
        other => panic!("no request {other:?}"),
    }
}

fn letter(entry: &InFlight) -> char {
    match (entry.request, entry.origin) {
        (Request::Query, _) => 'Q',
        (Request::FunctionCall, _) => 'F',
        (Request::Sync, Origin::Client) => 'S',
        (Request::Sync, _) => 's',
        (Request::Parse, Origin::Client) => 'P',
        (Request::Parse, Origin::Injected) if entry.error.is_some() => 'x',
        (Request::Parse, _) => 'p',
        (Request::Bind, _) => 'B',
        (Request::Close, _) => 'C',
        (Request::Describe, _) => 'D',
        (Request::Execute, _) => 'E',
        (Request::Malformed, _) => 'm',
        (Request::MalformedQuery, _) => 'q',
        (Request::MalformedFlush, _) => 'h',
    }
}

#[track_caller]
fn check(events: &[Event]) {
    let mut ledger = Ledger::default();
    for (at, event) in events.iter().enumerate() {
        match event {
            Sent(letters) => letters.chars().for_each(|one| match one {
                'c' => ledger.end_copy_in(),
                one => ledger.push(request(one)),
            }),
            Relayed(tags) => expect(&mut ledger, at, tags, &ReplyRoute::Relay),
            Swallowed(tags) => expect(&mut ledger, at, tags, &ReplyRoute::Swallow),
            Replaced => expect(&mut ledger, at, "E", &ReplyRoute::Replace(refusal())),
            Now(letters, mode) => {
                let found: String = ledger.iter().map(letter).collect();
                assert_eq!((&*found, ledger.mode), (*letters, *mode), "event {at}");
                assert_eq!(ledger.is_empty(), letters.is_empty(), "event {at}");
                // A count that is missed once stays wrong.
                let ends = letters.contains(['Q', 'q', 'F', 'S', 's']);
                assert_eq!(ledger.settled().is_none(), ends, "event {at}");
                assert_eq!(ledger.is_skipping(), *mode == SkippingToSync, "event {at}");
                assert_eq!(ledger.is_copying_in(), *mode == COPY_IN, "event {at}");
            }
        }
    }
}

#[track_caller]
fn expect(ledger: &mut Ledger, at: usize, tags: &str, to: &ReplyRoute) {
    for tag in tags.bytes() {
        assert_eq!(
            &ledger.on_reply(tag),
            to,
            "event {at}, {:?}",
            char::from(tag)
        );
    }
}

#[test]
fn a_simple_query_ends_with_ready() {
    check(&[
        Sent("Q"),
        Relayed("TDDC"),
        Now("Q", Normal),
        Relayed("Z"),
        Now("", Normal),
    ]);
    // Several statements, and an empty text.
    check(&[
        Sent("Q"),
        Relayed("CTDC"),
        Now("Q", Normal),
        Relayed("Z"),
        Now("", Normal),
    ]);
    check(&[
        Sent("Q"),
        Relayed("I"),
        Now("Q", Normal),
        Relayed("Z"),
        Now("", Normal),
    ]);
    // An error neither ends it nor skips anything.
    check(&[
        Sent("QQ"),
        Relayed("CE"),
        Now("QQ", Normal),
        Relayed("Z"),
        Now("Q", Normal),
    ]);
    check(&[
        Sent("F"),
        Relayed("V"),
        Now("F", Normal),
        Relayed("Z"),
        Now("", Normal),
    ]);
    check(&[
        Sent("FQ"),
        Relayed("E"),
        Now("FQ", Normal),
        Relayed("Z"),
        Now("Q", Normal),
    ]);
}

#[test]
fn statements_of_a_query_are_counted() {
    let mut ledger = Ledger::default();
    ledger.push(request('Q'));
    for (reply, completed) in [
        (b'T', 0),
        (b'D', 0),
        (b'C', 1),
        (b'I', 2),
        (b'N', 2),
        (b'C', 3),
    ] {
        ledger.on_reply(reply);
        assert_eq!(ledger.front().unwrap().completed, completed);
    }
}

#[test]
fn each_message_of_a_pipeline_has_its_own_reply() {
    check(&[
        Sent("PBDECS"),
        Relayed("1"),
        Now("BDECS", Normal),
        Relayed("2"),
        Now("DECS", Normal),
        Relayed("T"),
        Now("ECS", Normal),
        Relayed("DD"),
        Now("ECS", Normal),
        Relayed("C"),
        Now("CS", Normal),
        Relayed("3"),
        Now("S", Normal),
        Relayed("Z"),
        Now("", Normal),
    ]);
    // A reply to one kind of message completes no other.
    for (sent, replies) in [
        ("P", "23TnsCI"),
        ("B", "13TnsCI"),
        ("C", "12TnsCI"),
        ("D", "123sCI"),
        ("E", "123Tn"),
        ("S", "123TnsCI"),
        ("Q", "123Tns"),
    ] {
        check(&[Sent(sent), Relayed(replies), Now(sent, Normal)]);
    }
    check(&[
        Sent("EE"),
        Relayed("s"),
        Now("E", Normal),
        Relayed("I"),
        Now("", Normal),
    ]);
    check(&[
        Sent("SS"),
        Relayed("Z"),
        Now("S", Normal),
        Relayed("Z"),
        Now("", Normal),
    ]);
}

#[test]
fn a_statement_is_described_by_its_parameters_first() {
    check(&[
        Sent("DD"),
        Relayed("t"),
        Now("DD", Normal),
        Relayed("T"),
        Now("D", Normal),
    ]);
    check(&[
        Sent("DD"),
        Relayed("t"),
        Now("DD", Normal),
        Relayed("n"),
        Now("D", Normal),
    ]);
    check(&[
        Sent("DD"),
        Relayed("n"),
        Now("D", Normal),
        Relayed("T"),
        Now("", Normal),
    ]);
}

#[test]
fn an_error_skips_to_the_next_sync() {
    check(&[
        Sent("PBESPS"),
        Relayed("1E"),
        Now("SPS", Normal),
        Relayed("Z1Z"),
        Now("", Normal),
    ]);
    // A Query before the Sync is skipped as well.
    check(&[Sent("PQFBES"), Relayed("E"), Now("S", Normal)]);
    // Without a Sync, what is sent gets no reply.
    check(&[
        Sent("PBE"),
        Relayed("E"),
        Now("", SkippingToSync),
        Sent("PBQcE"),
        Now("", SkippingToSync),
        Sent("SP"),
        Now("SP", Normal),
        Relayed("Z1"),
        Now("", Normal),
    ]);
    // The error of a Sync itself (a deferred constraint) skips nothing.
    check(&[
        Sent("ESPS"),
        Relayed("CE"),
        Now("SPS", Normal),
        Relayed("Z"),
        Now("PS", Normal),
    ]);
}

#[test]
fn a_malformed_message_is_answered_by_an_error() {
    check(&[
        Sent("mBES"),
        Now("mBES", Normal),
        Relayed("E"),
        Now("S", Normal),
        Relayed("Z"),
        Now("", Normal),
    ]);
    check(&[Sent("m"), Relayed("E"), Now("", SkippingToSync)]);
    check(&[
        Sent("qQ"),
        Relayed("E"),
        Now("qQ", Normal),
        Relayed("Z"),
        Now("Q", Normal),
    ]);
}

#[test]
fn replies_to_the_proxy_are_swallowed() {
    check(&[
        Sent("QpsQ"),
        Relayed("CZ"),
        Swallowed("1"),
        Swallowed("Z"),
        Now("Q", Normal),
        Relayed("TDCZ"),
        Now("", Normal),
    ]);
    // Inside a pipeline; the Sync is the client's.
    check(&[
        Sent("PpES"),
        Relayed("1"),
        Swallowed("1"),
        Relayed("CZ"),
        Now("", Normal),
    ]);
    check(&[
        Sent("pES"),
        Swallowed("E"),
        Now("S", Normal),
        Relayed("Z"),
        Now("", Normal),
    ]);
    check(&[Sent("PES"), Relayed("E"), Now("S", Normal)]);
}

#[test]
fn an_error_is_put_in_the_place_of_the_servers() {
    check(&[
        Sent("xS"),
        Replaced,
        Now("S", Normal),
        Relayed("Z"),
        Now("", Normal),
    ]);
    check(&[
        Sent("PBx"),
        Relayed("12"),
        Replaced,
        Now("", SkippingToSync),
        Sent("BES"),
        Relayed("Z"),
        Now("", Normal),
    ]);
    // After an earlier error, the client sees the server's own.
    check(&[
        Sent("PxS"),
        Relayed("E"),
        Now("S", Normal),
        Relayed("Z"),
        Now("", Normal),
    ]);
    // Only the first error of a request is replaced.
    let mut ledger = Ledger::default();
    ledger.push(request('Q'));
    ledger.front_mut().unwrap().error = Some(refusal());
    assert_eq!(ledger.on_reply(tag::ERROR), ReplyRoute::Replace(refusal()));
    assert_eq!(ledger.on_reply(tag::ERROR), ReplyRoute::Relay);
}

#[test]
fn copy_in_of_a_query() {
    check(&[
        Sent("Q"),
        Relayed("G"),
        Now("Q", COPY_IN),
        // Ignored by the server while it reads data.
        Sent("S"),
        Now("Q", COPY_IN),
        Sent("c"),
        Now("Q", Normal),
        Sent("S"),
        Relayed("CZ"),
        Now("S", Normal),
    ]);
    // Syncs were sent before the answer to the COPY.
    check(&[
        Sent("QSS"),
        Relayed("G"),
        Now("Q", COPY_IN),
        Sent("c"),
        Now("Q", Normal),
    ]);
    // Two COPYs in one text.
    check(&[
        Sent("Q"),
        Relayed("G"),
        Sent("c"),
        Now("Q", Normal),
        Relayed("CG"),
        Now("Q", COPY_IN),
        Sent("c"),
        Relayed("CZ"),
        Now("", Normal),
    ]);
    // The COPY fails in the middle of the data, and their end is then ignored.
    check(&[
        Sent("Q"),
        Relayed("GE"),
        Now("Q", Normal),
        Sent("c"),
        Relayed("Z"),
        Now("", Normal),
    ]);
}

#[test]
fn copy_in_of_the_extended_protocol() {
    check(&[
        Sent("PBE"),
        Relayed("12G"),
        Now("E", COPY_IN),
        Sent("ScS"),
        Now("ES", Normal),
        Relayed("CZ"),
        Now("", Normal),
    ]);
    // A Sync sent early is dropped; the one after the data counts.
    check(&[
        Sent("ESSS"),
        Relayed("G"),
        Now("E", COPY_IN),
        Sent("cS"),
        Relayed("CZ"),
        Now("", Normal),
    ]);
    // So is a Flush with a body, which is rejected outside a COPY.
    check(&[
        Sent("Eh"),
        Relayed("G"),
        Now("E", COPY_IN),
        Sent("hScS"),
        Now("ES", Normal),
        Relayed("CZ"),
        Now("", Normal),
        Sent("hS"),
        Relayed("E"),
        Now("S", Normal),
        Relayed("Z"),
        Now("", Normal),
    ]);
    // The COPY fails, with or without a Sync already sent after the data.
    check(&[
        Sent("E"),
        Relayed("G"),
        Sent("cS"),
        Relayed("E"),
        Now("S", Normal),
    ]);
    check(&[
        Sent("E"),
        Relayed("GE"),
        Now("", SkippingToSync),
        Sent("cS"),
        Now("S", Normal),
        Relayed("Z"),
        Now("", Normal),
    ]);
    // The COPY is rejected before it begins.
    check(&[
        Sent("ES"),
        Relayed("E"),
        Now("S", Normal),
        Relayed("Z"),
        Now("", Normal),
    ]);
}

/// A Sync before all data is ignored. After data that may be refused, it is ambiguous.
#[test]
fn a_sync_among_the_data_of_a_copy() {
    for (letters, expect) in [
        ("", false),
        ("S", false),
        ("Sd", false),
        ("dd", false),
        ("dS", true),
        ("SdSd", true),
        ("dSc", true),
        ("dScC", false),
        ("Sdc", false),
    ] {
        let mut ledger = Ledger::default();
        ledger.push(request('Q'));
        ledger.on_reply(tag::COPY_IN_RESPONSE);
        for letter in letters.chars() {
            match letter {
                'd' => ledger.on_copy_data(),
                'c' => ledger.end_copy_in(),
                'C' => drop(ledger.on_reply(tag::COMMAND_COMPLETE)),
                other => ledger.push(request(other)),
            }
        }
        assert_eq!(ledger.has_unclear_sync(), expect, "{letters}");
    }
}

#[test]
fn the_end_of_a_copy_without_a_copy_is_nothing() {
    check(&[Sent("ccc"), Now("", Normal)]);
    check(&[
        Sent("QcQ"),
        Now("QQ", Normal),
        Relayed("CZ"),
        Now("Q", Normal),
    ]);
}

#[test]
fn nothing_in_flight_is_answered() {
    check(&[Relayed("Z"), Now("", Normal), Relayed("E"), Now("", Normal)]);
    check(&[
        Sent("P"),
        Relayed("E"),
        Now("", SkippingToSync),
        Relayed("Z"),
        Now("", Normal),
    ]);
}

#[test]
fn messages_that_come_at_any_time_complete_nothing() {
    for sent in ["Q", "F", "S", "P", "B", "C", "D", "E"] {
        check(&[Sent(sent), Relayed("NAS"), Now(sent, Normal)]);
    }
}

#[test]
fn the_queue_has_a_limit() {
    let mut ledger = Ledger::default();
    for _ in 1..IN_FLIGHT_MAX {
        ledger.push(request('S'));
    }
    assert!(ledger.has_room());
    ledger.push(request('S'));
    assert!(!ledger.has_room());
    ledger.on_reply(tag::READY_FOR_QUERY);
    assert!(ledger.has_room());
}

fn with_text(request: Request, text: &str) -> InFlight {
    let verdict = classify(text.as_bytes(), TextEncoding::Utf8);
    InFlight::client(request, Some(Arc::new(verdict)))
}

/// The confirmed state holds for a request while nothing of an earlier cycle is in flight.
#[test]
fn a_request_is_settled_within_its_cycle() {
    for (sent, expect) in [
        ("", true),
        ("P", true),
        ("PBDE", true),
        ("PBES", false),
        ("Q", false),
        ("F", false),
        ("QP", false),
        ("SPBE", false),
        ("s", false),
    ] {
        let mut ledger = Ledger::default();
        sent.chars().for_each(|one| ledger.push(request(one)));
        assert_eq!(ledger.settled().is_some(), expect, "{sent}");
    }
}

/// A transaction has written from the time a write is sent until the ReadyForQuery that ends it.
#[test]
fn what_is_in_flight_counts_as_written() {
    let write = |leave| InFlight {
        leave,
        ..request('E')
    };
    for (leave, expect) in [
        (Leave::Read, false),
        (Leave::ReadUnguarded, true),
        (Leave::Write, true),
    ] {
        let mut ledger = Ledger::default();
        ledger.push(request('Q'));
        ledger.push(write(leave));
        assert_eq!(ledger.wrote(), expect, "{leave:?}");
        // The end of an earlier transaction does not matter.
        ledger.on_reply(tag::READY_FOR_QUERY);
        ledger.end_transaction();
        assert_eq!(ledger.wrote(), expect, "{leave:?}");
        ledger.on_reply(tag::COMMAND_COMPLETE);
        assert!(ledger.is_empty());
        assert_eq!(ledger.wrote(), expect, "{leave:?}");
        ledger.end_transaction();
        assert!(!ledger.wrote());
    }
}

/// Checks the effect of requests in flight on a name: `p` defined, `-` closed, `?` unclear, and a blank if nothing
/// changes it.
#[track_caller]
fn check_sent(entries: Vec<InFlight>, name: Name<'_>, expect: char) {
    let mut ledger = Ledger::default();
    let about = format!("{entries:?}");
    entries.into_iter().for_each(|entry| ledger.push(entry));
    let found = match ledger.sent(name) {
        super::Sent::Nothing => ' ',
        super::Sent::Change(Some(_)) => 'p',
        super::Sent::Change(None) => '-',
        super::Sent::Unclear => '?',
    };
    assert_eq!(found, expect, "{about}");
}

#[test]
fn a_name_is_what_was_sent_in_the_same_cycle() {
    let parse = |name: &'static str| InFlight {
        name: NameChange::set(Name::statement(name.as_bytes()), PreparedText::Plain),
        ..request('P')
    };
    let bind = |name: &'static str| InFlight {
        name: NameChange::set(Name::portal(name.as_bytes()), PreparedText::Plain),
        ..request('B')
    };
    let close = |name: &'static str| InFlight {
        name: NameChange::close(Name::statement(name.as_bytes())),
        ..request('C')
    };
    let sync = || request('S');
    let (s, unnamed) = (Name::statement(b"s"), Name::statement(b""));
    check_sent(vec![], s, ' ');
    check_sent(vec![parse("s")], s, 'p');
    check_sent(vec![parse("s"), bind(""), request('E')], s, 'p');
    check_sent(vec![parse("s"), close("s")], s, '-');
    check_sent(vec![close("s"), parse("s")], s, 'p');
    check_sent(vec![parse("t"), bind("s")], s, ' ');
    check_sent(vec![parse("")], unnamed, 'p');
    check_sent(vec![bind("")], Name::portal(b""), 'p');
    check_sent(vec![bind("")], Name::portal(b"s"), ' ');
    // An earlier cycle may fail while the server does not skip what follows its Sync.
    check_sent(vec![parse("s"), sync()], s, '?');
    check_sent(vec![parse("t"), sync(), parse("u")], s, '?');
    check_sent(vec![parse("s"), sync(), parse("s")], s, 'p');
    check_sent(vec![bind("s"), sync(), bind("")], s, ' ');
    // A simple Query destroys the unnamed statement.
    check_sent(vec![request('Q')], unnamed, '?');
    check_sent(vec![request('Q')], s, ' ');
    check_sent(vec![request('Q'), parse("")], unnamed, 'p');
    for text in [
        "PREPARE s AS SELECT 1",
        "DEALLOCATE s",
        "DEALLOCATE ALL",
        "DISCARD ALL",
    ] {
        check_sent(vec![with_text(Request::Query, text)], s, '?');
        check_sent(vec![with_text(Request::Execute, text)], s, '?');
    }
    check_sent(vec![with_text(Request::Query, "SELECT 1")], s, ' ');
    let many = std::iter::repeat_with(|| bind("")).take(LOOKED_BACK_MAX);
    check_sent(std::iter::once(parse("s")).chain(many).collect(), s, '?');
}

#[test]
fn a_row_is_looked_at_while_a_show_of_the_access_mode_is_answered() {
    const SHOW: &str = "SHOW transaction_read_only";
    let mut ledger = Ledger::default();
    ledger.push(with_text(Request::Query, "SELECT 1"));
    ledger.push(with_text(Request::Query, &format!("SELECT 1; {SHOW}")));
    assert_eq!(ledger.shown_access(), None);
    ledger.on_reply(tag::COMMAND_COMPLETE);
    ledger.on_reply(tag::READY_FOR_QUERY);
    assert_eq!(ledger.shown_access(), None, "the statement before it");
    ledger.on_reply(tag::COMMAND_COMPLETE);
    assert!(ledger.shown_access().is_some());
    ledger.on_reply(tag::COMMAND_COMPLETE);
    assert_eq!(ledger.shown_access(), None, "the text is done with");
    ledger.on_reply(tag::READY_FOR_QUERY);
    ledger.push(with_text(Request::Execute, SHOW));
    assert!(ledger.shown_access().is_some());
}

/// A session is idle for most of its life: a long pipeline leaves no memory behind, and after a short one the next
/// allocates none.
#[test]
fn memory_of_a_long_pipeline_is_given_back() {
    let mut ledger = Ledger::default();
    for (requests, expect) in [(KEPT_WHEN_EMPTY, KEPT_WHEN_EMPTY), (1000, 0), (4, 4)] {
        for _ in 0..requests {
            ledger.push(request('S'));
        }
        let full = ledger.in_flight.capacity();
        for left in (0..requests).rev() {
            assert_eq!(ledger.in_flight.capacity(), full, "{left} left and one");
            ledger.on_reply(tag::READY_FOR_QUERY);
        }
        assert!(ledger.is_empty());
        assert_eq!(ledger.in_flight.capacity(), expect, "{requests} requests");
    }
}
