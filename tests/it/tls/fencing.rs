//! The guarantee holds on encrypted connections too: on the client's leg, and on both.

use pgpalisade_test_servers::postgres::{Auth, Postgres};
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::tls::Authority;
use pgpalisade_test_servers::wire::{Batch, Wire, pretty};

use super::{TRUSTED, server, upstream, with_tls};

struct Scene {
    proxy: Proxy,
    postgres: Postgres,
    authority: Authority,
}

impl Scene {
    fn new(sslmode: &str) -> Self {
        let authority = Authority::new();
        let postgres = server(&authority, Auth::Trust);
        postgres.sql("CREATE TABLE jobs (id int PRIMARY KEY)");
        let mut options = Options::new(&postgres);
        options.upstream = upstream(&postgres, "127.0.0.1", &format!("sslmode={sslmode}"));
        let pair = authority.issue_local("proxy");
        Self {
            proxy: Proxy::start_with(with_tls(options, "require", &pair)),
            postgres,
            authority,
        }
    }

    fn session(&self, more: &[(&str, &str)]) -> Wire {
        let parameters = [TRUSTED.as_slice(), more].concat();
        Wire::login_tls(
            &self.proxy.endpoint(),
            &self.authority.client(),
            &parameters,
        )
    }

    fn leader(&self, token: &str) -> Wire {
        self.session(&[("fencing.token", token)])
    }

    fn committed(&self) -> Vec<String> {
        self.postgres
            .sql("SELECT id FROM jobs ORDER BY id")
            .concat()
    }
}

fn on_both_ways(test: impl Fn(&Scene)) {
    for sslmode in ["disable", "require"] {
        println!("sslmode={sslmode} to the server");
        test(&Scene::new(sslmode));
    }
}

#[test]
fn a_takeover_ends_the_old_session() {
    on_both_ways(|scene| {
        let mut old = scene.leader("33");
        old.ok("INSERT INTO jobs VALUES (1)");
        old.ok("BEGIN; INSERT INTO jobs VALUES (2)");
        scene.leader("34").ok("INSERT INTO jobs VALUES (3)");
        let answer = old.query("COMMIT");
        let end: Vec<_> = answer.iter().rev().take(2).collect();
        assert!(
            end[0].is_closed() && end[1].sqlstate() == "PF001",
            "{}",
            pretty(&answer)
        );
        assert_eq!(scene.committed(), ["1", "3"]);
    });
}

#[test]
fn a_stale_token_is_refused() {
    on_both_ways(|scene| {
        scene.leader("34").ok("INSERT INTO jobs VALUES (1)");
        let mut wire = scene.session(&[]);
        let sqlstate = |wire: &mut Wire, sql: &str| {
            let answer = wire.query(sql);
            let error = answer.iter().find(|message| message.tag == b'E');
            error.map_or_else(|| pretty(&answer), |error| error.sqlstate())
        };
        assert_eq!(sqlstate(&mut wire, "INSERT INTO jobs VALUES (2)"), "PF002");
        assert_eq!(sqlstate(&mut wire, "SET fencing.token = '33'"), "PF001");
        wire.ok("SELECT 1");
        // In a pipeline, with the proxy's own statements between the client's.
        let batch = Batch::new()
            .statement("SELECT 1")
            .statement("INSERT INTO jobs VALUES (3)")
            .sync();
        let answer = wire.run(&batch);
        assert!(
            answer
                .iter()
                .any(|message| message.tag == b'E' && message.sqlstate() == "PF002"),
            "{}",
            pretty(&answer)
        );
        wire.ok("SET fencing.token = '35'");
        wire.ok("INSERT INTO jobs VALUES (4)");
        assert_eq!(scene.committed(), ["1", "4"]);
    });
}
