//! Verdicts that were reached before, by text.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::sync::Arc;

use crate::allocation::{boxed, counted};
use crate::classify::{MAX_PARSED_INLINE, TextEncoding, classify};
use crate::verdict::{Opaque, Verdict};

/// What an entry costs beside its text and what the verdict points to: the slot, its place in the index, the verdict.
const ENTRY_OVERHEAD: usize = size_of::<Option<Entry>>() + 32 + counted::<Verdict>();

/// Numbers of a [`VerdictCache`], since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Lookups that found their verdict.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Entries that made room for others.
    pub evictions: u64,
    /// Entries now.
    pub entries: usize,
    /// Bytes held now.
    pub bytes: usize,
}

/// Verdicts by text, bounded in bytes. One per worker thread: it has no lock, and a lookup that hits does not
/// allocate. What was not used since the hand of the clock passed it last goes first.
#[derive(Debug)]
pub struct VerdictCache {
    /// From the hash of text and encoding to a slot. Two texts of one hash share a slot: the later one has it.
    index: HashMap<u64, usize, BuildHasherDefault<AlreadyHashed>>,
    slots: Vec<Option<Entry>>,
    free: Vec<usize>,
    hand: usize,
    capacity: usize,
    /// Keyed at random, so that no client can aim its texts at one slot.
    keys: RandomState,
    stats: CacheStats,
}

#[derive(Debug)]
struct Entry {
    hash: u64,
    text: Box<[u8]>,
    encoding: TextEncoding,
    verdict: Arc<Verdict>,
    cost: usize,
    use_since: Use,
}

/// Was an entry used since the hand passed?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Recent,
    Old,
}

impl VerdictCache {
    /// A cache that holds at most `capacity` bytes of texts, verdicts and its own records. 0 keeps nothing.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            index: HashMap::default(),
            slots: Vec::new(),
            free: Vec::new(),
            hand: 0,
            capacity,
            keys: RandomState::new(),
            stats: CacheStats::default(),
        }
    }

    /// The verdict on `text`, from the cache or else by [`classify`]. Never takes long: what is longer than
    /// [`MAX_PARSED_INLINE`] and not in the cache is not understood here, and must be classified elsewhere and
    /// [kept](Self::keep).
    pub fn get_or_classify(&mut self, text: &[u8], encoding: TextEncoding) -> Arc<Verdict> {
        if let Some(verdict) = self.find(text, encoding) {
            return verdict;
        }
        if text.len() > MAX_PARSED_INLINE {
            return Arc::new(Verdict::opaque(Opaque::TooLong));
        }
        let verdict = Arc::new(classify(text, encoding));
        self.keep(text, encoding, &verdict);
        verdict
    }

    /// The verdict on `text`, if it is here.
    pub fn find(&mut self, text: &[u8], encoding: TextEncoding) -> Option<Arc<Verdict>> {
        let hash = self.hash(text, encoding);
        if let Some(slot) = self.index.get(&hash).copied()
            && let Some(Some(entry)) = self.slots.get_mut(slot)
            && entry.encoding == encoding
            && *entry.text == *text
        {
            entry.use_since = Use::Recent;
            self.stats.hits += 1;
            return Some(Arc::clone(&entry.verdict));
        }
        self.stats.misses += 1;
        None
    }

    /// Keeps what [`classify`] has said, where there is room: a quarter of the cache for one text at most.
    pub fn keep(&mut self, text: &[u8], encoding: TextEncoding, verdict: &Arc<Verdict>) {
        let hash = self.hash(text, encoding);
        self.insert(hash, text, encoding, verdict);
    }

    /// Bytes that it may hold.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// The numbers as they are now.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            entries: self.index.len(),
            ..self.stats
        }
    }

    fn hash(&self, text: &[u8], encoding: TextEncoding) -> u64 {
        let mut hasher = self.keys.build_hasher();
        hasher.write(text);
        hasher.write_u8(match encoding {
            TextEncoding::AsciiSafe => 0,
            TextEncoding::Unsafe => 1,
        });
        hasher.finish()
    }

    fn insert(&mut self, hash: u64, text: &[u8], encoding: TextEncoding, verdict: &Arc<Verdict>) {
        let cost = boxed(text) + verdict.heap_bytes() + ENTRY_OVERHEAD;
        // One text must not push out all others.
        if cost > self.capacity / 4 {
            return;
        }
        if let Some(slot) = self.index.get(&hash).copied() {
            self.remove(slot);
        }
        while self.stats.bytes + cost > self.capacity {
            if !self.evict_one() {
                return;
            }
        }
        let entry = Entry {
            hash,
            text: text.into(),
            encoding,
            verdict: Arc::clone(verdict),
            cost,
            use_since: Use::Old,
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(entry);
            self.index.insert(hash, slot);
            self.stats.bytes += cost;
        }
    }

    /// Moves the hand to the first entry that was not used lately and takes it out. False where there is none.
    fn evict_one(&mut self) -> bool {
        // The first round may find every entry used; the second cannot.
        for _ in 0..self.slots.len().saturating_mul(2) {
            let slot = self.hand;
            self.hand = if slot + 1 < self.slots.len() {
                slot + 1
            } else {
                0
            };
            match self.slots.get_mut(slot) {
                Some(Some(entry)) if entry.use_since == Use::Recent => entry.use_since = Use::Old,
                Some(Some(_)) => {
                    self.remove(slot);
                    self.stats.evictions += 1;
                    return true;
                }
                _ => {}
            }
        }
        false
    }

    fn remove(&mut self, slot: usize) {
        if let Some(entry) = self.slots.get_mut(slot).and_then(Option::take) {
            self.index.remove(&entry.hash);
            self.stats.bytes -= entry.cost;
            self.free.push(slot);
        }
    }
}

