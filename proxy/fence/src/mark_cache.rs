//! Cached marks of the scopes. A mark only rises in rank, and the cache only rejects: it admits nothing.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use dashmap::DashMap;
use parking_lot::Mutex;
use pgpalisade_authority::{Cluster, Incarnation, Mark, Scope, Token};

/// Newest timeline that the authority has on record for the protected cluster, as far as this proxy knows. It only
/// rises. A session on an older one is on a primary that a failover has deposed.
#[derive(Debug, Default)]
pub struct ClusterCell {
    timeline: AtomicU32,
}

impl ClusterCell {
    /// Newest timeline seen, 0 if none is known. One atomic load.
    #[inline]
    pub(crate) fn timeline(&self) -> u32 {
        self.timeline.load(Ordering::Acquire)
    }

    /// Notes the cluster on record for the authority that serves `ours`. If it is another one, no session of this
    /// proxy is on the protected cluster until the proxy is restarted.
    pub fn note(&self, ours: Cluster, recorded: Cluster) {
        let timeline = if ours.system_identifier == recorded.system_identifier {
            recorded.timeline
        } else {
            u32::MAX
        };
        self.timeline.fetch_max(timeline, Ordering::AcqRel);
    }
}

/// Scopes in which the cache has refused a token since they were last taken, oldest first. Kept apart from the cached
/// marks: if nothing was refused, taking them costs nothing, however many scopes there are.
type Refusing = Mutex<VecDeque<Scope>>;

/// Value of a retired mark: every token is below it.
const RETIRED: u64 = u64::MAX;

/// Cached mark of one scope, in one incarnation of the scope.
///
/// A repair of the scope begins another incarnation and retires this mark for good. Every token bound with it is
/// stale from then on, whatever its number. [`Self::newest`] leads to the current one.
#[derive(Debug)]
pub struct CachedMark {
    scope: Scope,
    number: usize,
    cluster: Arc<ClusterCell>,
    incarnation: Incarnation,
    /// Token of `detail`, 0 if none is known, or [`RETIRED`]: what the fast path reads.
    mark: AtomicU64,
    detail: Mutex<Option<Mark>>,
    /// Cached mark of the next incarnation.
    successor: OnceLock<Arc<Self>>,
    /// Whether it is in `refusing`, where it is at most once.
    has_refused: AtomicBool,
    refusing: Arc<Refusing>,
}

impl CachedMark {
    /// The scope.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Number of the scope in this proxy, from 0 in order of appearance. All its incarnations share it.
    #[inline]
    pub(super) const fn number(&self) -> usize {
        self.number
    }

    /// Cluster that it is for.
    #[inline]
    pub(crate) fn cluster(&self) -> &ClusterCell {
        &self.cluster
    }

    /// Incarnation of the scope that it is for.
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Whether a repair has retired it. One atomic load.
    #[inline]
    pub fn is_retired(&self) -> bool {
        self.mark.load(Ordering::Acquire) == RETIRED
    }

    /// Current cached mark of the scope: this one, or its latest successor. For those that keep one beyond a session.
    /// One atomic load unless the scope was repaired; no lock, no look-up.
    #[inline]
    pub fn newest(self: &Arc<Self>) -> &Arc<Self> {
        let mut cached = self;
        while let Some(next) = cached.successor.get() {
            cached = next;
        }
        cached
    }

    /// Whether a token bound with this mark is not below it. If retired, it never is. One atomic load.
    #[inline]
    pub fn is_current(&self, token: Token) -> bool {
        self.mark.load(Ordering::Acquire) <= token.get()
    }

    /// Highest mark seen; `None` if none is known, or if retired.
    pub fn mark(&self) -> Option<Token> {
        Token::new(self.mark.load(Ordering::Acquire)).ok()
    }

    /// Highest mark seen, with who raised it and when. At least as high as an earlier answer of [`Self::mark`]. If
    /// retired, the mark of the repair.
    pub fn mark_detail(&self) -> Option<Mark> {
        self.detail.lock().clone()
    }

    /// Token of the mark and when it was raised, without who raised it.
    pub fn raised(&self) -> Option<(Token, i64)> {
        let detail = self.detail.lock();
        detail.as_ref().map(|mark| (mark.token, mark.raised_at))
    }

