//! Precedence, and all errors at once.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::fs::Permissions;
use std::num::NonZeroUsize;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use pgpalisade_fence::statement_text::Literals;
use pgpalisade_server::pooling::{BackendLimits, Pool, Reset};
use pgpalisade_server::transport::Batching;

use super::error::ConfigErrors;
use super::*;

fn key(name: &str) -> Key {
    Key::by_name(name).expect("a key").key
}

fn load(
    file: Option<&Path>,
    env: &[(&str, &str)],
    flags: &[(&str, &[&str])],
) -> Result<Config, ConfigErrors> {
    let environment = Environment::from_pairs(env.iter().map(|(k, v)| ((*k).into(), (*v).into())));
    let flags = Flags {
        config_file: file.map(Into::into),
        values: flags
            .iter()
            .map(|(name, texts)| {
                (
                    key(name),
                    texts.iter().map(|text| (*text).to_owned()).collect(),
                )
            })
            .collect(),
    };
    Config::from_raw(RawConfig::collect(&flags, &environment), &environment)
}

fn in_file<T>(text: &str, then: impl FnOnce(&Path) -> T) -> T {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pgpalisade.toml");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    then(&path)
}

#[track_caller]
fn good(text: &str) -> Config {
    in_file(text, |path| load(Some(path), &[], &[])).unwrap()
}

/// Loads, and returns the errors, one per line, without the directory.
#[track_caller]
fn errors(text: &str, env: &[(&str, &str)], flags: &[(&str, &[&str])]) -> Vec<String> {
    in_file(text, |path| {
        let errors = load(Some(path), env, flags).expect_err("errors");
        let directory = format!("{}/", path.parent().unwrap().display());
        errors
            .to_string()
            .lines()
            .map(|line| line.replace(&directory, ""))
            .collect()
    })
}

const MINIMAL: &str = "upstream = \"/run\"\nauthority = \"embedded:/a\"\n";

#[test]
fn defaults() {
    let config = good(MINIMAL);
    let local = listen::parse("127.0.0.1:6432").unwrap();
    assert_eq!(config.clients.listen, [local]);
    assert_eq!(config.takeover.timeout, Duration::from_secs(5));
    assert_eq!(config.clients.limits.login_timeout, Duration::from_secs(60));
    assert_eq!(
        config.clients.limits.write_stall_timeout,
        Some(Duration::from_secs(900))
    );
    assert_eq!(
        config.clients.limits.tcp_keepalive,
        Some(Duration::from_secs(60))
    );
    assert_eq!(config.shutdown_grace, Duration::from_secs(30));
    assert_eq!(config.clients.max_connections.get(), 5000);
    assert_eq!(config.clients.pool, Pool::Session);
    assert_eq!(config.rejections.file, None);
    assert_eq!(config.rejections.literals, Literals::Remove);
    assert_eq!(config.batching, Batching::Auto);
    assert_eq!(config.log.filter.to_string(), "info");
    assert_eq!(config.log.json, None);
}

#[test]
fn a_listener_with_a_token_is_the_only_one_unless_listen_is_set() {
    let listener = "[[listener]]\nlisten = \"127.0.0.1:6432\"\ntoken = \"jobs=lease\"\n";
    let addresses = |config: &Config| -> Vec<(&str, String)> {
        let addresses = config.clients.addresses();
        addresses
            .map(|(key, address)| (key, address.to_string()))
            .collect()
    };
    let only = good(&format!("{MINIMAL}{listener}"));
    assert_eq!(
        addresses(&only),
        [("listener", "127.0.0.1:6432".to_owned())]
    );
    let both = format!("{MINIMAL}listen = \"/run\"\n{listener}{listener}").replacen("6432", "1", 1);
    assert_eq!(
        addresses(&good(&both)),
        [
            ("listen", "/run/.s.PGSQL.6432".to_owned()),
            ("listener", "127.0.0.1:1".to_owned()),
            ("listener", "127.0.0.1:6432".to_owned()),
        ]
    );
    let twice = format!("{MINIMAL}listen = \"127.0.0.1:6432\"\n{listener}");
    let found = errors(&twice, &[], &[]);
    assert!(
        found[0].contains("listener and listen have the same address"),
        "{found:?}"
    );
    let wrong = listener.replace("token", "tokens");
    assert_eq!(
        errors(&format!("{MINIMAL}{wrong}"), &[], &[]),
        [
            "pgpalisade.toml:3: listener: unknown field `tokens`, expected one of `listen`, `token`, `identity`, \
             `kubernetes`, `without`, `pool`, `on_loss`"
        ]
    );
    assert_eq!(
        errors(&format!("{MINIMAL}listener = \"127.0.0.1:1\"\n"), &[], &[]),
        ["pgpalisade.toml:3: listener wants tables, such as [[listener]], not a string"]
    );
}

