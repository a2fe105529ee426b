//! Clients that share server connections, in the tables of pgbouncer.

use pgpalisade_test_servers::machine::wait_for;
use pgpalisade_test_servers::wire::Batch;
use serde_json::{Map, Value};

use super::{Scene, on_a_socket};

type Row = Map<String, Value>;

/// Two server connections for all clients.
fn scene() -> Scene {
    Scene::with(on_a_socket, |options| {
        let options = options.flag("--pool", "transaction");
        let options = options.flag("--backends-max", "2");
        options.flag("--backends-leaders", "0")
    })
}

fn text(row: &Row, columns: &[&str]) -> Vec<String> {
    let text = |column: &&str| row[*column].as_str().unwrap_or("-").to_owned();
    columns.iter().map(text).collect()
}

/// Rows by a column that identifies them.
fn by<'a>(rows: &'a [Row], column: &str, value: &str) -> &'a Row {
    let found = rows.iter().find(|row| row[column] == value);
    found.unwrap_or_else(|| panic!("no {column} {value} in {rows:?}"))
}

#[test]
fn clients_are_shown_with_the_connections_that_they_share() {
    let scene = scene();
    let (mut busy, mut keeper) = (scene.stage.plain(), scene.stage.plain());
    let mut waiting = scene.stage.plain();
    let of = |row: &Row| {
        let clients = text(row, &["cl_active", "cl_waiting", "sv_active", "sv_idle"]);
        let rest = text(row, &["sv_tested", "sv_login", "pool_mode"]);
        [clients, rest].concat()
    };
    wait_for("the connection that a login has opened", || {
        let idle = ["3", "0", "0", "1", "0", "0", "transaction"];
        (of(&scene.show("POOLS")[0]) == idle).then_some(())
    });
    let clients = scene.show("CLIENTS");
    assert!(
        clients.iter().all(|row| row["link"] == Value::Null),
        "{clients:?}"
    );

    busy.ok("BEGIN; SELECT 1");
    let pid = busy.rows("SELECT pg_backend_pid()").concat().concat();
    keeper.ok("SET ROLE pg_monitor");
    waiting.send(&Batch::new().query("SELECT 1"));
    let clients = wait_for("the wait", || {
        let clients = scene.show("CLIENTS");
        let is_long = by(&clients, "id", "3")["wait"] == "1";
        is_long.then_some(clients)
    });
    let pools = scene.show("POOLS");
    assert_eq!(of(&pools[0]), ["2", "1", "2", "0", "0", "0", "transaction"]);
    assert_ne!(pools[0]["maxwait"], "0");
    let shown = |id: &str| text(by(&clients, "id", id), &["state", "ptr", "leftover"]);
    assert_eq!(shown("1"), ["active", "c1", "-"]);
    assert_eq!(shown("2"), ["active", "c2", "a setting"]);
    assert_eq!(shown("3"), ["waiting", "c3", "-"]);
    assert_eq!(by(&clients, "id", "3")["link"], Value::Null);
    let servers = scene.show("SERVERS");
    let own = by(&servers, "remote_pid", &pid);
    assert_eq!(own["ptr"], by(&clients, "id", "1")["link"]);
    let found = text(own, &["state", "link", "id", "close_needed"]);
    assert_eq!(found, ["active", "c1", "1", "0"]);
    assert_eq!(servers.len(), 2);
    assert_eq!(scene.show("SESSIONS")[0]["backend_pid"], pid);

    busy.ok("COMMIT");
    waiting.until_ready();
    keeper.ok("DISCARD ALL");
    wait_for("all to be idle", || {
        let idle = ["3", "0", "0", "2", "0", "0", "transaction"];
        (of(&scene.show("POOLS")[0]) == idle).then_some(())
    });
    let clients = scene.show("CLIENTS");
    for column in ["leftover", "link", "remote_pid"] {
        assert!(
            clients.iter().all(|row| row[column] == Value::Null),
            "{column}"
        );
    }
    let databases = scene.show("DATABASES");
    let columns = [
        "current_connections",
        "current_client_connections",
        "pool_mode",
    ];
    assert_eq!(text(&databases[0], &columns), ["2", "3", "transaction"]);
    let lists = scene.show("LISTS");
    assert_eq!(by(&lists, "list", "used_servers")["items"], "2");
    let stats = &scene.show("STATS")[0];
    let number = |column: &str| stats[column].as_str().unwrap().parse::<u64>().unwrap();
    assert!(number("total_wait_time") > 1_000_000, "{stats:?}");
    assert!(number("total_server_assignment_count") >= 4, "{stats:?}");
}

/// The tokens of a connection, whoever has it.
#[test]
fn connections_are_shown_with_their_tokens() {
    let scene = scene();
    let mut leader = scene.stage.leader("34");
    leader.ok("INSERT INTO jobs VALUES (1)");
    let server = wait_for("the end of the transaction", || {
        let server = scene.show("SERVERS").pop()?;
        (server["state"] == "idle").then_some(server)
    });
    let found = text(&server, &["tokens", "link", "id"]);
    assert_eq!(found, ["default=34", "-", "-"]);
}
