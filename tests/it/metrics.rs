//! Metrics: the numbers rise with each event, the names match the page, and Prometheus' own tool accepts them.

mod grafana;
mod leases;
mod pool;

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use pgpalisade_test_servers::http::{Http, Metrics};
use pgpalisade_test_servers::machine::{Signal, repository, signal, wait_for};
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::programs::feed;
use pgpalisade_test_servers::proxy::Proxy;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Wire, assert_error, trusted};

const SETUP: &str = "CREATE TABLE jobs (id int)";

/// Declarations answered by the authority, including the proxy's own at its start.
const DECLARED: &str = "pgpalisade_authority_answer_seconds_count{operation=\"declare\"}";

fn stage() -> (Http, Stage) {
    let postgres = Postgres::start();
    postgres.sql(SETUP);
    let http = Http::free();
    let proxy = Proxy::start_with(http.options(&postgres).flag("--takeover-timeout", "1s"));
    (http, Stage { proxy, postgres })
}

/// Waits until a series has this value: a session ends after its client's connection.
#[track_caller]
fn wait_until(http: Http, series: &str, value: f64) {
    wait_for(&format!("{series} {value}"), || {
        (http.metrics().of(series) == value).then_some(())
    });
}

/// A startup packet whose parameters do not end with it.
fn refused_login(stage: &Stage) {
    let mut client = Wire::connect(&stage.proxy.endpoint());
    client.send_bytes(b"\0\0\0\x0d\0\x03\0\0user\0");
    assert_eq!(client.until_closed()[0].sqlstate(), "08P01");
}

/// Runs promtool with a text as its input, and fails with its output.
#[track_caller]
fn promtool(arguments: &[&str], input: &str) {
    let mut tool = Command::new("promtool");
    tool.args(arguments);
    let output = feed(tool, input);
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
}

#[test]
fn numbers_rise_by_what_was_done() {
    let (http, stage) = stage();
    let declared = http.metrics().of(DECLARED);
    let statements = |basis: &str| format!("pgpalisade_statements_total{{basis=\"{basis}\"}}");
    let mut plain = stage.plain();
    for _ in 0..3 {
        plain.ok("SELECT 1");
    }
    for _ in 0..2 {
        plain.fails("INSERT INTO jobs VALUES (0)", "PF002");
    }
    let mut old = stage.leader("33");
    old.ok("INSERT INTO jobs VALUES (1)");
    plain.extended("SELECT 1");
    let seen = http.metrics();
    assert_eq!(seen.of(&statements("not_required")), 4.0);
    assert_eq!(seen.of(&statements("token")), 1.0);
    let refused = "pgpalisade_rejections_total{kind=\"no_token\",sqlstate=\"PF002\",scope=\"default\",\
                   enforced=\"true\"}";
    assert_eq!(seen.of(refused), 2.0, "{}", seen.text);
    assert_eq!(seen.of("pgpalisade_mark{scope=\"default\"}"), 33.0);
    assert_eq!(seen.of("pgpalisade_connections_open"), 2.0);
    assert_eq!(seen.of("pgpalisade_sessions_total"), 2.0);
    assert!(seen.of("pgpalisade_received_bytes_total{from=\"client\"}") > 100.0);
    assert!(seen.of("process_resident_memory_bytes") > 1e6);

    // A takeover with a session to end.
    let mut new = stage.leader("34");
    new.ok("INSERT INTO jobs VALUES (2)");
    old.fails("SELECT 1", "PF001");
    drop(plain);
    wait_until(
        http,
        "pgpalisade_sessions_ended_total{reason=\"client_left\"}",
        1.0,
    );
    wait_until(http, "pgpalisade_connections_open", 1.0);
    let seen = http.metrics();
    assert_eq!(
        seen.of("pgpalisade_sessions_ended_total{reason=\"taken_over\"}"),
        1.0
    );
    assert_eq!(seen.of("pgpalisade_connections_total"), 3.0);
    assert_eq!(seen.of("pgpalisade_marks_raised_total"), 2.0);
    assert_eq!(seen.of("pgpalisade_takeover_duration_seconds_count"), 1.0);
    assert_eq!(seen.of("pgpalisade_takeover_sessions_ended_total"), 1.0);
    assert_eq!(seen.of("pgpalisade_takeovers_incomplete_total"), 0.0);
    assert_eq!(seen.of("pgpalisade_mark{scope=\"default\"}"), 34.0);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    let raised = seen.of("pgpalisade_mark_raised_timestamp_seconds{scope=\"default\"}");
    assert!(
        (now - 60.0..now + 1.0).contains(&raised),
        "{raised} at {now}"
    );
    // Nobody is asked about a token that is known to be stale.
    let mut late = Wire::open(&stage.proxy.endpoint(), &[("fencing.token", "33")]);
    assert_error(&late.until_closed(), "PF001");
    assert_eq!(http.metrics().of(DECLARED), declared + 2.0);

    // A takeover that cannot be completed.
    let pid = new.backend_pid();
    signal(pid, Signal::STOP);
    let answer = stage.plain().query("SET fencing.token = 35");
    signal(pid, Signal::CONT);
    assert_error(&answer, "PF006");
    wait_until(http, "pgpalisade_takeovers_incomplete_total", 1.0);

    refused_login(&stage);
    wait_until(
        http,
        "pgpalisade_logins_refused_total{sqlstate=\"08P01\"}",
        1.0,
    );
}

