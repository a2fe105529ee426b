//! Names with `*` in them.

use wildmatch::WildMatchPattern;

type Stars = WildMatchPattern<'*', '\0'>;

/// A pattern for one name: `*` stands for any characters or none.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Glob {
    written: Box<str>,
    pattern: GlobPattern,
}

impl Eq for Glob {}

#[derive(Clone, Debug, PartialEq)]
enum GlobPattern {
    Exact(Box<str>),
    Stars(Stars),
}

impl Glob {
    pub(super) fn new(written: &str) -> Self {
        let pattern = if written.contains('*') {
            GlobPattern::Stars(Stars::new(written))
        } else {
            GlobPattern::Exact(written.into())
        };
        let written = written.into();
        Self { written, pattern }
    }

    pub(super) fn of_name(written: &str, name: &str) -> Self {
        Self {
            written: written.into(),
            pattern: GlobPattern::Exact(name.into()),
        }
    }

    pub(super) fn written(&self) -> &str {
        &self.written
    }

    /// The only name that it matches, if there is only one.
    pub(super) fn exact(&self) -> Option<&str> {
        match &self.pattern {
            GlobPattern::Exact(name) => Some(name),
            GlobPattern::Stars(_) => None,
        }
    }

    pub(super) fn is_any(&self) -> bool {
        matches!(&self.pattern, GlobPattern::Stars(stars) if stars.pattern_chars() == ['*'])
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        match &self.pattern {
            GlobPattern::Exact(exact) => **exact == *name,
            GlobPattern::Stars(stars) => stars.matches(name),
        }
    }

    /// Whether it matches everything that the other does. Both must be made by [`Glob::new`]: without a literal `*`,
    /// only a star can match a star of the other.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.matches(&other.written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, matches: &[&str], others: &[&str]) {
        let glob = Glob::new(pattern);
        for name in matches {
            assert!(glob.matches(name), "{pattern:?} should match {name:?}");
        }
        for name in others {
            assert!(!glob.matches(name), "{pattern:?} should not match {name:?}");
        }
    }

    #[test]
    fn stars_stand_for_any_characters() {
        check("jobs", &["jobs"], &["", "job", "jobs2", "Jobs"]);
        check("", &[""], &["a"]);
        check("*", &["", "a", "*"], &[]);
        check("**", &["", "a"], &[]);
        check("job*", &["job", "jobs"], &["ajob"]);
        check("*job", &["job", "ajob"], &["jobs"]);
        check("a*a", &["aa", "aba"], &["a", "ab"]);
        check("a*b*c", &["abc", "axbxc", "abbc", "abcbc"], &["ac", "acb"]);
        check("*ab*ab*", &["abab", "xabyabz"], &["ab", "aab"]);
        check("a.c", &["a.c"], &["abc"]);
        check("*é", &["é", "aé"], &["e"]);
    }

    /// Compares `covers` with its definition, on all short patterns and names of two letters.
    #[test]
    fn covering_means_matching_whatever_the_other_does() {
        let words = |alphabet: &[char], most: usize| {
            let mut all = vec![String::new()];
            let mut from = 0;
            for _ in 0..most {
                let to = all.len();
                for index in from..to {
                    for c in alphabet {
                        all.push(format!("{}{c}", all[index]));
                    }
                }
                from = to;
            }
            all
        };
        let globs: Vec<Glob> = words(&['a', 'b', '*'], 4)
            .iter()
            .map(|w| Glob::new(w))
            .collect();
        let names = words(&['a', 'b', 'c'], 5);
        for one in &globs {
            for other in globs.iter().filter(|other| one.covers(other)) {
                let escaped = names
                    .iter()
                    .find(|name| other.matches(name) && !one.matches(name));
                assert_eq!(escaped, None, "{one:?} covers {other:?}");
            }
        }
    }
}
