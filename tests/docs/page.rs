//! A page of the documentation: its fenced blocks, headings and links.

use std::path::{Path, PathBuf};

use pgpalisade_test_servers::machine;

pub(crate) struct Page {
    /// From the root of the repository.
    pub(crate) name: String,
    pub(crate) text: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Line of its opening fence, from 1.
    pub(crate) line: usize,
    pub(crate) kind: Kind,
    pub(crate) text: String,
    pub(crate) prints: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `sh run`: in a root shell, in the repository. Later blocks see its exported variables.
    Run,
    /// `python run`: by Python, as such a shell would run it.
    Python,
    /// `sh stopped`: as `sh run`, while the proxy is stopped.
    Stopped,
    /// `sh start`: in its own terminal. It starts the proxy.
    Start,
    /// `sh psql`: a psql, for the next blocks of SQL.
    Psql,
    /// `sql run`: in its own psql. `sql run NAME`: in one that stays open.
    Sql(String),
    /// `sql admin`: as PostgreSQL's superuser, directly on the server.
    Admin,
    File(String),
    /// `.. top PATH`: inserted at the top of the file.
    Top(String),
    /// `toml set`: goes into the configuration and replaces the same keys. The proxy is restarted.
    Set,
    /// `toml policy`: must pass `check --policy`.
    Policy,
    Shown,
}

impl Kind {
    fn of(info: &str) -> Option<Self> {
        let (language, how) = info.split_once(' ')?;
        let (word, rest) = how.split_once(' ').unwrap_or((how, ""));
        let text = || (!rest.is_empty()).then(|| rest.to_owned());
        let kind = match (language, word) {
            (_, "shown:") => text().map(|_| Self::Shown)?,
            (_, "file") => Self::File(text()?),
            (_, "top") => Self::Top(text()?),
            ("sql", "run") => Self::Sql(rest.to_owned()),
            _ if !rest.is_empty() => return None,
            ("sh", "run") => Self::Run,
            ("python", "run") => Self::Python,
            ("sh", "stopped") => Self::Stopped,
            ("sh", "start") => Self::Start,
            ("sh", "psql") => Self::Psql,
            ("sql", "admin") => Self::Admin,
            ("toml", "set") => Self::Set,
            ("toml", "policy") => Self::Policy,
            _ => return None,
        };
        Some(kind)
    }

    /// Whether its output can be shown on a page.
    fn prints(&self) -> bool {
        !matches!(
            self,
            Self::Psql | Self::File(_) | Self::Top(_) | Self::Set | Self::Shown
        )
    }
}

/// `..` stands for anything; on a line of its own, also for no line.
pub(crate) fn fits(shown: &str, text: &str) -> bool {
    let before = if shown.starts_with("..") { "\n" } else { "" };
    let text = format!("{before}{text}");
    let parts: Vec<&str> = shown.trim_end().split("..").collect();
    let [first, middle @ .., last] = parts.as_slice() else {
        return shown.trim_end() == text.trim_end();
    };
    let rest = middle
        .iter()
        .try_fold(text.strip_prefix(first), |rest, part| {
            Some(rest?.split_once(part).map(|(_, after)| after))
        });
    rest.flatten()
        .is_some_and(|rest| rest.trim_end().ends_with(last))
}

/// At the root and under `docs`.
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

/// Reads the page with this path from the root of the repository.
pub(crate) fn read(name: &str) -> Page {
    let text = std::fs::read_to_string(machine::repository().join(name)).expect("read a page");
    Page {
        name: name.to_owned(),
        text,
    }
}

