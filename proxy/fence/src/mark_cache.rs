//! What this proxy knows of the marks. It only ever rises in rank, and it only ever rejects: nothing is admitted by it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use dashmap::DashMap;
use parking_lot::Mutex;
use pgpalisade_authority::{Cluster, Incarnation, Mark, Scope, Token};

/// What this proxy knows of the protected cluster's history: the newest timeline that the authority has on record.
/// It only ever rises. A session on an older one is on a primary that a failover has deposed.
#[derive(Debug, Default)]
pub struct ClusterCell {
    timeline: AtomicU32,
}

impl ClusterCell {
    /// The newest timeline seen, 0 where none is known. One atomic load.
    #[inline]
    pub(crate) fn timeline(&self) -> u32 {
        self.timeline.load(Ordering::Acquire)
    }

    /// Takes note of what is on record for the authority that serves `ours`. Where that is another cluster, no
    /// session of this proxy is on the protected one any more, until it is started anew.
    pub fn note(&self, ours: Cluster, recorded: Cluster) {
        let timeline = match ours.system_identifier == recorded.system_identifier {
            true => recorded.timeline,
            false => u32::MAX,
        };
        self.timeline.fetch_max(timeline, Ordering::AcqRel);
    }
}

/// The scopes in which the cache has refused a token since they were last taken, the first refused first. Kept apart
/// from the cells, so that looking for them costs nothing where nothing was refused, however many scopes there are.
#[derive(Debug, Default)]
struct Refusing {
    scopes: Mutex<VecDeque<Scope>>,
}

impl Refusing {
    fn push(&self, scope: &Scope) {
        self.scopes.lock().push_back(scope.clone());
    }

    fn take(&self, most: usize) -> Vec<Scope> {
        let mut scopes = self.scopes.lock();
        let count = most.min(scopes.len());
        scopes.drain(..count).collect()
    }
}

/// The number of a retired cell: above every token, so that every token is below it.
const RETIRED: u64 = u64::MAX;

/// What this proxy knows of one scope's mark, in one incarnation of the scope.
///
/// A repair of the scope begins another incarnation, and puts the cell out of use for good: every token that was
/// bound with it is stale from then on, whatever its number. [`Self::newest`] leads from it to the cell in use.
#[derive(Debug)]
pub struct CachedMark {
    scope: Scope,
    number: usize,
    cluster: Arc<ClusterCell>,
    incarnation: Incarnation,
    /// The token of `detail`, 0 where none is known, or [`RETIRED`]: what the fast path reads.
    mark: AtomicU64,
    detail: Mutex<Option<Mark>>,
    /// The cell of the incarnation that came after it.
    successor: OnceLock<Arc<Self>>,
    /// It stands in `refusing`, so that it is there at most once.
    has_refused: AtomicBool,
    refusing: Arc<Refusing>,
}

impl CachedMark {
    /// The scope.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The number of the scope in this proxy: from 0, in the order in which scopes came up. All incarnations have it.
    #[inline]
    pub(super) const fn number(&self) -> usize {
        self.number
    }

    /// The cluster that it is for.
    #[inline]
    pub(crate) fn cluster(&self) -> &ClusterCell {
        &self.cluster
    }

    /// The incarnation of the scope that it is for.
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Whether a repair has put it out of use. One atomic load.
    #[inline]
    pub fn is_retired(&self) -> bool {
        self.mark.load(Ordering::Acquire) == RETIRED
    }

    /// The cell in use: this one, or the one that has taken its place. For those who keep a cell beyond one
    /// session. One atomic load where the scope was not repaired since; no lock, no look-up.
    #[inline]
    pub fn newest(self: &Arc<Self>) -> &Arc<Self> {
        let mut cell = self;
        while let Some(next) = cell.successor.get() {
            cell = next;
        }
        cell
    }

    /// Whether a token that was bound with this cell is not below the mark. One atomic load. A retired cell says no.
    #[inline]
    pub fn is_current(&self, token: Token) -> bool {
        self.mark.load(Ordering::Acquire) <= token.get()
    }

