//! Results of `check` and `status` for several hosts.

use pgpalisade_test_servers::machine::free_port;
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
        .expect("upstream", "ok", "answer as PostgreSQL does", "")
        .expect("control", "ok", &second, "")
        .expect(
            "primary",
            "ok",
            &format!("{first}: a standby, streaming"),
            "",
        )
        .expect(
            "primary",
            "ok",
            &format!("{second}: the primary, on timeline 1"),
            "",
        )
        .expect("same-server", "ok", &second, "")
        .expect_bad(&["authority"]);

    let missing = settings.upstream(format!("postgres://{first},{second},{}", at(nobody)));
    missing
        .check()
        .expect("upstream", "warn", &nobody.to_string(), "start PostgreSQL")
        .expect(
            "primary",
            "warn",
            &format!("{}: cannot connect", at(nobody)),
            "look after the hosts",
        )
        .expect_bad(&["upstream", "primary", "authority"]);
    let roles = |status: &serde_json::Value| {
        let hosts = status["cluster"]["hosts"].as_array().unwrap().clone();
        hosts
            .iter()
            .map(|host| host["role"].to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        roles(&missing.status()),
        ["\"standby\"", "\"primary\"", "\"unknown\""]
    );

    // Both are primaries.
    standby.promote();
    let checked = both.check();
    checked
        .expect(
            "primary",
            "warn",
            &format!("{first}: the primary, on timeline 2"),
            "look after",
        )
        .expect(
            "primary",
            "warn",
            "takes writes on timeline 1, but is not the primary",
            "look after",
        );
    assert_eq!(roles(&both.status()), ["\"primary\"", "\"deposed\""]);
    let text = String::from_utf8(both.run("status").stdout).unwrap();
    assert!(
        text.contains(&format!("{first}: the primary, on timeline 2")),
        "{text}"
    );
}
