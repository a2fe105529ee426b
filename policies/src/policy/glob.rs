//! Names with `*` in them.

use wildmatch::WildMatchPattern;

/// `*` stands for any characters. What would stand for a single one is NUL, which no name contains.
type Stars = WildMatchPattern<'*', '\0'>;

/// A pattern for one name: `*` stands for any characters, also for none. Nothing else is special.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Glob {
    written: Box<str>,
    shape: Shape,
}

impl Eq for Glob {}

#[derive(Clone, Debug, PartialEq)]
enum Shape {
    Exact(Box<str>),
    Stars(Stars),
}

impl Glob {
    /// A pattern in which every `*` is special.
    pub(super) fn new(written: &str) -> Self {
        let shape = match written.contains('*') {
            true => Shape::Stars(Stars::new(written)),
            false => Shape::Exact(written.into()),
        };
        let written = written.into();
        Self { written, shape }
    }

    /// This name, in which nothing is special.
    pub(super) fn of_name(written: &str, name: &str) -> Self {
        Self {
            written: written.into(),
            shape: Shape::Exact(name.into()),
        }
    }

    /// As it was written.
    pub(super) fn written(&self) -> &str {
        &self.written
    }

    /// The only name that it matches, where it is only one.
    pub(super) fn exact(&self) -> Option<&str> {
        match &self.shape {
            Shape::Exact(name) => Some(name),
            Shape::Stars(_) => None,
        }
    }

    /// Whether it matches every name.
    pub(super) fn is_any(&self) -> bool {
        matches!(&self.shape, Shape::Stars(stars) if stars.pattern_chars() == ['*'])
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        match &self.shape {
            Shape::Exact(exact) => **exact == *name,
            Shape::Stars(stars) => stars.matches(name),
        }
    }

    /// Whether it matches whatever the other does. Of two patterns made by [`Glob::new`]: their texts have no `*` that
    /// stands for itself, so only a star of ours can match a star of the other.
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

    /// `covers` is compared with what it means, on all short patterns and names of two letters.
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
