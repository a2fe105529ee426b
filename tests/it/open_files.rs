//! More sessions than the soft limit of open files would allow.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy, subcommand};
use pgpalisade_test_servers::wire::{TRUSTED, Wire};

/// Room for about twenty sessions.
const SOFT_LIMIT: u32 = 64;
const SESSIONS: usize = 40;

#[test]
fn the_soft_limit_is_raised() {
    let postgres = Postgres::start();
    let dir = tempfile::tempdir().unwrap();
    let limited = dir.path().join("limited");
    let script = format!(
        "#!/bin/sh\nulimit -S -n {SOFT_LIMIT} && exec '{}' \"$@\"\n",
        Path::new(subcommand("serve").get_program()).display()
    );
    fs::write(&limited, script).unwrap();
    fs::set_permissions(&limited, fs::Permissions::from_mode(0o755)).unwrap();
    let mut options = Options::new(&postgres);
    options.binary = Some(limited);
    let proxy = Proxy::start_with(options);
    let mut sessions: Vec<Wire> = (0..SESSIONS)
        .map(|_| Wire::login(&proxy.endpoint(), &TRUSTED))
        .collect();
    for session in &mut sessions {
        session.ok("SELECT 1");
    }
}