    /// The highest mark seen, or `None` where none is known, or where the cell is retired.
    pub fn mark(&self) -> Option<Token> {
        Token::new(self.mark.load(Ordering::Acquire)).ok()
    }

    /// The highest mark seen, with who raised it and when. At least as high as what [`Self::mark`] said before. Of a
    /// retired cell it is the mark of the repair.
    pub fn mark_detail(&self) -> Option<Mark> {
        self.detail.lock().clone()
    }

    /// The token of the mark, and when it was raised, without the words of who raised it.
    pub fn raised(&self) -> Option<(Token, i64)> {
        let detail = self.detail.lock();
        detail.as_ref().map(|mark| (mark.token, mark.raised_at))
    }

    /// The mark, where it stands above a token that was bound with this cell. One atomic load where it does not.
    pub fn mark_above(&self, token: Token) -> Option<Mark> {
        if self.is_current(token) {
            return None;
        }
        self.note_refusal();
        // A mark is never known without its detail; were it so, the token is stale all the same.
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

    /// The cache may be behind a repair. What it has refused is looked up in the authority soon after. One atomic load
    /// where that is noted already.
    fn note_refusal(&self) {
        let is_noted = || self.has_refused.swap(true, Ordering::AcqRel);
        if !self.has_refused.load(Ordering::Acquire) && !is_noted() {
            self.refusing.push(&self.scope);
        }
    }

    /// Takes note of a mark of the cell's incarnation. A lower or equal one changes nothing, nor does one of another
    /// incarnation: [`MarkCache::note`] is for those.
    pub fn raise(&self, mark: &Mark) {
        let mut detail = self.detail.lock();
        let is_higher = detail.as_ref().is_none_or(|known| known.token < mark.token);
        if mark.incarnation == self.incarnation && is_higher && !self.is_retired() {
            *detail = Some(mark.clone());
            // Under the lock, so that the number never falls and never runs ahead of the detail.
            self.mark.store(mark.token.get(), Ordering::Release);
        }
    }

    /// Puts it out of use, for a repair that has left this mark.
    fn retire(&self, mark: &Mark, successor: &Arc<Self>) {
        let mut detail = self.detail.lock();
        *detail = Some(mark.clone());
        self.mark.store(RETIRED, Ordering::Release);
        drop(detail);
        // Set once: a cell is retired when it is taken out of the map, which happens once.
        let _ = self.successor.set(Arc::clone(successor));
    }
}

/// The cells of all scopes. A session looks its cell up once and keeps it.
#[derive(Debug, Default)]
pub struct MarkCache {
    cluster: Arc<ClusterCell>,
    cells: DashMap<Scope, Arc<CachedMark>>,
    refusing: Arc<Refusing>,
    /// The next number of a scope.
    numbers: AtomicUsize,
}

impl MarkCache {
    /// The cell of a scope in its present incarnation, made when it is new.
    pub fn cell(&self, scope: &Scope) -> Arc<CachedMark> {
        if let Some(cell) = self.cells.get(scope) {
            return Arc::clone(&cell);
        }
        let number = || self.numbers.fetch_add(1, Ordering::Relaxed);
        let new = || self.fresh(scope, number(), Incarnation::FIRST);
        Arc::clone(&self.cells.entry(scope.clone()).or_insert_with(new))
    }

    /// The cell of a scope, where there is one. A name that a client makes up gets none by being looked for.
    pub fn find(&self, scope: &Scope) -> Option<Arc<CachedMark>> {
        self.cells.get(scope).map(|cell| Arc::clone(&cell))
    }

    /// How many scopes there are: those that have a mark, and those that a policy names.
    pub fn count(&self) -> usize {
        self.cells.len()
    }

