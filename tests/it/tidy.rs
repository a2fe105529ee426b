//! Rules that the compiler does not know: sizes, words, and the direction of imports. Clippy measures the functions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use pgpalisade_test_servers::machine::repository;

const CODE_LINES_MAX: usize = 400;
const COLUMNS_MAX: usize = 120;

/// Dependencies allowed between our crates below the binary.
const CRATES: [(&str, &[&str]); 15] = [
    ("policies", &[]),
    ("proxy/tls", &[]),
    ("token-authority", &["tls"]),
    ("proxy/logins", &[]),
    ("proxy/harness", &[]),
    ("proxy/sockets", &[]),
    ("proxy/pool", &[]),
    ("proxy/wire", &[]),
    ("token-authority/elect", &["authority", "tls", "wire"]),
    ("proxy/fence", &["authority", "policies", "wire"]),
    ("bench/load", &["authority", "tls", "wire"]),
    ("proxy/session", &["authority", "fence", "policies", "wire"]),
    (
        "proxy/rejection-log",
        &["authority", "fence", "logins", "policies", "session"],
    ),
    ("proxy/takeover", &["authority", "fence", "policies", "tls"]),
    (
        "proxy/server",
        &[
            "authority",
            "fence",
            "logins",
            "policies",
            "pool",
            "rejection-log",
            "session",
            "sockets",
            "takeover",
            "tls",
            "wire",
        ],
    ),
];

/// Crates among them, and state machines of others, without I/O, clock or threads.
const PURE: [&str; 12] = [
    "policies",
    "proxy/logins",
    "proxy/pool",
    "proxy/wire",
    "proxy/fence",
    "proxy/session",
    "proxy/takeover/src/barrier.rs",
    "proxy/takeover/src/epoch.rs",
    "proxy/takeover/src/lease/tenure.rs",
    "proxy/takeover/src/machine.rs",
    "proxy/takeover/src/plan.rs",
    "proxy/takeover/src/reaper.rs",
];

/// Every Rust file of the repository, with its text.
pub(super) fn sources() -> Vec<(PathBuf, String)> {
    files(".rs")
}

/// Every file of the repository with this ending, with its text.
pub(super) fn files(ending: &str) -> Vec<(PathBuf, String)> {
    let root = repository();
    let mut files = Vec::new();
    let mut open = vec![root.clone()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                open.push(path);
            } else if name.ends_with(ending) {
                let text = std::fs::read_to_string(&path).unwrap();
                files.push((path.strip_prefix(&root).unwrap().to_path_buf(), text));
            }
        }
    }
    assert!(!files.is_empty(), "the walk found no {ending}");
    files.sort();
    files
}

/// Fails with every place that `find` returns.
#[track_caller]
fn check(rule: &str, find: impl Fn(&Path, &str) -> Vec<(usize, String)>) {
    let mut report = String::new();
    for (path, text) in sources() {
        for (line, what) in find(&path, &text) {
            writeln!(report, "{}:{line}: {what}", path.display()).unwrap();
        }
    }
    assert!(report.is_empty(), "{rule}:\n{report}");
}

/// Lines with their numbers, from 1.
fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
}

/// The lines about which this is true.
fn lines_with(text: &str, is_wrong: impl Fn(&str) -> bool) -> Vec<(usize, String)> {
    let found = numbered(text).filter(|(_, line)| is_wrong(line));
    found
        .map(|(number, line)| (number, line.trim().to_owned()))
        .collect()
}

fn code_lines(text: &str) -> usize {
    let code = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("#[cfg(test)]"));
    code.filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count()
}

/// Files that are entirely tests. Their lists of cases may be long.
fn is_tests(path: &Path) -> bool {
    let is_library = path.starts_with("tests/servers") || path.starts_with("tests/judges");
    let inside = path.iter().any(|part| part == "tests" || part == "it") && !is_library;
    inside || path.ends_with("tests.rs")
}