impl Page {
    /// In their order.
    ///
    /// # Panics
    ///
    /// When a fence is not closed, or a block does not say what to do with it.
    pub(crate) fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        // Only blank lines came since the last block, so a `text` block belongs to it.
        let mut adjacent = false;
        let mut lines = self.text.lines().enumerate();
        while let Some((number, line)) = lines.next() {
            let code = line.trim_start();
            let Some(info) = code.strip_prefix("```") else {
                adjacent &= code.is_empty();
                continue;
            };
            let indent = line.len() - code.len();
            let place = format!("{}:{}", self.name, number + 1);
            let mut text = String::new();
            loop {
                match lines.next() {
                    Some((_, line)) if line.trim_start() == "```" => break,
                    Some((_, line)) => {
                        text.push_str(line.get(indent..).unwrap_or_default());
                        text.push('\n');
                    }
                    None => panic!("{place}: the fence is not closed"),
                }
            }
            if let Some(last) = blocks.last_mut().filter(|_| info == "text" && adjacent) {
                last.prints = Some(text);
                adjacent = false;
                continue;
            }
            let Some(kind) = Kind::of(info) else {
                panic!("{place}: a block marked {info:?} does not say what to do with it");
            };
            adjacent = kind.prints();
            blocks.push(Block {
                line: number + 1,
                kind,
                text,
                prints: None,
            });
        }
        blocks
    }

    fn prose(&self) -> impl Iterator<Item = &str> {
        let mut fenced = false;
        self.text.lines().filter(move |line| {
            let fence = line.trim_start().starts_with("```");
            fenced ^= fence;
            !fenced && !fence
        })
    }

    /// As GitHub makes them.
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

/// Links to a missing file or heading. Links out of the repository are not followed.
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

/// Long flag that a line begins with, after an optional short one.
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
        let blocks = page("```sql run\nSELECT 1;\n```\n\n```text\n1\n```\n").blocks();
        assert_eq!(blocks.len(), 1);
        assert_eq!(
            blocks.first().and_then(|block| block.prints.as_deref()),
            Some("1\n")
        );
    }

    #[test]
    #[should_panic(expected = "page.md:5: a block marked \"text\" does not say what to do with it")]
    fn words_part_output_from_its_block() {
        page("```sql run\nSELECT 1;\n```\nwords\n```text\n1\n```\n").blocks();
    }

    #[test]
    fn every_block_says_what_to_do_with_it() {
        for (info, kind) in [
            ("sh run", Some(Kind::Run)),
            ("sh start", Some(Kind::Start)),
            ("sql run", Some(Kind::Sql(String::new()))),
            ("sql run A", Some(Kind::Sql("A".to_owned()))),
            ("text file /etc/x", Some(Kind::File("/etc/x".to_owned()))),
            ("python shown: a part of a program", Some(Kind::Shown)),
            ("python shown:", None),
            ("python", None),
            ("python run", Some(Kind::Python)),
            ("go run", None),
            ("sh run A", None),
            ("", None),
        ] {
            assert_eq!(Kind::of(info), kind, "{info}");
        }
    }

    #[test]
    fn dots_stand_for_anything() {
        for (shown, text, fit) in [
            ("SET\n1\n", "SET\n1\n", true),
            ("SET\n", "SET\n1\n", false),
            (
                "ERROR:  PF001: ..\n1\n",
                "ERROR:  PF001: stale\nHINT:  Stop.\n1\n",
                true,
            ),
            ("ERROR:  PF001: ..\n1\n", "ERROR:  PF002: none\n1\n", false),
            ("ERROR:  PF001: ..\n1\n", "ERROR:  PF001: stale\n", false),
            ("..PF001..PF002..", "PF002 PF001\n", false),
            ("..\nready\n..\n", "ready\nlog\n", true),
            ("..\nready\n..\n", "not ready\nlog\n", false),
            ("..\nready\n..\n", "log\nready\n", true),
            ("..\nready\n..\n", "log\nready\nlog\n", true),
        ] {
            assert_eq!(fits(shown, text), fit, "{shown:?} of {text:?}");
        }
    }

    #[test]
    #[should_panic(expected = "page.md:1: the fence is not closed")]
    fn an_open_fence_is_an_error() {
        page("```sql run\n").blocks();
    }

    #[test]
    fn anchors_are_those_of_github() {
        let found = anchor("PF003: invalid token or scope");
        assert_eq!(found, "pf003-invalid-token-or-scope");
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