/// The keys of the index are hashes already.
#[derive(Clone, Copy, Debug, Default)]
struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Only `write_u64` is used; this keeps the trait's promise for anything else.
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::allocated;
    use crate::verdict::Class;

    const SAFE: TextEncoding = TextEncoding::AsciiSafe;

    #[track_caller]
    fn check_books(cache: &VerdictCache) {
        let held: Vec<_> = cache.slots.iter().flatten().collect();
        let stats = cache.stats();
        assert_eq!(stats.entries, held.len());
        assert_eq!(
            stats.bytes,
            held.iter().map(|entry| entry.cost).sum::<usize>()
        );
        assert!(
            stats.bytes <= cache.capacity,
            "{stats:?} over {}",
            cache.capacity
        );
        for entry in held {
            let slot = cache.index[&entry.hash];
            assert_eq!(cache.slots[slot].as_ref().unwrap().text, entry.text);
        }
    }

    #[test]
    fn a_second_look_is_a_hit_and_the_same_verdict() {
        let mut cache = VerdictCache::new(1 << 20);
        let first = cache.get_or_classify(b"delete from t", SAFE);
        let second = cache.get_or_classify(b"delete from t", SAFE);
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!((cache.stats().hits, cache.stats().misses), (1, 1));
        assert_eq!(
            cache.get_or_classify(b"delete from u", SAFE).class(),
            Class::Write
        );
        assert_eq!(
            cache.get_or_classify(b"select 1", SAFE).class(),
            Class::Read
        );
        check_books(&cache);
    }

    #[test]
    fn the_encoding_is_part_of_the_key() {
        let mut cache = VerdictCache::new(1 << 20);
        let text = "select 'é'".as_bytes();
        assert_eq!(cache.get_or_classify(text, SAFE).class(), Class::Read);
        assert_eq!(
            cache.get_or_classify(text, TextEncoding::Unsafe).class(),
            Class::Write
        );
        assert_eq!(cache.get_or_classify(text, SAFE).class(), Class::Read);
        assert_eq!(cache.stats().hits, 1);
    }

    #[test]
    fn it_stays_within_its_bytes_and_keeps_what_is_used() {
        let mut cache = VerdictCache::new(64 << 10);
        let hot = b"select 'hot'";
        cache.get_or_classify(hot, SAFE);
        for number in 0..3_000_usize {
            let text = format!("select {number} as {}", "x".repeat(number % 60));
            cache.get_or_classify(text.as_bytes(), SAFE);
            cache.get_or_classify(hot, SAFE);
        }
        check_books(&cache);
        let stats = cache.stats();
        assert_eq!(stats.hits, 3_000, "the text in use was evicted: {stats:?}");
        assert!(stats.entries > 50 && stats.evictions > 2_000, "{stats:?}");
        assert!(
            cache.slots.len() < 500,
            "slots are not used again: {}",
            cache.slots.len()
        );
    }

    #[test]
    fn one_large_text_does_not_push_out_the_others() {
        let mut cache = VerdictCache::new(8 << 10);
        cache.get_or_classify(b"select 1", SAFE);
        let large = format!("select '{}'", "x".repeat(4 << 10));
        cache.get_or_classify(large.as_bytes(), SAFE);
        assert_eq!(cache.stats().entries, 1);
        let mut none = VerdictCache::new(0);
        none.get_or_classify(b"select 1", SAFE);
        assert_eq!((none.stats().entries, none.stats().bytes), (0, 0));
    }

    #[test]
    fn two_keys_of_one_hash_are_told_apart() {
        let text = "select 'é'".as_bytes();
        for (other, encoding) in [(&b"delete from t"[..], SAFE), (text, TextEncoding::Unsafe)] {
            let mut cache = VerdictCache::new(1 << 20);
            cache.get_or_classify(text, SAFE);
            // Give the entry the hash of the other key, as a collision would.
            let hash = cache.hash(other, encoding);
            let entry = cache.slots[0].as_mut().unwrap();
            cache.index.remove(&entry.hash);
            entry.hash = hash;
            cache.index.insert(hash, 0);
            assert_eq!(cache.get_or_classify(other, encoding).class(), Class::Write);
            assert_eq!(cache.stats().entries, 1);
            check_books(&cache);
        }
    }

    #[test]
    fn names_in_verdicts_are_counted() {
        let (long, name) = ("x".repeat(500), "x".repeat(60));
        for (text, least) in [
            (format!("set fencing.token = '{long}'"), 500),
            (format!("set x.{name} = 1"), 60),
            (format!("table {name}"), 60),
            (format!("table {name}.a"), 60),
            (format!("delete from {name}"), 60),
            (format!("select {name}()"), 60),
            (format!("prepare a as table {name}"), 60),
            // Each of 100 tables takes a record of its own.
            (
                format!(
                    "select 1 from a0{}",
                    (1..100).map(|n| format!(", a{n}")).collect::<String>()
                ),
                3_400,
            ),
        ] {
            let verdict = classify(text.as_bytes(), SAFE);
            let plain = match text.split(' ').next() {
                Some("prepare") => "prepare a as table a",
                Some("set") => "set x = 1",
                _ => "select 1",
            };
            let plain = classify(plain.as_bytes(), SAFE).heap_bytes();
            let bytes = verdict.heap_bytes();
            // The name of the plain text has the smallest block that there is.
            let least = least - allocated(1);
            assert!(bytes >= plain + least, "{text}: {bytes} {plain}");
        }
    }

    /// Texts with many names, in a small cache.
    #[test]
    fn effects_count_for_the_budget() {
        let mut cache = VerdictCache::new(64 << 10);
        assert_eq!(cache.capacity(), 64 << 10);
        let text = |round: usize| {
            let tables: Vec<_> = (0..100).map(|n| format!("t{round}_{n}")).collect();
            format!("select 1 from {}", tables.join(","))
        };
        let (mut texts, mut names) = (0, 0);
        for round in 0..100 {
            let text = text(round);
            cache.get_or_classify(text.as_bytes(), SAFE);
            texts = texts.max(text.len());
            names = names.max(classify(text.as_bytes(), SAFE).heap_bytes());
            check_books(&cache);
        }
        // Each of these names takes a record and a place on the heap, and is more than its letters in the text.
        assert!(names > 3 * texts, "{names} {texts}");
        let stats = cache.stats();
        assert!(
            stats.entries * (names + texts) / 2 <= cache.capacity(),
            "{stats:?}"
        );
        assert!(stats.entries > 5, "{stats:?}");
    }

    /// The thread of a session asks this cache: it must not wait for a long parse.
    #[test]
    fn long_texts_are_not_classified_here_but_kept() {
        let mut cache = VerdictCache::new(1 << 20);
        let text = format!("select '{}'", "x".repeat(MAX_PARSED_INLINE));
        let text = text.as_bytes();
        for _ in 0..2 {
            assert_eq!(
                *cache.get_or_classify(text, SAFE),
                Verdict::opaque(Opaque::TooLong)
            );
        }
        assert_eq!((cache.stats().entries, cache.find(text, SAFE)), (0, None));
        let verdict = Arc::new(classify(text, SAFE));
        assert_eq!(verdict.class(), Class::Read);
        cache.keep(text, SAFE, &verdict);
        assert_eq!(cache.find(text, SAFE), Some(Arc::clone(&verdict)));
        assert_eq!(cache.get_or_classify(text, SAFE), verdict);
        check_books(&cache);
    }
}
