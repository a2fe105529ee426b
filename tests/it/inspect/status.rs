//! `pgpalisade status`.

use pgpalisade_test_servers::http::Http;
use pgpalisade_test_servers::machine::{assert_says, wait_until};
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::Proxy;
use pgpalisade_test_servers::stage::leader;

use super::{Settings, fresh_store};

#[test]
fn what_is_there_while_a_proxy_runs_and_after() {
    let postgres = Postgres::start();
    let (http, mut proxy) = Http::with_proxy(&postgres);
    let mut session = leader(&proxy.endpoint(), "jobs=7");
    session.ok("SET fencing.token = '34'");
    let settings = Settings::new(&postgres, &proxy.store());
    let status = settings.status();
    assert_eq!(status["authority"]["state"], "in_use");
    assert_eq!(status["cluster"]["timeline"], 1);
    let control = postgres
        .value("SELECT pid FROM pg_stat_activity WHERE application_name = 'pgpalisade control'");
    assert_eq!(status["proxies"][0]["pid"].to_string(), control);
    let marks = |status: &serde_json::Value| {
        let scopes = status["scopes"].as_array().unwrap().clone();
        let mark = |scope: &serde_json::Value| format!("{}={}", scope["scope"], scope["mark"]);
        scopes.iter().map(mark).collect::<Vec<_>>()
    };
    // From the copy in the cluster.
    assert_eq!(marks(&status), ["\"default\"=34", "\"jobs\"=7"]);
    assert!(status["scopes"][0]["alive_below_mark"].is_null());
    assert_eq!(status["unread"].to_string(), "[\"takeovers\"]");
    let text = String::from_utf8(settings.run("status").stdout).unwrap();
    assert_says(
        &text,
        "from the cluster's copy of the marks: they may be higher by now",
    );
    assert_eq!(status["marks_from"], "copy");
    assert!(text.contains("default  at least 34  -"), "{text}");
    let blind = settings.clone().flag("--witness=off");
    let nowhere = incomplete(&blind);
    let problem = nowhere["cluster"]["problems"][0].as_str().unwrap();
    assert!(problem.contains("keeps no copy of them"), "{problem}");
    assert_eq!(nowhere["unread"].to_string(), "[\"scopes\",\"takeovers\"]");
    let shown = String::from_utf8(blind.run("status").stdout).unwrap();
    assert!(shown.contains("\nscopes\ncannot be read\n"), "{shown}");
    assert!(shown.contains("\nprepared transactions\nnone\n"), "{shown}");
    assert!(!text.contains("last takeovers"), "{text}");
    wait_until("both takeovers to be noted", || {
        let noted = http.get("/api/v1/takeovers").body;
        noted.contains("\"to\":34") && noted.contains("\"to\":7")
    });
    proxy.kill();

    let status = settings.status();
    assert_eq!(status["authority"]["state"], "read");
    assert_eq!(status["marks_from"], "authority");
    assert_eq!(marks(&status), ["\"default\"=34", "\"jobs\"=7"]);
    assert_eq!(status["scopes"][0]["alive_below_mark"], 0);
    let taken = |status: &serde_json::Value| {
        let all = status["takeovers"].as_array().unwrap().clone();
        let raise = |row: &serde_json::Value| format!("{}={}", row["scope"], row["to"]);
        all.iter().map(raise).collect::<Vec<_>>()
    };
    assert_eq!(taken(&status), ["\"default\"=34", "\"jobs\"=7"]);
    let one = settings.clone().flag("--scope=jobs").status();
    assert_eq!(taken(&one), ["\"jobs\"=7"]);
    assert_eq!(marks(&one), ["\"jobs\"=7"]);
    assert_eq!(one["scopes_total"], 2);
    let nobody = settings.clone().flag("--scope=nobody");
    assert_eq!(incomplete(&nobody)["scopes"].as_array().unwrap().len(), 0);
    let said = String::from_utf8(nobody.run("status").stderr).unwrap();
    assert!(said.contains("scope \"nobody\" has no mark"), "{said}");
    let bad = settings.clone().flag("--scope=no body").run("status");
    assert_eq!(bad.status.code(), Some(2));
    let text = String::from_utf8(settings.run("status").stdout).unwrap();
    assert_says(&text, "SCOPE    MARK  TAKEOVER   RAISED AT");
    assert!(text.contains("default  34    completed  20"), "{text}");
    assert!(text.contains("\nlast takeovers\n"), "{text}");
    assert!(text.contains("default  - -> 34  20"), "{text}");
}

