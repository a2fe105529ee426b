//! The configuration file of the package: every key with its help, and its default or an example.

use pgpalisade_fence::readable::wrapped;

use super::key::{KEYS, Key, KeySpec, Sample, TomlType};

/// Columns of a line, as everywhere in this repository.
const COLUMNS: usize = 120;

const HEAD: &str = "\
The configuration of pgpalisade: every key, with its default or an example. \"pgpalisade check --config FILE\" checks \
it. SIGHUP (systemctl reload) reads policy, certificates and users again; other changes need a restart, or an \
upgrade in place (SIGUSR2). Write further keys in full (connections.max) anywhere above the first [table].";

pub(crate) fn example() -> String {
    let mut text = wrapped(HEAD, "# ", COLUMNS);
    let mut headings: Vec<&str> = KEYS.iter().map(|spec| spec.heading).collect();
    let mut seen = Vec::new();
    headings.retain(|heading| {
        let is_new = !seen.contains(heading);
        seen.push(heading);
        is_new
    });
    for heading in headings {
        let rule = "-".repeat(COLUMNS - 4 - heading.len());
        text.push_str(&format!("\n# {heading} {rule}\n"));
        for spec in KEYS.iter().filter(|spec| spec.heading == heading) {
            text.push_str(&described(spec));
        }
    }
    text
}

fn described(spec: &KeySpec) -> String {
    // In the file such a key is a list.
    let help = spec.help.replace("; may be given several times", "");
    let said = match spec.more {
        "" => format!("{help}."),
        more => format!("{help}. {more}"),
    };
    let (mark, value) = match (spec.key, spec.sample) {
        // Below PostgreSQL's own default of 100.
        (Key::ConnectionsMax, _) => ("", "90"),
        (_, Sample::Set(value)) => ("", value),
        (_, Sample::Default(value) | Sample::Example(value)) => ("#", value),
    };
    let value = match spec.shape {
        TomlType::Number => value.to_owned(),
        TomlType::Switch => (value == "on").to_string(),
        TomlType::List => format!("[\"{value}\"]"),
        TomlType::Tables => format!("[{value}]"),
        TomlType::Text | TomlType::Duration => format!("\"{value}\""),
    };
    let said = wrapped(&said, "# ", COLUMNS);
    format!("\n{said}{mark}{} = {value}\n", spec.name)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::file::parse;
    use super::super::{Config, Environment, Flags, RawConfig};
    use super::*;

    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/pgpalisade.toml");

    #[test]
    fn the_package_has_this_file() {
        let file = std::fs::read_to_string(FILE).unwrap();
        let how = "\"pgpalisade package-files DIR\" writes it to DIR/pgpalisade.toml";
        assert_eq!(file, example(), "{how}");
        assert!(file.lines().all(|line| line.len() <= COLUMNS));
    }

    /// Removes the `#` of keys that are commented out.
    fn uncommented() -> String {
        let key = |line: &str| match line.strip_prefix('#') {
            Some(key) if !key.is_empty() && !key.starts_with(' ') => key.to_owned(),
            _ => line.to_owned(),
        };
        let lines: Vec<String> = example().lines().map(key).collect();
        lines.join("\n")
    }

    #[test]
    fn every_key_is_there_and_read() {
        let (values, errors) = parse(Path::new("x"), &uncommented()).unwrap();
        assert!(errors.is_empty(), "{errors:?}");
        for spec in KEYS {
            let read = values.iter().filter(|value| value.key == spec.key);
            assert_eq!(read.count(), 1, "{}", spec.name);
        }
        let (set, errors) = parse(Path::new("x"), &example()).unwrap();
        assert_eq!((set.len(), errors.len()), (5, 0), "{set:?}");
    }

    /// All keys together, except the second source of verifiers, with the required file modes.
    #[test]
    fn every_value_is_sound() {
        let all = uncommented();
        let all: Vec<&str> = all
            .lines()
            .filter(|line| !line.starts_with("auth_query"))
            .collect();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("all.toml");
        std::fs::write(&path, all.join("\n")).unwrap();
        let modes = [
            (Key::Auth, vec!["scram".to_owned()]),
            (Key::TlsMode, vec!["require".to_owned()]),
            (Key::Pool, vec!["transaction".to_owned()]),
        ];
        let nothing = || Environment::from_pairs(std::iter::empty());
        let checked = |file: &Path, values| {
            let config_file = Some(file.to_path_buf());
            let flags = Flags {
                config_file,
                values,
            };
            let raw = RawConfig::collect(&flags, &nothing());
            Config::from_raw(raw, &nothing()).map(drop)
        };
        checked(&path, modes.into()).unwrap();
        checked(Path::new(FILE), Vec::new()).unwrap();
    }
}
