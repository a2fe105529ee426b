//! A pooler between the proxy and PostgreSQL: state that the proxy sets in one backend says nothing about the next.

use pgpalisade_test_servers::pooler::Pooler;
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::wire::Wire;

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
        let mut wire = Wire::open(&proxy.endpoint(), &[]);
        wire.until_ready();
        let answer = wire.fails("SELECT 1", "PF006");
        let hint = answer[0].field(b'H').unwrap_or_default();
        assert!(hint.contains("a pooler in between"), "{hint}");
        let logged = &proxy.first_rejections(1)[0];
        assert_eq!(logged["sqlstate"], "PF006", "{logged}");
    }
}
