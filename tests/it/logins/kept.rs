//! Other features work with every login method: tokens, cancel requests, exemptions, replication.

use pgpalisade_test_servers::machine::wait_until;
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::postgres::Auth;
use pgpalisade_test_servers::wire::{Batch, Wire, assert_error, cancel_request, pretty};
use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};

use super::{PASSWORD, Stage, Way};

const POLICY: &str = "
[defaults]
allow = [\"replication\"]

[[session]]
match = { application_name = \"migration\" }
writes = \"allow\"
";

/// Both methods that end at the proxy, with TLS on both legs.
fn on_both_ways(test: impl Fn(&Way)) {
    let policy = PolicyFile::new(POLICY);
    let policy = policy.path().display().to_string();
    for auth in ["scram", "password"] {
        println!("auth={auth}");
        let stage = Stage::new(Auth::Scram);
        stage.postgres.sql(
            "CREATE TABLE jobs (id int PRIMARY KEY); GRANT ALL ON jobs TO app; ALTER ROLE app REPLICATION",
        );
        let file = stage.write_users("app");
        let mut flags = vec![("--auth", auth), ("--policy", &policy)];
        if auth == "scram" {
            flags.push(("--auth-file", &file));
        }
        test(&stage.way("require", &flags));
    }
}

impl Way {
    /// A session of `app`, logged in by the method that the proxy asks for.
    pub(super) fn session(&self, more: &[(&str, &str)]) -> Result<Wire, String> {
        let client = self.stage.authority.client();
        let mut wire = Wire::connect_tls(&self.proxy.endpoint(), &client).unwrap();
        let parameters = [&[("user", "app"), ("database", "postgres")], more].concat();
        wire.startup(0x0003_0000, &parameters);
        let request = wire.read();
        match request.body.get(3) {
            Some(3) => wire.send(&Batch::new().password(PASSWORD)),
            Some(10) => {
                let mut scram =
                    ScramSha256::new(PASSWORD.as_bytes(), ChannelBinding::unsupported());
                let len = u32::try_from(scram.message().len()).unwrap().to_be_bytes();
                let body = [b"SCRAM-SHA-256\0", &len[..], scram.message()].concat();
                wire.send(&Batch::new().message(b'p', &body));
                scram.update(&wire.read().body[4..]).unwrap();
                wire.send(&Batch::new().message(b'p', scram.message()));
            }
            _ => return Err(pretty(&[request])),
        }
        let answer = wire.until_ready();
        match answer.last() {
            Some(last) if last.tag == b'Z' => Ok(wire),
            _ => Err(pretty(&answer)),
        }
    }

    fn committed(&self) -> Vec<String> {
        self.stage
            .postgres
            .sql("SELECT id FROM jobs ORDER BY id")
            .concat()
    }
}

#[test]
fn tokens_of_the_startup_packet() {
    on_both_ways(|way| {
        let mut old = way.session(&[("fencing.token", "33")]).unwrap();
        old.ok("INSERT INTO jobs VALUES (1)");
        old.ok("BEGIN; INSERT INTO jobs VALUES (6)");
        let mut new = way.session(&[("fencing.token", "34")]).unwrap();
        new.ok("INSERT INTO jobs VALUES (2)");
        let end = old.fails("COMMIT", "PF001");
        assert!(end.last().unwrap().is_closed(), "{}", pretty(&end));
        // A rejection at login comes after the authentication.
        let stale = way.session(&[("fencing.token", "33")]).unwrap_err();
        assert!(stale.contains("PF001"), "{stale}");
        let mut plain = way.session(&[]).unwrap();
        // In a pipeline, with the proxy's own statements between the client's.
        let batch = Batch::new()
            .statement("SELECT 1")
            .statement("INSERT INTO jobs VALUES (3)");
        assert_error(&plain.run(&batch.sync()), "PF002");
        plain.fails("INSERT INTO jobs VALUES (4)", "PF002");
        plain.fails("SET fencing.token = '33'", "PF001");
        plain.ok("SET fencing.token = '34'; INSERT INTO jobs VALUES (7)");
        let mut exempt = way.session(&[("application_name", "migration")]).unwrap();
        exempt.ok("INSERT INTO jobs VALUES (5)");
        assert_eq!(way.committed(), ["1", "2", "5", "7"]);
    });
}

#[test]
fn cancel_requests() {
    on_both_ways(|way| {
        let mut wire = way.session(&[]).unwrap();
        let key = wire.backend_key().to_vec();
        wire.send(&Batch::new().query("SELECT pg_sleep(30)"));
        wait_until("the statement to run", || {
            let running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(30)' AND usename = 'app'";
            way.stage.postgres.value(running) == "1"
        });
        let client = way.stage.authority.client();
        let mut cancel = Wire::connect_tls(&way.proxy.endpoint(), &client).unwrap();
        cancel.send_bytes(&cancel_request(&key));
        assert_error(&wire.until_ready(), "57014");
    });
}

#[test]
fn replication() {
    on_both_ways(|way| {
        let mut wire = way.session(&[("replication", "true")]).unwrap();
        assert_eq!(wire.rows("IDENTIFY_SYSTEM").len(), 1);
    });
}

/// No password, key or verifier is in a log of the proxy, at its most verbose level.
#[test]
fn nothing_is_logged() {
    for auth in ["scram", "password"] {
        let stage = Stage::new(Auth::Scram);
        let file = stage.write_users("app");
        let mut flags = vec![("--auth", auth), ("--log", "trace")];
        if auth == "scram" {
            flags.push(("--auth-file", &file));
        }
        let way = stage.way("require", &flags);
        way.works("verify-full", "prefer", "t");
        way.fails("verify-full", "sometimes", "invalid channel_binding");
        let output = way.proxy.output();
        assert!(output.contains("password authentication failed") || auth == "password");
        let verifier = std::fs::read_to_string(&file).unwrap();
        let secrets = verifier
            .split(['$', ':', '"'])
            .filter(|part| part.len() > 20);
        for secret in secrets.chain(["horse"]) {
            assert!(!output.contains(secret), "{secret} is in the log");
        }
    }
}
