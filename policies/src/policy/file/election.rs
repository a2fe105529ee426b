//! The election whose number is the token of a scope.

use std::sync::Arc;

use toml::Spanned;
use toml::de::DeValue;

use super::draft::ScopeDraft;
use super::reader::{KeyName, PolicyReader};
use crate::policy::remark::ValueError;

const ELECTIONS_MAX: usize = 100;
/// Bytes of an election's name, which begins keys and is quoted in errors.
const NAME_MAX: usize = 200;

impl PolicyReader<'_> {
    /// Reads `{ etcd_election = ".." }`. `written` is the key of this value.
    pub(super) fn election(
        &mut self,
        written: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Option<Spanned<Arc<str>>> {
        const KEY: &str = "etcd_election";
        let to_do = format!("write {{ {KEY} = \"...\" }}");
        let table = self.table(written, value, &to_do)?;
        let mut election = None;
        for (key, value) in super::from_the_top(table) {
            if key.get_ref() != KEY {
                self.unknown("scope.NAME.numbers", written, key);
                continue;
            }
            let name = KeyName {
                key: "scope.NAME.numbers.etcd_election",
                written: &format!("{written}.{KEY}"),
            };
            election = self.text(name, value, election_name);
        }
        if table.is_empty() {
            self.error(&value.span(), format_args!("{written} is empty ({to_do})"));
        }
        election
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