#[test]
fn a_scope_has_one_lead() {
    let listener =
        |port: u16, keys: &str| format!("[[listener]]\nlisten = \"127.0.0.1:{port}\"\n{keys}\n");
    let first = listener(1, "token = \"jobs=lease\"");
    for (second, part) in [
        ("token = \"jobs=lease\"\nwithout = \"refuse\"", None),
        ("token = \"other=file:/run/n\"", None),
        ("token = \"jobs=file:/run/n\"", Some("scope jobs differ")),
        (
            "token = \"jobs=lease\"\non_loss = [\"x\"]",
            Some("scope jobs differ"),
        ),
        (
            "token = \"a=etcd:/b\"",
            Some("only with authority = \"etcd:..\""),
        ),
    ] {
        let text = format!("{MINIMAL}{first}{}", listener(2, second));
        match part {
            None => drop(good(&text)),
            Some(part) => {
                let found = errors(&text, &[], &[]);
                assert!(found.concat().contains(part), "{second}: {found:?}");
            }
        }
    }
}

#[test]
fn two_services_share_no_address() {
    let shared = format!("{MINIMAL}listen = \"/run\"\nconsole = \"/run:6432\"\n");
    assert_eq!(
        errors(&shared, &[], &[("http", &["127.0.0.1:6432"])]),
        [
            "configuration: console and listen have the same address, /run/.s.PGSQL.6432: give console another one"
        ]
    );
    let shared = format!("{MINIMAL}http = \"127.0.0.1:6432\"\n");
    let errors = errors(&shared, &[], &[]);
    assert!(errors[0].contains("http and listen"), "{errors:?}");
    let chosen = format!("{MINIMAL}listen = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\n");
    good(&chosen);
}

#[test]
fn a_full_file() {
    let text = r#"
listen = ["127.0.0.1:7000", "[::1]:7000"]
upstream = "postgres://db:5433"
control = "user=c password=hunter2"
authority = "embedded:/a"
rejection_log = "/var/log/r.jsonl"
rejection_literals = "keep"
login_timeout = "10s"
write_stall_timeout = 0
workers = 3
io_uring = "off"
log = "debug"
[takeover]
timeout = "200ms"
[connections]
max = 1_000
[shutdown]
grace = 0
[tcp]
keepalive = "off"
"#;
    let config = good(text);
    assert_eq!(config.clients.listen.len(), 2);
    assert_eq!(config.upstream.hosts.to_string(), "db:5433");
    assert_eq!(config.control.expose().config.get_user(), Some("c"));
    assert_eq!(config.control_hosts().to_string(), "db:5433");
    assert_eq!(config.rejections.literals, Literals::Keep);
    assert_eq!(config.takeover.timeout, Duration::from_millis(200));
    assert_eq!(config.clients.max_connections.get(), 1000);
    assert_eq!(config.workers.get(), 3);
    assert_eq!(config.batching, Batching::Off);
    assert_eq!(config.clients.limits.write_stall_timeout, None);
    assert_eq!(config.clients.limits.tcp_keepalive, None);
    assert_eq!(config.shutdown_grace, Duration::ZERO);
    let shown = format!("{config:?}");
    assert!(
        !shown.contains("hunter2") && shown.contains("[secret]"),
        "{shown}"
    );
}

