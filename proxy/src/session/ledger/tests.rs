//! Conversations in the order in which both sides send: what is in flight, and where each reply goes.

use pgpalisade_policies::{TextEncoding, classify};

use super::*;

/// One thing that happens to the ledger.
enum Event {
    /// Requests of the client, a letter each: `Q` Query, `F` FunctionCall, `S` Sync, `P` Parse,
    /// `B` Bind, `C` Close, `D` Describe, `E` Execute, `c` CopyDone. A lower-case `p` is a Parse and
    /// `s` a Sync of the proxy's own, `x` a Parse of the proxy's own that fails in the client's place.
    Sent(&'static str),
    /// Replies by their type bytes, all relayed.
    Relayed(&'static str),
    /// Replies by their type bytes, all swallowed.
    Swallowed(&'static str),
    /// An ErrorResponse in whose place the client gets another one.
    Replaced,
    /// What is in flight now, in the letters of `Sent`, and what the server does with more.
    Now(&'static str, Mode),
}

use Event::{Now, Relayed, Replaced, Sent, Swallowed};
use Mode::{CopyIn, Normal, SkippingToSync};

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
        'c' => InFlight::client(Request::CopyEnd, None),
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
        (Request::Sync, Origin::Proxy) => 's',
        (Request::Parse, Origin::Client) => 'P',
        (Request::Parse, Origin::Proxy) if entry.error.is_some() => 'x',
        (Request::Parse, Origin::Proxy) => 'p',
        (Request::Bind, _) => 'B',
        (Request::Close, _) => 'C',
        (Request::Describe, _) => 'D',
        (Request::Execute, _) => 'E',
        (Request::CopyEnd, _) => 'c',
    }
}

#[track_caller]
fn check(events: &[Event]) {
    let mut ledger = Ledger::default();
    for (at, event) in events.iter().enumerate() {
        match event {
            Sent(letters) => letters.chars().for_each(|one| ledger.push(request(one))),
            Relayed(tags) => expect(&mut ledger, at, tags, &Reply::Relay),
            Swallowed(tags) => expect(&mut ledger, at, tags, &Reply::Swallow),
            Replaced => expect(&mut ledger, at, "E", &Reply::Replace(refusal())),
            Now(letters, mode) => {
                let found: String = ledger.iter().map(letter).collect();
                assert_eq!((&*found, ledger.mode), (*letters, *mode), "event {at}");
                assert_eq!(ledger.is_empty(), letters.is_empty(), "event {at}");
                // These two are counted, so what is left out once stays wrong.
                let ends = letters.contains(['Q', 'S', 's']);
                assert_eq!(ledger.ends_transaction(), ends, "event {at}");
                let hides = letters.contains(['Q', 'P', 'B', 'D', 'E']);
                assert_eq!(ledger.may_hide_a_write(), hides, "event {at}");
                assert_eq!(ledger.is_skipping(), *mode == SkippingToSync, "event {at}");
                assert_eq!(ledger.is_copying_in(), *mode == CopyIn, "event {at}");
            }
        }
    }
}

#[track_caller]
fn expect(ledger: &mut Ledger, at: usize, tags: &str, to: &Reply) {
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
    // An error does not end it, and skips nothing.
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
    // No Sync yet: what is sent until then gets no reply.
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
    // Inside of a pipeline; the Sync is the client's.
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
    // An earlier error takes its turn: the client sees the server's own.
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
    assert_eq!(ledger.on_reply(tag::ERROR), Reply::Replace(refusal()));
    assert_eq!(ledger.on_reply(tag::ERROR), Reply::Relay);
}

#[test]
fn copy_in_of_a_query() {
    check(&[
        Sent("Q"),
        Relayed("G"),
        Now("Q", CopyIn),
        // Ignored by the server while it reads data.
        Sent("S"),
        Now("Q", CopyIn),
        Sent("c"),
        Now("Q", Normal),
        Sent("S"),
        Relayed("CZ"),
        Now("S", Normal),
    ]);
    // The end of the data, and a Sync in front of it, were sent before the answer to the COPY.
    check(&[
        Sent("QcQ"),
        Relayed("G"),
        Now("QQ", Normal),
        Relayed("CZ"),
        Now("Q", Normal),
    ]);
    check(&[Sent("QSSc"), Relayed("G"), Now("Q", Normal)]);
    // Two COPYs in one text, the second one's data after its answer.
    check(&[
        Sent("Qc"),
        Relayed("G"),
        Now("Q", Normal),
        Relayed("CG"),
        Now("Q", CopyIn),
        Sent("c"),
        Relayed("CZ"),
        Now("", Normal),
    ]);
    check(&[
        Sent("Qcc"),
        Relayed("GC"),
        Now("Qc", Normal),
        Relayed("GCZ"),
        Now("", Normal),
    ]);
    // It fails in the middle of the data, whose end is ignored then.
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
        Now("E", CopyIn),
        Sent("ScS"),
        Now("ES", Normal),
        Relayed("CZ"),
        Now("", Normal),
    ]);
    // Sync sent early is dropped; the one behind the data counts.
    check(&[
        Sent("ESSSc"),
        Relayed("G"),
        Now("E", Normal),
        Sent("S"),
        Relayed("CZ"),
        Now("", Normal),
    ]);
    check(&[
        Sent("EScS"),
        Relayed("G"),
        Now("ES", Normal),
        Relayed("CZ"),
        Now("", Normal),
    ]);
    check(&[
        Sent("ES"),
        Relayed("G"),
        Now("E", CopyIn),
        Sent("cS"),
        Relayed("CZ"),
        Now("", Normal),
    ]);
    // It fails: with the Sync behind the data on its way, and without.
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
    // It is refused before it begins: the markers go with what is skipped.
    check(&[
        Sent("EcS"),
        Relayed("E"),
        Now("S", Normal),
        Relayed("Z"),
        Now("", Normal),
    ]);
}

