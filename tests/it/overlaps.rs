//! Overlaps of writers without tokens, shown before anybody has declared one.

use pgpalisade_test_servers::http::Http;
use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::Proxy;
use pgpalisade_test_servers::wire::{Wire, trusted};
use serde_json::Value;

const SETUP: &str = "CREATE TABLE jobs (id int); CREATE TABLE notes (id int)";
const OBSERVED: &str =
    "[defaults]\nmode = \"observe\"\nreads = \"current\"\n[scope.jobs]\ntables = [\"*.jobs\"]\n";

fn application(proxy: &Proxy, name: &str) -> Wire {
    let parameters = trusted(&[("application_name", name)]);
    Wire::login(&proxy.endpoint(), &parameters)
}

fn overlaps(http: Http) -> Vec<Value> {
    let answer = http.get("/api/v1/overlaps");
    serde_json::from_str(&answer.body).unwrap()
}

#[test]
fn two_that_take_turns_in_a_scope_are_shown() {
    let postgres = Postgres::start();
    postgres.sql(SETUP);
    let (http, policy) = (Http::free(), PolicyFile::new(OBSERVED));
    let options = http.options(&postgres).policy(&policy);
    let proxy = Proxy::start_with(options);
    let [mut one, mut other, mut reader] =
        ["cron A", "cron B", "report"].map(|name| application(&proxy, name));
    let write = "INSERT INTO jobs VALUES (1)";
    one.ok(write);
    // Another scope, no write, or refused by PostgreSQL's own rules: no overlap.
    for sql in ["INSERT INTO notes VALUES (1)", "SELECT * FROM jobs"] {
        reader.ok(sql);
        one.ok(sql);
        reader.ok(sql);
        one.ok(sql);
    }
    other.ok(write);
    one.ok("SELECT * FROM jobs");
    let of_jobs = || -> Vec<Value> {
        let all = overlaps(http).into_iter();
        all.filter(|row| row["scope"] == "jobs").collect()
    };
    assert_eq!(of_jobs(), Vec::<Value>::new());
    for _ in 0..3 {
        one.ok(write);
        other.ok(write);
    }
    let rows = of_jobs();
    let [row] = rows.as_slice() else {
        panic!("{rows:#?}");
    };
    assert_eq!(row["application_name"], "cron A");
    assert_eq!(row["other_application_name"], "cron B");
    assert_eq!(row["client_host"], "127.0.0.1");
    assert_eq!(row["turns"], 7);
}

/// A session with a token is judged by it, and a refused one has not written.
#[test]
fn where_the_fence_is_on_nobody_overlaps() {
    let postgres = Postgres::start();
    postgres.sql(SETUP);
    let (http, proxy) = Http::with_proxy(&postgres);
    let [mut one, mut other] = ["cron A", "cron B"].map(|name| application(&proxy, name));
    for _ in 0..3 {
        for wire in [&mut one, &mut other] {
            assert_eq!(
                wire.query("INSERT INTO jobs VALUES (1)")[0].sqlstate(),
                "PF002"
            );
        }
    }
    assert_eq!(overlaps(http), Vec::<Value>::new());
}
