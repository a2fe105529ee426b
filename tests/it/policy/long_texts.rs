//! Long texts are analysed too, in a separate thread, so that no other session waits.

use std::time::Duration;

use pgpalisade_test_servers::machine::PATIENCE;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::Batch;

use super::{SETUP, assert_passes, assert_refused};

/// A list of numbers for a text of about `bytes`.
fn numbers(bytes: usize) -> String {
    let number = "1234567890";
    let count = bytes / (number.len() + 1);
    vec![number; count].join(",")
}

#[test]
fn a_long_read_needs_no_token_and_a_long_write_does() {
    let stage = Stage::with(SETUP);
    let mut wire = stage.plain();
    for bytes in [20_000, 100_000, 300_000] {
        let list = numbers(bytes);
        wire.ok(&format!("SELECT 1 WHERE 2 IN ({list})"));
        assert_passes(&wire.extended(&format!("SELECT 1 WHERE 2 IN ({list})")));
        let insert = format!("INSERT INTO notes SELECT 1 WHERE 2 NOT IN ({list})");
        assert_refused(&mut wire, &insert, "PF002");
        let mut leader = stage.leader("34");
        leader.ok(&insert);
        assert_passes(&leader.extended(&insert));
    }
    // In a pipeline, after another statement.
    let read = format!("SELECT 1 WHERE 2 IN ({})", numbers(100_000));
    let pipeline = Batch::new().statement("SELECT 1").statement(&read).sync();
    assert_passes(&wire.run(&pipeline));
    assert_eq!(stage.value("SELECT count(*) FROM notes"), "6");
}

/// Texts above one MiB are not analysed: they may be anything.
#[test]
fn what_is_too_long_is_a_write() {
    let stage = Stage::with(SETUP);
    let mut wire = stage.plain();
    let comment = format!("SELECT 1 /* {} */", "x".repeat(1024 * 1024));
    assert_refused(&mut wire, &comment, "PF002");
    stage.leader("34").ok(&comment);
}

/// While one session's text is analysed, the others of the same thread go on.
#[test]
fn nobody_waits_for_a_long_text() {
    let stage = Stage::with_flags(SETUP, &[("--workers", "1")]);
    let (mut slow, mut quick) = (stage.plain(), stage.plain());
    let list = numbers(350_000);
    slow.send(&Batch::new().query(&format!("SELECT 1 WHERE 2 IN ({list})")));
    quick.ok("SELECT 1");
    // The quick reply arrives before the slow text was analysed.
    slow.set_patience(Duration::from_millis(1));
    assert!(slow.try_read().is_err(), "the quick one has waited");
    slow.set_patience(PATIENCE);
    assert_passes(&slow.until_ready());
}
