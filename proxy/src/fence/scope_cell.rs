//! What this proxy knows of the marks. It only ever rises, and it only ever rejects: nothing is admitted by it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dashmap::DashMap;
use pgpalisade_authority::{Mark, Scope, Token};

/// What this proxy knows of one scope's mark.
#[derive(Debug)]
pub struct ScopeCell {
    scope: Scope,
    /// The token of `detail`, 0 where none is known: what the fast path reads.
    mark: AtomicU64,
    detail: Mutex<Option<Mark>>,
}

impl ScopeCell {
    fn new(scope: Scope) -> Self {
        Self {
            scope,
            mark: AtomicU64::new(0),
            detail: Mutex::new(None),
        }
    }

    /// The scope.
    pub fn scope(&self) -> &Scope {
        &self.scope
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
    cells: DashMap<Scope, Arc<ScopeCell>>,
}

impl ScopeCells {
    /// The cell of a scope, made when it is new.
    pub fn cell(&self, scope: &Scope) -> Arc<ScopeCell> {
        if let Some(cell) = self.cells.get(scope) {
            return Arc::clone(&cell);
        }
        let new = || Arc::new(ScopeCell::new(scope.clone()));
        Arc::clone(&self.cells.entry(scope.clone()).or_insert_with(new))
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
        let cell = ScopeCell::new(Scope::default());
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
