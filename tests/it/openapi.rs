//! docs/openapi.json describes the HTTP interface: exactly the existing paths, with real responses.

mod schema;

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use pgpalisade_fence::rejection::RejectionKind;
use pgpalisade_test_servers::http::{Answer, Http};
use pgpalisade_test_servers::machine::{Signal, repository, signal, wait_for, wait_until};
use pgpalisade_test_servers::postgres::{Postgres, scratch_dir};
use pgpalisade_test_servers::proxy::{Options, Proxy, Store};
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::tls::Authority;
use pgpalisade_test_servers::wire::{Wire, assert_error, trusted};
use serde_json::Value;

use schema::{faults, names, resolve};

/// The page for people, and its data: not for programs.
const DASHBOARD: [&str; 2] = ["/", "/api/v1/picture"];

/// Responses that no test can cause: only a proxy that has lost a thread sends them.
const NOT_CAUSED: [(&str, u16); 3] = [("/healthz", 503), ("/metrics", 500), ("/api/v1/pools", 503)];

const TABLES: &str = "/api/v1/";

/// The description, and the responses that were compared with it.
struct Description {
    root: Value,
    seen: BTreeSet<(String, u16)>,
}

impl Description {
    fn read() -> Self {
        let text = fs::read_to_string(repository().join("docs/openapi.json")).unwrap();
        Self {
            root: serde_json::from_str(&text).unwrap(),
            seen: BTreeSet::new(),
        }
    }

    fn paths(&self) -> Vec<String> {
        self.root["paths"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    }

    fn tables(&self) -> Vec<String> {
        let paths = self.paths().into_iter();
        paths.filter(|path| path.starts_with(TABLES)).collect()
    }

    /// Each path with each of its described statuses.
    fn statuses(&self) -> BTreeSet<(String, u16)> {
        let of = |path: String| {
            let responses = self.root["paths"][&path]["get"]["responses"]
                .as_object()
                .unwrap();
            let statuses = responses.keys().map(|status| status.parse().unwrap());
            statuses
                .map(|status| (path.clone(), status))
                .collect::<Vec<_>>()
        };
        self.paths().into_iter().flat_map(of).collect()
    }

    /// Fails unless the response is described for this path.
    #[track_caller]
    fn check(&mut self, path: &str, status: u16, answer: &Answer) -> Value {
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        let responses = &self.root["paths"][path]["get"]["responses"];
        let response = resolve(&self.root, &responses[status.to_string()]);
        assert!(
            response["description"].is_string(),
            "{path}: {status} is not described"
        );
        for (name, header) in response["headers"].as_object().into_iter().flatten() {
            let shown = header["schema"]["const"].as_str().unwrap().to_lowercase();
            assert_eq!(field(answer, name), Some(&*shown), "{path}: {answer:?}");
        }
        assert_eq!(
            field(answer, "cache-control"),
            Some("no-store"),
            "{answer:?}"
        );
        let content = response["content"].as_object().unwrap();
        let (kind, media) = content.iter().next().unwrap();
        assert_eq!(
            field(answer, "content-type"),
            Some(&**kind),
            "{path}: {answer:?}"
        );
        let body = match &**kind {
            "application/json" => serde_json::from_str(&answer.body).unwrap(),
            _ => Value::from(&*answer.body),
        };
        let faults = faults(&self.root, &media["schema"], &body);
        assert!(faults.is_empty(), "{path}: {faults:#?}\n{body:#}");
        self.seen.insert((path.to_owned(), status));
        body
    }
}

/// Value of a header field.
fn field<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    let name = format!("{}: ", name.to_lowercase());
    answer
        .head
        .lines()
        .find_map(|line| line.strip_prefix(&name))
}

/// Paths that the proxy lists.
fn served(http: Http) -> BTreeSet<String> {
    let text = http.get("/nothing").body;
    let (paths, tables) = text.trim_end().split_once(" /api/v1/ with ").unwrap();
    let paths = paths.split([' ', ',']).filter(|word| word.starts_with('/'));
    let tables = tables
        .split([' ', ','])
        .filter(|word| !matches!(*word, "" | "and"));
    let tables = tables.map(|table| format!("{TABLES}{table}"));
    paths.map(str::to_owned).chain(tables).collect()
}

