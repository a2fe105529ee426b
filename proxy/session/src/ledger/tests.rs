//! Conversations in the order in which both sides send: what is in flight, and where each reply goes.

use pgpalisade_policies::{TextEncoding, classify};

use super::super::name_change::NameChange;
use super::*;
use crate::fence::Leave;
use crate::rejection::Rejection;
use std::sync::Arc;

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

/// Checks the events of a conversation, one in each word:
///
/// - `>` requests of the client, a letter each: `Q` Query, `F` FunctionCall, `S` Sync, `P` Parse, `B` Bind, `C` Close,
///   `D` Describe, `E` Execute, `c` CopyDone; `q` a malformed Query, `h` a malformed Flush, `m` another malformed one.
///   Those of the proxy: `p` Parse, `s` Sync, and `x` a Parse that fails in place of a request of the client.
/// - `<` replies by their type bytes, all relayed; `~` all dropped; `!E` an error that is replaced by another one.
/// - `=` requests in flight now, and the server's treatment of more, if it is special: `+copy`, `+skip`.
#[track_caller]
fn check(events: &str) {
    let mut ledger = Ledger::default();
    for (at, event) in events.split(' ').enumerate() {
        let (kind, letters) = event.split_at(1);
        match kind {
            ">" => letters.chars().for_each(|one| match one {
                'c' => ledger.end_copy_in(),
                one => ledger.push(request(one)),
            }),
            "<" => expect(&mut ledger, at, letters, &ReplyRoute::Relay),
            "~" => expect(&mut ledger, at, letters, &ReplyRoute::Swallow),
            "!" => expect(&mut ledger, at, letters, &ReplyRoute::Replace(refusal())),
            "=" => in_flight_now(&ledger, at, letters),
            other => panic!("no event {other}"),
        }
    }
}

#[track_caller]
fn in_flight_now(ledger: &Ledger, at: usize, expect: &str) {
    let (letters, mode) = match expect.split_once('+') {
        Some((letters, "copy")) => (letters, COPY_IN),
        Some((letters, _)) => (letters, SkippingToSync),
        None => (expect, Normal),
    };
    let found: String = ledger.iter().map(letter).collect();
    assert_eq!((&*found, ledger.mode), (letters, mode), "event {at}");
    assert_eq!(ledger.is_empty(), letters.is_empty(), "event {at}");
    // A count that is missed once stays wrong.
    let ends = letters.contains(['Q', 'q', 'F', 'S', 's']);
    assert_eq!(ledger.settled().is_none(), ends, "event {at}");
    assert_eq!(ledger.is_skipping(), mode == SkippingToSync, "event {at}");
    assert_eq!(ledger.is_copying_in(), mode == COPY_IN, "event {at}");
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
    check(">Q <TDDC =Q <Z =");
    // Several statements, and an empty text.
    check(">Q <CTDC =Q <Z =");
    check(">Q <I =Q <Z =");
    // An error neither ends it nor skips anything.
    check(">QQ <CE =QQ <Z =Q");
    check(">F <V =F <Z =");
    check(">FQ <E =FQ <Z =Q");
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
    check(">PBDECS <1 =BDECS <2 =DECS <T =ECS <DD =ECS <C =CS <3 =S <Z =");
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
        check(&format!(">{sent} <{replies} ={sent}"));
    }
    check(">EE <s =E <I =");
    check(">SS <Z =S <Z =");
}

#[test]
fn a_statement_is_described_by_its_parameters_first() {
    check(">DD <t =DD <T =D");
    check(">DD <t =DD <n =D");
    check(">DD <n =D <T =");
}

#[test]
fn an_error_skips_to_the_next_sync() {
    check(">PBESPS <1E =SPS <Z1Z =");
    // A Query before the Sync is skipped as well.
    check(">PQFBES <E =S");
    // Without a Sync, what is sent gets no reply.
    check(">PBE <E =+skip >PBQcE =+skip >SP =SP <Z1 =");
    // The error of a Sync itself (a deferred constraint) skips nothing.
    check(">ESPS <CE =SPS <Z =PS");
}

#[test]
fn a_malformed_message_is_answered_by_an_error() {
    check(">mBES =mBES <E =S <Z =");
    check(">m <E =+skip");
    check(">qQ <E =qQ <Z =Q");
}

#[test]
fn replies_to_the_proxy_are_swallowed() {
    check(">QpsQ <CZ ~1 ~Z =Q <TDCZ =");
    // Inside a pipeline; the Sync is the client's.
    check(">PpES <1 ~1 <CZ =");
    check(">pES ~E =S <Z =");
    check(">PES <E =S");
}

#[test]
fn an_error_is_put_in_the_place_of_the_servers() {
    check(">xS !E =S <Z =");
    check(">PBx <12 !E =+skip >BES <Z =");
    // After an earlier error, the client sees the server's own.
    check(">PxS <E =S <Z =");
    // Only the first error of a request is replaced.
    let mut ledger = Ledger::default();
    ledger.push(request('Q'));
    ledger.front_mut().unwrap().error = Some(refusal());
    assert_eq!(ledger.on_reply(tag::ERROR), ReplyRoute::Replace(refusal()));
    assert_eq!(ledger.on_reply(tag::ERROR), ReplyRoute::Relay);
}

#[test]
fn copy_in_of_a_query() {
    check(">Q <G =Q+copy >S =Q+copy >c =Q >S <CZ =S");
    // Syncs were sent before the answer to the COPY.
    check(">QSS <G =Q+copy >c =Q");
    // Two COPYs in one text.
    check(">Q <G >c =Q <CG =Q+copy >c <CZ =");
    // The COPY fails in the middle of the data, and their end is then ignored.
    check(">Q <GE =Q >c <Z =");
}

#[test]
fn copy_in_of_the_extended_protocol() {
    check(">PBE <12G =E+copy >ScS =ES <CZ =");
    // A Sync sent early is dropped; the one after the data counts.
    check(">ESSS <G =E+copy >cS <CZ =");
    // So is a Flush with a body, which is rejected outside a COPY.
    check(">Eh <G =E+copy >hScS =ES <CZ = >hS <E =S <Z =");
    // The COPY fails, with or without a Sync already sent after the data.
    check(">E <G >cS <E =S");
    check(">E <GE =+skip >cS =S <Z =");
    // The COPY is rejected before it begins.
    check(">ES <E =S <Z =");
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
    check(">ccc =");
    check(">QcQ =QQ <CZ =Q");
}

#[test]
fn nothing_in_flight_is_answered() {
    check("<Z = <E =");
    check(">P <E =+skip <Z =");
}

#[test]
fn messages_that_come_at_any_time_complete_nothing() {
    for sent in ["Q", "F", "S", "P", "B", "C", "D", "E"] {
        check(&format!(">{sent} <NAS ={sent}"));
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
        Sent::Nothing => ' ',
        Sent::Change(Some(_)) => 'p',
        Sent::Change(None) => '-',
        Sent::Unclear => '?',
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
