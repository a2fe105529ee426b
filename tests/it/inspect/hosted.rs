//! An administrator as hosted servers give it: not a superuser, and with the ADMIN option on two roles only.

use pgpalisade_test_servers::machine::repository;
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::wire::{Wire, assert_error};

use super::{Settings, fresh_store};

/// The owner of database `postgres` too, as the administrator of a hosted server is.
const ADMINISTRATOR: &str = "CREATE ROLE administrator LOGIN CREATEROLE CREATEDB;
    GRANT pg_monitor, pg_signal_backend TO administrator WITH ADMIN OPTION;
    ALTER DATABASE postgres OWNER TO administrator";

fn login(postgres: &Postgres, user: &str, database: &str) -> Wire {
    let parameters = [("user", user), ("database", database)];
    Wire::login(&postgres.tcp(), &parameters)
}

fn server() -> (Postgres, Wire) {
    let postgres = Postgres::start();
    postgres.sql(ADMINISTRATOR);
    let administrator = login(&postgres, "administrator", "postgres");
    (postgres, administrator)
}

fn control(postgres: &Postgres) -> String {
    let port = postgres.port();
    format!("host=127.0.0.1 port={port} user=pgpalisade dbname=postgres")
}

/// What the quick start has its reader run as a superuser, statement by statement.
fn quick_start() -> Vec<String> {
    let page = std::fs::read_to_string(repository().join("docs/start.md")).unwrap();
    let blocks = page.split("```sql admin\n").skip(1);
    let text: String = blocks
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    let statements = text.split(';').map(|one| one.trim().to_owned());
    statements.filter(|one| !one.is_empty()).collect()
}

#[test]
fn the_quick_start() {
    let (postgres, mut administrator) = server();
    let statements = quick_start();
    assert!(statements.len() >= 4, "{statements:?}");
    for statement in statements {
        let told = administrator.ok(&statement);
        let warned = told.iter().any(|message| message.tag == b'N');
        assert!(!warned, "{statement}");
    }
    let (_dir, store) = fresh_store();
    let settings = Settings::new(&postgres, &store).control(control(&postgres));
    settings
        .check()
        .finds("ok rights: pg_signal_backend and pg_read_all_stats")
        .finds("ok witness: the first start");

    let proxy = Proxy::start_with(Options {
        control: control(&postgres),
        ..Options::new(&postgres)
    });
    let app = || Wire::login(&proxy.endpoint(), &[("user", "app"), ("database", "app")]);
    let mut leader = app();
    leader.ok("SET fencing.token = next");
    leader.ok("CREATE TABLE jobs (name text, leader text)");
    leader.ok("INSERT INTO jobs VALUES ('night run', 'A')");
    let mut next = app();
    next.ok("SET fencing.token = next");
    next.ok("INSERT INTO jobs VALUES ('invoice 1', 'B')");
    assert_error(&leader.until_closed(), "PF001");
    let mark = postgres.value("SELECT token FROM pgpalisade.mark WHERE scope = 'default'");
    assert_eq!(mark, "2", "no witness");
    settings.check().finds("ok witness: a copy of the marks");
}

#[test]
fn the_grant_of_check_works_there() {
    let (postgres, mut administrator) = server();
    administrator.ok("CREATE ROLE pgpalisade LOGIN");
    if postgres.version() >= 16 {
        let narrow = "GRANT pg_read_all_stats TO pgpalisade";
        administrator.fails(narrow, "42501");
    }
    let (_dir, store) = fresh_store();
    let settings = Settings::new(&postgres, &store).control(control(&postgres));
    let checked = settings.check();
    checked.finds("fail rights: lacks pg_signal_backend and pg_read_all_stats");
    let advice = checked.finding("rights")["advice"].as_str().unwrap();
    let (_, grant) = advice.split_once(": ").unwrap();
    administrator.ok(grant);
    settings.check().finds("ok rights: pg_signal_backend");
}
