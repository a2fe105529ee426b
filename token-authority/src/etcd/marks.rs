//! Known marks. They save a round trip and reveal a store that has gone back; none is accepted without etcd.

use std::cmp::Ordering;
use std::collections::HashMap;

use etcd_client::KeyValue;
use parking_lot::Mutex;

use super::keys;
use crate::record::MarkRow;
use crate::{Answer, AuthorityError, Scope};

/// Limit of scopes, about 300 bytes each.
const SCOPES_MAX: usize = 100_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) mod_revision: i64,
    pub(super) row: MarkRow,
}

impl Known {
    pub(super) fn read(scope: &Scope, kv: &KeyValue) -> Answer<Self> {
        Ok(Self {
            mod_revision: kv.mod_revision(),
            row: keys::read_mark(scope, kv.value())?,
        })
    }

    /// Whether a store that has not gone back can have this mark after `before`.
    fn follows(&self, before: &Self) -> bool {
        match self.mod_revision.cmp(&before.mod_revision) {
            Ordering::Less => false,
            Ordering::Equal => self == before,
            Ordering::Greater => self.row.rank() >= before.row.rank(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Marks {
    known: Mutex<HashMap<Scope, Known>>,
}

impl Marks {
    pub(super) fn get(&self, scope: &Scope) -> Option<Known> {
        self.known.lock().get(scope).cloned()
    }

    /// Stores a mark that we wrote, or read along with others, at this revision.
    pub(super) fn put(&self, scope: &Scope, mod_revision: i64, row: MarkRow) {
        let mut all = self.known.lock();
        let newer = all
            .get(scope)
            .is_none_or(|before| before.mod_revision < mod_revision);
        if newer {
            make_room(&mut all, scope);
            all.insert(scope.clone(), Known { mod_revision, row });
        }
    }

    /// Takes in the store's answer at `revision`. Returns the known mark, which may be newer. If the answer contradicts
    /// an earlier one, the store went back.
    pub(super) fn learn(
        &self,
        scope: &Scope,
        revision: i64,
        found: Option<&KeyValue>,
    ) -> Answer<Option<Known>> {
        let found = found.map(|kv| Known::read(scope, kv)).transpose()?;
        let mut all = self.known.lock();
        let went_back = match (all.get(scope), &found) {
            (Some(before), _) if before.mod_revision > revision => return Ok(Some(before.clone())),
            (Some(before), None) => {
                let rank = before.row.rank();
                Some(format!("the mark {rank} of scope {scope} has vanished"))
            }
            (Some(before), Some(found)) if !found.follows(before) => {
                let (now, then) = (found.row.rank(), before.row.rank());
                Some(format!(
                    "the mark of scope {scope} is {now} of revision {}, and was {then} of revision {}",
                    found.mod_revision, before.mod_revision
                ))
            }
            _ => None,
        };
        if let Some(what) = went_back {
            return Err(AuthorityError::WentBack(what));
        }
        if let Some(found) = &found {
            make_room(&mut all, scope);
            all.insert(scope.clone(), found.clone());
        }
        Ok(found)
    }
}

/// Nothing depends on the forgotten marks.
fn make_room(all: &mut HashMap<Scope, Known>, scope: &Scope) {
    if all.len() >= SCOPES_MAX && !all.contains_key(scope) {
        all.clear();
    }
}
