//! Sources of verifiers: the users file and the query, their changes, and users that may not log in.

use std::fs::{Permissions, set_permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use pgpalisade_test_servers::held_relay::{Direction, HeldRelay};
use pgpalisade_test_servers::machine::{Signal, signal, wait_for, wait_until};
use pgpalisade_test_servers::postgres::Auth;
use pgpalisade_test_servers::programs::stdout;
use pgpalisade_test_servers::proxy::Proxy;

use super::{PASSWORD, Stage, Way, refused};

pub(super) const OF_PG_AUTHID: &str = "SELECT rolname, CASE WHEN rolvaliduntil < now() THEN NULL ELSE rolpassword END \
                            FROM pg_authid WHERE rolname = $1 AND rolcanlogin";

impl Way {
    fn told(&self, user: &str, password: &str) -> Result<String, String> {
        let output = self.login_as(user, "verify-full", "require", password);
        if output.status.success() {
            Ok(stdout(&output))
        } else {
            Err(refused(&output))
        }
    }

    #[track_caller]
    fn denied(&self, user: &str, password: &str, part: &str) -> String {
        let said = self.told(user, password).unwrap_err();
        assert!(said.contains(part), "{said}");
        said
    }

    pub(super) fn reload(&self) -> String {
        let before = self.proxy.output().len();
        signal(self.proxy.pid(), Signal::HUP);
        wait_for("the proxy to read its users file again", || {
            let output = self.proxy.output();
            let mut lines = output.get(before..)?.lines();
            lines
                .find(|line| line.contains("users file"))
                .map(str::to_owned)
        })
    }
}

fn failed(user: &str) -> String {
    format!("FATAL:  password authentication failed for user \"{user}\"\n")
}

/// A changed password counts once the file is read again; until then the log says what to do.
#[test]
fn a_file_that_changes() {
    let way = Stage::new(Auth::Scram).scram("require");
    assert_eq!(way.told("app", PASSWORD).as_deref(), Ok("t\n"));
    way.stage.postgres.sql("ALTER ROLE app PASSWORD 'new'");
    way.denied("app", "new", &failed("app"));
    // The client with the old password learns nothing by it; the operator does.
    way.denied("app", PASSWORD, &failed("app"));
    wait_until("the log to say why", || {
        let output = way.proxy.output();
        let why = "the verifier known here is not PostgreSQL's";
        output.contains(why)
    });

    way.stage.write_users("app");
    assert!(way.reload().contains("was read again"));
    assert_eq!(way.told("app", "new").as_deref(), Ok("t\n"));
    way.denied("app", PASSWORD, &failed("app"));

    // An invalid new file leaves the old one in force.
    way.stage.write_file("\"app\" \"hunter2\"\n");
    let line = way.reload();
    assert!(
        line.contains("the old one stays in force") && !line.contains("hunter2"),
        "{line}"
    );
    assert_eq!(way.told("app", "new").as_deref(), Ok("t\n"));
}

#[track_caller]
fn does_not_start(stage: &Stage, file: &str, part: &str) {
    let options = stage.options("require", &[("--auth", "scram"), ("--auth-file", file)]);
    let started = std::panic::catch_unwind(|| drop(Proxy::start_with(options)));
    let error = started.unwrap_err();
    let said = error.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(said.contains(part), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
}

#[test]
fn files_that_are_wrong() {
    let stage = Stage::new(Auth::Scram);
    does_not_start(
        &stage,
        "/nowhere/userlist.txt",
        "the users file: cannot read /nowhere/userlist.txt",
    );
    let file = stage.write_file("\"app\" \"hunter2\"\n");
    does_not_start(
        &stage,
        &file,
        "line 1: the password of user \"app\" is not a SCRAM verifier",
    );
    let file = stage.write_file("\"app\" \"md55f4dcc3b5aa765d61d8327deb882cf99\"\n");
    does_not_start(
        &stage,
        &file,
        "line 1: the password of user \"app\" is an MD5 hash",
    );
    let file = stage.write_users("app");
    set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    does_not_start(
        &stage,
        &file,
        "can be read or written by everybody: chmod o-rwx",
    );
}

/// PostgreSQL itself checks VALID UNTIL, whatever the file says, and the client learns nothing before.
#[test]
fn a_login_that_has_expired() {
    let way = Stage::new(Auth::Scram).scram("require");
    way.stage
        .postgres
        .sql("ALTER ROLE app VALID UNTIL '2001-01-01'");
    let expired = way.denied("app", PASSWORD, &failed("app"));
    let wrong = way.denied("app", "wrong", &failed("app"));
    let error = |said: &str| said.split_once("FATAL").unwrap().1.to_owned();
    assert_eq!(error(&expired), error(&wrong));
    way.stage
        .postgres
        .sql("ALTER ROLE app VALID UNTIL 'infinity' NOLOGIN");
    way.denied("app", PASSWORD, "role \"app\" is not permitted to log in");
}

pub(super) fn by_query(stage: Stage, control: &str, query: &str) -> Way {
    let flags = [("--auth", "scram"), ("--auth-query", query)];
    let mut options = stage.options("require", &flags);
    options.control = options
        .control
        .replace("user=postgres", &format!("user={control}"));
    Way {
        proxy: Proxy::start_with(options),
        stage,
    }
}

/// The control role with minimal rights, the function of the docs, and a misleading search path.
#[test]
fn a_query_with_least_rights() {
    let stage = Stage::new(Auth::Scram);
    stage.postgres.sql(&format!(
        "CREATE ROLE pgpalisade LOGIN IN ROLE pg_signal_backend, pg_read_all_stats;
         CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO PUBLIC;
         CREATE FUNCTION evil.lower(text) RETURNS text LANGUAGE sql RETURN 'postgres';
         ALTER ROLE pgpalisade SET search_path = evil, pg_catalog;
         {}",
        function()
    ));
    let query = "SELECT name, verifier FROM pgpalisade_auth.verifier(lower($1))";
    let way = by_query(stage, "pgpalisade", query);
    assert_eq!(way.told("app", PASSWORD).as_deref(), Ok("t\n"));
    way.denied("app", "wrong", &failed("app"));
    way.denied("nobody", PASSWORD, &failed("nobody"));
    // Superusers, users without a password, and users that may not log in.
    way.stage.postgres.sql(
        "ALTER ROLE postgres PASSWORD 'pw'; CREATE ROLE empty LOGIN; \
         CREATE ROLE nologin PASSWORD 'pw'",
    );
    for user in ["postgres", "empty", "nologin"] {
        way.denied(user, "pw", &failed(user));
    }
    way.stage.postgres.sql("ALTER ROLE app PASSWORD 'new'");
    assert_eq!(way.told("app", "new").as_deref(), Ok("t\n"));
    way.stage
        .postgres
        .sql("ALTER ROLE app VALID UNTIL '2001-01-01'");
    way.denied("app", "new", &failed("app"));
}

/// The function from docs/tls.md.
fn function() -> String {
    let page =
        std::fs::read_to_string(pgpalisade_test_servers::machine::repository().join("docs/tls.md"))
            .unwrap();
    let from = page.find("CREATE SCHEMA pgpalisade_auth").unwrap();
    let until = page[from..].find("```").unwrap();
    page[from..from + until].to_owned()
}

/// A query that ignores VALID UNTIL is harmless: PostgreSQL checks it too (CVE-2025-2291).
#[test]
fn a_query_that_forgets() {
    let query = "SELECT rolname, rolpassword FROM pg_authid WHERE rolname = $1";
    let way = by_query(Stage::new(Auth::Scram), "postgres", query);
    assert_eq!(way.told("app", PASSWORD).as_deref(), Ok("t\n"));
    way.stage
        .postgres
        .sql("ALTER ROLE app VALID UNTIL '2001-01-01'");
    way.denied("app", PASSWORD, &failed("app"));
    way.stage
        .postgres
        .sql("SET password_encryption = md5; ALTER ROLE app PASSWORD 'x' VALID UNTIL 'infinity'");
    way.denied("app", "x", &failed("app"));
}

/// The lookup does not spend its time on a host that says nothing.
#[test]
fn a_query_past_a_silent_host() {
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let stage = Stage::new(Auth::Scram);
    let flags = [("--auth", "scram"), ("--auth-query", OF_PG_AUTHID)];
    let mut options = stage.options("require", &flags);
    let (port, own) = (silent.local_addr().unwrap().port(), stage.postgres.port());
    let both = format!("127.0.0.1:{port},127.0.0.1");
    options.upstream = options.upstream.replace("127.0.0.1", &both);
    options.control = format!(
        "host=127.0.0.1,{} port={port},{own} user=postgres dbname=postgres",
        stage.postgres.socket_dir().display()
    );
    let proxy = Proxy::start_with(options);
    let way = Way { proxy, stage };
    assert_eq!(way.told("app", PASSWORD).as_deref(), Ok("t\n"));
}

/// As by a firewall that has forgotten it.
#[test]
fn a_query_whose_connection_only_looks_open() {
    let stage = Stage::new(Auth::Scram);
    stage.postgres.sql("ALTER ROLE postgres PASSWORD 'pw'");
    let relay = HeldRelay::start(([127, 0, 0, 1], stage.postgres.port()).into());
    let flags = [("--auth", "scram"), ("--auth-query", OF_PG_AUTHID)];
    let mut options = stage.options("require", &flags);
    options.control = format!(
        "host=127.0.0.1 port={} user=postgres password=pw dbname=postgres",
        relay.address().port()
    );
    let proxy = Proxy::start_with(options);
    let way = Way { proxy, stage };
    for _ in 0..2 {
        assert_eq!(way.told("app", PASSWORD).as_deref(), Ok("t\n"));
        relay.hold(Direction::ToServer);
    }
}

/// A lost connection is opened again, without a second attempt by the client.
#[test]
fn a_query_whose_connection_ends() {
    let mut way = by_query(Stage::new(Auth::Scram), "postgres", OF_PG_AUTHID);
    for _ in 0..3 {
        assert_eq!(way.told("app", PASSWORD).as_deref(), Ok("t\n"));
        let ended = way.stage.postgres.sql(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'pgpalisade auth'",
        );
        assert_eq!(ended, [["t"]]);
    }
    way.stage.postgres.crash();
    way.stage.postgres.start_again(&[]);
    assert_eq!(way.told("app", PASSWORD).as_deref(), Ok("t\n"));
}

#[test]
fn queries_that_are_wrong() {
    for row in [
        "SELECT rolname, rolpassword FROM pg_authid WHERE $1 <> 'x' => it has several rows",
        "SELECT rolpassword FROM pg_authid WHERE rolname = $1 => it does not have two columns",
        "SELECT oid, rolpassword FROM pg_authid WHERE rolname = $1 => a column is not text",
        "SELECT 'other', rolpassword FROM pg_authid WHERE rolname = $1 => it is for another user",
        "SELECT nothing FROM pg_authid WHERE rolname = $1 => does not exist",
        "SELECT rolname, rolpassword FROM pg_authid, pg_sleep(60) WHERE rolname = $1 => statement timeout",
        "WITH x AS (DELETE FROM public.t RETURNING 1) SELECT $1::text, 'x' FROM x => read-only transaction",
    ] {
        let (query, log) = row.split_once(" => ").unwrap();
        let stage = Stage::new(Auth::Scram);
        stage.postgres.sql("CREATE TABLE t (a int)");
        let way = by_query(stage, "postgres", query);
        let said = way.denied(
            "app",
            PASSWORD,
            "FATAL:  08006: pgpalisade cannot look up how clients log in",
        );
        assert!(
            said.contains("See the log of pgpalisade") && !said.contains(log),
            "{said}"
        );
        wait_until("the log to say why", || way.proxy.output().contains(log));
    }
}