    /// Takes note of a mark, in whatever way it became known. One of a lower rank changes nothing. One of a later
    /// incarnation retires the cell, and a new one takes its place.
    pub fn note(&self, scope: &Scope, mark: &Mark) {
        if scope.is_epoch() {
            // No session has a token of it.
            return;
        }
        let cell = self.cell(scope);
        if cell.incarnation() < mark.incarnation {
            let mut entry = self.cells.entry(scope.clone()).or_insert(cell);
            // Another thread may have been faster.
            if entry.incarnation() < mark.incarnation {
                let next = self.fresh(scope, entry.number(), mark.incarnation);
                next.raise(mark);
                entry.retire(mark, &next);
                *entry = next;
                return;
            }
        }
        self.cell(scope).raise(mark);
    }

    /// What is known of the cluster.
    pub fn cluster(&self) -> &ClusterCell {
        &self.cluster
    }

    /// Every cell in use, in no order, for views.
    pub fn all(&self) -> Vec<Arc<CachedMark>> {
        self.cells.iter().map(|cell| Arc::clone(&cell)).collect()
    }

    /// At most `most` scopes in which a token was refused by the cache since they were given out here, those that
    /// have waited longest first. As long as there are such, each comes up in turn.
    pub fn take_refusing(&self, most: usize) -> Vec<Scope> {
        let taken = self.refusing.take(most);
        for cell in taken.iter().filter_map(|scope| self.cells.get(scope)) {
            // Before the scope is looked up: what is refused from here on is noted anew.
            cell.has_refused.store(false, Ordering::Release);
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
    fn a_repair_retires_the_cell_for_good() {
        let (cells, scope) = (MarkCache::default(), Scope::default());
        let old = cells.cell(&scope);
        let poison = Token::new(Token::MAX).unwrap();
        cells.note(&scope, &mark(Token::MAX, "a"));
        assert!(old.is_current(poison) && !old.is_retired());
        assert!(Arc::ptr_eq(old.newest(), &old));
        cells.note(&scope, &repaired(1, 34));
        assert!(old.is_retired() && !old.is_current(poison));
        assert_eq!(old.mark_above(poison), Some(repaired(1, 34)));
        let new = cells.cell(&scope);
        assert_eq!(new.mark_detail(), Some(repaired(1, 34)));
        assert!(new.is_current(Token::new(34).unwrap()));
        assert!(Arc::ptr_eq(old.newest(), &new));
        // What comes late from before the repair changes nothing, wherever it is noted.
        for late in [mark(Token::MAX, "b"), repaired(1, 33)] {
            cells.note(&scope, &late);
            old.raise(&late);
            new.raise(&late);
        }
        assert!(old.is_retired() && !old.is_current(poison));
        assert_eq!(cells.cell(&scope).mark_detail(), Some(repaired(1, 34)));
        cells.note(&scope, &repaired(3, 1));
        assert!(Arc::ptr_eq(old.newest(), &cells.cell(&scope)));
        assert_eq!(new.mark_above(poison), Some(repaired(3, 1)));
    }

    #[test]
    fn what_was_refused_by_the_cache_is_given_out_once() {
        let (cells, scope) = (MarkCache::default(), Scope::default());
        cells.note(&scope, &mark(5, "a"));
        let (low, high) = (Token::new(4).unwrap(), Token::new(5).unwrap());
        assert_eq!(cells.cell(&scope).mark_above(high), None);
        assert_eq!(cells.take_refusing(9), vec![]);
        assert!(cells.cell(&scope).mark_above(low).is_some());
        assert_eq!(cells.take_refusing(0), vec![]);
        assert_eq!(cells.take_refusing(9), vec![scope]);
        assert_eq!(cells.take_refusing(9), vec![]);
    }

    #[test]
    fn refusing_scopes_take_turns() {
        let (cells, low) = (MarkCache::default(), Token::new(4).unwrap());
        let scopes = ["a", "b", "c"].map(|name| Scope::new(name).unwrap());
        for scope in &scopes {
            cells.note(scope, &mark(5, "a"));
        }
        let refuse_all = || {
            for scope in &scopes {
                assert!(cells.cell(scope).mark_above(low).is_some());
                assert!(cells.cell(scope).mark_above(low).is_some());
            }
        };
        refuse_all();
        let [a, b, c] = scopes.clone();
        assert_eq!(cells.take_refusing(2), [a.clone(), b.clone()]);
        // Those that go on refusing do not come before the one that waits.
        refuse_all();
        assert_eq!(cells.take_refusing(2), [c.clone(), a.clone()]);
        refuse_all();
        assert_eq!(cells.take_refusing(1), [b]);
        assert_eq!(cells.take_refusing(9), [a, c]);
    }

    /// A cell that a repair has put out of use may have sessions that go on trying, each with its old token.
    #[test]
    fn a_retired_cell_is_noted_once_at_most() {
        let (cells, scope) = (MarkCache::default(), Scope::default());
        let (low, high) = (Token::new(4).unwrap(), Token::new(9).unwrap());
        let old = cells.cell(&scope);
        cells.note(&scope, &mark(5, "a"));
        assert!(old.mark_above(low).is_some());
        cells.note(&scope, &repaired(1, 7));
        assert!(old.mark_above(high).is_some());
        let new = cells.cell(&scope);
        assert!(new.mark_above(low).is_some());
        assert_eq!(cells.take_refusing(9), [scope.clone(), scope.clone()]);
        for _ in 0..3 {
            assert!(old.mark_above(high).is_some());
            assert_eq!(cells.take_refusing(9), []);
        }
        assert!(new.mark_above(low).is_some());
        assert_eq!(cells.take_refusing(9), [scope]);
    }

    #[test]
    fn concurrent_repairs_and_raises_keep_the_highest_rank() {
        let (cells, scope) = (MarkCache::default(), Scope::default());
        let kept = cells.cell(&scope);
        std::thread::scope(|threads| {
            for thread in 0..4_u64 {
                let (cells, scope) = (&cells, &scope);
                threads.spawn(move || {
                    let mut before = None;
                    for step in 0..2000_u64 {
                        let round = step * 7 % 1999;
                        let incarnation = u32::try_from(round / 100).unwrap();
                        cells.note(scope, &repaired(incarnation, (round + thread) % 97 + 1));
                        let now = cells.cell(scope).mark_detail().map(|mark| mark.rank());
                        assert!(now >= before, "{now:?} after {before:?}");
                        before = now;
                    }
                });
            }
        });
        let last = cells.cell(&scope).mark_detail().map(|mark| mark.rank());
        assert_eq!(last.map(|rank| rank.incarnation.get()), Some(19));
        assert!(Arc::ptr_eq(kept.newest(), &cells.cell(&scope)));
    }

    #[test]
    fn only_rises() {
        let cells = MarkCache::default();
        let cell = cells.cell(&Scope::default());
        assert_eq!((cell.mark(), cell.mark_detail()), (None, None));
        cell.raise(&mark(5, "a"));
        cell.raise(&mark(4, "b"));
        cell.raise(&mark(5, "c"));
        assert_eq!(
            cells.cell(&Scope::default()).mark_detail(),
            Some(mark(5, "a"))
        );
        cell.raise(&mark(6, "d"));
        assert_eq!(
            (cell.mark(), cell.mark_detail()),
            (Token::new(6).ok(), Some(mark(6, "d")))
        );
        assert_eq!(cells.cell(&Scope::new("other").unwrap()).mark(), None);
        assert_eq!(cells.all().len(), 2);
    }

    #[test]
    fn concurrent_raises_keep_the_highest() {
        let cell = MarkCache::default().cell(&Scope::default());
        std::thread::scope(|threads| {
            for thread in 0..4 {
                let cell = &cell;
                threads.spawn(move || {
                    let mut before = None;
                    for step in 0..2000_u64 {
                        cell.raise(&mark(step * 7 % 1999 * 4 + thread + 1, "x"));
                        let now = cell.mark();
                        assert!(now >= before);
                        assert!(cell.mark_detail().map(|m| m.token) >= now);
                        before = now;
                    }
                });
            }
        });
        assert_eq!(cell.mark(), Token::new(1998 * 4 + 4).ok());
    }
}
