//! Fate of the work of deposed leaders, by takeover.

use std::collections::HashMap;

use jiff::Timestamp;
use serde::Serialize;

use super::NAMES;
use crate::line::Record;
use pgpalisade_fence::rejection::{Enforcement, OpenTransaction, RejectionKind};

/// A mark that has deposed sessions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct TakeoverKey {
    /// The scope.
    pub scope: String,
    /// The raised mark.
    pub mark: u64,
}

/// Losses and later attempts of leaders with lower tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Sessions that were ended without an open transaction.
    pub idle: u64,
    /// Sessions whose transaction was rolled back.
    pub rolled_back: u64,
    /// Sessions that were ended while a commit may have happened.
    pub unknown: u64,
    /// Refused statements and logins with a lower token.
    pub refused: u64,
    /// Time of the last of these records.
    #[serde(skip)]
    last: Option<Timestamp>,
}

/// One takeover with its account.
#[derive(Debug, Clone, Serialize)]
pub struct Deposed {
    /// The takeover.
    #[serde(flatten)]
    pub takeover: TakeoverKey,
    /// The takeover's account.
    #[serde(flatten)]
    pub account: Account,
}

/// Accounts of all takeovers in the records, up to `NAMES`.
#[derive(Debug, Default)]
pub(super) struct Accounts(HashMap<TakeoverKey, Account>);

impl Accounts {
    /// Adds a record if it is about a deposed session. Observed refusals have deposed none.
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
        let takeover = TakeoverKey {
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

    /// Lists the latest first.
    pub(super) fn list(&self, top: usize) -> Vec<Deposed> {
        let deposed = |(takeover, account): (&TakeoverKey, &Account)| Deposed {
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
