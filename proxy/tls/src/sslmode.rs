//! `sslmode` and its files, as in libpq:
//! <https://www.postgresql.org/docs/current/libpq-ssl.html#LIBPQ-SSL-PROTECTION>.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    #[default]
    Disable,
    /// TLS if the server has it.
    Prefer,
    /// TLS with any server.
    Require,
    /// A trusted root must have signed the certificate.
    VerifyCa,
    /// The certificate must also be for the given host name.
    VerifyFull,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    System,
    File(PathBuf),
}

/// TLS parameters of a connection string, checked. libpq looks for unnamed files in a home directory; here they must
/// be named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SslSettings {
    pub mode: SslMode,
    /// Always set if anything is verified.
    pub root: Option<Root>,
    pub certificate: Option<(PathBuf, PathBuf)>,
}

const NAMES: [&str; 4] = ["sslmode", "sslrootcert", "sslcert", "sslkey"];

#[derive(Debug, Default)]
pub(crate) struct Written(BTreeMap<&'static str, String>);

impl Written {
    pub(crate) fn takes(name: &str) -> bool {
        NAMES.contains(&name)
    }

    /// Adds a parameter, if it is about TLS. Returns whether it is.
    pub(crate) fn add(&mut self, name: &str, value: String) -> Result<bool, String> {
        let Some(name) = NAMES.into_iter().find(|known| *known == name) else {
            return Ok(false);
        };
        match self.0.insert(name, value) {
            None => Ok(true),
            Some(_) => Err(format!("gives {name} twice")),
        }
    }

    /// Checks the parameters; `None` if none was given.
    pub(crate) fn settings(&self) -> Result<Option<SslSettings>, String> {
        if self.0.is_empty() {
            return Ok(None);
        }
        self.checked().map(Some)
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn checked(&self) -> Result<SslSettings, String> {
        let mode = match self.get("sslmode") {
            None => return Err(String::from("names files for TLS but no sslmode")),
            Some("disable") => SslMode::Disable,
            Some("prefer") => SslMode::Prefer,
            Some("require") => SslMode::Require,
            Some("verify-ca") => SslMode::VerifyCa,
            Some("verify-full") => SslMode::VerifyFull,
            Some("allow") => {
                return Err(String::from(
                    "has sslmode=allow, which asks for TLS only after a refusal: write prefer or require",
                ));
            }
            Some(_) => {
                return Err(String::from(
                    "has an unknown sslmode: write disable, prefer, require, verify-ca or verify-full",
                ));
            }
        };
        let root = match self.get("sslrootcert") {
            None => None,
            Some("system") => Some(Root::System),
            Some(path) => Some(Root::File(file("sslrootcert", path)?)),
        };
        match (mode, &root) {
            (SslMode::VerifyCa | SslMode::VerifyFull, None) => {
                return Err(String::from(
                    "verifies the server but trusts no certificate authority: add sslrootcert=FILE, or \
                        sslrootcert=system",
                ));
            }
            (SslMode::Require | SslMode::VerifyCa, Some(Root::System)) => {
                return Err(String::from(
                    "accepts any certificate that the system trusts, for any host: sslrootcert=system needs \
                        sslmode=verify-full",
                ));
            }
            (SslMode::Disable | SslMode::Prefer, Some(_)) => {
                return Err(String::from(
                    "has sslrootcert, but an sslmode that verifies nothing: write require, verify-ca or verify-full",
                ));
            }
            _ => {}
        }
        let certificate = match (self.get("sslcert"), self.get("sslkey")) {
            (None, None) => None,
            (Some(certificate), Some(key)) => {
                Some((file("sslcert", certificate)?, file("sslkey", key)?))
            }
            _ => {
                return Err(String::from(
                    "has one of sslcert and sslkey without the other",
                ));
            }
        };
        Ok(SslSettings {
            mode,
            root,
            certificate,
        })
    }
}

impl SslSettings {
    /// The settings of libpq's environment, by the names in a connection string; `None` if it asks for nothing. Files
    /// that the mode would not use are ignored, as by libpq.
    ///
    /// # Errors
    ///
    /// The reason, without any value.
    pub fn from_variables<'a>(
        variable: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<Option<Self>, String> {
        let mode = variable("PGSSLMODE").filter(|mode| *mode != "allow");
        let Some(mode) = mode else { return Ok(None) };
        let mut written = Written::default();
        written.add("sslmode", mode.to_owned())?;
        let verifies = !matches!(mode, "disable" | "prefer");
        for (name, of, is_used) in [
            ("sslrootcert", "PGSSLROOTCERT", verifies),
            ("sslcert", "PGSSLCERT", mode != "disable"),
            ("sslkey", "PGSSLKEY", mode != "disable"),
        ] {
            if let Some(value) = variable(of).filter(|_| is_used) {
                written.add(name, value.to_owned())?;
            }
        }
        written.settings()
    }
}

/// An absolute path, valid in another working directory.
fn file(name: &str, path: &str) -> Result<PathBuf, String> {
    std::path::absolute(Path::new(path))
        .map_err(|error| format!("has an {name} that names no file: {error}"))
}
