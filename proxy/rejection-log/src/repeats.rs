//! Refusals that repeat: the first ones are recorded, the others counted.
//!
//! A deposed leader that retries in a loop can be refused 10,000 times a second. Its records must not fill the disk,
//! crowd out those of others, or take the writer's time. What is left out is told of in one record with a count.
//!
//! Refusals before a login was authenticated are all of one kind: whoever reaches the proxy can cause as many as it
//! likes, in any name.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use super::record::RejectionRecord;

/// Records of one kind that are made in [`WINDOW`].
pub(super) const FIRST: u64 = 10;

/// After this time the first ones are recorded again, and the others told of.
pub(super) const WINDOW: Duration = Duration::from_secs(10);

/// Kinds that are counted at one time. What finds no room is recorded, each.
const KINDS: usize = 1024;

/// Lets the first ones through and counts the others.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    /// The key of those before authentication is `None`.
    seen: Mutex<HashMap<Option<u64>, Seen>>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Seen {
    since: Instant,
    count: u64,
    /// The first of them, and when the last one came.
    first: Arc<RejectionRecord>,
    last: SystemTime,
}

/// What was left out.
#[derive(Debug)]
pub(super) enum LeftOut {
    /// So many like this record, which has the time of the last one.
    Repeated(Box<RejectionRecord>),
    /// So many before a login was authenticated.
    Unauthenticated(u64),
}

impl Repeats {
    /// The record, where it is one of the first of its kind.
    pub(super) fn admit(&self, record: RejectionRecord) -> Option<Arc<RejectionRecord>> {
        let authenticated = record.session.is_authenticated();
        let key = authenticated.then(|| self.hasher.hash_one(record.likeness()));
        let mut seen = self.seen.lock();
        let is_full = seen.len() >= KINDS;
        match seen.entry(key) {
            Entry::Occupied(mut entry) => {
                let seen = entry.get_mut();
                seen.count += 1;
                seen.last = record.time;
                (seen.count <= FIRST).then(|| Arc::new(record))
            }
            Entry::Vacant(_) if is_full && authenticated => Some(Arc::new(record)),
            Entry::Vacant(entry) => {
                let first = Arc::new(record);
                entry.insert(Seen {
                    since: Instant::now(),
                    count: 1,
                    last: first.time,
                    first: Arc::clone(&first),
                });
                Some(first)
            }
        }
    }

    /// What was left out of each kind that has been counted for at least so long. They begin anew.
    pub(super) fn take(&self, age: Duration) -> Vec<LeftOut> {
        let mut left_out = Vec::new();
        self.seen.lock().retain(|key, seen| {
            let is_over = seen.since.elapsed() >= age;
            let count = seen.count.saturating_sub(FIRST);
            if is_over && count > 0 {
                left_out.push(match key {
                    None => LeftOut::Unauthenticated(count),
                    Some(_) => LeftOut::Repeated(Box::new(RejectionRecord {
                        time: seen.last,
                        count,
                        ..RejectionRecord::clone(&seen.first)
                    })),
                });
            }
            !is_over
        });
        left_out
    }
}
