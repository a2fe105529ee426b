//! A pooler between the proxy and PostgreSQL that drops the parameter by which a session begins read-only.

use pgpalisade_tests::pooler::Pooler;
use pgpalisade_tests::postgres::Postgres;
use pgpalisade_tests::proxy::{Options, Proxy};
use pgpalisade_tests::wire::{PROTOCOL_3_0, Wire};

/// The answer to a login through the proxy: its SQLSTATE and hint, where it is an error.
fn login(proxy: &Proxy) -> Option<(String, String)> {
    let mut wire = Wire::connect(&proxy.endpoint());
    wire.startup(
        PROTOCOL_3_0,
        &[("user", "postgres"), ("database", "postgres")],
    );
    let answer = wire.until_ready();
    let error = answer.iter().find(|message| message.tag == b'E')?;
    Some((error.sqlstate(), error.field(b'H').unwrap_or_default()))
}

#[test]
fn a_session_whose_read_only_mode_was_dropped_is_refused() {
    let postgres = Postgres::start();
    let pooler = Pooler::ignoring(&postgres, "default_transaction_read_only, options");
    let proxy = Proxy::start_with(Options {
        upstream: format!("postgres://127.0.0.1:{}", pooler.port()),
        ..Options::new(&postgres)
    });
    let (sqlstate, hint) = login(&proxy).expect("it is refused");
    assert_eq!(sqlstate, "PF006");
    assert!(hint.contains("a pooler in between"), "{hint}");
    let logged = &proxy.first_rejections(1)[0];
    assert_eq!(logged["sqlstate"], "PF006", "{logged}");
}
