//! The election whose number is the token of a scope.

use std::sync::Arc;

use toml::Spanned;
use toml::de::DeTable;

use super::draft::ScopeDraft;
use super::reader::{PolicyReader, Table};
use crate::policy::remark::ValueError;

const ELECTIONS_MAX: usize = 100;
/// Bytes of an election's name, which begins keys and is quoted in errors.
const NAME_MAX: usize = 200;

impl PolicyReader<'_> {
    /// Reads `{ etcd_election = ".." }`, if it is the value of `numbers`.
    pub(super) fn election(&mut self, scope: &Table<'_>) -> Option<Spanned<Arc<str>>> {
        let value = scope.election()?;
        let written = format!("{}.numbers", scope.written);
        let table = self.table("scope.NAME.numbers", written, Some(value), "");
        if table.keys.is_some_and(DeTable::is_empty) {
            let to_do = "write { etcd_election = \"...\" }";
            self.error(
                &value.span(),
                format!("{} is empty ({to_do})", table.written),
            );
        }
        self.text(&table, "etcd_election", election_name)
    }
}

fn election_name(text: &str) -> Result<Arc<str>, ValueError> {
    if text.is_empty() || text.len() > NAME_MAX || text.chars().any(char::is_control) {
        let to_do = format!(
            "write 1 to {NAME_MAX} bytes without control characters, as in \"etcdctl elect NAME\""
        );
        return Err(ValueError::new("is not a valid name of an election", to_do));
    }
    Ok(text.into())
}

/// Reports conflicts of an election with other keys of its scope.
pub(super) fn check(scopes: &[ScopeDraft], reader: &mut PolicyReader<'_>) {
    let elected = || {
        let elected = scopes.iter();
        elected.filter_map(|scope| Some((scope, scope.election.as_ref()?)))
    };
    for (scope, election) in elected() {
        if scope.bounds.max_step.is_some() || scope.bounds.max_token.is_some() {
            let message = format!(
                "scope {:?} has the number of an election, and its own max_step or max_token (remove them: the number \
                    is compared exactly, and it jumps)",
                scope.name.get_ref()
            );
            reader.error(&election.span(), message);
        }
    }
    if let Some((_, election)) = elected().nth(ELECTIONS_MAX) {
        let message = format!("more than {ELECTIONS_MAX} scopes have an election (use fewer)");
        reader.error(&election.span(), message);
    }
}
