//! Finding and creating the store, and unsuitable servers.

use pgpalisade_authority::postgres::{Options, read};
use pgpalisade_authority::{Authority, Postgres};
use pgpalisade_test_servers::machine::assert_says;
use tokio::task::JoinSet;

use crate::stage::{CLUSTER, Server, connect, declare, options};

const FOREIGN: &str = "is not used, because it could run foreign code";
const DAMAGED: &str = "is damaged or not an authority";
const UNSUITABLE: &str = "cannot be used: ";

async fn open_error(options: &Options) -> String {
    let opened = Postgres::connect(options).await;
    opened.expect_err("must not open").to_string()
}

/// Options for another role, without a password, over the unix socket.
fn options_of(server: &Server, role: &str, database: &str) -> Options {
    let (dir, port) = (server.socket_dir().display(), server.port());
    let dsn = format!("host={dir} port={port} user={role} dbname={database}");
    dsn.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_may_make_it_at_once() {
    let server = Server::start();
    let mut opening = JoinSet::new();
    for _ in 0..12 {
        let options = options(&server);
        opening.spawn(async move { Postgres::connect(&options).await.unwrap().identity() });
    }
    let identities = opening.join_all().await;
    assert!(
        identities.iter().all(|i| *i == identities[0]),
        "{identities:?}"
    );
}

/// It says nothing of a commit.
#[tokio::test]
async fn a_warning_of_the_login_is_no_fault() {
    let server = Server::start();
    server.sql("ALTER ROLE ALL SET default_text_search_config = 'nothing_of_this_name'");
    let store = connect(&server).await;
    declare(&store, "s", 1, 1).await.unwrap();
}

#[tokio::test]
async fn missing_rights_are_said_with_the_sql_that_gives_them() {
    let server = Server::start();
    server.sql("CREATE ROLE \"App-1\" LOGIN");
    server.sql("CREATE ROLE second LOGIN");
    can_use(&server, "App-1").await;
    let error = open_error(&options_of(&server, "second", "postgres")).await;
    assert_says(&error, FOREIGN);
    assert_says(&error, "(role App-1)");
    // A store that a superuser created serves every role.
    server.sql("DROP SCHEMA pgpalisade_authority CASCADE");
    Postgres::connect(&options(&server)).await.unwrap();
    can_use(&server, "second").await;
}

/// Connects after running the SQL of the refusal.
async fn can_use(server: &Server, role: &str) {
    let options = options_of(server, role, "postgres");
    let error = open_error(&options).await;
    println!("{error}");
    let (_, sql) = error.split_once("; have a superuser run: ").unwrap();
    for statement in sql.split_inclusive(';') {
        server.sql(statement);
    }
    let store = Postgres::connect(&options).await.unwrap();
    store.enrol(CLUSTER).await.unwrap();
    declare(&store, "s", 1, 1).await.unwrap();
    store.recover(None, CLUSTER, &[]).await.unwrap();
}

#[tokio::test]
async fn other_formats_are_refused() {
    let server = Server::start();
    let store = connect(&server).await;
    store.enrol(CLUSTER).await.unwrap();
    for other in [5, 7] {
        server.sql(&format!(
            "UPDATE pgpalisade_authority.store SET format = {other}"
        ));
        let error = open_error(&options(&server)).await;
        assert_says(&error, &format!("has format {other},"));
    }
    assert!(
        declare(&store, "s", 1, 1).await.is_err(),
        "nor is it written to"
    );
    server.sql("DELETE FROM pgpalisade_authority.store");
    let error = open_error(&options(&server)).await;
    assert_says(&error, DAMAGED);
    server.sql("DROP SCHEMA pgpalisade_authority CASCADE");
    server.sql("CREATE SCHEMA pgpalisade_authority CREATE TABLE store (shelf text)");
    let error = open_error(&options(&server)).await;
    assert_says(&error, DAMAGED);
}

#[tokio::test]
async fn a_standby_is_refused() {
    let mut server = Server::start();
    let store = connect(&server).await;
    server.crash();
    std::fs::write(server.data().join("standby.signal"), "").unwrap();
    server.start_again(&[]);
    let error = open_error(&options(&server)).await;
    assert_says(&error, UNSUITABLE);
    assert_says(&error, "standby");
    let (info, contents) = read(&options(&server)).await.unwrap();
    assert!(info.in_recovery && contents.is_some());
    let error = store.enrol(CLUSTER).await.unwrap_err();
    assert!(error.to_string().contains("standby"), "{error}");
}

#[tokio::test]
async fn another_encoding_is_refused() {
    let server = Server::start();
    server.sql("CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0");
    let error = open_error(&options_of(&server, "postgres", "plain")).await;
    assert_says(&error, UNSUITABLE);
    assert_says(&error, "SQL_ASCII");
}

#[tokio::test]
async fn settings_of_role_and_database_do_not_matter() {
    let server = Server::start();
    server.sql("ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'");
    server.sql("ALTER DATABASE postgres SET search_path = nowhere");
    server.sql("ALTER DATABASE postgres SET standard_conforming_strings = off");
    server.sql("ALTER DATABASE postgres SET quote_all_identifiers = on");
    server.sql("ALTER DATABASE postgres SET default_transaction_read_only = on");
    let store = connect(&server).await;
    store.enrol(CLUSTER).await.unwrap();
    declare(&store, "s", 1, 1).await.unwrap();
}

#[tokio::test]
async fn the_server_is_described() {
    let server = Server::start();
    let (info, contents) = read(&options(&server)).await.unwrap();
    let identifier = server.value("SELECT system_identifier FROM pg_control_system()");
    assert_eq!(info.system_identifier, identifier.parse().ok());
    assert_eq!(info.version, server.value("SHOW server_version"));
    assert!(!info.in_recovery && contents.is_none() && !info.replicates_synchronously());
    assert_eq!(info.fsync, "off");
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'pgpalisade_authority'";
    assert_eq!(server.value(schemas), "0", "to look makes nothing");
}