#[test]
fn what_is_described_is_what_is_served() {
    let postgres = Postgres::start();
    let (http, _proxy) = Http::with_proxy(&postgres);
    let mut served = served(http);
    served.retain(|path| !DASHBOARD.contains(&&**path));
    let described: BTreeSet<String> = Description::read().paths().into_iter().collect();
    assert_eq!(
        described, served,
        "docs/openapi.json (left), the proxy (right)"
    );
}

#[test]
fn all_kinds_of_refusals_are_described() {
    let root = Description::read().root;
    let described =
        |of: &str| names(&root["components"]["schemas"]["Rejection"]["properties"][of]["enum"]);
    let all = RejectionKind::ALL.iter();
    let (kinds, codes) = all.map(|kind| (kind.as_str(), kind.sqlstate())).unzip();
    assert_eq!((described("kind"), described("sqlstate")), (kinds, codes));
}

/// Options of a proxy with its marks in the database itself, so that nothing answers while that is down.
fn options(http: Http, postgres: &Postgres) -> Options {
    let mut options = http.options(postgres).flag("--takeover-timeout", "1s");
    // By TCP, so that a proxy has an address.
    options.control = format!("postgres://postgres@127.0.0.1:{}/postgres", postgres.port());
    options.store = Store::Url(format!("postgres:{}", postgres.admin_dsn()));
    options
}

/// Takeovers, refusals and sessions, so that each column has a value. The sessions last as long as the returned
/// values.
fn act(stage: &Stage) -> Vec<Wire> {
    let login = |token: &str| {
        let leader = trusted(&[("application_name", "leader"), ("fencing.token", token)]);
        Wire::login(&stage.proxy.endpoint(), &leader)
    };
    let mut old = login("33");
    old.ok("BEGIN; INSERT INTO jobs VALUES (1)");
    let new = login("34");
    let mut plain = stage.plain();
    let traced = "INSERT INTO jobs VALUES (1) \
                  /*traceparent='00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'*/";
    plain.fails(traced, "PF002");
    plain.fails("SET fencing.token = 'no number'", "PF003");
    // A takeover that cannot be completed.
    let pid = new.backend_pid();
    signal(pid, Signal::STOP);
    let answer = plain.query("SET fencing.token = 35");
    signal(pid, Signal::CONT);
    // On a busy machine its end takes longer than the next takeover may wait.
    wait_until("its end", || !stage.postgres.has_session(pid));
    assert_error(&answer, "PF006");
    let mut last = login("36");
    last.ok("INSERT INTO jobs VALUES (2)");
    vec![plain, last]
}

#[test]
fn answers_are_as_described() {
    let mut description = Description::read();
    let postgres = Postgres::start();
    postgres.sql("CREATE TABLE jobs (id int)");
    let http = Http::free();
    let options = options(http, &postgres).flag(
        "--listener",
        "{ listen = \"127.0.0.1:0\", token = \"elected=lease\" }",
    );
    let proxy = Proxy::start_with(options);
    let mut stage = Stage { proxy, postgres };
    let _sessions = act(&stage);
    wait_until("both takeovers to be noted", || {
        let answer = http.get("/api/v1/takeovers").body;
        answer.contains("\"incomplete\"") && answer.contains("\"complete\"")
    });
    wait_until("the lead", || http.get("/leader").status == 200);
    let unled = http.get("/leader?scope=other");
    description.check("/leader", 503, &unled);
    let wrong = http.get("/leader?scopes=other");
    description.check("/leader", 400, &wrong);
    assert_eq!(http.get("/leader?scope=%65lected").status, 200);
    for path in description.paths() {
        let body = description.check(&path, 200, &http.get(&path));
        if path.starts_with(TABLES) {
            has_all(&path, &body);
            changes_are_noticed(&description, &path, &body);
        }
        let posted = http.ask("POST", &path, "Content-Length: 0\r\n");
        description.check(&path, 405, &posted);
    }
    for path in description.tables() {
        let sent_by_a_page = http.ask("GET", &path, "Host: evil.example\r\n");
        description.check(&path, 421, &sent_by_a_page);
        description.check(&path, 404, &http.get(&format!("{path}s")));
    }
    without_the_token(&mut description, &stage.postgres);
    without_a_certificate(&mut description, &stage.postgres);
    stage.postgres.crash();
    wait_until("the end of the control connection", || {
        http.get("/readyz").status == 503
    });
    for path in ["/readyz", "/api/v1/takeovers", "/api/v1/proxies"] {
        // Results are cached for a second.
        let refused = wait_for(path, || {
            Some(http.get(path)).filter(|answer| answer.status != 200)
        });
        description.check(path, 503, &refused);
    }
    let mut seen = description.seen.clone();
    seen.extend(NOT_CAUSED.map(|(path, status)| (path.to_owned(), status)));
    let found = description.statuses();
    assert_eq!(found, seen, "described (left), seen (right)");
}

