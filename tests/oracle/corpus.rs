//! Files of `corpus/`: one case a line, with comments and empty lines between them.

#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// In brackets before the case.
    pub(crate) tag: Option<String>,
    /// Texts, sent one after the other.
    pub(crate) script: Vec<String>,
}

impl Case {
    /// `;;` separates the texts of a script.
    pub(crate) fn new(line: &str) -> Self {
        let (tag, rest) = match line
            .strip_prefix('[')
            .and_then(|line| line.split_once("] "))
        {
            Some((tag, rest)) => (Some(tag.to_owned()), rest),
            None => (None, line),
        };
        Self {
            tag,
            script: rest.split(" ;; ").map(str::to_owned).collect(),
        }
    }

    /// Rest of a tag that begins with this word: `42601` of `[error 42601]`.
    pub(crate) fn tagged(&self, word: &str) -> Option<&str> {
        self.tag.as_deref()?.strip_prefix(word).map(str::trim)
    }

    pub(crate) fn text(&self) -> String {
        self.script.join(" ;; ")
    }
}

pub(crate) fn cases(file: &str) -> Vec<Case> {
    file.lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with("--"))
        .map(Case::new)
        .collect()
}

pub(crate) const WORLD: &str = include_str!("corpus/world.sql");
pub(crate) const STATEMENTS: &str = include_str!("corpus/statements.sql");
pub(crate) const HIDDEN: &str = include_str!("corpus/hidden.sql");
pub(crate) const PAST: &str = include_str!("corpus/past.sql");
pub(crate) const ORDINARY: [(&str, &str); 3] = [
    ("psql", include_str!("corpus/ordinary/psql.sql")),
    ("pg_dump", include_str!("corpus/ordinary/pg_dump.sql")),
    (
        "applications",
        include_str!("corpus/ordinary/applications.sql"),
    ),
];
