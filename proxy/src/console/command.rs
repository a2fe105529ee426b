//! The language of the console: words, without nesting.

use super::table::Table;
use super::tables::all_tables;
use super::{ConsoleError, Stop};

#[derive(Debug, Clone, Copy, strum::IntoStaticStr)]
#[strum(serialize_all = "UPPERCASE")]
pub(super) enum Command {
    Show(&'static Table),
    Reload,
    Kill(u64),
    Pause,
    Resume,
    Shutdown(Stop),
    Set,
}

/// Settings that drivers make.
const SETTINGS: &str =
    "application_name client_encoding client_min_messages datestyle extra_float_digits";

/// Commands of PostgreSQL, which clients may try.
const SQL: &str = "abort begin call close commit copy declare deallocate delete discard explain insert reset \
                   rollback select start update with";

const HELP: &str = "SHOW HELP lists the commands.";
const NO_TRANSACTIONS: &str =
    "It has no transactions either: set autocommit in a driver. SHOW HELP lists the commands.";
const SETTINGS_SHOWN: &str =
    "SHOW CONFIG shows the settings of pgpalisade, which are in its configuration.";

impl Command {
    /// Parses the commands between semicolons.
    pub(super) fn parse_all(text: &str) -> Result<Vec<Self>, ConsoleError> {
        let statements = statements(text)?;
        statements.iter().map(|words| Self::parse(words)).collect()
    }

    fn parse(words: &[&str]) -> Result<Self, ConsoleError> {
        let lower: Vec<String> = words.iter().map(|word| word.to_ascii_lowercase()).collect();
        let lower: Vec<&str> = lower.iter().map(String::as_str).collect();
        match lower.as_slice() {
            ["show", name] => show(name),
            ["reload"] => Ok(Self::Reload),
            ["kill" | "kill_client", id] => {
                let no_id = ConsoleError::new("42601", "KILL needs the id of a client");
                let no_id = |_| no_id.hint("SHOW CLIENTS shows it in its column id.");
                id.parse().map(Self::Kill).map_err(no_id)
            }
            ["pause"] => Ok(Self::Pause),
            ["resume"] => Ok(Self::Resume),
            ["pause" | "resume", ..] => {
                let message = "PAUSE and RESUME are for all databases";
                Err(ConsoleError::new("0A000", message).hint("Write them without a name."))
            }
            ["shutdown"] => Ok(Self::Shutdown(Stop::Now)),
            ["shutdown", "wait_for_clients"] => Ok(Self::Shutdown(Stop::WhenClientsHaveLeft)),
            ["set", setting, "to" | "=", value] => set(setting, value),
            [word, ..] if has(SQL, word) => {
                let word = word.to_ascii_uppercase();
                let message = format!("the console is not a database: it has no {word}");
                Err(ConsoleError::new("0A000", message).hint(NO_TRANSACTIONS))
            }
            _ => Err(ConsoleError::new("42601", "this is not a command of the console").hint(HELP)),
        }
    }

    pub(super) const fn only_reads(self) -> bool {
        matches!(self, Self::Show(_) | Self::Set)
    }

    pub(super) fn tag(self) -> &'static str {
        self.into()
    }
}

fn has(words: &str, word: &str) -> bool {
    words.split(' ').any(|other| other == word)
}

fn show(name: &str) -> Result<Command, ConsoleError> {
    let table = all_tables().find(|table| table.name.eq_ignore_ascii_case(name));
    let no_such = || ConsoleError::new("42704", "there is no such table to SHOW").hint(HELP);
    table.map(Command::Show).ok_or_else(no_such)
}

fn set(setting: &str, value: &str) -> Result<Command, ConsoleError> {
    let is_encoding = matches!(value, "utf8" | "utf-8" | "unicode");
    match setting {
        "client_encoding" if !is_encoding => {
            Err(ConsoleError::new("22023", "the console speaks UTF8 only")
                .hint("Leave client_encoding as it is."))
        }
        _ if has(SETTINGS, setting) => Ok(Command::Set),
        _ => {
            let no_settings = ConsoleError::new("0A000", "the console has no settings to change");
            Err(no_settings.hint(SETTINGS_SHOWN))
        }
    }
}