/// Text before the unit tests.
pub(super) fn before_tests(text: &str) -> &str {
    text.split("\nmod tests {").next().unwrap_or_default()
}

#[test]
fn files_are_short() {
    check(
        "at most 400 lines of code before the tests",
        |path, text| {
            let lines = code_lines(text);
            if lines > CODE_LINES_MAX && !is_tests(path) {
                vec![(1, format!("{lines} lines of code"))]
            } else {
                Vec::new()
            }
        },
    );
}

#[test]
fn files_say_what_they_are_for() {
    check("every file begins with //!", |_, text| {
        let first = text.lines().next().unwrap_or_default();
        if first.starts_with("//! ") {
            Vec::new()
        } else {
            vec![(1, "no //! in its first line".to_owned())]
        }
    });
}

#[test]
fn lines_are_short() {
    check("at most 120 columns", |_, text| {
        let long = numbered(text).filter(|(_, line)| line.chars().count() > COLUMNS_MAX);
        long.map(|(number, line)| (number, format!("{} columns", line.chars().count())))
            .collect()
    });
}

/// Code blocks may be wider.
#[test]
fn pages_have_short_lines() {
    let mut long = String::new();
    for (path, text) in files(".md") {
        let mut is_code = false;
        for (number, line) in numbered(&text) {
            is_code ^= line.trim_start().starts_with("```");
            if !is_code && line.chars().count() > COLUMNS_MAX {
                writeln!(long, "{}:{number}", path.display()).unwrap();
            }
        }
    }
    assert!(long.is_empty(), "at most {COLUMNS_MAX} columns:\n{long}");
}

#[test]
fn nothing_is_left_for_later() {
    // Assembled here, so that this file does not find itself.
    let words = [
        ["TO", "DO"].concat(),
        ["FIX", "ME"].concat(),
        ["XX", "X:"].concat(),
    ];
    check("no notes to oneself", |_, text| {
        lines_with(text, |line| words.iter().any(|word| line.contains(word)))
    });
}

/// Names after `crate::` in a text, also inside `use crate::{a, b::c}`.
fn modules_named(text: &str) -> Vec<&str> {
    let code = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    let mut names = Vec::new();
    for line in code {
        for after in line.split("crate::").skip(1) {
            let list = after.strip_prefix('{').unwrap_or(after);
            let paths = list
                .split(", ")
                .take(if list == after { 1 } else { usize::MAX });
            let first = |path: &'_ str| path.find(|c: char| !c.is_alphanumeric() && c != '_');
            names.extend(paths.map(|path| path.split_at(first(path).unwrap_or(path.len())).0));
        }
    }
    names
}

/// Imports between the modules of a crate, without their unit tests.
fn imports(source: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in sources() {
        let Ok(inside) = path.strip_prefix(source) else {
            continue;
        };
        let own = inside.iter().next().unwrap_or_default().to_string_lossy();
        let own = own.trim_end_matches(".rs").to_owned();
        if is_tests(&path) || matches!(&*own, "lib" | "main") {
            continue;
        }
        // This many steps up is the crate.
        let depth = inside.iter().count() - usize::from(inside.ends_with("mod.rs"));
        let text = text.replace(&"super::".repeat(depth), "crate::");
        let named = modules_named(before_tests(&text)).into_iter();
        let others = named.filter(|name| *name != own).map(str::to_owned);
        imports.entry(own.clone()).or_default().extend(others);
    }
    imports
}

/// A cycle of modules can only be read as a whole.
#[test]
fn no_imports_go_in_circles() {
    for source in [
        "proxy/src",
        "proxy/server/src",
        "proxy/rejection-log/src",
        "proxy/fence/src",
        "proxy/session/src",
        "proxy/pool/src",
        "proxy/wire/src",
        "policies/src",
        "token-authority/src",
        "token-authority/elect/src",
        "token-authority/conformance/src",
        "tests/servers/src",
        "bench/src",
        "bench/load/src",
    ] {
        let mut left = imports(source);
        assert!(left.len() > 3, "{source} has only {}", left.len());
        // A module that imports none of the remaining ones cannot be in a cycle.
        loop {
            let names: BTreeSet<String> = left.keys().cloned().collect();
            let before = left.len();
            left.retain(|_, imported| !imported.is_disjoint(&names));
            if left.len() == before {
                break;
            }
        }
        assert!(left.is_empty(), "{source}: a circle is among {left:#?}");
    }
}

