//! What became of the work of deposed leaders, by the takeover that has deposed them.

use std::collections::HashMap;

use jiff::Timestamp;
use serde::Serialize;

use super::NAMES;
use crate::line::Record;
use pgpalisade_fence::rejection::{Enforcement, OpenTransaction, RejectionKind};

/// A mark that has deposed sessions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Takeover {
    /// The scope.
    pub scope: String,
    /// What it was raised to.
    pub mark: u64,
}

/// What the leaders of lower tokens have lost, and tried since.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Sessions that were ended without an open transaction.
    pub idle: u64,
    /// Sessions whose transaction was rolled back.
    pub rolled_back: u64,
    /// Sessions that were ended while something may have been committed.
    pub unknown: u64,
    /// Statements and logins with a lower token that were refused.
    pub refused: u64,
    /// The last of these records.
    #[serde(skip)]
    last: Option<Timestamp>,
}

/// One takeover with its account.
#[derive(Debug, Clone, Serialize)]
pub struct Deposed {
    /// Which it was.
    #[serde(flatten)]
    pub takeover: Takeover,
    /// What came of it.
    #[serde(flatten)]
    pub account: Account,
}

/// Accounts of all takeovers that records tell of: so many at most.
#[derive(Debug, Default)]
pub(super) struct Accounts(HashMap<Takeover, Account>);

impl Accounts {
    /// Adds a record, where it is about a session that was deposed. What was only observed has deposed nobody.
    pub(super) fn note(&mut self, record: &Record) {
        let (Some(scope), Some(mark), Enforcement::Refused) =
            (&record.scope, record.mark, record.enforced)
        else {
            return;
        };
        let is = |kind: RejectionKind| record.kind == kind.as_str();
        let became = |fate: OpenTransaction| record.transaction.as_deref() == Some(fate.as_str());
        let counts: fn(&mut Account) -> &mut u64 = if became(OpenTransaction::None) {
            |account| &mut account.idle
        } else if became(OpenTransaction::RolledBack) {
            |account| &mut account.rolled_back
        } else if is(RejectionKind::OutcomeUnknown) {
            |account| &mut account.unknown
        } else if is(RejectionKind::StaleToken) {
            |account| &mut account.refused
        } else {
            return;
        };
        let takeover = Takeover {
            scope: scope.clone(),
            mark,
        };
        if self.0.len() >= NAMES && !self.0.contains_key(&takeover) {
            return;
        }
        let account = self.0.entry(takeover).or_default();
        let count = counts(account);
        *count = count.saturating_add(record.count);
        account.last = account.last.max(Some(record.time));
    }

    /// The last ones first.
    pub(super) fn list(&self, top: usize) -> Vec<Deposed> {
        let deposed = |(takeover, account): (&Takeover, &Account)| Deposed {
            takeover: takeover.clone(),
            account: *account,
        };
        let mut all: Vec<Deposed> = self.0.iter().map(deposed).collect();
        all.sort_by(|one, other| {
            let newest = other.account.last.cmp(&one.account.last);
            newest.then_with(|| other.takeover.mark.cmp(&one.takeover.mark))
        });
        all.truncate(top);
        all
    }
}
