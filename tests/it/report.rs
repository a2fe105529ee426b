//! `pgpalisade report` on the log of a real proxy.

use std::process::Output;

use pgpalisade_test_servers::proxy::subcommand;
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{TRUSTED, Wire};
use serde_json::Value;

fn session(stage: &Stage, parameters: &[(&str, &str)]) -> Wire {
    Wire::login(
        &stage.proxy.endpoint(),
        &[&TRUSTED[..], parameters].concat(),
    )
}

fn report(stage: &Stage, flags: &[&str]) -> Output {
    let mut command = subcommand("report");
    command.arg(stage.proxy.rejection_log()).args(flags);
    command.output().unwrap()
}

#[test]
fn a_report_says_what_a_real_proxy_refused() {
    let stage = Stage::with("CREATE TABLE jobs (id int, note text); CREATE ROLE cron LOGIN");
    let mut worker = session(&stage, &[("application_name", "worker")]);
    for sql in [
        "INSERT INTO jobs VALUES (1, 'secret')",
        "INSERT INTO jobs VALUES (2, 'secret'), (3, 'x')",
        "insert into jobs\nvalues (-4, $$x$$); -- again",
        "UPDATE jobs SET note = 'secret' WHERE id IN (1, 2)",
    ] {
        assert_eq!(worker.query(sql)[0].sqlstate(), "PF002");
    }
    let mut old = session(
        &stage,
        &[("application_name", "leader"), ("fencing.token", "jobs=33")],
    );
    let mut busy = session(&stage, &[("fencing.token", "jobs=33")]);
    busy.ok("BEGIN");
    let mut new = session(&stage, &[("fencing.token", "jobs=34")]);
    new.ok("SELECT 1");
    for ended in [&mut old, &mut busy] {
        assert_eq!(ended.query("SELECT 1")[0].sqlstate(), "PF001");
    }
    assert_eq!(
        worker.query("SET fencing.token = 'jobs=33'")[0].sqlstate(),
        "PF001"
    );
    let _seven = stage.proxy.first_rejections(7);

    let output = report(&stage, &["--json"]);
    assert!(output.status.success(), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["read"]["records"], 7, "{json:#}");
    assert_eq!(json["read"]["foreign_lines"], 0);
    assert_eq!(json["total"]["refused"], 7);
    assert_eq!(json["verdict"]["answer"], "on_with_work");
    let first = &json["verdict"]["findings"][0];
    assert_eq!(
        (&first["kind"], &first["refused"]),
        (&"no_token".into(), &4.into())
    );
    assert_eq!(first["who"][0]["application"], "worker");

    let of_jobs = report(&stage, &["--scope=jobs"]);
    let page = String::from_utf8(of_jobs.stdout).unwrap();
    assert!(
        page.contains("session_ended") && !page.contains("no_token"),
        "{page}"
    );
    assert!(page.contains("refused only deposed leaders"), "{page}");
    assert!(!page.contains("secret"), "{page}");
}