/// Direction of imports: the shipped part of a crate knows only the crates before it. Tests may use the harness.
#[test]
fn crates_know_only_those_before_them() {
    let root = repository();
    for (of, known) in CRATES {
        let manifest = std::fs::read_to_string(root.join(of).join("Cargo.toml")).unwrap();
        let shipped = manifest.split("[dev-dependencies]").next().unwrap();
        let ours = shipped
            .lines()
            .filter_map(|line| line.strip_prefix("pgpalisade-"))
            .map(|line| line.split(' ').next().unwrap());
        assert_eq!(ours.collect::<Vec<_>>(), known, "{of}/Cargo.toml");
    }
}

#[test]
fn pure_crates_are_pure() {
    const IMPURE: [&str; 8] = [
        "tokio",
        "std::fs",
        "std::net::Tcp",
        "std::net::Udp",
        "std::thread",
        "std::process",
        "Instant",
        "tracing",
    ];
    check("no I/O, no clock, no thread", |path, text| {
        if is_tests(path) || !PURE.iter().any(|pure| path.starts_with(pure)) {
            return Vec::new();
        }
        let impure = |line: &str| {
            let code = line.split("//").next().unwrap_or_default();
            IMPURE.iter().any(|word| code.contains(word))
        };
        lines_with(before_tests(text), impure)
    });
}

/// A workspace lint forbids it elsewhere, but a crate may omit that lint.
#[test]
fn unsafe_code_is_in_one_crate() {
    // Assembled here, so that this file does not find itself.
    let words = ["{", "fn", "impl"].map(|what| ["unsafe ", what].concat());
    check("`unsafe` is in proxy/sockets only", |path, text| {
        if path.starts_with("proxy/sockets") {
            return Vec::new();
        }
        lines_with(text, |line| words.iter().any(|word| line.contains(word)))
    });
}

/// Files of `proxy/server` that run on the main runtime, which has timers. All others may run on worker threads.
const OFF_WORKERS: [&str; 7] = [
    "accept.rs",
    "leadership/campaign.rs",
    "leadership/number_file.rs",
    "leadership/on_loss.rs",
    "message_socket.rs",
    "server.rs",
    "timers.rs",
];

/// The workers' runtimes have no timers: using tokio's panics there.
#[test]
fn workers_ask_timers_for_their_timers() {
    const FORBIDDEN: [&str; 3] = ["time::sleep", "time::timeout", "time::interval"];
    let server = repository().join("proxy/server/src");
    assert!(OFF_WORKERS.iter().all(|off| server.join(off).is_file()));
    check("workers have `Timers`", |path, text| {
        let inside = path.strip_prefix("proxy/server/src");
        if is_tests(path)
            || inside.map_or(true, |file| {
                OFF_WORKERS.iter().any(|off| file == Path::new(off))
            })
        {
            return Vec::new();
        }
        lines_with(before_tests(text), |line| {
            FORBIDDEN.iter().any(|word| line.contains(word))
        })
    });
}

/// Texts written by others go through `text.rs`, which removes control characters for terminals; `rejections` escapes
/// its own lines.
#[test]
fn commands_print_through_one_file() {
    check("commands print through `text`", |path, text| {
        let inside = path.strip_prefix("proxy/src/cli");
        if inside.map_or(true, |file| {
            ["text.rs", "rejections.rs"]
                .iter()
                .any(|own| file == Path::new(own))
        }) {
            return Vec::new();
        }
        lines_with(before_tests(text), |line| {
            line.contains("stdout()") || line.contains("println!")
        })
    });
}
