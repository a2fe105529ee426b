//! Cache of analyses, by text or by [form](crate::form).
//!
//! A text is looked up as it is, then by its form. So a client that writes numbers and strings into its texts does
//! not cause a parse for each. A text that has a form is kept by it, and answers for all others: `form.rs` says why
//! that is correct. A lookup by form takes several times as long as one by text. So a text that was found by its form
//! and soon comes again gets its own entry.

use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::ops::Range;
use std::sync::Arc;

use lru::LruCache;

use crate::allocation::{allocated, boxed, counted};
use crate::analysis::Analysis;
use crate::classify::TextEncoding;
use crate::form::{Constant, are_alike, constants, has_form};

/// Number of remembered hashes of texts that were found by their form.
const SEEN: usize = 256;

/// Bytes of an entry, its place among the others and in the index, without its text and what the analysis points to.
const ENTRY_OVERHEAD: usize =
    allocated(size_of::<Entry>() + 3 * size_of::<usize>()) + 32 + counted::<Analysis>();

/// Statistics of a [`VerdictCache`] since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Lookups that found an analysis.
    pub hits: u64,
    /// Hits on another text of the same form.
    pub hits_by_form: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Entries evicted to make room.
    pub(crate) evictions: u64,
    /// Current number of entries.
    pub entries: usize,
    /// Current size in bytes.
    pub bytes: usize,
}

/// Analyses by text or form, bounded in bytes: the least recently used go first. One per worker thread, so it needs no
/// lock. A hit does not allocate, unless the text gets its own entry.
#[derive(Debug)]
pub struct VerdictCache {
    /// By the hash of text and encoding, or of form and encoding. Of two entries with the same hash, the later one
    /// stays.
    entries: LruCache<u64, Entry, BuildHasherDefault<AlreadyHashed>>,
    capacity: usize,
    /// Random keys, so that no client can aim its texts at one place of the index.
    keys: RandomState,
    /// Hashes of texts that were found by their form, each at the index that the hash gives.
    seen: Box<[u64]>,
    /// Constants of the last text that has a form.
    constants: Vec<(Range<usize>, Constant)>,
    stats: CacheStats,
}

#[derive(Debug)]
struct Entry {
    answers: Answers,
    text: Box<[u8]>,
    encoding: TextEncoding,
    analysis: Arc<Analysis>,
    cost: usize,
}

/// Texts that an entry answers for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    Text,
    Form,
}

