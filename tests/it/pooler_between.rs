//! A pooler between the proxy and PostgreSQL: state that the proxy sets in one backend says nothing about the next.

use pgpalisade_test_servers::pooler::Pooler;
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::wire::{PROTOCOL_3_0, Wire};

#[test]
fn a_session_that_cannot_be_guarded_is_ended() {
    let postgres = Postgres::start();
    for pooler in [
        Pooler::start(&postgres),
        Pooler::of_sessions(&postgres, 10, ""),
    ] {
        let proxy = Proxy::start_with(Options {
            upstream: format!("postgres://127.0.0.1:{}", pooler.port()),
            ..Options::new(&postgres)
        });
        let mut wire = Wire::connect(&proxy.endpoint());
        wire.startup(
            PROTOCOL_3_0,
            &[("user", "postgres"), ("database", "postgres")],
        );
        wire.until_ready();
        let answer = wire.query("SELECT 1");
        let error = answer.iter().find(|message| message.tag == b'E');
        let error = error.expect("it is refused");
        assert_eq!(error.sqlstate(), "PF006");
        let hint = error.field(b'H').unwrap_or_default();
        assert!(hint.contains("a pooler in between"), "{hint}");
        let logged = &proxy.first_rejections(1)[0];
        assert_eq!(logged["sqlstate"], "PF006", "{logged}");
    }
}