#[test]
fn the_end_of_a_copy_without_a_copy_is_nothing() {
    check(&[Sent("ccc"), Now("", Normal)]);
    check(&[
        Sent("QccQ"),
        Now("QccQ", Normal),
        Relayed("CZ"),
        Now("Q", Normal),
    ]);
    check(&[
        Sent("PcEcS"),
        Relayed("1"),
        Now("EcS", Normal),
        Relayed("C"),
        Now("S", Normal),
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
fn names_that_an_error_skips_are_told_once() {
    let named = |request, name| InFlight {
        name: Some(Box::new(name)),
        ..InFlight::client(request, None)
    };
    let prepare = |name: &[u8]| NameChange::Prepare(name.into());
    let close = NameChange::CloseStatement(b"d"[..].into());
    let mut ledger = Ledger::default();
    ledger.push(named(Request::Parse, prepare(b"a")));
    ledger.push(named(Request::Parse, prepare(b"b")));
    ledger.push(request('B'));
    ledger.push(named(Request::Parse, prepare(b"c")));
    ledger.push(named(Request::Close, close.clone()));
    ledger.push(request('S'));
    ledger.push(named(Request::Parse, prepare(b"e")));
    ledger.on_reply(tag::PARSE_COMPLETE);
    assert_eq!(ledger.take_skipped(), []);
    // The one that has failed, and what stood behind it, up to the Sync.
    ledger.on_reply(tag::ERROR);
    assert_eq!(ledger.take_skipped(), [prepare(b"b"), prepare(b"c"), close]);
    assert_eq!(ledger.take_skipped(), []);
    assert_eq!(ledger.iter().count(), 2);
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
    let verdict = classify(text.as_bytes(), TextEncoding::AsciiSafe);
    InFlight::client(request, Some(Arc::new(verdict)))
}

/// What prepares an Execute is in flight without a verdict; where there is one, it decides.
#[test]
fn what_may_hide_a_write_is_counted() {
    let cases = [
        (with_text(Request::Query, "SELECT f()"), true),
        (with_text(Request::Query, "BEGIN; SELECT f()"), true),
        (with_text(Request::Query, "BEGIN"), false),
        (with_text(Request::Execute, "SHOW search_path"), false),
        (with_text(Request::Execute, "SELECT f()"), true),
        (
            InFlight {
                origin: Origin::Proxy,
                ..with_text(Request::Execute, "SELECT f()")
            },
            false,
        ),
    ];
    for (entry, hides) in cases {
        let (mut ledger, about) = (Ledger::default(), format!("{entry:?}"));
        ledger.push(request('C'));
        ledger.push(entry);
        assert_eq!(ledger.may_hide_a_write(), hides, "{about}");
        ledger.on_reply(tag::CLOSE_COMPLETE);
        assert_eq!(ledger.may_hide_a_write(), hides, "{about}");
        // CommandComplete is the end of an Execute, ReadyForQuery of a Query.
        ledger.on_reply(tag::COMMAND_COMPLETE);
        ledger.on_reply(tag::READY_FOR_QUERY);
        assert!(!ledger.may_hide_a_write() && ledger.is_empty(), "{about}");
    }
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

/// A session is idle for most of its life: a long pipeline leaves no memory behind, and a short one makes the next one
/// ask for none.
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
