//! Tables of the console.

use std::collections::BTreeSet;

use pgpalisade_test_servers::machine::{Signal, assert_says, signal, wait_for, wait_until};
use pgpalisade_test_servers::postgres::{Auth, Postgres};
use pgpalisade_test_servers::wire::{Batch, Message, PROTOCOL_3_0, Wire, assert_error};

use super::{Scene, columns, on_a_port, on_a_socket, show};

/// Each table that SHOW HELP lists.
#[test]
fn every_table_of_the_help_can_be_shown() {
    let scene = Scene::new(on_a_socket);
    let mut operator = scene.operator();
    let help = show(&mut operator, "HELP");
    let commands: Vec<&str> = help
        .iter()
        .map(|row| row["command"].as_str().unwrap())
        .collect();
    let tables: BTreeSet<&str> = commands
        .iter()
        .filter_map(|row| row.strip_prefix("SHOW "))
        .collect();
    let expected = "AUTHORITY CLIENTS CONFIG DATABASES HELP LISTS POLICY POOLS PROXIES REJECTIONS SCOPES \
                    SERVERS SESSIONS STATS TAKEOVERS VERSION";
    assert_eq!(tables, expected.split_whitespace().collect());
    for table in tables {
        show(&mut operator, table);
    }
    for order in [
        "RELOAD",
        "KILL id",
        "PAUSE",
        "RESUME",
        "SHUTDOWN",
        "SHUTDOWN WAIT_FOR_CLIENTS",
    ] {
        assert!(commands.contains(&order), "{commands:?}");
    }
}

/// No table can control a terminal through names chosen by others: of sessions, and of other proxies.
#[test]
fn no_table_steers_a_terminal() {
    const HOSTILE: &str = "a\u{1b}[2J\u{9b}\u{202e}\u{feff}b";
    let scene = Scene::with(on_a_socket, |mut options| {
        options
            .control
            .push_str(&format!(" application_name='{HOSTILE}'"));
        options
    });
    for what in ["ROLE", "DATABASE"] {
        let create = format!("CREATE {what} \"{HOSTILE}\"");
        scene.stage.sql(&create);
    }
    let login = format!("ALTER ROLE \"{HOSTILE}\" SUPERUSER LOGIN");
    scene.stage.sql(&login);
    let parameters = [
        ("user", HOSTILE),
        ("database", HOSTILE),
        ("application_name", HOSTILE),
        ("fencing.token", "34"),
    ];
    let endpoint = scene.stage.proxy.endpoint();
    let mut leader = Wire::login(&endpoint, &parameters);
    let mut other = Wire::login(&endpoint, &parameters[..3]);
    other.fails("CREATE TABLE \"x\u{202e}\u{1b}\" (a int)", "PF002");
    leader.ok("SELECT 1");
    let mut operator = scene.operator();
    let mut texts = 0;
    for command in show(&mut operator, "HELP") {
        let command = command["command"].as_str().unwrap();
        let Some(table) = command.strip_prefix("SHOW ") else {
            continue;
        };
        for (column, cell) in show(&mut operator, table).into_iter().flatten() {
            let text = cell.as_str().unwrap_or_default();
            texts += usize::from(text.contains("a?[2J???b"));
            let steers = |c: char| c.is_control() || matches!(c, '\u{202e}' | '\u{feff}');
            assert!(!text.contains(steers), "{table}.{column}: {text:?}");
        }
    }
    assert!(texts > 10, "{texts} cells with such a name");
}

