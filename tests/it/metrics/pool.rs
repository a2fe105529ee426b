//! Server connections that clients share.

use std::time::{Duration, Instant};

use pgpalisade_test_servers::http::Http;
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::Proxy;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Batch, Wire};

use super::{DECLARED, SETUP, wait_until};

/// A proxy that shares two server connections.
fn stage() -> (Http, Stage) {
    let postgres = Postgres::start();
    postgres.sql(SETUP);
    let http = Http::free();
    let options = http.options(&postgres).flag("--pool", "transaction");
    let options = options.flag("--backends-max", "2");
    let proxy = Proxy::start_with(options.flag("--backends-leaders", "0"));
    (http, Stage { proxy, postgres })
}

#[test]
fn waits_pins_openings_and_resets_are_counted() {
    let (http, stage) = stage();
    let (mut busy, mut keeper) = (stage.plain(), stage.plain());
    let mut waiting = stage.plain();
    busy.ok("BEGIN; SELECT 1");
    keeper.ok("LISTEN c");
    waiting.send(&Batch::new().query("SELECT 1"));
    wait_until(http, "pgpalisade_pool_waiting", 1.0);
    wait_until(http, "pgpalisade_pool_pinned", 1.0);
    let state = |state: &str| format!("pgpalisade_pool_connections{{state=\"{state}\"}}");
    wait_until(http, &state("active"), 2.0);
    let seen = http.metrics();
    let pins = "pgpalisade_pool_pins_total{leftover=\"channel\"}";
    assert_eq!(seen.of(pins), 1.0, "{}", seen.text);
    let (waits, lent) = (
        seen.of("pgpalisade_pool_waits_total"),
        seen.of("pgpalisade_pool_lent_total"),
    );
    let resets = "pgpalisade_pool_resets_total{result=\"done\"}";
    let before = seen.of(resets);
    busy.ok("COMMIT");
    waiting.until_ready();
    keeper.ok("DISCARD ALL");
    wait_until(http, &state("idle"), 2.0);
    wait_until(http, "pgpalisade_pool_waiting", 0.0);
    wait_until(http, "pgpalisade_pool_pinned", 0.0);
    let seen = http.metrics();
    assert_eq!(seen.of("pgpalisade_pool_waits_total"), waits + 1.0);
    assert_eq!(seen.of("pgpalisade_pool_lent_total"), lent + 1.0);
    assert!(seen.of("pgpalisade_pool_wait_seconds_total") > 0.0);
    assert_eq!(seen.of(resets), before + 1.0);
    let openings = |result: &str| format!("pgpalisade_pool_openings_total{{result=\"{result}\"}}");
    assert_eq!(seen.of(&openings("done")), 2.0);
    assert_eq!(seen.of(&openings("failed")), 0.0);
}

#[test]
fn a_login_that_is_given_up_waits_no_longer() {
    let (http, stage) = stage();
    let (mut busy, mut keeper) = (stage.plain(), stage.plain());
    busy.ok("BEGIN; SELECT 1");
    keeper.ok("LISTEN c");
    // Of another application, so that it needs a connection of its own.
    let other = Wire::open(&stage.proxy.endpoint(), &[("application_name", "other")]);
    wait_until(http, "pgpalisade_pool_waiting", 1.0);
    let since = Instant::now();
    drop(other);
    wait_until(http, "pgpalisade_pool_waiting", 0.0);
    // `backends.wait` is 15 s.
    assert!(since.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_token_that_a_connection_is_registered_with_costs_the_authority_nothing() {
    let (http, stage) = stage();
    for (token, stale) in [("34", "33"), ("35", "34")] {
        let before = http.metrics().of(DECLARED);
        for _ in 0..4 {
            let mut of_url = stage.leader(token);
            of_url.ok("INSERT INTO jobs VALUES (1)");
            of_url.fails(&format!("SET fencing.token = {stale}"), "PF001");
            let mut of_text = stage.plain();
            of_text.ok(&format!("SET fencing.token = {token}"));
            of_text.ok("DELETE FROM jobs");
            assert_eq!(of_url.rows("SHOW fencing.token"), [[token]]);
        }
        assert_eq!(http.metrics().of(DECLARED), before + 1.0, "{token}");
    }
}
