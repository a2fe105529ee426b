//! Known marks. They save a round trip and reveal a store that has gone back; none is accepted without etcd.

use std::collections::HashMap;

use etcd_client::KeyValue;
use parking_lot::Mutex;

use super::keys;
use crate::record::MarkRow;
use crate::{AuthorityError, Scope};

/// Limit of scopes, about 300 bytes each.
const SCOPES_MAX: usize = 100_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) mod_revision: i64,
    pub(super) row: MarkRow,
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
    ) -> Result<Option<Known>, AuthorityError> {
        let found = match found {
            Some(kv) => Some(Known {
                mod_revision: kv.mod_revision(),
                row: keys::read_mark(scope, kv.value())?,
            }),
            None => None,
        };
        let mut all = self.known.lock();
        let Some(before) = all.get(scope) else {
            if let Some(found) = &found {
                make_room(&mut all, scope);
                all.insert(scope.clone(), found.clone());
            }
            return Ok(found);
        };
        if before.mod_revision > revision {
            return Ok(Some(before.clone()));
        }
        let Some(found) = found else {
            let rank = before.row.rank();
            return Err(AuthorityError::WentBack(format!(
                "the mark {rank} of scope {scope} has vanished"
            )));
        };
        let follows = match found.mod_revision.cmp(&before.mod_revision) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => found == *before,
            std::cmp::Ordering::Greater => found.row.rank() >= before.row.rank(),
        };
        if !follows {
            let (now, then) = (found.row.rank(), before.row.rank());
            return Err(AuthorityError::WentBack(format!(
                "the mark of scope {scope} is {now} of revision {}, and was {then} of revision {}",
                found.mod_revision, before.mod_revision
            )));
        }
        all.insert(scope.clone(), found.clone());
        Ok(Some(found))
    }
}

/// Nothing depends on the forgotten marks.
fn make_room(all: &mut HashMap<Scope, Known>, scope: &Scope) {
    if all.len() >= SCOPES_MAX && !all.contains_key(scope) {
        all.clear();
    }
}
