//! A page of the documentation: its fenced blocks, headings and links.

use std::path::{Path, PathBuf};

use pgpalisade_tests::machine;

/// A Markdown file of the repository.
pub(crate) struct Page {
    /// Its path from the root of the repository.
    pub(crate) name: String,
    /// What it says.
    pub(crate) text: String,
}

/// A fenced block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// The line of its opening fence, from 1.
    pub(crate) line: usize,
    /// The first word behind the fence.
    pub(crate) language: String,
    /// Whether and how it is run.
    pub(crate) run: Option<Run>,
    /// What is in it.
    pub(crate) text: String,
    /// What the `text` block behind it says that it prints.
    pub(crate) prints: Option<String>,
}

/// How a block marked `test` is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// By psql.
    Sql,
    /// By a shell.
    Sh,
    /// By `check --policy`.
    Policy,
}

/// Every page: those at the root, and those under `docs`.
pub(crate) fn all() -> Vec<Page> {
    let mut names = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
        .map(PathBuf::from)
        .to_vec();
    collect(Path::new("docs"), &mut names);
    names.sort();
    names
        .iter()
        .map(|name| read(&name.display().to_string()))
        .collect()
}

fn collect(dir: &Path, names: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(machine::repository().join(dir)).expect("read docs/") {
        let entry = entry.expect("an entry of docs/");
        let name = dir.join(entry.file_name());
        if entry.file_type().expect("its type").is_dir() {
            collect(&name, names);
        } else if name.extension().is_some_and(|extension| extension == "md") {
            names.push(name);
        }
    }
}

/// The page with this path from the root of the repository.
pub(crate) fn read(name: &str) -> Page {
    let text = std::fs::read_to_string(machine::repository().join(name)).expect("read a page");
    Page {
        name: name.to_owned(),
        text,
    }
}

impl Page {
    /// Its fenced blocks in their order.
    ///
    /// # Panics
    /// When a fence is not closed, when a block is marked `test` that nothing can run, and when its output
    /// is not directly behind it.
    pub(crate) fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        // Whether only blank lines came since the last block, so that a `text` block belongs to it.
        let mut adjacent = false;
        let mut lines = self.text.lines().enumerate();
        while let Some((number, line)) = lines.next() {
            let Some(info) = line.strip_prefix("```") else {
                adjacent &= line.trim().is_empty();
                continue;
            };
            let place = format!("{}:{}", self.name, number + 1);
            let mut text = String::new();
            loop {
                match lines.next() {
                    Some((_, "```")) => break,
                    Some((_, line)) => {
                        text.push_str(line);
                        text.push('\n');
                    }
                    None => panic!("{place}: the fence is not closed"),
                }
            }
            if info == "text" && adjacent && blocks.last().is_some_and(|last| last.run.is_some()) {
                blocks.last_mut().expect("just looked at").prints = Some(text);
                adjacent = false;
                continue;
            }
            let mut words = info.split_whitespace();
            let language = words.next().unwrap_or_default().to_owned();
            let run = match (language.as_str(), words.next()) {
                (_, None) => None,
                ("sql", Some("test")) => Some(Run::Sql),
                ("sh", Some("test")) => Some(Run::Sh),
                ("toml", Some("policy")) => Some(Run::Policy),
                _ => panic!("{place}: a block marked {info:?} is not known"),
            };
            blocks.push(Block {
                line: number + 1,
                language,
                run,
                text,
                prints: None,
            });
            adjacent = true;
        }
        blocks
    }

    /// Its lines outside of fenced blocks.
    fn prose(&self) -> impl Iterator<Item = &str> {
        let mut fenced = false;
        self.text.lines().filter(move |line| {
            let fence = line.starts_with("```");
            fenced ^= fence;
            !fenced && !fence
        })
    }

    /// The anchors of its headings, as GitHub makes them.
    fn anchors(&self) -> Vec<String> {
        let headings = self.prose().filter(|line| line.starts_with('#'));
        headings
            .map(|line| anchor(line.trim_start_matches('#').trim()))
            .collect()
    }

    fn links(&self) -> Vec<&str> {
        let mut links = Vec::new();
        for line in self.prose() {
            let mut rest = line;
            while let Some((_, after)) = rest.split_once("](") {
                let Some((target, after)) = after.split_once(')') else {
                    break;
                };
                links.push(target);
                rest = after;
            }
        }
        links
    }
}

