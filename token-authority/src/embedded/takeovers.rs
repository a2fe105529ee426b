//! History of takeovers: one value for each scope, replaced as a whole.

use redb::{ReadableTable, Table, TableDefinition, WriteTransaction};

use super::fault::{StepError, stored_scope};
use crate::takeovers::History;
use crate::{Scope, TakeoverRecord};

/// scope -> time of the last record, and the [`History`] as JSON.
const TAKEOVERS: TableDefinition<'static, &str, (i64, &str)> = TableDefinition::new("takeovers");
/// (time of the last record, scope), to find the scopes with the latest records.
const NOTED: TableDefinition<'static, (i64, &str), ()> = TableDefinition::new("takeovers_noted");

pub(super) struct Takeovers<'txn> {
    of: Table<'txn, &'static str, (i64, &'static str)>,
    noted: Table<'txn, (i64, &'static str), ()>,
}

impl<'txn> Takeovers<'txn> {
    pub(super) fn open(txn: &'txn WriteTransaction) -> Result<Self, StepError> {
        Ok(Self {
            of: txn.open_table(TAKEOVERS)?,
            noted: txn.open_table(NOTED)?,
        })
    }

    pub(super) fn note(
        &mut self,
        scope: &Scope,
        records: &[TakeoverRecord],
        now: i64,
    ) -> Result<(), StepError> {
        let (before, mut history) = self.history(scope)?.unzip();
        if let Some(before) = before {
            self.noted.remove((before, scope.as_str()))?;
        }
        let history = history.get_or_insert_default();
        history.note(records);
        self.of
            .insert(scope.as_str(), (now, history.write().as_str()))?;
        self.noted.insert((now, scope.as_str()), ())?;
        Ok(())
    }

    pub(super) fn list(
        &self,
        of: Option<&Scope>,
    ) -> Result<Vec<(Scope, TakeoverRecord)>, StepError> {
        let mut scopes: Vec<Scope> = of.cloned().into_iter().collect();
        if of.is_none() {
            for entry in self.noted.iter()?.rev().take(TakeoverRecord::LISTED) {
                let (key, _) = entry?;
                scopes.push(stored_scope(key.value().1)?);
            }
        }
        let mut all = Vec::new();
        for scope in scopes {
            if let Some((_, history)) = self.history(&scope)? {
                all.push((scope, history));
            }
        }
        Ok(History::list(all))
    }

    fn history(&self, scope: &Scope) -> Result<Option<(i64, History)>, StepError> {
        let Some(stored) = self.of.get(scope.as_str())? else {
            return Ok(None);
        };
        let (noted, json) = stored.value();
        Ok(Some((noted, History::read(scope, json.as_bytes()))))
    }
}