#[test]
fn a_session_is_shown_with_what_it_does_and_its_tokens() {
    let scene = Scene::new(on_a_socket);
    let parameters = [
        ("user", "postgres"),
        ("database", "postgres"),
        ("application_name", "a\u{1b}[31m\"'; KILL 1; --"),
        ("fencing.token", "scheduler=34,billing=7"),
    ];
    let mut leader = Wire::login(&scene.stage.proxy.endpoint(), &parameters);
    let shown = |state: &str, tokens: Option<&str>| {
        wait_for(&format!("{state}, {tokens:?}"), || {
            let rows = scene.show("SESSIONS");
            assert_eq!(rows.len(), 1, "{rows:?}");
            let is_so = rows[0]["state"] == state && rows[0]["tokens"].as_str() == tokens;
            is_so.then(|| rows[0].clone())
        })
    };
    let row = shown("idle", Some("scheduler=34,billing=7"));
    assert_eq!(row["application_name"], "a?[31m\"'; KILL 1; --");
    assert_eq!(row["user"], "postgres");
    assert_eq!(row["client_addr"], leader.local_address().to_string());
    assert_eq!(row["backend_pid"], leader.backend_pid().to_string());
    assert_eq!((&row["id"], &row["tls"]), (&"1".into(), &"no".into()));
    leader.ok("BEGIN");
    shown("idle in transaction", Some("scheduler=34,billing=7"));
    leader.query("SELECT 1/0");
    shown(
        "idle in transaction (aborted)",
        Some("scheduler=34,billing=7"),
    );
    leader.ok("ROLLBACK");
    shown("idle", Some("scheduler=34,billing=7"));
    leader.send(&Batch::new().query("SELECT pg_sleep(2)"));
    shown("active", Some("scheduler=34,billing=7"));
    leader.until_ready();
    leader.ok("SET fencing.token = 'scheduler=35'");
    shown("idle", Some("scheduler=35"));
    leader.ok("SET fencing.token = ''");
    shown("idle", None);
    leader.ok("RESET ALL");
    // Other sessions, and that of a takeover.
    let scopes = scene.show("SCOPES");
    let scope = |name: &str| {
        scopes
            .iter()
            .find(|row| row["scope"] == name)
            .unwrap()
            .clone()
    };
    assert_eq!(scope("scheduler")["mark"], "35");
    assert_eq!(scope("scheduler")["stale_sessions"], "1");
    assert_eq!(scope("scheduler")["sessions"], "0");
    assert_eq!(scope("billing")["sessions"], "1");
    let raised_by = scope("scheduler")["raised_by"].as_str().unwrap().to_owned();
    assert!(raised_by.starts_with("postgres@"), "{raised_by}");
    drop(leader);
    wait_until("the session to go", || scene.show("SESSIONS").is_empty());
}

#[test]
fn a_refusal_is_shown_as_it_is_recorded() {
    let scene = Scene::new(on_a_socket);
    let mut session = scene.stage.plain();
    session.query("INSERT INTO jobs VALUES ('secret')");
    let recorded = scene.stage.records(1);
    assert_eq!(recorded, [("no_token".to_owned(), true)]);
    let rows = scene.show("REJECTIONS");
    let in_file = &scene.stage.proxy.rejections()[0];
    assert_eq!(rows.len(), 1);
    let keys: BTreeSet<&str> = rows[0].keys().map(String::as_str).collect();
    let keys_in_file: BTreeSet<&str> = in_file
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(keys, keys_in_file);
    for key in [
        "time",
        "kind",
        "sqlstate",
        "scope",
        "user",
        "client_addr",
        "statement",
        "statement_class",
    ] {
        assert_eq!(rows[0][key], in_file[key], "{key}");
    }
    assert_eq!(rows[0]["enforced"], "yes");
    assert!(!rows[0]["statement"].as_str().unwrap().contains("secret"));
}

/// Queries of the Prometheus exporter of pgbouncer, and its use of the replies: column names, numbers.
#[test]
fn what_the_exporter_of_pgbouncer_asks_is_answered() {
    let scene = Scene::new(on_a_socket);
    let mut sessions = [
        scene.stage.plain(),
        scene.stage.plain(),
        scene.stage.leader("1"),
    ];
    sessions[0].ok("SELECT 1");
    let mut operator = scene.operator();
    // Its driver pings with this.
    assert_eq!(operator.query(";")[0].tag, b'I');
    let numbers = |rows: &[serde_json::Map<String, serde_json::Value>], columns: &[&str]| {
        let number = |row: &serde_json::Map<_, serde_json::Value>, column: &&str| {
            row[*column].as_str().unwrap().parse::<i64>().unwrap()
        };
        let sums = columns
            .iter()
            .map(|column| rows.iter().map(|row| number(row, column)).sum());
        sums.collect::<Vec<i64>>()
    };
    assert_eq!(columns(&operator.ok("SHOW VERSION;")[0].body), ["version"]);
    let found = columns(&operator.ok("SHOW LISTS;")[0].body);
    assert_eq!(found, ["list", "items"]);
    let lists = show(&mut operator, "LISTS;");
    let list = |name: &str| lists.iter().find(|row| row["list"] == name).unwrap()["items"].clone();
    assert_eq!(
        (list("used_clients"), list("pools")),
        ("3".into(), "1".into())
    );
    let config = show(&mut operator, "CONFIG;");
    assert_eq!(config[0].len(), 4);
    assert!(config.iter().all(|row| row["changeable"] == "no"));
    let set = |name: &str| config.iter().find(|row| row["key"] == name).unwrap()["value"].clone();
    assert_eq!(set("connections.max"), "5000");
    assert_eq!(set("control"), "(not shown)");
    let pools = show(&mut operator, "POOLS;");
    let expected = [
        "cl_active",
        "cl_waiting",
        "sv_active",
        "sv_idle",
        "sv_used",
        "sv_tested",
        "sv_login",
        "maxwait",
    ];
    assert_eq!(numbers(&pools, &expected), [3, 0, 3, 0, 0, 0, 0, 0]);
    assert_eq!(
        (&pools[0]["database"], &pools[0]["user"]),
        (&"postgres".into(), &"postgres".into())
    );
    let databases = show(&mut operator, "DATABASES;");
    let seen = numbers(&databases, &["current_connections", "paused", "disabled"]);
    assert_eq!(seen, [3, 0, 0]);
    assert_eq!(
        databases[0]["port"],
        scene.stage.postgres.port().to_string()
    );
    let stats = show(&mut operator, "STATS;");
    let sums = numbers(
        &stats,
        &[
            "total_server_assignment_count",
            "total_query_count",
            "total_received",
        ],
    );
    assert!(sums[0] == 3 && sums[1] >= 1 && sums[2] > 14, "{sums:?}");
    let servers = show(&mut operator, "SERVERS;");
    assert_eq!(numbers(&servers, &["id"]), [6]);
    assert_eq!(numbers(&show(&mut operator, "CLIENTS;"), &["id"]), [6]);
}

