//! Repeated refusals: the first ones are recorded, the others counted.
//!
//! A deposed leader that retries in a loop can be refused 10,000 times a second. Its records must not fill the disk
//! or displace others.
//!
//! Refusals before authentication are all of one kind: anybody can cause any number of them, under any name.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use super::record::RejectionRecord;

pub(super) const FIRST: u64 = 10;

/// After this time the first ones are recorded again, and the others reported.
pub(super) const WINDOW: Duration = Duration::from_secs(10);

/// Number of kinds, from which on further ones share a count for each user.
pub(super) const KINDS: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Repeats {
    seen: Mutex<HashMap<Kind, RepeatedRefusal>>,
    hasher: RandomState,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Kind {
    Unauthenticated,
    /// The hash of its likeness.
    Alike(u64),
    /// Beyond the limit, the hash of what a client cannot vary at will.
    Beyond(u64),
}

#[derive(Debug)]
struct RepeatedRefusal {
    since: Instant,
    count: u64,
    /// The first record, and the time of the last.
    first: Arc<RejectionRecord>,
    last: SystemTime,
}

#[derive(Debug)]
pub(super) enum LeftOut {
    /// A number of refusals like this record, which has the time of the last one.
    Repeated(Box<RejectionRecord>),
    Unauthenticated(u64),
    /// They are not alike, so no record describes them.
    Beyond(u64),
}

impl Repeats {
    /// Returns the record if it is one of the first of its kind.
    pub(super) fn admit(&self, record: RejectionRecord) -> Option<Arc<RejectionRecord>> {
        let authenticated = record.session.is_authenticated();
        let mut kind = if authenticated {
            Kind::Alike(self.hasher.hash_one(record.likeness()))
        } else {
            Kind::Unauthenticated
        };
        let mut seen = self.seen.lock();
        if authenticated && seen.len() >= KINDS && !seen.contains_key(&kind) {
            kind = Kind::Beyond(self.hasher.hash_one(record.rough_likeness()));
        }
        match seen.entry(kind) {
            Entry::Occupied(mut entry) => {
                let seen = entry.get_mut();
                seen.count += 1;
                seen.last = record.time;
                (seen.count <= FIRST).then(|| Arc::new(record))
            }
            Entry::Vacant(entry) => {
                let first = Arc::new(record);
                entry.insert(RepeatedRefusal {
                    since: Instant::now(),
                    count: 1,
                    last: first.time,
                    first: Arc::clone(&first),
                });
                Some(first)
            }
        }
    }

    /// Takes what was left out of each kind counted for at least `age`. These kinds start again.
    pub(super) fn take(&self, age: Duration) -> Vec<LeftOut> {
        let mut left_out = Vec::new();
        self.seen.lock().retain(|kind, seen| {
            let is_over = seen.since.elapsed() >= age;
            let count = seen.count.saturating_sub(FIRST);
            if is_over && count > 0 {
                left_out.push(match kind {
                    Kind::Unauthenticated => LeftOut::Unauthenticated(count),
                    Kind::Beyond(_) => LeftOut::Beyond(count),
                    Kind::Alike(_) => LeftOut::Repeated(Box::new(RejectionRecord {
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
