//! Messages of the proxy's own errors begin with the code; PostgreSQL's own messages stay unchanged.

use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Message, PROTOCOL_3_0, TRUSTED, Wire, pretty};

/// Compares severity, code and the start of the message.
#[track_caller]
fn check(answer: &[Message], expect: &str) {
    let error = answer.iter().find(|message| message.tag == b'E');
    let error = error.unwrap_or_else(|| panic!("no error: {}", pretty(answer)));
    let (severity, code) = (error.severity(), error.sqlstate());
    let found = format!("{severity} {code} {}", error.field(b'M').unwrap());
    assert!(found.starts_with(expect), "{found}");
}

fn connect(proxy: &Proxy, parameters: &[(&str, &str)]) -> Vec<Message> {
    let mut wire = Wire::connect(&proxy.endpoint());
    wire.startup(PROTOCOL_3_0, &[&TRUSTED[..], parameters].concat());
    wire.until_closed()
}

#[test]
fn a_message_of_the_proxys_own_begins_with_its_code() {
    let mut stage = Stage::with_flags("CREATE TABLE jobs (id int)", &[("--connections-max", "4")]);
    let (mut old, mut plain) = (stage.leader("33"), stage.plain());
    let write = "INSERT INTO jobs VALUES (1)";
    check(&plain.query(write), "ERROR PF002 PF002: this write needs");
    check(
        &plain.extended(write),
        "ERROR PF002 PF002: this write needs",
    );
    let nonsense = plain.query("SET fencing.token = 'x'");
    check(&nonsense, "ERROR PF003 PF003: invalid value");
    let prepare = plain.query("PREPARE TRANSACTION 'a'");
    check(&prepare, "ERROR PF005 PF005: refused");
    let mut new = stage.leader("34");
    check(
        &plain.query("SET fencing.token = 33"),
        "ERROR PF001 PF001: fencing token 33",
    );
    check(
        &old.query("SELECT 1"),
        "FATAL PF001 PF001: terminating connection",
    );
    let stale = connect(&stage.proxy, &[("fencing.token", "33")]);
    check(&stale, "FATAL PF001 PF001: fencing token 33 is stale");
    // PostgreSQL's own message.
    check(&new.query("SELECT nonsense"), "ERROR 42703 column");
    new.send(&Batch::new().message(b'~', b"what is this"));
    check(
        &new.until_closed(),
        "FATAL 08P01 invalid frontend message type",
    );
    let places: Vec<Wire> = (0..3).map(|_| stage.plain()).collect();
    check(
        &connect(&stage.proxy, &[]),
        "FATAL 53300 sorry, too many clients already",
    );
    drop(places);
    stage.proxy.terminate();
    check(
        &plain.until_closed(),
        "FATAL 57P01 57P01: terminating connection because",
    );
}

#[test]
fn so_does_the_reason_for_no_session() {
    let postgres = Postgres::start();
    let nowhere = "postgres://127.0.0.1:1";
    let mut options = Options::new(&postgres);
    options.upstream = nowhere.to_owned();
    let proxy = Proxy::start_with(options);
    let answer = connect(&proxy, &[]);
    check(&answer, "FATAL 08006 08006: cannot connect to PostgreSQL");
}
