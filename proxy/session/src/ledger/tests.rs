//! What is in flight, and what follows from it.

use pgpalisade_policies::{TextEncoding, classify};

use super::super::name_change::NameChange;
use super::*;
use crate::fence::Leave;
use std::sync::Arc;

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
        's' => InFlight::proxy(Request::Sync),
        other => panic!("no request {other:?}"),
    }
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

/// The server answers nothing up to the Sync after an error.
#[test]
fn what_is_skipped_is_not_in_flight() {
    let mut ledger = Ledger::default();
    ledger.push(request('P'));
    ledger.on_reply(tag::ERROR);
    for skipped in ['P', 'B', 'Q', 'E'] {
        ledger.push(request(skipped));
        assert!(ledger.is_skipping() && ledger.is_empty(), "{skipped}");
    }
    ledger.push(request('S'));
    ledger.push(request('P'));
    assert_eq!((ledger.is_skipping(), ledger.iter().count()), (false, 2));
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