#[test]
fn verdicts_are_counted_by_what_was_known() {
    let (http, stage) = stage();
    let mut plain = stage.plain();
    // Kept by its form; as a text of its own, once it has come again.
    for id in [1, 1, 1, 1, 2] {
        plain.ok(&format!("SELECT id FROM jobs WHERE id = {id}"));
    }
    let known = |what: &str| format!("pgpalisade_verdicts_total{{known=\"{what}\"}}");
    wait_until(http, &known("no"), 1.0);
    wait_until(http, &known("text"), 1.0);
    wait_until(http, &known("form"), 3.0);
    let seen = http.metrics();
    assert!(seen.of("pgpalisade_verdicts_kept") >= 1.0);
    assert!(seen.of("pgpalisade_verdicts_kept_bytes") > 100.0);
}

#[test]
fn the_time_that_is_added_is_measured() {
    let (http, stage) = stage();
    let of = |name: &str, part: &str| {
        let series = format!("pgpalisade_{name}_seconds_{part}");
        http.metrics().of(&series)
    };
    let mut session = stage.plain();
    let before = ["decision", "preparation"].map(|name| of(name, "count"));
    for _ in 0..64 {
        session.ok("SELECT 1");
    }
    session.ok("SET fencing.token = 33");
    session.ok("SELECT 1");
    let after = ["decision", "preparation"].map(|name| of(name, "count"));
    assert!(
        after[0] > before[0] && after[1] > before[1],
        "{before:?} {after:?}"
    );
    assert!(of("preparation", "sum") > of("decision", "sum"));
}

#[test]
fn what_is_only_observed_is_counted_apart() {
    let postgres = Postgres::start();
    postgres.sql(SETUP);
    let http = Http::free();
    let mut options = http.options(&postgres);
    options.flags.push("--observe".to_owned());
    let proxy = Proxy::start_with(options);
    let stage = Stage { proxy, postgres };
    stage.plain().ok("INSERT INTO jobs VALUES (1)");
    let seen = http.metrics();
    let observed = "pgpalisade_rejections_total{kind=\"no_token\",sqlstate=\"PF002\",scope=\"default\",\
                    enforced=\"false\"}";
    assert_eq!(seen.of(observed), 1.0, "{}", seen.text);
    assert_eq!(
        seen.of("pgpalisade_statements_total{basis=\"exempt\"}"),
        1.0
    );
}

/// The metrics alone reveal a file that a reload refused.
#[test]
fn a_refused_reload_is_seen() {
    let postgres = Postgres::start();
    let policy = PolicyFile::new("");
    let http = Http::free();
    let proxy = Proxy::start_with(http.options(&postgres).policy(&policy));
    let ok = |file: &str| format!("pgpalisade_reload_ok{{file=\"{file}\"}}");
    // SHA-256 of a line without a character.
    let empty = "pgpalisade_policy_info{sha256=\
                 \"01ba4719c80b6fe911b091a7c05124b64eeece964e09c058ef8f9805daca546b\",mode=\"enforce\"}";
    wait_until(http, empty, 1.0);
    policy.reload(&proxy, "nonsense");
    wait_until(http, &ok("policy"), 0.0);
    let seen = http.metrics();
    assert_eq!((seen.of(empty), seen.of(&ok("tls"))), (1.0, 1.0));
    policy.reload(&proxy, "[scope.jobs]\n");
    wait_until(http, &ok("policy"), 1.0);
    assert!(!http.metrics().text.contains(empty));
}

