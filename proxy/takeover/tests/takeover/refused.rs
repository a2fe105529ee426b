//! Sessions that are refused, and what the refusal names.

use super::*;

#[tokio::test]
async fn a_pid_with_another_start_is_another_session() {
    let (postgres, store, takeover) = started().await;
    let bystander = postgres.connect("postgres").await;
    let live = identify(&takeover, &bystander).await.unwrap();
    // As if an old session had used the pid before.
    let former = Backend {
        started_us: live.started_us - 1,
        ..live
    };
    declare(&takeover, 1, former).await.unwrap();
    let (_new, new) = declared(&postgres, &takeover, "postgres", 2).await;
    assert_eq!(pid(&bystander).await, live.pid, "the bystander was ended");
    assert_eq!(
        registered(&store).await,
        [new],
        "the former session is gone"
    );
}

#[tokio::test]
async fn missing_rights_are_named_with_the_grant() {
    let postgres = Postgres::start(&[]).await;
    let store = store(&postgres);
    let admin = postgres.connect("postgres").await;
    let weak = || TakeoverOptions {
        control: postgres.config("Weak").into(),
        ..options(&postgres)
    };
    ran(&admin, "CREATE ROLE \"Weak\" LOGIN").await;
    let error = start(weak(), &store).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, StartError::Rights { .. }), "{text}");
    let grant = text.split_once("administrator: ").unwrap().1.to_owned();
    assert_eq!(grant, "GRANT pg_signal_backend, pg_monitor TO \"Weak\"");
    ran(&admin, "GRANT pg_signal_backend TO \"Weak\"").await;
    let text = start(weak(), &store).await.unwrap_err().to_string();
    assert!(text.contains("GRANT pg_monitor TO"), "{text}");
    ran(&admin, &grant).await;
    let takeover = start(weak(), &store).await.unwrap();
    // The rights suffice for ordinary roles.
    ran(&admin, "CREATE ROLE app LOGIN").await;
    let (old, _) = declared(&postgres, &takeover, "app", 1).await;
    declared(&postgres, &takeover, "app", 2).await;
    assert!(old.batch_execute("SELECT 1").await.is_err());
}

#[tokio::test]
async fn hidden_and_unknown_backends_are_refused() {
    let postgres = Postgres::start(&[]).await;
    let store = store(&postgres);
    let admin = postgres.connect("postgres").await;
    let grants = "CREATE ROLE c LOGIN; GRANT pg_signal_backend, pg_read_all_stats TO c";
    ran(&admin, grants).await;
    let reap_every = Duration::from_millis(50);
    let control = TakeoverOptions {
        control: postgres.config("c").into(),
        reap_every,
        ..options(&postgres)
    };
    let takeover = start(control, &store).await.unwrap();
    let fault = |error: DeclareError| match error {
        DeclareError::Backend { why, .. } => why,
        other => panic!("{other}"),
    };
    // A pooler shows pids of its own.
    let unknown = found(&takeover, i32::MAX, SessionProbe::random()).await;
    let unknown = unknown.unwrap_err();
    assert!(unknown.to_string().contains("pooler"), "{unknown}");
    assert!(fault(unknown).starts_with("it is not in"));
    // The pid exists, but belongs to another session than the one that sent the probe.
    let other = found(&takeover, pid(&admin).await, SessionProbe::random()).await;
    assert!(fault(other.unwrap_err()).starts_with("another session"));
    let quiet = postgres.connect("postgres").await;
    ran(&quiet, "SET track_activities = off").await;
    let untracked = identify(&takeover, &quiet).await.unwrap_err();
    assert!(
        untracked.to_string().contains("track_activities"),
        "{untracked}"
    );
    fault(untracked);
    let (client, backend) = declared(&postgres, &takeover, "postgres", 1).await;
    ran(&admin, "REVOKE pg_read_all_stats FROM c").await;
    let hidden = identify(&takeover, &client).await.unwrap_err();
    assert!(hidden.to_string().contains("pg_read_all_stats"), "{hidden}");
    fault(hidden);
    // Hidden is not gone: the reaper leaves the record.
    tokio::time::sleep(reap_every * 10).await;
    assert_eq!(registered(&store).await, [backend]);
}

#[tokio::test]
async fn a_second_authority_is_refused_and_both_are_named() {
    let postgres = Postgres::start(&[]).await;
    let first = store(&postgres);
    let second = Arc::new(Embedded::open(&postgres.dir().join("second")).unwrap());
    let admin = postgres.connect("postgres").await;
    ran(&admin, "CREATE DATABASE other").await;
    let impatient = |store_lock| TakeoverOptions {
        lock_wait: Duration::from_millis(300),
        store_lock,
        ..options(&postgres)
    };
    for kind in [StoreLock::Exclusive, StoreLock::Shared] {
        let takeover = start(impatient(kind), &first).await.unwrap();
        for database in ["postgres", "other"] {
            let mut elsewhere = impatient(kind);
            elsewhere.control.config.dbname(database);
            let error = start(elsewhere.clone(), &second).await.unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, StartError::OtherAuthority { .. }), "{text}");
            assert!(text.contains(&second.identity().to_string()), "{text}");
            assert!(
                text.contains(&format!("{:08x}", first.identity().short())),
                "{text}"
            );
            assert!(text.contains("pgpalisade control"), "{text}");
            // The same store: a second proxy may start only if the store is shared.
            match (kind, start(elsewhere, &first).await) {
                (StoreLock::Exclusive, Err(StartError::Taken { holder, .. })) => {
                    assert_eq!(
                        holder.application_name.as_deref(),
                        Some("pgpalisade control")
                    );
                }
                (StoreLock::Shared, Ok(_)) if database == "postgres" => {}
                (StoreLock::Shared, Err(StartError::OtherDatabase { holder })) => {
                    assert!(holder.to_string().contains("database \"postgres\""));
                    assert_eq!(database, "other");
                }
                (_, other) => panic!("{kind:?} {database}: {other:?}"),
            }
        }
        drop(takeover);
        let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        eventually(&admin, locks, 0).await;
    }
    // The start waits for a proxy that goes away in time.
    let takeover = start(impatient(StoreLock::Exclusive), &first)
        .await
        .unwrap();
    let waiting = tokio::spawn({
        let (options, second) = (options(&postgres), Arc::clone(&second));
        async move { start(options, &second).await }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!waiting.is_finished());
    drop(takeover);
    waiting.await.unwrap().unwrap();
}
