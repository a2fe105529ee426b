//! History of takeovers.

use pgpalisade_authority::{
    Authority, Incarnation, Mark, Scope, TakeoverEnd, TakeoverRecord, TakeoverWork, now_us,
};

use super::{fresh_scope, scope, token};

fn record(to: u64, end: TakeoverEnd) -> TakeoverRecord {
    let mark = Mark::new(token(to), now_us(), format!("leader {to} \"\\ \u{1f418}"));
    TakeoverRecord::new(None, &mark, end)
}

async fn note(store: &dyn Authority, scope: &Scope, record: &TakeoverRecord) {
    let noted = store
        .note_takeovers(scope, std::slice::from_ref(record))
        .await;
    noted.expect("note_takeovers answers");
}

async fn of(store: &dyn Authority, scope: &Scope) -> Vec<TakeoverRecord> {
    let all = store.takeovers(Some(scope)).await;
    let all = all.expect("takeovers answers");
    assert!(all.iter().all(|(of, _)| of == scope), "{all:?}");
    all.into_iter().map(|(_, record)| record).collect()
}

/// Each scope keeps its last records by rank, in whatever order they come, and lists the newest first.
pub(super) async fn is_kept_of_each_scope(store: &dyn Authority) {
    let s = fresh_scope();
    // Names with a common beginning must not meet.
    let longer = scope(&format!("{s}/x"));
    assert_eq!(of(store, &s).await, []);
    let kept = TakeoverRecord::KEPT as u64;
    let mut records: Vec<_> = (1..=kept + 2)
        .map(|to| record(to, TakeoverEnd::Complete))
        .collect();
    for record in &records {
        note(store, &s, record).await;
    }
    note(store, &longer, &record(7, TakeoverEnd::Observed)).await;
    // A record older than all kept ones is dropped.
    note(store, &s, &record(1, TakeoverEnd::Complete)).await;
    records.drain(..2);
    records.reverse();
    assert_eq!(of(store, &s).await, records);
    assert_eq!(of(store, &longer).await.len(), 1);
    let all = store.takeovers(None).await.expect("takeovers answers");
    assert!(all.len() <= TakeoverRecord::LISTED);
    let first = all.first().map(|(scope, record)| (scope, record.to));
    assert_eq!(first, Some((&longer, token(7))), "the newest of all");
    let behind = all.iter().filter(|(scope, _)| *scope == s);
    assert_eq!(behind.count(), records.len());
    let mark = Mark {
        incarnation: Incarnation::new(1),
        ..Mark::new(token(2), now_us(), "repair".to_owned())
    };
    let repaired = TakeoverRecord::new(None, &mark, TakeoverEnd::Complete);
    note(store, &s, &repaired).await;
    assert_eq!(of(store, &s).await.first(), Some(&repaired));
}

/// Attempts at one takeover share one record, which keeps the most informative values.
pub(super) async fn has_one_record_for_all_attempts(store: &dyn Authority) {
    let s = fresh_scope();
    let work = |sessions, transactions, took_us| TakeoverWork {
        sessions,
        transactions,
        took_us,
    };
    let mut first = record(5, TakeoverEnd::Observed);
    first.from = Some(token(3));
    let stuck = TakeoverEnd::Incomplete("server process 7 does not end".to_owned());
    let first = first.ended(stuck, work(3, 2, 5_000_000));
    note(store, &s, &first).await;
    assert_eq!(of(store, &s).await, std::slice::from_ref(&first));
    let again = record(5, TakeoverEnd::Complete).ended(TakeoverEnd::Complete, work(4, 1, 900));
    note(store, &s, &again).await;
    let late = TakeoverEnd::Incomplete("out of time".to_owned());
    note(store, &s, &record(5, late)).await;
    let whole = first.ended(TakeoverEnd::Complete, work(4, 2, 5_000_000));
    assert_eq!(of(store, &s).await, [whole]);
}

/// Records that two proxies write at the same time are all kept.
pub(super) async fn loses_none_of_two(two: &[std::sync::Arc<dyn Authority>; 2]) {
    let s = fresh_scope();
    let tasks = (1..=TakeoverRecord::KEPT as u64).map(|to| {
        let (s, store) = (s.clone(), two.get(usize::from(to % 2 == 0)).cloned());
        tokio::spawn(async move {
            let store = store.expect("one of two");
            note(store.as_ref(), &s, &record(to, TakeoverEnd::Complete)).await;
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
    let [a, b] = two;
    assert_eq!(of(a.as_ref(), &s).await.len(), TakeoverRecord::KEPT);
    assert_eq!(of(a.as_ref(), &s).await, of(b.as_ref(), &s).await);
}
