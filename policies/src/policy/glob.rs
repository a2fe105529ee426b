//! Names with `*` in them.

/// A pattern for one name: `*` stands for any characters, also for none. Nothing else is special.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Glob {
    written: Box<str>,
    shape: Shape,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Shape {
    Any,
    Exact(Box<str>),
    /// `first*..*last`: what stands between the stars, in order.
    Pieces {
        first: Box<str>,
        between: Box<[Box<str>]>,
        last: Box<str>,
    },
}

/// A part of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// This character.
    Is(char),
    /// `*`
    Star,
}

impl Glob {
    /// A pattern in which every `*` is special.
    pub(super) fn new(written: &str) -> Self {
        let parts = written.chars().map(|c| match c {
            '*' => Part::Star,
            c => Part::Is(c),
        });
        Self::from_parts(written, parts)
    }

    /// A pattern that was taken apart already.
    pub(super) fn from_parts(written: &str, parts: impl Iterator<Item = Part>) -> Self {
        let mut texts = vec![String::new()];
        for part in parts {
            match (part, texts.last_mut()) {
                (Part::Is(c), Some(text)) => text.push(c),
                _ => texts.push(String::new()),
            }
        }
        let mut texts = texts.into_iter().map(String::into_boxed_str);
        let first = texts.next().unwrap_or_default();
        let shape = match texts.next_back() {
            None => Shape::Exact(first),
            Some(last) => {
                let between: Box<[_]> = texts.filter(|text| !text.is_empty()).collect();
                match first.is_empty() && last.is_empty() && between.is_empty() {
                    true => Shape::Any,
                    false => Shape::Pieces {
                        first,
                        between,
                        last,
                    },
                }
            }
        };
        Self {
            written: written.into(),
            shape,
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
            Shape::Any | Shape::Pieces { .. } => None,
        }
    }

    /// Whether it matches every name.
    pub(super) fn is_any(&self) -> bool {
        self.shape == Shape::Any
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        let (first, between, last) = match &self.shape {
            Shape::Any => return true,
            Shape::Exact(exact) => return **exact == *name,
            Shape::Pieces {
                first,
                between,
                last,
            } => (first, between, last),
        };
        let Some(mut rest) = name
            .strip_prefix(&**first)
            .and_then(|rest| rest.strip_suffix(&**last))
        else {
            return false;
        };
        // The leftmost place of each piece leaves the most to those behind it.
        for piece in between {
            let Some((_, behind)) = rest.split_once(&**piece) else {
                return false;
            };
            rest = behind;
        }
        true
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