#[test]
fn shared_server_connections() {
    let pool = |more: &str| {
        let text = format!("{MINIMAL}pool = \"transaction\"\n[backends]\n{more}\n");
        good(&text).clients.pool
    };
    let limits = BackendLimits {
        max: NonZeroUsize::new(20).unwrap(),
        leaders: 2,
        wait: Duration::from_secs(15),
        idle: Duration::from_secs(600),
        lifetime: Duration::from_secs(3600),
        pinned: 10,
        sessions: 0,
        reset: Reset::Always,
    };
    assert_eq!(pool(""), Pool::Transaction(limits.clone()));
    let given = "max = 1\nleaders = 0\nwait = 0\nidle = \"1s\"\nlifetime = \"168h\"\npinned = 0\nsessions = 7\n\
                 reset = \"auto\"";
    let given_limits = BackendLimits {
        max: NonZeroUsize::MIN,
        leaders: 0,
        wait: Duration::ZERO,
        idle: Duration::from_secs(1),
        lifetime: Duration::from_secs(168 * 3600),
        pinned: 0,
        sessions: 7,
        reset: Reset::Auto,
    };
    assert_eq!(pool(given), Pool::Transaction(given_limits));
    for (more, part) in [
        (
            "max = 2",
            "backends.leaders is 2, and backends.max is 2: leave at least one",
        ),
        (
            "max = 0",
            "backends.max: \"0\": write a whole number from 1 to 262143",
        ),
        (
            "pinned = -1",
            "backends.pinned: \"-1\": write a whole number from 0 to",
        ),
        (
            "lifetime = \"1s\"",
            "backends.lifetime: \"1s\": write a time from 1min to 168h",
        ),
    ] {
        let text = format!("{MINIMAL}pool = \"transaction\"\n[backends]\n{more}\n");
        let got = errors(&text, &[], &[]);
        assert!(got.len() == 1 && got[0].contains(part), "{got:?}");
    }
    for line in given.lines() {
        let key = line.split(' ').next().unwrap();
        let got = errors(&format!("{MINIMAL}[backends]\n{line}\n"), &[], &[]);
        let says = format!("backends.{key} is set, but pool is \"session\"");
        assert!(got.len() == 1 && got[0].contains(&says), "{got:?}");
    }
}

#[test]
fn flags_over_environment_over_file_over_defaults() {
    let text = format!("{MINIMAL}workers = 2\nlog = \"warn\"\n");
    let workers = |env: &[(&str, &str)], flags: &[(&str, &[&str])]| {
        in_file(&text, |path| load(Some(path), env, flags))
            .unwrap()
            .workers
            .get()
    };
    assert_eq!(workers(&[], &[]), 2);
    assert_eq!(workers(&[("PGPALISADE_WORKERS", "3")], &[]), 3);
    assert_eq!(
        workers(&[("PGPALISADE_WORKERS", "3")], &[("workers", &["4"])]),
        4
    );
    assert_eq!(
        workers(&[("PGPALISADE_WORKERS", "")], &[]),
        2,
        "an empty variable is unset"
    );
}

#[test]
fn rust_log_ranks_between_default_and_file() {
    let log = |text: &str, env: &[(&str, &str)]| {
        in_file(text, |path| load(Some(path), env, &[]))
            .unwrap()
            .log
            .filter
            .to_string()
    };
    assert_eq!(log(MINIMAL, &[("RUST_LOG", "trace")]), "trace");
    assert_eq!(
        log(
            &format!("{MINIMAL}log = \"warn\"\n"),
            &[("RUST_LOG", "trace")]
        ),
        "warn"
    );
    assert_eq!(
        log(
            MINIMAL,
            &[("RUST_LOG", "trace"), ("PGPALISADE_LOG", "error")]
        ),
        "error"
    );
}