#[test]
fn many_scopes_are_not_all_shown() {
    let postgres = Postgres::start();
    let mut proxy = Proxy::start(&postgres);
    let tokens = |from: u32| {
        let one = |n| format!("s{n:03}=5");
        (from..from + 10).map(one).collect::<Vec<_>>().join(",")
    };
    // A login has 5 s for all its tokens: on a busy machine too little for many.
    for from in (0..80).step_by(10) {
        drop(leader(&proxy.endpoint(), &tokens(from)));
    }
    proxy.terminate();
    let settings = Settings::new(&postgres, &proxy.store());
    let status = settings.status();
    assert_eq!(status["scopes"].as_array().unwrap().len(), 50);
    assert_eq!(status["scopes_total"], 80);
    let text = String::from_utf8(settings.run("status").stdout).unwrap();
    assert_says(&text, "scopes (50 of 80; --all shows the rest)");
    let all = settings.flag("--all").status();
    assert_eq!(all["scopes"].as_array().unwrap().len(), 80);
}

#[test]
fn what_can_be_read_is_shown() {
    let postgres = Postgres::start();
    let (_dir, store) = fresh_store();
    let nowhere = "host=127.0.0.1 port=1 user=postgres";
    // The store alone.
    let blind = Settings::new(&postgres, &store).control(nowhere.to_owned());
    let status = incomplete(&blind);
    assert!(status["cluster"]["system_identifier"].is_null());
    assert_eq!(status["unread"].as_array().unwrap().len(), 3, "{status:#}");
    let shown = String::from_utf8(blind.run("status").stdout).unwrap();
    assert!(shown.contains("\nscopes\ncannot be read\n"), "{shown}");
    assert!(!shown.contains("os error"), "{shown}");
    assert!(
        status["cluster"]["problems"][0]
            .as_str()
            .unwrap()
            .contains("refused")
    );
    // The cluster alone.
    std::fs::create_dir(&store).unwrap();
    std::fs::write(store.join("authority.redb"), b"damaged").unwrap();
    let status = incomplete(&Settings::new(&postgres, &store));
    assert_eq!(status["authority"]["state"], "unreadable");
    assert_eq!(status["cluster"]["timeline"], 1);
    // Neither.
    let status = incomplete(&blind);
    let problems = status["cluster"]["problems"].to_string();
    assert_says(&problems, "neither the store nor the cluster");
}

/// Its output if it cannot show everything, as its exit code says.
#[track_caller]
fn incomplete(settings: &Settings) -> serde_json::Value {
    let output = settings.clone().flag("--json").run("status");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Only the running proxy can read its store, and without PostgreSQL nothing else knows the marks.
#[test]
fn a_cluster_that_is_down_fails() {
    let mut postgres = Postgres::start();
    let proxy = Proxy::start(&postgres);
    let settings = Settings::new(&postgres, &proxy.store());
    settings.status();
    postgres.crash();
    let status = incomplete(&settings);
    assert_eq!(status["authority"]["state"], "in_use");
    assert_eq!(status["scopes"].as_array().unwrap().len(), 0);
    let text = String::from_utf8(settings.run("status").stdout).unwrap();
    assert_says(
        &text,
        "\nproxies\ncannot be read\n\nscopes\ncannot be read\n",
    );
}
