//! What this proxy knows of the marks. It only ever rises, and it only ever rejects: nothing is admitted by it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dashmap::DashMap;
use pgpalisade_authority::{Cluster, Mark, Scope, Token};

/// What this proxy knows of the protected cluster's history: the newest timeline that the authority has on record.
/// It only ever rises. A session on an older one is on a primary that a failover has deposed.
#[derive(Debug, Default)]
pub struct ClusterCell {
    timeline: AtomicU32,
}

impl ClusterCell {
    /// The newest timeline seen, 0 where none is known. One atomic load.
    #[inline]
    pub fn timeline(&self) -> u32 {
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

/// What this proxy knows of one scope's mark.
#[derive(Debug)]
pub struct ScopeCell {
    scope: Scope,
    cluster: Arc<ClusterCell>,
    /// The token of `detail`, 0 where none is known: what the fast path reads.
    mark: AtomicU64,
    detail: Mutex<Option<Mark>>,
}

impl ScopeCell {
    fn new(scope: Scope, cluster: Arc<ClusterCell>) -> Self {
        Self {
            scope,
            cluster,
            mark: AtomicU64::new(0),
            detail: Mutex::new(None),
        }
    }

    /// The scope.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The cluster that it is for.
    #[inline]
    pub fn cluster(&self) -> &ClusterCell {
        &self.cluster
    }

    /// The highest mark seen, or `None` where none is known. One atomic load.
    pub fn mark(&self) -> Option<Token> {
        Token::new(self.mark.load(Ordering::Acquire)).ok()
    }

    /// The highest mark seen, with who raised it and when. At least as high as what [`Self::mark`] said before.
    pub fn mark_detail(&self) -> Option<Mark> {
        self.detail
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The mark, where it is above a token. One atomic load where it is not.
    pub fn mark_above(&self, token: Token) -> Option<Mark> {
        let mark = self.mark().filter(|mark| *mark > token)?;
        // A mark is never known without its detail; were it so, the token is stale all the same.
        let unknown = || Mark {
            token: mark,
            raised_at: 0,
            raised_by: "another session".to_owned(),
        };
        Some(self.mark_detail().unwrap_or_else(unknown))
    }

    /// Takes note of a mark. A lower or equal one changes nothing.
    pub fn raise(&self, mark: &Mark) {
        let mut detail = self.detail.lock().unwrap_or_else(PoisonError::into_inner);
        if detail.as_ref().is_none_or(|known| known.token < mark.token) {
            *detail = Some(mark.clone());
            // Under the lock, so that the number never falls and never runs ahead of the detail.
            self.mark.store(mark.token.get(), Ordering::Release);
        }
    }
}

/// The cells of all scopes. A session looks its cell up once and keeps it.
#[derive(Debug, Default)]
pub struct ScopeCells {
    cluster: Arc<ClusterCell>,
    cells: DashMap<Scope, Arc<ScopeCell>>,
}

impl ScopeCells {
    /// The cell of a scope, made when it is new.
    pub fn cell(&self, scope: &Scope) -> Arc<ScopeCell> {
        if let Some(cell) = self.cells.get(scope) {
            return Arc::clone(&cell);
        }
        let new = || Arc::new(ScopeCell::new(scope.clone(), Arc::clone(&self.cluster)));
        Arc::clone(&self.cells.entry(scope.clone()).or_insert_with(new))
    }

    /// What is known of the cluster.
    pub fn cluster(&self) -> &ClusterCell {
        &self.cluster
    }

    /// Every cell, in no order, for views.
    pub fn all(&self) -> Vec<Arc<ScopeCell>> {
        self.cells.iter().map(|cell| Arc::clone(&cell)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(token: u64, by: &str) -> Mark {
        Mark {
            token: Token::new(token).unwrap(),
            raised_at: 1,
            raised_by: by.into(),
        }
    }

    #[test]
    fn only_rises() {
        let cells = ScopeCells::default();
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
        let cell = ScopeCells::default().cell(&Scope::default());
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
