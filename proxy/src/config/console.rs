//! The console: the keys `console`, `console_auth_file` and `console_admins`.

use std::path::PathBuf;

use pgpalisade_server::listener::ListenAddr;

use super::key::Key;
use super::listen;
use super::values::{Values, path};

/// Port of a socket directory without one.
const DEFAULT_PORT: u16 = 6433;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConsoleAddr {
    pub listen: ListenAddr,
    pub auth_file: Option<PathBuf>,
    pub admins: Vec<String>,
}

impl ConsoleAddr {
    pub(super) fn read(values: &mut Values<'_>) -> Option<Self> {
        let listen = values.last(Key::Console, |text| {
            listen::parse_with_default(text, DEFAULT_PORT)
        });
        let auth_file = values.last(Key::ConsoleAuthFile, path);
        let admins = values.last_list(Key::ConsoleAdmins, name, |_| true);
        values.accept(fit(listen, auth_file, admins.unwrap_or_default()))?
    }
}

fn name(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err(String::from("names no user"))
    } else {
        Ok(text.to_owned())
    }
}

fn fit(
    listen: Option<ListenAddr>,
    auth_file: Option<PathBuf>,
    admins: Vec<String>,
) -> Result<Option<ConsoleAddr>, String> {
    let Some(listen) = listen else {
        return match (auth_file, admins.is_empty()) {
            (None, true) => Ok(None),
            _ => Err(String::from(
                "console_auth_file or console_admins is set, but console is not: write where to listen, such as \
                 console = \"127.0.0.1:6433\"",
            )),
        };
    };
    match (&listen, &auth_file) {
        (ListenAddr::Tcp(address), _) if !address.ip().is_loopback() => Err(format!(
            "console listens on {address}, which other machines may reach, but it has no TLS: listen on 127.0.0.1:{}, \
             or on a unix socket",
            address.port()
        )),
        (ListenAddr::Tcp(address), None) => Err(format!(
            "console listens on {address}, where everybody on this machine could log in: set console_auth_file, or \
             listen on a unix socket, such as console = \"/run/pgpalisade\", where the user of pgpalisade and root \
             need no password"
        )),
        (_, None) if !admins.is_empty() => Err(String::from(
            "console_admins names users, but console_auth_file, which has their verifiers, is not set",
        )),
        _ => Ok(Some(ConsoleAddr {
            listen,
            auth_file,
            admins,
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(listen: &str, file: Option<&str>, admins: &[&str]) -> Result<(), String> {
        let listen = (!listen.is_empty()).then(|| listen::parse(listen).unwrap());
        let admins = admins.iter().map(|name| (*name).to_owned()).collect();
        super::fit(listen, file.map(PathBuf::from), admins).map(drop)
    }

    #[test]
    fn nobody_gets_in_without_being_known() {
        assert_eq!(fit("", None, &[]), Ok(()));
        for listen in ["127.0.0.1:1", "[::1]:1", "/run"] {
            assert_eq!(fit(listen, Some("/users"), &["ann"]), Ok(()));
            assert_eq!(fit(listen, Some("/users"), &[]), Ok(()));
        }
        assert_eq!(fit("/run", None, &[]), Ok(()));
        for (listen, file, admins, says) in [
            ("127.0.0.1:1", None, &[][..], "set console_auth_file"),
            ("0.0.0.0:1", Some("/users"), &[], "no TLS"),
            ("[::ffff:127.0.0.1]:1", Some("/users"), &[], "no TLS"),
            ("/run", None, &["ann"], "console_auth_file"),
            ("", Some("/users"), &[], "console is not"),
            ("", None, &["ann"], "console is not"),
        ] {
            let error = fit(listen, file, admins).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_directory_has_a_port_of_its_own() {
        let listen = listen::parse_with_default("/run", DEFAULT_PORT).unwrap();
        assert_eq!(listen.to_string(), "/run/.s.PGSQL.6433");
    }
}
