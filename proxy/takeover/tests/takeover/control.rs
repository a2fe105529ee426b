//! The control connection comes and goes.

use tokio_postgres::NoTls;

use super::*;

#[tokio::test]
async fn without_a_control_connection_only_takeovers_fail() {
    let postgres = Postgres::start(&[]).await;
    let store = store(&postgres);
    let admin = postgres.connect("postgres").await;
    let grants = "CREATE ROLE c LOGIN; GRANT pg_signal_backend, pg_read_all_stats TO c";
    ran(&admin, grants).await;
    let control = TakeoverOptions {
        control: postgres.config("c").into(),
        timeout: Duration::from_millis(700),
        ..options(&postgres)
    };
    let takeover = start(control, &store).await.unwrap();
    ran(&admin, "CREATE ROLE app LOGIN").await;
    let (_old, old) = declared(&postgres, &takeover, "app", 1).await;
    let (_client, new) = joined(&postgres, &takeover, "app").await;
    let [old_session, new_session] = [old, new].map(|backend| identified(&takeover, backend));
    ran(&admin, "ALTER ROLE c NOLOGIN").await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'c'";
    admin.query(end, &[]).await.unwrap();
    let again = declare_for(&takeover, 1, old_session).await;
    assert_eq!(again.unwrap().token, token(1));
    match declare_for(&takeover, 2, new_session).await.unwrap_err() {
        DeclareError::Incomplete { left, why, .. } => {
            assert_eq!(left, [old]);
            assert!(why.contains("control connection"), "{why}");
        }
        other => panic!("{other}"),
    }
    ran(&admin, "ALTER ROLE c LOGIN").await;
    let give_up = Instant::now() + Duration::from_secs(10);
    while let Err(error) = declare_for(&takeover, 2, new_session).await {
        assert!(Instant::now() < give_up, "{error}");
    }
    assert_eq!(registered(&store).await, [new]);
    // The new connection has the lock of the lost one.
    let locks =
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'";
    eventually(&admin, locks, 1).await;
}

/// Whoever owns the control connection's database cannot make it end.
#[tokio::test]
async fn timeouts_of_its_database_do_not_count() {
    let postgres = Postgres::start(&[]).await;
    let admin = postgres.connect("postgres").await;
    ran(&admin, "CREATE DATABASE other").await;
    // PostgreSQL 14 to 16 have only the first one.
    for timeout in ["idle_session_timeout", "transaction_timeout"] {
        let asked = "SELECT 1 FROM pg_settings WHERE name = $1";
        if !admin.query(asked, &[&timeout]).await.unwrap().is_empty() {
            let set = format!("ALTER DATABASE other SET {timeout} = '20ms'");
            ran(&admin, &set).await;
        }
    }
    let mut elsewhere = options(&postgres);
    elsewhere.control.config.dbname("other");
    let takeover = start(elsewhere, &store(&postgres)).await.unwrap();
    let control = "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgpalisade control'";
    let before: i32 = admin.query_one(control, &[]).await.unwrap().get(0);
    ran(&admin, "CREATE ROLE app LOGIN").await;
    let mut there = postgres.config("postgres");
    let (locks, connection) = there.dbname("other").connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    let own = "SELECT set_config(name, '0', false) FROM pg_settings \
               WHERE name ~ '^(transaction|idle_session)_timeout$'";
    ran(&locks, own).await;
    ran(&locks, "BEGIN; LOCK TABLE pgpalisade.mark").await;
    // Its transaction waits for the lock, too.
    let unlocks = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        ran(&locks, "COMMIT").await;
    };
    tokio::join!(unlocks, declared(&postgres, &takeover, "app", 1));
    let after: i32 = admin.query_one(control, &[]).await.unwrap().get(0);
    assert_eq!(before, after);
}