/// A second proxy, which requires a token.
fn without_the_token(description: &mut Description, postgres: &Postgres) {
    let dir = scratch_dir();
    let file = dir.path().join("token");
    fs::write(&file, "a-token-that-nobody-knows").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let http = Http::free();
    let file = file.display().to_string();
    let _proxy = Proxy::start_with(options(http, postgres).flag("--http-token-file", &file));
    for path in description.paths() {
        let needs_none = matches!(&*path, "/healthz" | "/readyz");
        let status = if needs_none { 200 } else { 401 };
        description.check(&path, status, &http.get(&path));
    }
}

/// A third one, which requires a certificate.
fn without_a_certificate(description: &mut Description, postgres: &Postgres) {
    let authority = Authority::new();
    let pair = authority.issue_local("proxy");
    let http = Http::free();
    let options = options(http, postgres)
        .flag(
            "--http-certificate",
            &pair.certificate.display().to_string(),
        )
        .flag("--http-key", &pair.key.display().to_string())
        .flag(
            "--http-client-ca",
            &authority.certificate().display().to_string(),
        );
    let _proxy = Proxy::start_with(options);
    for path in description.paths() {
        let needs_none = matches!(&*path, "/healthz" | "/readyz");
        let status = if needs_none { 200 } else { 403 };
        let answer = http.get_tls(&authority.client(), &path, "Host: localhost\r\n");
        description.check(&path, status, &answer.unwrap());
    }
}

/// Each column has a value in some row, so that its type is checked.
#[track_caller]
fn has_all(path: &str, body: &Value) {
    let rows = body.as_array().unwrap();
    for name in rows[0].as_object().unwrap().keys() {
        let has_value = rows.iter().any(|row| !row[name].is_null());
        assert!(has_value, "{path}: {name} is null in each row: {body:#}");
    }
}

/// Validates the test: a description that contradicts the response is refused.
#[track_caller]
fn changes_are_noticed(description: &Description, path: &str, body: &Value) {
    let root = &description.root;
    let schema =
        &root["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"];
    let row = resolve(root, &schema["items"]);
    let properties = row["properties"].as_object().unwrap();
    let all: BTreeSet<&str> = properties.keys().map(String::as_str).collect();
    let found = names(&row["required"]);
    assert_eq!(found, all, "{path}: every column is in every row");
    for name in all {
        let mut without = row.clone();
        without["properties"].as_object_mut().unwrap().remove(name);
        let mut other = row.clone();
        other["properties"][name]["type"] = "array".into();
        for changed in [without, other] {
            assert!(
                !faults(root, &changed, &body[0]).is_empty(),
                "{path}: {name}"
            );
        }
        let mut shorter = body[0].clone();
        shorter.as_object_mut().unwrap().remove(name);
        assert!(!faults(root, row, &shorter).is_empty(), "{path}: {name}");
    }
}
