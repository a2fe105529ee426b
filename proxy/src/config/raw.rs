//! Stage one: values as written, with their sources, in rising rank.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::Metadata;
use std::path::{Path, PathBuf};

use pgpalisade_policies::nearest;
use pgpalisade_tls::{OPEN_TO_ALL, is_open_to_all};

use super::error::{ConfigError, ValueOrigin};
use super::file::{self, Item, RawValue};
use super::key::{KEYS, Key, KeySpec, TomlType};

/// All values, lowest rank first: defaults, file, environment, flags.
#[derive(Debug, Clone, Default)]
pub(crate) struct RawConfig {
    pub(crate) values: Vec<RawValue>,
    pub(crate) errors: Vec<ConfigError>,
    /// The file could not be read, so its keys are unknown.
    pub(crate) file_unread: bool,
}

#[derive(Clone, Default)]
pub(crate) struct Environment(BTreeMap<OsString, OsString>);

#[derive(Clone, Default)]
pub(crate) struct Flags {
    pub config_file: Option<PathBuf>,
    pub values: Vec<(Key, Vec<String>)>,
}

impl Environment {
    pub(crate) fn of_this_process() -> Self {
        Self::from_pairs(std::env::vars_os())
    }

    pub(crate) fn from_pairs(pairs: impl Iterator<Item = (OsString, OsString)>) -> Self {
        Self(pairs.collect())
    }

    /// A variable that is set, not empty and valid Unicode. PostgreSQL too treats an empty one as unset.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let value = self.0.get(&OsString::from(name))?.to_str()?;
        (!value.is_empty()).then_some(value)
    }
}

pub(crate) const CONFIG_ENV: &str = "PGPALISADE_CONFIG";

impl RawConfig {
    /// Collects all sources, with their errors, for [`super::Config::from_raw`].
    pub(crate) fn collect(flags: &Flags, environment: &Environment) -> Self {
        let mut raw = Self::default();
        raw.add_defaults(environment);
        let file = flags
            .config_file
            .clone()
            .or_else(|| environment.get(CONFIG_ENV).map(PathBuf::from));
        if let Some(path) = file {
            raw.add_file(&path);
        }
        raw.add_environment(environment);
        raw.add_flags(flags);
        raw
    }

    pub(crate) fn differing(&self, other: &Self) -> Vec<&'static str> {
        let keys = KEYS.iter();
        let differing = keys.filter(|spec| self.texts(spec.key) != other.texts(spec.key));
        differing.map(|spec| spec.name).collect()
    }

    pub(crate) fn text(&self, key: Key) -> Option<&str> {
        self.texts(key)?.first().copied()
    }

    pub(super) fn texts(&self, key: Key) -> Option<Vec<&str>> {
        let mut values = self.values.iter().rev();
        let value = values.find(|value| value.key == key)?;
        Some(value.items.iter().map(|item| item.text.as_str()).collect())
    }

    /// Whether a source other than the defaults has the key.
    pub(super) fn is_set(&self, key: Key) -> bool {
        let mut values = self.values.iter().filter(|value| value.key == key);
        values.any(|value| value.source != ValueOrigin::Default)
    }

    fn add_defaults(&mut self, environment: &Environment) {
        for spec in KEYS {
            if let Some(default) = spec.default() {
                self.add(spec.key, vec![default.to_owned()], &ValueOrigin::Default);
            }
        }
        // Familiar to users of Rust programs, so it ranks between the default and our own names.
        if let Some(filter) = environment.get("RUST_LOG") {
            let source = ValueOrigin::Environment(String::from("RUST_LOG"));
            self.add(Key::Log, vec![filter.to_owned()], &source);
        }
    }

    fn add_file(&mut self, path: &Path) {
        match read_bounded(path) {
            Ok((text, metadata)) => {
                let (values, errors) = match file::parse(path, &text) {
                    Ok(read) => read,
                    Err(error) => {
                        self.file_unread = true;
                        return self.errors.push(error);
                    }
                };
                if is_open_to_all(&metadata) {
                    let secrets = values.iter().filter(|value| value.holds_password());
                    let refused = |value: &RawValue| {
                        let message = format!("has a password, and the file {OPEN_TO_ALL}");
                        ConfigError::new(&value.source, message)
                    };
                    self.errors.extend(secrets.map(refused));
                }
                self.values.extend(values);
                self.errors.extend(errors);
            }
            Err(message) => {
                self.file_unread = true;
                let path = path.to_path_buf();
                let source = ValueOrigin::File { path, line: 1 };
                self.errors.push(ConfigError::new(&source, message));
            }
        }
    }

    fn add_environment(&mut self, environment: &Environment) {
        for (name, value) in &environment.0 {
            let name = name.to_string_lossy();
            if !name.starts_with("PGPALISADE_") || name == CONFIG_ENV || is_service_link(&name) {
                continue;
            }
            let source = ValueOrigin::Environment(name.clone().into_owned());
            let Some(KeySpec { key, shape, .. }) = Key::by_env(&name) else {
                let names: Vec<String> = KEYS.iter().map(|spec| spec.env()).collect();
                let hint = nearest(&name, names.iter().map(String::as_str))
                    .map_or_else(String::new, |near| format!(" (did you mean {near}?)"));
                self.errors
                    .push(ConfigError::new(&source, format!("unknown variable{hint}")));
                continue;
            };
            match value.to_str() {
                None => self
                    .errors
                    .push(ConfigError::new(&source, "is not valid Unicode")),
                Some("") => {}
                Some(value) if *shape == TomlType::List => {
                    let items = value.split(',').map(str::to_owned).collect();
                    self.add(*key, items, &source);
                }
                Some(value) => self.add(*key, vec![value.to_owned()], &source),
            }
        }
    }

    fn add_flags(&mut self, flags: &Flags) {
        for (key, texts) in &flags.values {
            let source = ValueOrigin::Flag(key.spec().flag());
            self.add(*key, texts.clone(), &source);
        }
    }

    fn add(&mut self, key: Key, texts: Vec<String>, source: &ValueOrigin) {
        let item = |text| Item {
            text,
            source: source.clone(),
        };
        self.values.push(RawValue {
            key,
            items: texts.into_iter().map(item).collect(),
            source: source.clone(),
        });
    }
}

/// Kubernetes sets such variables if the name of a Service begins with `pgpalisade`:
/// <https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables>.
fn is_service_link(name: &str) -> bool {
    name.ends_with("_PORT") || name.contains("_PORT_") || name.contains("_SERVICE_")
}

fn read_bounded(path: &Path) -> Result<(String, Metadata), String> {
    use std::io::Read as _;
    let mut text = String::new();
    let file =
        std::fs::File::open(path).map_err(|error| format!("cannot open the file: {error}"))?;
    let metadata = file.metadata();
    let metadata = metadata.map_err(|error| format!("cannot read the file: {error}"))?;
    file.take(file::MAX_FILE_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| format!("cannot read the file: {error}"))?;
    if text.len() as u64 > file::MAX_FILE_BYTES {
        return Err(format!("is larger than {} bytes", file::MAX_FILE_BYTES));
    }
    Ok((text, metadata))
}