/// Unauthenticated names create no series.
#[test]
fn who_has_not_logged_in_is_in_no_pool() {
    let scene = Scene::over(
        Postgres::start_with(Auth::Scram, &[]),
        on_a_socket,
        |options| options,
    );
    let mut silent = Wire::connect(&scene.stage.proxy.endpoint());
    silent.send_bytes(b"\0\0");
    let row = wait_for("the connection", || scene.show("CLIENTS").pop());
    assert_eq!(
        (&row["state"], &row["user"]),
        (&"login".into(), &serde_json::Value::Null)
    );
    drop(silent);
    // A login that waits for its client's reply.
    let mut stranger = Wire::connect(&scene.stage.proxy.endpoint());
    stranger.startup(
        PROTOCOL_3_0,
        &[("user", "postgres"), ("database", "made up")],
    );
    stranger.until(b'R');
    wait_for("the name", || {
        let row = scene.show("CLIENTS").pop()?;
        (row["state"] == "login" && row["database"] == "made up").then_some(())
    });
    assert!(scene.show("POOLS").is_empty() && scene.show("DATABASES").is_empty());
    assert!(scene.show("SERVERS").is_empty());
    let lists = scene.show("LISTS");
    let logins = lists
        .iter()
        .find(|row| row["list"] == "login_clients")
        .unwrap();
    assert_eq!(logins["items"], "1");
}

#[test]
fn the_authority_and_the_policy_are_shown() {
    let mut scene = Scene::new(on_a_socket);
    let value = |scene: &Scene, key: &str| {
        let rows = scene.show("AUTHORITY");
        rows.iter().find(|row| row["key"] == key).unwrap()["value"].clone()
    };
    assert_eq!(value(&scene, "answers"), "yes");
    assert_eq!(value(&scene, "control_connection"), "up");
    assert_eq!(value(&scene, "timeline"), "1");
    let policy = scene.show("POLICY");
    assert_eq!(
        (&policy[0]["scope"], &policy[0]["mode"]),
        (&"default".into(), &"enforce".into())
    );
    let pids = "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgpalisade control'";
    let proxies = scene.show("PROXIES");
    assert_eq!(proxies[0]["pid"], scene.stage.value(pids));
    assert_eq!((proxies.len(), &proxies[0]["this_one"]), (1, &"yes".into()));
    scene.stage.postgres.crash();
    wait_until("the control connection to be down", || {
        value(&scene, "control_connection") != "up"
    });
    assert_eq!(value(&scene, "primary"), serde_json::Value::Null);
    scene.operator().fails("SHOW PROXIES", "08006");
}