impl VerdictCache {
    /// A cache of at most `capacity` bytes, including its own records. 0 keeps nothing.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            entries: LruCache::unbounded_with_hasher(BuildHasherDefault::default()),
            capacity,
            keys: RandomState::new(),
            seen: Box::new([0; SEEN]),
            constants: Vec::new(),
            stats: CacheStats::default(),
        }
    }

    /// The analysis of `text`, or of another text of its form, if it is cached.
    pub fn find(&mut self, text: &[u8], encoding: TextEncoding) -> Option<Arc<Analysis>> {
        let hash = self.hash(text, encoding);
        let found = match self.find_text(hash, text, encoding) {
            Some(analysis) => Some(analysis),
            None => self.find_form(hash, text, encoding),
        };
        match found {
            Some(_) => self.stats.hits += 1,
            None => self.stats.misses += 1,
        }
        found
    }

    /// Keeps the result of [`classify`](crate::classify()) if there is room: at most a quarter of the cache for one
    /// text.
    pub fn keep(&mut self, text: &[u8], encoding: TextEncoding, analysis: &Arc<Analysis>) {
        match self.form_hash(text, encoding) {
            Some(form) => self.keep_as((form, Answers::Form), text, encoding, analysis),
            None => {
                let hash = self.hash(text, encoding);
                self.keep_as((hash, Answers::Text), text, encoding, analysis);
            }
        }
    }

    /// Maximum size in bytes.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Current statistics.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            entries: self.entries.len(),
            ..self.stats
        }
    }

    fn find_text(
        &mut self,
        hash: u64,
        text: &[u8],
        encoding: TextEncoding,
    ) -> Option<Arc<Analysis>> {
        let entry = self.entries.get(&hash)?;
        let is_same = entry.encoding == encoding && *entry.text == *text;
        is_same.then(|| Arc::clone(&entry.analysis))
    }

    fn find_form(
        &mut self,
        hash: u64,
        text: &[u8],
        encoding: TextEncoding,
    ) -> Option<Arc<Analysis>> {
        let form = self.form_hash(text, encoding)?;
        let entry = self.entries.get(&form)?;
        let is_alike = entry.answers == Answers::Form
            && entry.encoding == encoding
            && are_alike(text, &self.constants, &entry.text);
        let analysis = is_alike.then(|| Arc::clone(&entry.analysis))?;
        self.stats.hits_by_form += 1;
        let place = usize::try_from(hash).unwrap_or_default() % SEEN;
        if let Some(seen) = self.seen.get_mut(place)
            && std::mem::replace(seen, hash) == hash
        {
            self.keep_as((hash, Answers::Text), text, encoding, &analysis);
        }
        Some(analysis)
    }

    fn keep_as(
        &mut self,
        (hash, answers): (u64, Answers),
        text: &[u8],
        encoding: TextEncoding,
        analysis: &Arc<Analysis>,
    ) {
        let cost = boxed(text) + analysis.heap_bytes() + ENTRY_OVERHEAD;
        // One text must not push out all others.
        if cost > self.capacity / 4 {
            return;
        }
        let entry = Entry {
            answers,
            text: text.into(),
            encoding,
            analysis: Arc::clone(analysis),
            cost,
        };
        self.stats.bytes += cost;
        if let Some((_, before)) = self.entries.push(hash, entry) {
            self.stats.bytes -= before.cost;
        }
        while self.stats.bytes > self.capacity
            && let Some((_, evicted)) = self.entries.pop_lru()
        {
            self.stats.bytes -= evicted.cost;
            self.stats.evictions += 1;
        }
    }

    fn hash(&self, text: &[u8], encoding: TextEncoding) -> u64 {
        let mut hasher = self.keys.build_hasher();
        hasher.write(text);
        hasher.write_u8(2 * encoding as u8);
        hasher.finish()
    }

    /// `None` if no other text is known to have the same analysis.
    fn form_hash(&mut self, text: &[u8], encoding: TextEncoding) -> Option<u64> {
        if !has_form(text) {
            return None;
        }
        let mut hasher = self.keys.build_hasher();
        self.constants.clear();
        let mut at = 0;
        for (place, constant) in constants(text) {
            hasher.write(text.get(at..place.start)?);
            hasher.write_u8(match constant {
                Constant::Integer => 0,
                Constant::Text => 1,
            });
            at = place.end;
            self.constants.push((place, constant));
        }
        hasher.write(text.get(at..)?);
        // Not the value for a text, so that no text has the hash of a form.
        hasher.write_u8(2 * encoding as u8 + 1);
        (at > 0).then(|| hasher.finish())
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
    use crate::TextEncoding;
    use crate::allocation::allocated;
    use crate::classify::{MAX_PARSED_INLINE, classify};
    use crate::effects::Class;

    const SAFE: TextEncoding = TextEncoding::Utf8;
    const UNSAFE: TextEncoding = TextEncoding::Other;

    impl VerdictCache {
        /// Looks up a text as a session does.
        pub(crate) fn get_or_classify(
            &mut self,
            text: &[u8],
            encoding: TextEncoding,
        ) -> Arc<Analysis> {
            self.find(text, encoding).unwrap_or_else(|| {
                let analysis = Arc::new(classify(text, encoding));
                self.keep(text, encoding, &analysis);
                analysis
            })
        }
    }

    #[track_caller]
    fn check_books(cache: &VerdictCache) {
        let stats = cache.stats();
        let costs = cache.entries.iter().map(|(_, entry)| entry.cost);
        assert_eq!(stats.bytes, costs.sum::<usize>());
        assert!(
            stats.bytes <= cache.capacity,
            "{stats:?} over {}",
            cache.capacity
        );
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
    fn a_text_finds_another_of_its_form() {
        let mut cache = VerdictCache::new(1 << 20);
        let first = cache.get_or_classify(b"select a from t where id = 4711 and b = 'x'", SAFE);
        for (text, is_found) in [
            ("select a from t where id = 4712 and b = 'it''s'", true),
            ("select a from t where id = 4711 and b = 'x'", true),
            ("select a from t where id = 'x' and b = 4711", false),
            ("select a from t where id = 4712.5 and b = 'x'", false),
            ("select a from u where id = 4712 and b = 'x'", false),
            ("select a from t where id = 4712 and b = 'x' ", false),
        ] {
            let found = cache.find(text.as_bytes(), SAFE);
            let expected = is_found.then_some(&first);
            assert!(
                found.as_ref().map(Arc::as_ptr) == expected.map(Arc::as_ptr),
                "{text}"
            );
        }
        let text = b"select a from t where id = 4712 and b = 'x'";
        assert_eq!(cache.find(text, UNSAFE), None);
        let stats = cache.stats();
        let hits = (stats.hits, stats.hits_by_form, stats.misses);
        assert_eq!((hits, stats.entries), ((2, 2, 6), 1));
        check_books(&cache);
    }

    /// A frequent text would take longer if it were always found by its form.
    #[test]
    fn a_text_that_comes_again_is_found_as_it_is() {
        let mut cache = VerdictCache::new(1 << 20);
        let first = cache.get_or_classify(b"select 1", SAFE);
        for by_form in [1, 2, 2, 2] {
            let found = cache.get_or_classify(b"select 2", SAFE);
            assert!(Arc::ptr_eq(&found, &first));
            assert_eq!(cache.stats().hits_by_form, by_form);
            check_books(&cache);
        }
        // The entry of the form is still there.
        for number in 3..1_000 {
            cache.find(format!("select {number}").as_bytes(), SAFE);
        }
        let stats = cache.stats();
        assert_eq!((stats.misses, stats.entries), (1, 2), "{stats:?}");
        check_books(&cache);
    }

    #[test]
    fn a_form_has_one_entry() {
        let mut cache = VerdictCache::new(16 << 10);
        for number in 0..1_000 {
            cache.get_or_classify(format!("select 1 as c{number}").as_bytes(), SAFE);
        }
        check_books(&cache);
        assert!(cache.stats().evictions > 900, "{:?}", cache.stats());
        // As if two sessions had sent texts of one form, and both were waiting for the thread that parses long texts.
        let other = Arc::new(classify(b"select 2 as c999", SAFE));
        let before = cache.stats();
        cache.keep(b"select 2 as c999", SAFE, &other);
        check_books(&cache);
        assert_eq!(cache.stats(), before);
        let found = cache.find(b"select 1 as c999", SAFE).unwrap();
        assert!(Arc::ptr_eq(&found, &other));
    }

    #[test]
    fn the_encoding_is_part_of_the_key() {
        let mut cache = VerdictCache::new(1 << 20);
        let text = "select 'é'".as_bytes();
        assert_eq!(cache.get_or_classify(text, SAFE).class(), Class::Read);
        assert_eq!(cache.get_or_classify(text, UNSAFE).class(), Class::Write);
        assert_eq!(cache.get_or_classify(text, SAFE).class(), Class::Read);
        assert_eq!(cache.stats().hits, 1);
    }

    #[test]
    fn it_stays_within_its_bytes_and_keeps_what_is_used() {
        let mut cache = VerdictCache::new(64 << 10);
        let hot = b"select 'hot'";
        cache.get_or_classify(hot, SAFE);
        for number in 0..3_000_usize {
            let text = format!("select c{number} as {}", "x".repeat(number % 60));
            cache.get_or_classify(text.as_bytes(), SAFE);
            cache.get_or_classify(hot, SAFE);
        }
        check_books(&cache);
        let stats = cache.stats();
        assert_eq!(stats.hits, 3_000, "the text in use was evicted: {stats:?}");
        assert!(stats.entries > 50 && stats.evictions > 2_000, "{stats:?}");
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
        for (other, encoding) in [(&b"delete from t"[..], SAFE), (text, UNSAFE)] {
            let mut cache = VerdictCache::new(1 << 20);
            cache.get_or_classify(text, SAFE);
            // Give the entry the hash of the other key, as a collision would.
            let hash = cache.hash(other, encoding);
            let (_, entry) = cache.entries.pop_lru().unwrap();
            cache.entries.push(hash, entry);
            assert_eq!(cache.get_or_classify(other, encoding).class(), Class::Write);
            assert_eq!(cache.stats().entries, 1);
            check_books(&cache);
        }
    }

    #[test]
    fn two_forms_of_one_hash_are_told_apart() {
        let (some, unsafe_one) = (&b"select 1"[..], UNSAFE);
        for (other, encoding) in [
            (&b"delete from t limit 1"[..], SAFE),
            (b"select 2", unsafe_one),
        ] {
            let mut cache = VerdictCache::new(1 << 20);
            cache.get_or_classify(some, SAFE);
            let hash = cache.form_hash(other, encoding).unwrap();
            let (_, entry) = cache.entries.pop_lru().unwrap();
            cache.entries.push(hash, entry);
            assert_eq!(cache.find(other, encoding), None);
            check_books(&cache);
        }
        // The scan does not clear this text, so it has no form, although its parts are the same.
        let mut cache = VerdictCache::new(1 << 20);
        cache.get_or_classify(b"select 'fencing'", SAFE);
        let hash = cache.form_hash(b"select 'a'", SAFE).unwrap();
        let (_, entry) = cache.entries.pop_lru().unwrap();
        cache.entries.push(hash, entry);
        assert_eq!(cache.find(b"select 'a'", SAFE), None);
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
            let analysis = classify(text.as_bytes(), SAFE);
            let plain = match text.split(' ').next() {
                Some("prepare") => "prepare a as table a",
                Some("set") => "set x = 1",
                _ => "select 1",
            };
            let plain = classify(plain.as_bytes(), SAFE).heap_bytes();
            let bytes = analysis.heap_bytes();
            // The name in the plain text takes the smallest block.
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
        // Each of these names takes a record and a block on the heap, more than its letters in the text.
        assert!(names > 3 * texts, "{names} {texts}");
        let stats = cache.stats();
        assert!(
            stats.entries * (names + texts) / 2 <= cache.capacity(),
            "{stats:?}"
        );
        assert!(stats.entries > 5, "{stats:?}");
    }

    #[test]
    fn long_texts_are_kept() {
        let mut cache = VerdictCache::new(1 << 20);
        let text = format!("select '{}'", "x".repeat(MAX_PARSED_INLINE));
        let text = text.as_bytes();
        assert_eq!(cache.find(text, SAFE), None);
        let analysis = Arc::new(classify(text, SAFE));
        assert_eq!(analysis.class(), Class::Read);
        cache.keep(text, SAFE, &analysis);
        assert_eq!(cache.find(text, SAFE), Some(analysis));
        check_books(&cache);
    }
}
