//! Walks pages: runs their blocks in their order in one room.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use pgpalisade_test_servers::machine::{self, Running, TERM};

use crate::page::{self, Block, Kind};
use crate::room::{Printed, Room};

pub(crate) fn walk(pages: &[&str]) {
    let mut reader = Reader::new();
    for name in pages {
        for block in page::read(name).blocks() {
            let place = format!("{name}:{}", block.line);
            println!("{place}");
            reader.follow(&block, &place);
        }
        reader.restart_if_changed();
        reader.sessions.clear();
    }
}

struct Reader {
    sessions: BTreeMap<String, Psql>,
    psql: String,
    proxy: Option<Running>,
    start: String,
    /// The first file that was written.
    configuration: Option<String>,
    /// The proxy still runs with an older configuration.
    is_changed: bool,
    room: Room,
}

impl Reader {
    fn new() -> Self {
        Self {
            sessions: BTreeMap::new(),
            psql: String::new(),
            proxy: None,
            start: String::new(),
            configuration: None,
            is_changed: false,
            room: Room::new(),
        }
    }

    #[track_caller]
    fn follow(&mut self, block: &Block, place: &str) {
        let text = &block.text;
        if matches!(block.kind, Kind::Run | Kind::Python | Kind::Sql(_)) {
            self.restart_if_changed();
        }
        let printed = match &block.kind {
            Kind::Shown => return,
            Kind::Run => self.run(text, ""),
            Kind::Python => self.run("/usr/bin/python3 -", text),
            Kind::Stopped => {
                self.stop();
                let printed = self.run(text, "");
                self.start();
                printed
            }
            Kind::Start => {
                text.clone_into(&mut self.start);
                self.start()
            }
            Kind::Psql => return text.clone_into(&mut self.psql),
            Kind::Sql(name) => self.type_into(name, text),
            Kind::Admin => self
                .room
                .run("su postgres -c 'psql -v ON_ERROR_STOP=1'", text),
            Kind::File(path) => {
                std::fs::write(self.room.path(path), text).expect("write a file of the page");
                self.configuration.get_or_insert_with(|| path.clone());
                return;
            }
            Kind::Top(path) => self.room.run(
                &format!("file=$(echo {path})\ncat - \"$file\" >/tmp/top\ncat /tmp/top >\"$file\""),
                text,
            ),
            Kind::Set => return self.set(text),
            Kind::Policy => self.room.run(
                "cat >/tmp/policy.toml; pgpalisade check --policy /tmp/policy.toml",
                text,
            ),
        };
        match &block.prints {
            Some(expect) => assert!(
                page::fits(expect, &printed.text),
                "{place} prints something else:\n{}",
                printed.text
            ),
            None => assert!(printed.succeeded, "{place} fails:\n{}", printed.text),
        }
    }

    fn run(&self, script: &str, input: &str) -> Printed {
        let script = format!("{ENVIRONMENT}\n{script}");
        self.room.run(&script, input)
    }

    /// Types into the psql of this name, which stays open, or into a temporary one.
    fn type_into(&mut self, name: &str, text: &str) -> Printed {
        let command = format!(
            "{ENVIRONMENT}\nPGPASSWORD=pencil exec stdbuf -oL {}",
            self.psql
        );
        let open = self.sessions.remove(name);
        let mut psql = open.unwrap_or_else(|| Psql::open(self.room.shell(&command)));
        let printed = psql.type_in(text);
        if psql.is_open && !name.is_empty() {
            self.sessions.insert(name.to_owned(), psql);
        }
        printed
    }

    /// Replaces keys of the configuration, and adds missing ones.
    fn set(&mut self, text: &str) {
        let path = self.configuration.as_ref().expect("a configuration");
        let path = self.room.path(path);
        let old = std::fs::read_to_string(&path).expect("read the configuration");
        let replaced: Vec<&str> = text.lines().filter_map(key).collect();
        let is_replaced = |line: &str| key(line).is_some_and(|key| replaced.contains(&key));
        let kept = old.lines().filter(|line| !is_replaced(line));
        let new = kept.chain(text.lines()).collect::<Vec<_>>().join("\n");
        std::fs::write(path, new + "\n").expect("write the configuration");
        self.is_changed = true;
    }

    fn restart_if_changed(&mut self) {
        if self.is_changed {
            self.stop();
            self.start();
        }
    }

    fn start(&mut self) -> Printed {
        let command = &mut self.room.shell(&format!("exec {}", self.start));
        let mut proxy = Running::spawn(command, self.room.log(), TERM).expect("start the proxy");
        let output = machine::wait_for("the proxy to listen", || {
            let has_ended = proxy.ended().is_some();
            let output = proxy.output();
            assert!(!has_ended, "the proxy does not start:\n{output}");
            output.contains("listening on ").then_some(output)
        });
        self.proxy = Some(proxy);
        self.is_changed = false;
        Printed {
            text: output,
            succeeded: true,
        }
    }

    fn stop(&mut self) {
        let mut proxy = self.proxy.take().expect("a proxy");
        // Open sessions would use up the whole shutdown grace.
        self.sessions.clear();
        let printed = self.room.run("kill $(pidof pgpalisade)", "");
        assert!(printed.succeeded, "no proxy runs: {}", printed.text);
        let ended = proxy.wait(Duration::from_secs(20));
        assert!(
            ended.is_some(),
            "the proxy does not end:\n{}",
            proxy.output()
        );
    }
}

/// Even if it is commented out.
fn key(line: &str) -> Option<&str> {
    let (key, _) = line.split_once(" = ")?;
    Some(key.trim_start_matches("# "))
}

/// Keeps the exported variables of a shell for later ones.
const ENVIRONMENT: &str =
    "test ! -e /root/exported || . /root/exported\ntrap 'export -p >/root/exported' EXIT";

struct Psql {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    is_open: bool,
}

impl Psql {
    fn open(mut command: Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start psql");
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        Self {
            child,
            input,
            output,
            is_open: true,
        }
    }

    /// Returns psql's output.
    fn type_in(&mut self, text: &str) -> Printed {
        const END: &str = "-- end of the block --";
        let _it_may_have_ended = writeln!(self.input, "{text}\\echo '{END}'");
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            let length = self.output.read_line(&mut line).expect("read psql");
            self.is_open = length > 0;
            if !self.is_open || line.trim_end() == END {
                break;
            }
            lines.push(line);
        }
        let is_failure = |line: &String| {
            ["ERROR:", "FATAL:", "psql:"]
                .iter()
                .any(|word| line.starts_with(word))
        };
        Printed {
            succeeded: self.is_open && !lines.iter().any(is_failure),
            text: lines.concat(),
        }
    }
}

impl Drop for Psql {
    fn drop(&mut self) {
        // psql ends with its input.
        let _broken = self.input.write_all(b"\\q\n");
        let _ended = self.child.wait();
    }
}
