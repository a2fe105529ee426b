//! An authority that is slow, and a server that has been replaced.

use pgpalisade_fence::{Purpose, Terms};

use super::*;

/// A server, a store that is counted, and a proxy between them.
async fn counted() -> (Postgres, Arc<Slow>, Takeover) {
    let postgres = Postgres::start(&[]).await;
    let counting = Arc::new(Slow::telling(&store(&postgres)));
    let authority = Arc::clone(&counting) as _;
    let started = Takeover::start(options(&postgres), authority, CancellationToken::new()).await;
    (postgres, counting, started.unwrap())
}

/// A scope whose mark rises all the time costs the authority no more than a few steps a second.
#[tokio::test]
async fn takeovers_of_a_busy_scope_are_noted_together() {
    let (postgres, counting, takeover) = counted().await;
    let (_client, backend) = joined(&postgres, &takeover, "postgres").await;
    let began = Instant::now();
    for value in 1..=100 {
        declare(&takeover, value, backend).await.unwrap();
    }
    let took = began.elapsed();
    kept(&takeover, 100, |end| *end == TakeoverEnd::Complete).await;
    let notes = counting.notes.load(Ordering::Relaxed);
    let most = 2 + usize::try_from(took.as_millis() / 250).unwrap();
    assert!(notes <= most, "{notes} in {took:?}");
}

/// Whoever asks for it again and again costs one step each time, and gives back only what it has acquired.
#[tokio::test]
async fn a_refused_lease_is_not_given_back() {
    let (_postgres, counting, takeover) = counted().await;
    let terms = Terms {
        purpose: Purpose::Admit,
        bounds: TokenBounds::default(),
    };
    let scope = Scope::default();
    let acquire = || takeover.acquire_lease(&scope, &terms, Instant::now().into(), || {});
    let held = acquire().await.unwrap();
    for _ in 0..10 {
        let refused = acquire().await.err();
        assert!(matches!(refused, Some(DeclareError::LeaseHeld { .. })));
    }
    drop(held);
    takeover.give_back_leases().await;
    assert_eq!(counting.lease_steps.load(Ordering::Relaxed), 12);
}