    /// Mark, if it is above a token that was bound with it. One atomic load if it is not.
    pub fn mark_above(&self, token: Token) -> Option<Mark> {
        if self.is_current(token) {
            return None;
        }
        self.note_refusal();
        // A mark always has its detail. Without one, the token is stale all the same.
        let unknown = || Mark {
            incarnation: self.incarnation,
            ..Mark::new(
                self.mark().unwrap_or(token),
                0,
                "another session".to_owned(),
            )
        };
        Some(self.mark_detail().unwrap_or_else(unknown))
    }

    /// Notes a refusal, so that the authority is soon asked: the cache may lag a repair. One atomic load if it is
    /// noted already.
    fn note_refusal(&self) {
        let is_noted = || self.has_refused.swap(true, Ordering::AcqRel);
        if !self.has_refused.load(Ordering::Acquire) && !is_noted() {
            self.refusing.lock().push_back(self.scope.clone());
        }
    }

    /// Notes a mark of this incarnation. A lower or equal one changes nothing, nor does one of another incarnation:
    /// [`MarkCache::note`] is for those.
    pub fn raise(&self, mark: &Mark) {
        let mut detail = self.detail.lock();
        let is_higher = detail.as_ref().is_none_or(|known| known.token < mark.token);
        if mark.incarnation == self.incarnation && is_higher && !self.is_retired() {
            *detail = Some(mark.clone());
            // Under the lock, so that the number never falls and never runs ahead of the detail.
            self.mark.store(mark.token.get(), Ordering::Release);
        }
    }

    /// Retires it, for a repair that has left this mark.
    fn retire(&self, mark: &Mark, successor: &Arc<Self>) {
        let mut detail = self.detail.lock();
        *detail = Some(mark.clone());
        self.mark.store(RETIRED, Ordering::Release);
        drop(detail);
        // Set once: a mark is retired when it is taken out of the map, which happens once.
        let _ = self.successor.set(Arc::clone(successor));
    }
}

/// Cached marks of all scopes. A session looks one up once and keeps it.
#[derive(Debug, Default)]
pub struct MarkCache {
    cluster: Arc<ClusterCell>,
    marks: DashMap<Scope, Arc<CachedMark>>,
    refusing: Arc<Refusing>,
    /// Next number of a scope.
    numbers: AtomicUsize,
}

impl MarkCache {
    /// Cached mark of a scope in its present incarnation, created if new.
    pub fn mark(&self, scope: &Scope) -> Arc<CachedMark> {
        if let Some(cached) = self.marks.get(scope) {
            return Arc::clone(&cached);
        }
        let number = || self.numbers.fetch_add(1, Ordering::Relaxed);
        let new = || self.fresh(scope, number(), Incarnation::FIRST);
        Arc::clone(&self.marks.entry(scope.clone()).or_insert_with(new))
    }

    /// Cached mark of a scope, if there is one. The look-up adds no name that a client makes up.
    pub fn find(&self, scope: &Scope) -> Option<Arc<CachedMark>> {
        self.marks.get(scope).map(|cached| Arc::clone(&cached))
    }

    /// Number of scopes that have a mark or that a policy names.
    pub fn count(&self) -> usize {
        self.marks.len()
    }

    /// Notes a mark, whatever its source. One of a lower rank changes nothing. One of a later incarnation retires the
    /// cached mark and replaces it.
    pub fn note(&self, scope: &Scope, mark: &Mark) {
        if scope.is_epoch() {
            // No session has a token of this scope.
            return;
        }
        let cached = self.mark(scope);
        if cached.incarnation() < mark.incarnation {
            let mut entry = self.marks.entry(scope.clone()).or_insert(cached);
            // Another thread may have been faster.
            if entry.incarnation() < mark.incarnation {
                let next = self.fresh(scope, entry.number(), mark.incarnation);
                next.raise(mark);
                entry.retire(mark, &next);
                *entry = next;
                return;
            }
        }
        self.mark(scope).raise(mark);
    }

    /// Known timeline of the cluster.
    pub fn cluster(&self) -> &ClusterCell {
        &self.cluster
    }