#[test]
fn lists_replace_lists() {
    let text = format!("{MINIMAL}listen = \"127.0.0.1:1\"\n");
    let config = in_file(&text, |path| {
        load(
            Some(path),
            &[("PGPALISADE_LISTEN", "127.0.0.1:2, 127.0.0.1:3")],
            &[],
        )
    });
    let addresses = config.unwrap().clients.listen;
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["127.0.0.1:2", "127.0.0.1:3"]);
}

#[test]
fn config_file_from_the_environment() {
    let config = in_file(MINIMAL, |path| {
        let path = path.to_str().unwrap().to_owned();
        load(None, &[("PGPALISADE_CONFIG", &path)], &[])
    });
    assert_eq!(
        config.unwrap().upstream.hosts.to_string(),
        "/run/.s.PGSQL.5432"
    );
}

#[test]
fn all_errors_at_once_with_their_places() {
    let text = "\
lisen = \"127.0.0.1:1\"
upstream = 5
listen = [\"127.0.0.1:1\",
  \"nonsense\", \"127.0.0.1:1\"]

[takeover]
timeout = \"5\"
timout = \"5s\"
[connections]
max = 0
[nonsense]
x = 1
";
    let env = [
        ("PGPALISADE_WORKERS", "many"),
        ("PGPALISADE_UPSTREM", "x"),
        ("PGPALISADE_IO_URING", "on"),
    ];
    let got = errors(text, &env, &[("takeover.timeout", &["1ms"])]);
    let expect = [
        "pgpalisade.toml:1: unknown key \"lisen\" (did you mean \"listen\"?)",
        "pgpalisade.toml:2: upstream wants a string, not a number",
        "pgpalisade.toml:8: unknown key \"takeover.timout\" (did you mean \"takeover.timeout\"?)",
        "pgpalisade.toml:11: unknown key \"nonsense\"",
        "PGPALISADE_UPSTREM: unknown variable (did you mean PGPALISADE_UPSTREAM?)",
        "pgpalisade.toml:10: connections.max: \"0\": write a whole number from 1 to 1000000",
        "pgpalisade.toml:4: listen: \"nonsense\" is not an address to listen on: \
         write IP:PORT, such as 127.0.0.1:6432 or [::]:6432, or a directory for a unix socket",
        "pgpalisade.toml:4: listen: 127.0.0.1:1 is given twice",
        "pgpalisade.toml:7: takeover.timeout: \"5\": write a time from 100ms to 10min, with its unit",
        "PGPALISADE_WORKERS: workers: \"many\": write a whole number from 1 to 1024",
        "PGPALISADE_IO_URING: io_uring: \"on\": write auto or off",
        "--takeover-timeout: takeover.timeout: \"1ms\": write a time from 100ms to 10min, with its unit",
        "configuration: authority is not set: give --authority, PGPALISADE_AUTHORITY or the key \"authority\" \
         (embedded:DIR, etcd:URL,URL or postgres:DSN; no default, because an empty store has forgotten the marks)",
    ];
    for line in expect {
        assert!(
            got.iter().any(|got| got == line),
            "missing: {line}\ngot: {got:#?}"
        );
    }
    assert_eq!(got.len(), expect.len(), "{got:#?}");
}

#[test]
fn types_and_units_are_said_in_words() {
    let rows = r#"
workers = 1.5 => workers wants a whole number, not a number with a fraction or an exponent
workers = 0x10 => workers wants a whole number, not a number in hexadecimal, octal or binary
workers = [2] => workers wants a whole number, not a list
policy = 2026-11-21 => policy wants a string, not a date or time without quotes
io_uring = false => io_uring wants a string, not true or false
observe = "on" => observe wants true or false, not a string
listen = [1] => listen wants a string or a list of strings, not a list with something else in it
workers = -3 => workers: "-3": write a whole number from 1 to 1024
takeover.timeout = "99999999999h" => takeover.timeout: "99999999999h": write a time from 100ms to 10min, with its unit
"#;
    for (line, says) in rows.lines().filter_map(|row| row.split_once(" => ")) {
        let got = errors(&format!("{MINIMAL}{line}\n"), &[], &[]);
        assert_eq!(got, [format!("pgpalisade.toml:3: {says}")]);
    }
}

#[test]
fn a_key_in_the_wrong_table_is_told_where_it_belongs() {
    let console = "[connections]\nconsole = \"/run\"";
    let tls = "[connections]\nmax = 1\ntls.mode = \"off\"";
    let nested = "[shutdown]\n[shutdown.tls]\nmode = \"off\"";
    for (text, line, key, table) in [
        (console, 4, "console", "connections"),
        ("[tls]\nhttp = \"127.0.0.1:1\"", 4, "http", "tls"),
        (tls, 5, "tls", "connections"),
        (nested, 4, "tls", "shutdown"),
    ] {
        let says = format!(
            "pgpalisade.toml:{line}: unknown key \"{table}.{key}\": \"{key}\" is a top-level key, and what follows the \
             line [{table}] belongs to that table; move it above the first line in square brackets"
        );
        assert_eq!(errors(&format!("{MINIMAL}{text}\n"), &[], &[]), [says]);
    }
    let says = "pgpalisade.toml:3: unknown key \"max\" (did you mean \"backends.max\" or \"connections.max\"?)";
    assert_eq!(errors(&format!("{MINIMAL}max = 1\n"), &[], &[]), [says]);
}

#[test]
fn an_empty_list_and_a_value_given_twice() {
    let got = errors(
        &format!("{MINIMAL}listen = []\n"),
        &[],
        &[("workers", &["2", "3"])],
    );
    let expect = [
        "pgpalisade.toml:3: listen is empty",
        "--workers: workers is given more than once",
    ];
    assert_eq!(got, expect);
    let got = errors("", &[], &[("authority", &["embedded:/a"])]);
    let upstream = "configuration: upstream is not set: give --upstream, PGPALISADE_UPSTREAM or the key \"upstream\" \
         (the address of the PostgreSQL to protect)";
    assert_eq!(got, [upstream]);
}

#[test]
fn a_bad_value_is_an_error_also_where_a_flag_replaces_it() {
    let got = errors(
        &format!("{MINIMAL}workers = 0\n"),
        &[],
        &[("workers", &["2"])],
    );
    assert_eq!(
        got,
        ["pgpalisade.toml:3: workers: \"0\": write a whole number from 1 to 1024"]
    );
}

#[test]
fn a_syntax_error_has_a_line_and_is_told_alone() {
    for (text, line) in [
        ("[[listener]\nlisten = \"127.0.0.1:1\"\n", 1),
        ("lisen = 1\nworkers = = 2\n", 2),
    ] {
        let got = errors(text, &[], &[]);
        let place = format!("pgpalisade.toml:{line}: ");
        assert!(
            matches!(&got[..], [only] if only.starts_with(&place)),
            "{got:?}"
        );
    }
}

/// An error in a table names its key.
#[test]
fn a_listener_names_the_key_of_a_wrong_value() {
    let text = format!(
        "{MINIMAL}[[listener]]\nlisten = \"127.0.0.1:1\"\ntoken = \"lease\"\non_loss = \"kill 1\"\n"
    );
    let got = errors(&text, &[], &[]).concat();
    assert!(got.contains("listener: on_loss: invalid type"), "{got}");
}

#[test]
fn a_word_that_is_no_level_does_not_silence_the_log() {
    for filter in ["verbose", "info,quiet"] {
        let got = errors(&format!("{MINIMAL}log = \"{filter}\"\n"), &[], &[]);
        assert!(
            got.iter().any(|line| line.contains("is not a log level")),
            "{filter}: {got:?}"
        );
    }
    let got = errors(
        &format!("{MINIMAL}log = \"info,[login]=trace\"\n"),
        &[],
        &[],
    );
    assert!(
        got.iter().any(|line| line.contains("is not a log filter")),
        "{got:?}"
    );
    for (filter, expect) in [
        ("off", "off"),
        ("WARN", "warn"),
        (
            "info,pgpalisade_server::relay=trace",
            "pgpalisade_server::relay=trace,info",
        ),
        ("pgpalisade", "pgpalisade=trace"),
        (" debug, ,pgpalisade=off,", "pgpalisade=off,debug"),
    ] {
        let text = format!("{MINIMAL}log = \"{filter}\"\n");
        let config = good(&text);
        assert_eq!(config.log.filter.to_string(), expect);
    }
}

#[test]
fn a_missing_file_and_a_directory_are_errors() {
    let errors = load(Some(Path::new("/nowhere/p.toml")), &[], &[])
        .unwrap_err()
        .to_string();
    // Keys of a file that cannot be read are not missing.
    assert!(
        errors.starts_with("/nowhere/p.toml:1: cannot open the file")
            && errors.lines().count() == 1,
        "{errors}"
    );
    let errors = load(Some(Path::new("/")), &[], &[])
        .unwrap_err()
        .to_string();
    assert!(errors.contains("cannot read the file"), "{errors}");
}

#[test]
fn kubernetes_service_variables_are_not_ours() {
    let env = [
        ("PGPALISADE_PORT", "tcp://10.0.0.1:6432"),
        ("PGPALISADE_SERVICE_HOST", "10.0.0.1"),
        ("PGPALISADE_HTTP_PORT", "tcp://10.0.0.1:6434"),
        ("PGPALISADE_HTTP_PORT_6434_TCP_ADDR", "10.0.0.1"),
        ("PGPALISADE_HTTP_SERVICE_PORT_HTTP", "6434"),
    ];
    assert!(in_file(MINIMAL, |path| load(Some(path), &env, &[])).is_ok());
}

#[test]
fn no_error_shows_a_password() {
    let text = "\
upstream = \"postgres://u:hunter2@db\"
control = \"password=hunter2 nonsense\"
authority = \"postgres:password=hunter2\"
";
    let got = errors(
        text,
        &[("PGPALISADE_CONTROL", "postgres://u:hunter2@h:x")],
        &[],
    );
    assert_eq!(got.len(), 4, "{got:?}");
    assert!(!got.concat().contains("hunter2"), "{got:?}");
}

#[test]
fn a_file_with_a_password_is_not_open_to_all() {
    let upstream = "upstream = \"/run\"\n";
    let control = |text: &str| format!("{MINIMAL}control = \"{text}\"\n");
    let authority = |text: &str| format!("{upstream}authority = \"{text}\"\n");
    for (text, line) in [
        (control("user=c password=hunter2"), Some(3)),
        (control("postgres://c:hunter2@h/d"), Some(3)),
        (
            authority("postgres:user=m password=hunter2 host=h"),
            Some(2),
        ),
        (authority("etcd:http://h:1?user=u&password_file=/x"), None),
        (authority("postgres:user=m host=h"), None),
        (control("user=c"), None),
    ] {
        in_file(&text, |path| {
            for mode in [0o644, 0o602] {
                std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
                // Readers of the file still see the password.
                let flags: &[(&str, &[&str])] = &[("control", &["user=d"])];
                match (load(Some(path), &[], flags), line) {
                    (Ok(_), None) => {}
                    (Err(errors), Some(line)) => {
                        let place = format!("pgpalisade.toml:{line}: has a password, and");
                        let errors = errors.to_string();
                        assert!(errors.contains(&place), "{errors}");
                        assert!(errors.contains("chmod o-rwx"), "{errors}");
                    }
                    (loaded, _) => panic!("{text}: {:?}", loaded.map(|_| ())),
                }
            }
            std::fs::set_permissions(path, Permissions::from_mode(0o640)).unwrap();
            load(Some(path), &[], &[]).unwrap();
        });
    }
}
