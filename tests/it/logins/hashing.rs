//! Hashing of passwords blocks nobody: a role may have any number of rounds.

use std::time::Duration;

use pgpalisade_test_servers::postgres::Auth;
use pgpalisade_test_servers::wire::{Batch, PROTOCOL_3_0, Wire, pretty};

use super::{PASSWORD, Stage, Way};

/// Half a second each, in a debug build. The library takes up to four times as many.
const ROUNDS: u32 = 25_000;

impl Way {
    /// A client that has been asked for its password.
    fn asked(&self, user: &str) -> Wire {
        let client = self.stage.authority.client();
        let mut wire = Wire::connect_tls(&self.proxy.endpoint(), &client).unwrap();
        wire.startup(PROTOCOL_3_0, &[("user", user), ("database", "postgres")]);
        assert_eq!(wire.read().body, [0, 0, 0, 3]);
        wire
    }
}

/// While wrong passwords are hashed, sessions of the same thread are served, and a login with few rounds waits its
/// turn.
#[test]
fn many_rounds_hold_up_no_session() {
    let stage = Stage::new(Auth::Scram);
    stage.postgres.sql(&format!(
        "CREATE ROLE slow LOGIN PASSWORD 'SCRAM-SHA-256${ROUNDS}:W22ZaJ0SNY7soEsUEjb6gQ==$\
         WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU='"
    ));
    let way = stage.way("require", &[("--auth", "password"), ("--workers", "1")]);
    let mut session = way.asked("app");
    session.send(&Batch::new().password(PASSWORD));
    session.until_ready();
    let mut logins: Vec<Wire> = (0..12).map(|_| way.asked("slow")).collect();
    for login in &mut logins {
        login.send(&Batch::new().password("wrong"));
    }
    for _ in 0..30 {
        assert_eq!(session.rows("SELECT 1"), [["1"]]);
    }
    // If they were hashed in between, all would have their replies.
    let is_open = |login: &mut Wire| {
        login.set_patience(Duration::from_millis(1));
        login.try_read().is_err()
    };
    logins.retain_mut(is_open);
    assert!(!logins.is_empty());
    // All of them finish, a few at a time.
    for login in &mut logins {
        login.set_patience(Duration::from_secs(120));
        let end = login.until_closed();
        assert_eq!(end[0].sqlstate(), "28P01", "{}", pretty(&end));
    }
    let mut right = way.asked("app");
    right.send(&Batch::new().password(PASSWORD));
    assert_eq!(right.until_ready().last().unwrap().tag, b'Z');
}