    /// All current cached marks, in no order, for views.
    pub fn all(&self) -> Vec<Arc<CachedMark>> {
        self.marks
            .iter()
            .map(|cached| Arc::clone(&cached))
            .collect()
    }

    /// Takes at most `most` scopes in which the cache has refused a token since they were last taken, oldest first.
    /// So each of them has its turn.
    pub fn take_refusing(&self, most: usize) -> Vec<Scope> {
        let mut refusing = self.refusing.lock();
        let count = most.min(refusing.len());
        let taken: Vec<_> = refusing.drain(..count).collect();
        drop(refusing);
        for cached in taken.iter().filter_map(|scope| self.marks.get(scope)) {
            // Before the scope is looked up, so that later refusals are noted again.
            cached.has_refused.store(false, Ordering::Release);
        }
        taken
    }

    fn fresh(&self, scope: &Scope, number: usize, incarnation: Incarnation) -> Arc<CachedMark> {
        Arc::new(CachedMark {
            scope: scope.clone(),
            number,
            cluster: Arc::clone(&self.cluster),
            incarnation,
            mark: AtomicU64::new(0),
            detail: Mutex::new(None),
            successor: OnceLock::new(),
            has_refused: AtomicBool::new(false),
            refusing: Arc::clone(&self.refusing),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(token: u64, by: &str) -> Mark {
        Mark::new(Token::new(token).unwrap(), 1, by.into())
    }

    fn repaired(incarnation: u32, token: u64) -> Mark {
        Mark {
            incarnation: Incarnation::new(incarnation),
            ..mark(token, "alice")
        }
    }

    #[test]
    fn a_repair_retires_the_mark_for_good() {
        let (marks, scope) = (MarkCache::default(), Scope::default());
        let old = marks.mark(&scope);
        let poison = Token::new(Token::MAX).unwrap();
        marks.note(&scope, &mark(Token::MAX, "a"));
        assert!(old.is_current(poison) && !old.is_retired());
        assert!(Arc::ptr_eq(old.newest(), &old));
        marks.note(&scope, &repaired(1, 34));
        assert!(old.is_retired() && !old.is_current(poison));
        assert_eq!(old.mark_above(poison), Some(repaired(1, 34)));
        let new = marks.mark(&scope);
        assert_eq!(new.mark_detail(), Some(repaired(1, 34)));
        assert!(new.is_current(Token::new(34).unwrap()));
        assert!(Arc::ptr_eq(old.newest(), &new));
        // A late mark from before the repair changes nothing, wherever it is noted.
        for late in [mark(Token::MAX, "b"), repaired(1, 33)] {
            marks.note(&scope, &late);
            old.raise(&late);
            new.raise(&late);
        }
        assert!(old.is_retired() && !old.is_current(poison));
        assert_eq!(marks.mark(&scope).mark_detail(), Some(repaired(1, 34)));
        marks.note(&scope, &repaired(3, 1));
        assert!(Arc::ptr_eq(old.newest(), &marks.mark(&scope)));
        assert_eq!(new.mark_above(poison), Some(repaired(3, 1)));
    }

    #[test]
    fn what_was_refused_by_the_cache_is_given_out_once() {
        let (marks, scope) = (MarkCache::default(), Scope::default());
        marks.note(&scope, &mark(5, "a"));
        let (low, high) = (Token::new(4).unwrap(), Token::new(5).unwrap());
        assert_eq!(marks.mark(&scope).mark_above(high), None);
        assert_eq!(marks.take_refusing(9), vec![]);
        assert!(marks.mark(&scope).mark_above(low).is_some());
        assert_eq!(marks.take_refusing(0), vec![]);
        assert_eq!(marks.take_refusing(9), vec![scope]);
        assert_eq!(marks.take_refusing(9), vec![]);
    }

    #[test]
    fn refusing_scopes_take_turns() {
        let (marks, low) = (MarkCache::default(), Token::new(4).unwrap());
        let scopes = ["a", "b", "c"].map(|name| Scope::new(name).unwrap());
        for scope in &scopes {
            marks.note(scope, &mark(5, "a"));
        }
        let refuse_all = || {
            for scope in &scopes {
                assert!(marks.mark(scope).mark_above(low).is_some());
                assert!(marks.mark(scope).mark_above(low).is_some());
            }
        };
        refuse_all();
        let [a, b, c] = scopes.clone();
        assert_eq!(marks.take_refusing(2), [a.clone(), b.clone()]);
        // Scopes that refuse again do not come before one that waits.
        refuse_all();
        assert_eq!(marks.take_refusing(2), [c.clone(), a.clone()]);
        refuse_all();
        assert_eq!(marks.take_refusing(1), [b]);
        assert_eq!(marks.take_refusing(9), [a, c]);
    }

    /// A retired mark may have sessions that keep trying, each with its old token.
    #[test]
    fn a_retired_mark_is_noted_once_at_most() {
        let (marks, scope) = (MarkCache::default(), Scope::default());
        let (low, high) = (Token::new(4).unwrap(), Token::new(9).unwrap());
        let old = marks.mark(&scope);
        marks.note(&scope, &mark(5, "a"));
        assert!(old.mark_above(low).is_some());
        marks.note(&scope, &repaired(1, 7));
        assert!(old.mark_above(high).is_some());
        let new = marks.mark(&scope);
        assert!(new.mark_above(low).is_some());
        assert_eq!(marks.take_refusing(9), [scope.clone(), scope.clone()]);
        for _ in 0..3 {
            assert!(old.mark_above(high).is_some());
            assert_eq!(marks.take_refusing(9), []);
        }
        assert!(new.mark_above(low).is_some());
        assert_eq!(marks.take_refusing(9), [scope]);
    }

    #[test]
    fn concurrent_repairs_and_raises_keep_the_highest_rank() {
        let (marks, scope) = (MarkCache::default(), Scope::default());
        let kept = marks.mark(&scope);
        std::thread::scope(|threads| {
            for thread in 0..4_u64 {
                let (marks, scope) = (&marks, &scope);
                threads.spawn(move || {
                    let mut before = None;
                    for step in 0..2000_u64 {
                        let round = step * 7 % 1999;
                        let incarnation = u32::try_from(round / 100).unwrap();
                        marks.note(scope, &repaired(incarnation, (round + thread) % 97 + 1));
                        let now = marks.mark(scope).mark_detail().map(|mark| mark.rank());
                        assert!(now >= before, "{now:?} after {before:?}");
                        before = now;
                    }
                });
            }
        });
        let last = marks.mark(&scope).mark_detail().map(|mark| mark.rank());
        assert_eq!(last.map(|rank| rank.incarnation.get()), Some(19));
        assert!(Arc::ptr_eq(kept.newest(), &marks.mark(&scope)));
    }

    #[test]
    fn only_rises() {
        let marks = MarkCache::default();
        let cached = marks.mark(&Scope::default());
        assert_eq!((cached.mark(), cached.mark_detail()), (None, None));
        cached.raise(&mark(5, "a"));
        cached.raise(&mark(4, "b"));
        cached.raise(&mark(5, "c"));
        assert_eq!(
            marks.mark(&Scope::default()).mark_detail(),
            Some(mark(5, "a"))
        );
        cached.raise(&mark(6, "d"));
        assert_eq!(
            (cached.mark(), cached.mark_detail()),
            (Token::new(6).ok(), Some(mark(6, "d")))
        );
        assert_eq!(marks.mark(&Scope::new("other").unwrap()).mark(), None);
        assert_eq!(marks.all().len(), 2);
    }

    #[test]
    fn concurrent_raises_keep_the_highest() {
        let cached = MarkCache::default().mark(&Scope::default());
        std::thread::scope(|threads| {
            for thread in 0..4 {
                let cached = &cached;
                threads.spawn(move || {
                    let mut before = None;
                    for step in 0..2000_u64 {
                        cached.raise(&mark(step * 7 % 1999 * 4 + thread + 1, "x"));
                        let now = cached.mark();
                        assert!(now >= before);
                        assert!(cached.mark_detail().map(|m| m.token) >= now);
                        before = now;
                    }
                });
            }
        });
        assert_eq!(cached.mark(), Token::new(1998 * 4 + 4).ok());
    }
}
