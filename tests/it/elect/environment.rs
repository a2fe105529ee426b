//! Effects of a command's environment.

use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::postgres::bin;
use pgpalisade_test_servers::programs::connect_by_environment;
use pgpalisade_test_servers::proxy::subcommand;
use pgpalisade_test_servers::stage::Stage;

use super::Candidate;

/// PGHOST and PGPORT lead past the proxy, as those of a whole machine may.
#[test]
fn the_command_reaches_the_proxy_of_its_lock() {
    let stage = Stage::start();
    let proxy = stage.proxy.endpoint();
    let mut command = subcommand("elect");
    connect_by_environment(&mut command, &stage.postgres.tcp());
    let dsn = format!("host={} port={} user=other", proxy.host(), proxy.port());
    let psql = bin("psql").display().to_string();
    let script = format!("{psql} -XAtc 'SHOW fencing.status' && echo reached as $PGUSER");
    command.env_remove("PGDATABASE").args([
        "jobs",
        "--with",
        "advisory-lock:42",
        "--proxied",
        &format!("{dsn} dbname=postgres"),
    ]);
    command.args(["--", "sh", "-c", &script]);
    stage.sql("CREATE ROLE other LOGIN");
    let mut candidate = Candidate::spawn(command);
    assert_eq!(candidate.exit_code(), 0, "{}", candidate.output());
    candidate.wait_for("reached as postgres");
}

/// Works also if the policy has another scope for a bare number.
#[test]
fn a_token_of_the_default_scope_can_be_cast() {
    let policy = PolicyFile::new("[defaults]\nscope = \"jobs\"\n");
    let stage = Stage::governed("SELECT 1", &policy);
    let psql = bin("psql").display().to_string();
    let cast = "SELECT current_setting('fencing.token')::bigint * 7 + 70";
    let psql = format!("{psql} -XAtc");
    let script = format!(
        "echo as $({psql} \"{cast}\") in $({psql} 'SHOW fencing.scope') with $({psql} 'SHOW fencing.mark')"
    );
    let mut candidate = Candidate::start(
        &["default", "--with", "lease"],
        &script,
        &stage.proxy.endpoint(),
    );
    assert_eq!(candidate.exit_code(), 0, "{}", candidate.output());
    candidate.wait_for("as 77 in default with 1");
}