/// A client can choose any names: they create no series, and no lines of their own.
#[test]
fn clients_make_no_series() {
    let (http, stage) = stage();
    let hostile = "a\"} 1\nevil 1";
    let name = trusted(&[("application_name", hostile)]);
    let mut session = Wire::login(&stage.proxy.endpoint(), &name);
    session.query(&format!("SET fencing.token = '{hostile}=1'"));
    // Before the login no name is authenticated.
    let mut login = Wire::connect(&stage.proxy.endpoint());
    login.startup(196_608, &[("user", "x"), ("fencing.token", hostile)]);
    assert_eq!(login.until_closed()[0].sqlstate(), "PF003");
    let seen = http.metrics();
    promtool(&["check", "metrics"], &seen.text);
    assert!(!seen.text.contains("evil"), "{}", seen.text);
    let unknown = "pgpalisade_rejections_total{kind=\"invalid_token\",sqlstate=\"PF003\",scope=\"\",enforced=\"true\"}";
    assert!(seen.of(unknown) >= 2.0, "{}", seen.text);
}

/// An unauthenticated client can send any user and any scope, and must not fake the refusal of a leader. Others can
/// still invent names.
#[test]
fn only_scopes_that_there_are_have_series() {
    let policy = PolicyFile::new(
        "[tokens]\nscopes = \"listed\"\n[scope.jobs]\nholders = { user = \"leader\" }\n",
    );
    let postgres = Postgres::start();
    postgres.sql(SETUP);
    let http = Http::free();
    let proxy = Proxy::start_with(http.options(&postgres).policy(&policy));
    let stage = Stage { proxy, postgres };
    let refused = |scope: &str| {
        format!(
            "pgpalisade_rejections_total{{kind=\"policy\",sqlstate=\"PF005\",scope=\"{scope}\",enforced=\"true\"}}"
        )
    };
    let mut login = Wire::connect(&stage.proxy.endpoint());
    login.startup(196_608, &[("user", "x"), ("fencing.token", "jobs=1")]);
    assert_eq!(login.until_closed()[0].sqlstate(), "PF005");
    wait_until(http, &refused(""), 1.0);
    stage.plain().fails("SET fencing.token = 'jobs=1'", "PF005");
    wait_until(http, &refused("jobs"), 1.0);
    let mut session = stage.plain();
    for number in 0..50 {
        session.fails(
            &format!("SET fencing.token = 'made-up-{number}=1'"),
            "PF005",
        );
    }
    wait_until(http, &refused("(others)"), 50.0);
    let seen = http.metrics();
    assert_eq!(seen.of(&refused("")), 1.0);
    assert!(!seen.text.contains("made-up"), "{}", seen.text);
}

/// Metrics of a proxy, with a series of each family.
fn metrics_of_all_families() -> Metrics {
    let (http, stage) = stage();
    stage.plain().query("INSERT INTO jobs VALUES (0)");
    drop(stage.leader("33"));
    refused_login(&stage);
    wait_until(
        http,
        "pgpalisade_sessions_ended_total{reason=\"client_left\"}",
        2.0,
    );
    http.metrics()
}

/// The page lists exactly the existing families, and the alerts use only those.
#[test]
fn the_page_and_the_alerts_name_what_there_is() {
    let seen = metrics_of_all_families();
    promtool(&["check", "metrics"], &seen.text);
    let families = families(&seen);
    let page = std::fs::read_to_string(repository().join("docs/observe.md")).unwrap();
    let listed: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .filter(|name| name.starts_with("pgpalisade_") || name.starts_with("process_"))
        .collect();
    assert_eq!(listed, families, "docs/observe.md (left), /metrics (right)");

    let rules = repository().join("packaging/prometheus-rules.yml");
    promtool(&["check", "rules", &rules.display().to_string()], "");
    let rules = std::fs::read_to_string(rules).unwrap();
    assert!(named(&rules, &families) > 5);
}

/// Number of metrics that a text names. Fails on an unknown name.
#[track_caller]
fn named(text: &str, families: &BTreeSet<&str>) -> usize {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_name(c));
    let is_metric = |word: &&str| word.starts_with("pgpalisade_") || word.starts_with("process_");
    let names = words.filter(is_metric);
    let check = |name: &str| {
        let family = name.trim_end_matches("_bucket").trim_end_matches("_count");
        assert!(families.contains(family), "{name} is not in /metrics");
    };
    names.map(check).count()
}

fn families(seen: &Metrics) -> BTreeSet<&str> {
    let families = seen.families();
    let set: BTreeSet<&str> = families.iter().copied().collect();
    assert_eq!(set.len(), families.len(), "one is there twice");
    set
}