/// Lists the sessions that a takeover has ended, even if it could not be completed.
#[test]
fn takeovers_are_shown() {
    let scene =
        Scene::new(|dir, options| on_a_socket(dir, options.flag("--takeover-timeout", "500ms")));
    let stage = &scene.stage;
    let outcome = |outcome: &'static str| {
        wait_for("the takeover to be noted", || {
            let last = scene.show("TAKEOVERS").into_iter().next()?;
            (last["outcome"] == outcome).then_some(last)
        })
    };
    let mut first = stage.leader("33");
    first.ok("BEGIN; INSERT INTO jobs VALUES (1)");
    let backend = first.backend_pid();
    let row = outcome("complete");
    assert_eq!(
        (&row["from"], &row["to"]),
        (&serde_json::Value::Null, &"33".into())
    );
    assert_eq!(
        (&row["sessions"], &row["scope"]),
        (&"0".into(), &"default".into())
    );
    signal(backend, Signal::STOP);
    let refused = Wire::connect(&stage.proxy.endpoint()).start_as_leader("34");
    assert_error(&refused, "PF006");
    let row = outcome("incomplete");
    let why = row["why"].as_str().unwrap();
    assert!(
        why.contains(&format!("server process {backend} ")),
        "{row:?}"
    );
    signal(backend, Signal::CONT);
    stage.leader("34").ok("INSERT INTO jobs VALUES (2)");
    let row = outcome("complete");
    assert_eq!((&row["from"], &row["to"]), (&"33".into(), &"34".into()));
    let by = row["raised_by"].as_str().unwrap();
    assert!(
        by.starts_with("postgres@") && by.contains(" via "),
        "{row:?}"
    );
    assert_eq!(
        (&row["sessions"], &row["transactions"]),
        (&"1".into(), &"1".into())
    );
    assert_eq!(scene.show("TAKEOVERS").len(), 2);
}

#[test]
fn psql_reads_it_with_a_password() {
    let scene = Scene::new(on_a_port);
    let version = concat!("pgpalisade ", env!("CARGO_PKG_VERSION"), "\n");
    for user in ["ann", "bob"] {
        assert_eq!(scene.printed(user, &["SHOW VERSION"]), version);
        let found = scene.printed(user, &["show version; SHOW Version;"]);
        assert_eq!(found, [version; 2].concat());
    }
    for (user, password) in [
        ("ann", "pencil2"),
        ("nobody", "pencil"),
        ("x\u{1b}y", "pencil"),
    ] {
        let said = scene.refused(user, password, "SHOW VERSION");
        assert_says(&said, "password authentication failed for user");
        assert!(!said.contains('\u{1b}'), "{said}");
    }
    for (command, says) in [
        (
            "\\d",
            "0A000: the console is not a database: it has no SELECT",
        ),
        ("BEGIN", "0A000"),
        ("SHOW fencing.token", "42704"),
        ("x", "42601"),
    ] {
        let said = scene.refused("bob", "pencil", command);
        assert!(said.contains(says), "{said}");
    }
}

/// A console open to everybody does not start.
#[test]
fn a_port_needs_users() {
    let scene = Scene::new(on_a_socket);
    for (address, says) in [
        ("127.0.0.1:1", "set console_auth_file"),
        ("0.0.0.0:1", "no TLS"),
    ] {
        let mut serve = scene.stage.proxy.subcommand("serve");
        let output = serve.args(["--console", address]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(2) && said.contains(says),
            "{said}"
        );
    }
}

fn tags(messages: &[Message]) -> String {
    messages
        .iter()
        .map(|message| char::from(message.tag))
        .collect()
}

/// Replies to a batch, up to `ready` ReadyForQuery.
#[track_caller]
fn answers(wire: &mut Wire, batch: &Batch, ready: usize) -> Vec<Message> {
    wire.send(batch);
    (0..ready).flat_map(|_| wire.until_ready()).collect()
}

#[test]
fn the_extended_protocol_is_refused() {
    let scene = Scene::new(on_a_socket);
    let mut operator = scene.operator();
    for (batch, expect) in [
        (Batch::new().statement("SHOW LISTS").sync(), "EZ"),
        (
            Batch::new()
                .bind("", "s", &[])
                .flush()
                .query("SHOW LISTS")
                .sync(),
            "EZ",
        ),
        (Batch::new().message(b'F', b"").query(""), "EZIZ"),
    ] {
        let ready = expect.matches('Z').count();
        assert_eq!(tags(&answers(&mut operator, &batch, ready)), expect);
    }
    let after = answers(&mut operator, &Batch::new().query("SHOW LISTS"), 1);
    assert!(tags(&after).ends_with("DCZ"));
    // Without a Sync, too.
    operator.send(&Batch::new().parse("", "SHOW LISTS").flush());
    assert_eq!(operator.until(b'E').len(), 1);
}
