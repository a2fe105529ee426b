//! Warnings about legal but surprising parts of a policy file.

use std::ops::Range;

use toml::Spanned;

use super::file::{Draft, Section, shadowed};
use super::remark::{Lines, Remark};
use super::terms::{Reads, Writes};
use super::{Mode, PreparedTransactions};
use crate::effects::Category;

pub(super) fn warnings(draft: &Draft, lines: &Lines<'_>) -> Vec<Remark> {
    let mut found = Vec::new();
    let mut warn = |at: &Range<usize>, message: &str| found.push(lines.remark(at, message));
    if let Some(at) = is(draft.defaults.writes.as_ref(), Writes::Allow) {
        let message = "defaults.writes = \"allow\" switches PostgreSQL's read-only mode off for sessions without a \
                       token, so a write that a function, trigger or view hides is not caught \
                       (write \"token\" if every writer can declare one)";
        warn(&at, message);
    }
    if let Some(at) = is(draft.defaults.mode.as_ref(), Mode::Observe) {
        warn(
            &at,
            &observed(
                "defaults.mode",
                "for all sessions without a mode of their own",
            ),
        );
    }
    let rules = draft.rules.iter().map(|rule| &rule.section);
    for at in rules.chain([&draft.defaults]).filter_map(replication) {
        let message = "replication connections are not fenced: a client that this matches can bypass the fence by \
            adding replication=database to its connection string (allow it for a separate role, with REPLICATION and \
            no rights on tables)";
        warn(&at, message);
    }
    who_may_declare(draft, &mut warn);
    for scope in &draft.scopes {
        if let Some(at) = is(scope.mode.as_ref(), Mode::Observe) {
            let key = format!("scope.{}.mode", scope.name.get_ref());
            warn(
                &at,
                &observed(&key, "for all sessions that may need this scope"),
            );
        }
    }
    for rule in &draft.rules {
        if let Some(at) = is(rule.section.writes.as_ref(), Writes::Allow) {
            let message = "writes = \"allow\" lets these sessions bypass the fence, even for the tables of scopes \
                (give them a scope of their own if they can declare a token)";
            warn(&at, message);
        }
        if let Some(at) = is(rule.section.mode.as_ref(), Mode::Observe) {
            warn(
                &at,
                &observed("session.mode", "for the sessions of this rule"),
            );
        }
    }
    for (rule, first) in shadowed(&draft.rules) {
        let line = lines.line(&first.span());
        let message = format!(
            "this rule never matches: the one in line {line} comes first and matches all that it does (move this one \
                before it, or remove one)"
        );
        warn(&rule.at.span(), &message);
    }
    found.sort_by_key(|remark| (remark.line, remark.column));
    found
}

fn who_may_declare(draft: &Draft, warn: &mut impl FnMut(&Range<usize>, &str)) {
    let mut sections = draft.rules.iter().map(|rule| &rule.section);
    let said = sections.any(|section| section.declare.is_some())
        || draft.defaults.declare.is_some()
        || draft.scopes.iter().any(|scope| scope.holders.is_some());
    if let [_, second, ..] = draft.scopes.as_slice()
        && !said
    {
        let message = "there are several scopes, and every session may declare each of them: anyone who can connect \
            can depose any leader (write holders below [scope.NAME], or declare in [[session]])";
        warn(&second.name.span(), message);
    }
    for rule in &draft.rules {
        let section = &rule.section;
        let reads = section.reads.as_ref().or(draft.defaults.reads.as_ref());
        if section.declare.is_none()
            && is(section.writes.as_ref(), Writes::Refuse).is_some()
            && is(reads, Reads::Current).is_some()
        {
            let message = "reads = \"current\" needs a token, and writes = \"refuse\" lets these sessions declare none \
                           (write declare = [\"NAME\"] with the scopes that they may read)";
            warn(&rule.at.span(), message);
        }
    }
    let rolls_back = |prepared| prepared == Some(PreparedTransactions::RollBack);
    let own = draft
        .scopes
        .iter()
        .find(|scope| rolls_back(scope.bounds.prepared));
    if let Some(scope) = own.or_else(|| {
        draft
            .scopes
            .get(1)
            .filter(|_| rolls_back(draft.tokens.prepared))
    }) && draft.scopes.len() > 1
    {
        let message = "PostgreSQL does not record which scope prepared a transaction: prepared_transactions = \
            \"roll-back\" rolls back those of every scope that are older than the takeover (write \"refuse\", or let \
            only one scope prepare transactions)";
        warn(&scope.name.span(), message);
    }
}

fn observed(key: &str, whom: &str) -> String {
    format!(
        "{key} = \"observe\" refuses nothing, and switches PostgreSQL's read-only mode off {whom} \
         (write \"enforce\" once the rejection log shows nothing unexpected)"
    )
}

fn replication(section: &Section) -> Option<Range<usize>> {
    let mut allowed = section.allow.iter();
    let found = allowed.find(|kind| *kind.get_ref() == Category::Replication)?;
    Some(found.span())
}

fn is<T: PartialEq>(written: Option<&Spanned<T>>, value: T) -> Option<Range<usize>> {
    let written = written?;
    (*written.get_ref() == value).then(|| written.span())
}