/// The links of a page that lead to no file, or to no heading of it. Links out of the repository are not followed.
pub(crate) fn broken_links(page: &Page) -> Vec<String> {
    let root = machine::repository();
    let here = Path::new(&page.name);
    let mut broken = Vec::new();
    for link in page
        .links()
        .into_iter()
        .filter(|link| !link.contains("://"))
    {
        let (file, heading) = link
            .split_once('#')
            .map_or((link, None), |(file, heading)| (file, Some(heading)));
        let name = if file.is_empty() {
            here.to_path_buf()
        } else {
            here.with_file_name(file)
        };
        let found = root.join(&name).exists()
            && heading.is_none_or(|heading| {
                read(&name.display().to_string())
                    .anchors()
                    .iter()
                    .any(|a| a == heading)
            });
        if !found {
            broken.push(format!("{}: {link}", page.name));
        }
    }
    broken
}

fn anchor(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-' || *c == '_');
    kept.map(|c| {
        if c == ' ' {
            '-'
        } else {
            c.to_ascii_lowercase()
        }
    })
    .collect()
}

/// The long flag that a line begins with, with or without a short one before it.
pub(crate) fn leading_flag(line: &str) -> Option<String> {
    let line = line.trim_start();
    let long = if line.starts_with("--") {
        line
    } else {
        line.strip_prefix('-')?
            .split_once(", ")
            .map(|(_, long)| long)
            .filter(|long| long.starts_with("--"))?
    };
    let name: String = long
        .chars()
        .skip(2)
        .take_while(|c| c.is_ascii_alphanumeric() || *c == '-')
        .collect();
    Some(format!("--{name}"))
}

mod tests {
    use super::*;

    fn page(text: &str) -> Page {
        Page {
            name: "page.md".to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn output_belongs_to_the_block_before_it() {
        let blocks = page("```sql test\nSELECT 1;\n```\n\n```text\n1\n```\n").blocks();
        assert_eq!(blocks.len(), 1);
        assert_eq!(
            blocks.first().and_then(|block| block.prints.as_deref()),
            Some("1\n")
        );
        let blocks = page("```sql test\nSELECT 1;\n```\nwords\n```text\n1\n```\n").blocks();
        assert_eq!(blocks.len(), 2);
        assert!(blocks.iter().all(|block| block.prints.is_none()));
    }

    #[test]
    fn only_marked_blocks_are_run() {
        let blocks =
            page("```sql\nDROP TABLE t;\n```\n```sh test\ntrue\n```\n```toml\na = 1\n```\n")
                .blocks();
        let runs: Vec<_> = blocks.iter().map(|block| block.run).collect();
        assert_eq!(runs, [None, Some(Run::Sh), None]);
    }

    #[test]
    #[should_panic(expected = "page.md:1: a block marked \"python test\" is not known")]
    fn an_unknown_mark_is_an_error() {
        page("```python test\n```\n").blocks();
    }

    #[test]
    #[should_panic(expected = "page.md:1: the fence is not closed")]
    fn an_open_fence_is_an_error() {
        page("```sql\n").blocks();
    }

    #[test]
    fn anchors_are_those_of_github() {
        assert_eq!(
            anchor("PF003: invalid token or scope"),
            "pf003-invalid-token-or-scope"
        );
    }

    #[test]
    fn flags_are_read_from_help_and_table() {
        for (line, expect) in [
            ("      --listen <IP:PORT>  Address", Some("--listen")),
            ("  -h, --help", Some("--help")),
            ("--takeover-timeout` | `x` |", Some("--takeover-timeout")),
            ("Options:", None),
        ] {
            assert_eq!(leading_flag(line).as_deref(), expect, "{line}");
        }
    }
}
