//! Clients that share server connections, and log in at the proxy.

use std::collections::BTreeSet;
use std::thread;

use pgpalisade_test_servers::postgres::Auth;

use super::Stage;

/// Keeps a login at PostgreSQL for a second.
const SLOW: (&str, &str) = ("options", "-c post_auth_delay=1");

/// As an application's own pool, which opens its connections at once.
#[test]
fn equal_logins_at_the_same_time_share_connections() {
    for auth in ["scram", "password"] {
        let stage = Stage::new(Auth::Scram);
        let file = stage.write_users("app");
        let mut flags = vec![
            ("--auth", auth),
            ("--pool", "transaction"),
            ("--workers", "1"),
        ];
        if auth == "scram" {
            flags.push(("--auth-file", &file));
        }
        let way = stage.way("require", &flags);
        let clients: Vec<_> = thread::scope(|scope| {
            let logins = [(); 3].map(|()| scope.spawn(|| way.session(&[SLOW]).unwrap()));
            logins.into_iter().map(|of| of.join().unwrap()).collect()
        });
        let pids: BTreeSet<_> = clients
            .into_iter()
            .map(|mut client| client.rows("SELECT pg_backend_pid()"))
            .collect();
        assert_eq!(pids.len(), 1, "{auth}: {pids:?}");
    }
}