/// The words of each statement, without comments. Quotes around a word are removed.
fn statements(text: &str) -> Result<Vec<Vec<&str>>, ConsoleError> {
    let open = || ConsoleError::new("42601", "a comment or a string does not end").hint(HELP);
    let (mut all, mut words) = (Vec::new(), Vec::new());
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let behind = |token: &str| rest.get(token.len()..).unwrap_or_default();
        rest = if rest.starts_with("--") {
            rest.split_once('\n').map_or("", |(_, next)| next)
        } else if rest.starts_with("/*") {
            rest.split_once("*/").ok_or_else(open)?.1
        } else if let '\'' | '"' = first {
            let (word, next) = behind("'").split_once(first).ok_or_else(open)?;
            words.push(word);
            next
        } else if first == ';' {
            all.push(std::mem::take(&mut words));
            behind(";")
        } else if first == '=' {
            words.push("=");
            behind("=")
        } else {
            let ends = |c: char| c.is_whitespace() || matches!(c, ';' | '=' | '\'' | '"');
            let (word, next) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
            words.push(word);
            next
        };
        rest = rest.trim_start();
    }
    all.push(words);
    all.retain(|words| !words.is_empty());
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Result<Vec<String>, &'static str> {
        let all = Command::parse_all(text).map_err(|failure| failure.sqlstate)?;
        let name = |command: &Command| match command {
            Command::Show(table) => format!("SHOW {}", table.name),
            Command::Kill(id) => format!("KILL {id}"),
            Command::Shutdown(stop) => format!("SHUTDOWN {stop:?}"),
            other => other.tag().to_owned(),
        };
        Ok(all.iter().map(name).collect())
    }

    #[test]
    fn words() {
        for (text, expect) in [
            ("", &[][..]),
            (";;", &[]),
            ("-- ping", &[]),
            ("/* a;b */ Show /**/ version -- x\n;", &["SHOW VERSION"]),
            ("SHOW LISTS;show\tConfig", &["SHOW LISTS", "SHOW CONFIG"]),
            ("KILL 12", &["KILL 12"]),
            ("kill_client '12';", &["KILL 12"]),
            ("pause; RESUME", &["PAUSE", "RESUME"]),
            ("SHUTDOWN", &["SHUTDOWN Now"]),
            (
                "shutdown wait_for_clients",
                &["SHUTDOWN WhenClientsHaveLeft"],
            ),
            ("SET application_name = 'a; b'", &["SET"]),
            ("set extra_float_digits=3", &["SET"]),
            ("SET client_encoding TO 'UTF8'", &["SET"]),
        ] {
            let expect: Vec<String> = expect.iter().map(|&word| word.to_owned()).collect();
            assert_eq!(said(text), Ok(expect), "{text}");
        }
        for (text, sqlstate) in [
            ("SHOW", "42601"),
            ("SHOW 'VERSION", "42601"),
            ("SHOW VERSION /*", "42601"),
            ("SHOW VERSION LISTS", "42601"),
            ("SHOW server_version", "42704"),
            ("KILL", "42601"),
            ("KILL -1", "42601"),
            ("KILL 99999999999999999999", "42601"),
            ("RELOAD now", "42601"),
            ("BEGIN", "0A000"),
            ("select 1", "0A000"),
            ("PAUSE app", "0A000"),
            ("RECONNECT", "42601"),
            ("SET fencing.token = 1", "0A000"),
            ("SET client_encoding = latin1", "22023"),
            ("\u{feff}SHOW VERSION", "42601"),
        ] {
            assert_eq!(said(text), Err(sqlstate), "{text}");
        }
    }

    #[test]
    fn no_two_tables_have_one_name() {
        let mut names: Vec<&str> = all_tables().map(|table| table.name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
