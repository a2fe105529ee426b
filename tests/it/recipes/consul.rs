//! Consul: the ModifyIndex of a key that a session holds, with a small server of that API.

use pgpalisade_harness::child::Running;
use pgpalisade_test_servers::http::Http;
use pgpalisade_test_servers::machine::{repository, wait_for};

use super::{Candidate, KILL, stage, who_sleeps_is_refused};
use crate::interpreters::python;

#[test]
fn a_lock_of_consul_has_a_number() {
    let (stage, http, dir) = (stage(), Http::free(), tempfile::tempdir().unwrap());
    let mut api = python(&repository().join("tests/it/recipes/consul_api.py"));
    api.arg(http.port().to_string());
    let _api = Running::spawn(&mut api, dir.path().join("log"), KILL).unwrap();
    wait_for("the API", || http.connect().ok());

    let (url, proxy) = (
        format!("http://127.0.0.1:{}", http.port()),
        stage.proxy.endpoint(),
    );
    let start = |name| Candidate::start(name, "consul_lock.py", &[&url], &proxy);
    who_sleeps_is_refused(&stage, start);

    // The lock's own count starts again with the key; the index goes on.
    let key = || {
        let answer = http.send("GET /v1/kv/scheduler HTTP/1.0\r\n\r\n").unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str::<serde_json::Value>(body).unwrap()[0].clone()
    };
    let before = key();
    assert_eq!(before["LockIndex"], 2);
    http.send("DELETE /v1/kv/scheduler HTTP/1.0\r\n\r\n")
        .unwrap();
    let third = start("third");
    assert!(third.token() > before["ModifyIndex"].as_u64().unwrap());
    assert_eq!(key()["LockIndex"], 1);
}
