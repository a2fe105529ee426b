//! Results of `check` and `status` for several hosts.

use pgpalisade_test_servers::machine::{assert_says, free_port};
use pgpalisade_test_servers::postgres::Postgres;

use super::{Settings, fresh_store};

#[test]
fn what_each_host_is() {
    let postgres = Postgres::start();
    let standby = postgres.replica();
    standby.wait_for_replay(&postgres);
    let nobody = free_port();
    let at = |port: u16| format!("127.0.0.1:{port}");
    let (first, second) = (at(standby.port()), at(postgres.port()));
    let (_dir, store) = fresh_store();
    let settings =
        Settings::new(&postgres, &store).control("user=postgres dbname=postgres".to_owned());

    let both = settings
        .clone()
        .upstream(format!("postgres://{first},{second}"));
    let checked = both.check();
    checked
        .finds(&format!("ok control: {second}"))
        .finds(&format!("ok primary: {first}: a standby, streaming"))
        .finds(&format!("ok primary: {second}: the primary, on timeline 1"))
        .finds(&format!("ok same-server: {second}"))
        .expect_bad(&["authority"]);

    let missing = settings.upstream(format!("postgres://{first},{second},{}", at(nobody)));
    missing
        .check()
        .finds(&format!(
            "warn primary: {}: cannot connect -> stop each host",
            at(nobody)
        ))
        .expect_bad(&["primary", "authority"]);
    let roles = |status: &serde_json::Value| {
        let hosts = status["cluster"]["hosts"].as_array().unwrap().clone();
        hosts
            .iter()
            .map(|host| host["role"].to_string())
            .collect::<Vec<_>>()
    };
    let found = roles(&missing.status());
    assert_eq!(found, ["\"standby\"", "\"primary\"", "\"unknown\""]);

    // Both are primaries.
    standby.promote();
    let checked = both.check();
    checked
        .finds(&format!(
            "warn primary: {first}: the primary, on timeline 2 -> stop each host"
        ))
        .finds(
            "warn primary: takes writes on timeline 1, but is not the primary -> stop each host",
        );
    assert_eq!(roles(&both.status()), ["\"primary\"", "\"deposed\""]);
    let text = String::from_utf8(both.run("status").stdout).unwrap();
    assert_says(&text, &format!("{first}: the primary, on timeline 2"));
}
