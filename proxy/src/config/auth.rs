//! Client logins: the keys `auth`, `auth_file` and `auth_query`.

use std::path::PathBuf;

use pgpalisade_server::accounts::{Auth, VerifierSource};
use pgpalisade_server::certificates::ClientTls;

use super::key::Key;
use super::values::{Values, path};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Relay,
    Scram,
    Password,
}

const METHODS: [(&str, Method); 3] = [
    ("relay", Method::Relay),
    ("scram", Method::Scram),
    ("password", Method::Password),
];

pub(super) fn read(values: &mut Values<'_>, tls: Option<&ClientTls>) -> Option<Auth> {
    let method = values.choice(Key::Auth, &METHODS)?;
    let file = values.last(Key::AuthFile, path);
    let query = values.last(Key::AuthQuery, query);
    values.accept(fit(method, file, query, tls))
}

fn fit(
    method: Method,
    file: Option<PathBuf>,
    query: Option<String>,
    tls: Option<&ClientTls>,
) -> Result<Auth, &'static str> {
    match (method, file, query) {
        (Method::Scram, Some(file), None) => Ok(Auth::Scram(VerifierSource::File(file))),
        (Method::Scram, None, Some(query)) => Ok(Auth::Scram(VerifierSource::Query(query))),
        (Method::Scram, None, None) => {
            Err("auth is scram, but neither auth_file nor auth_query is given")
        }
        (Method::Scram, Some(_), Some(_)) => {
            Err("auth_file and auth_query are both given: remove one of them")
        }
        (_, Some(_), _) | (_, _, Some(_)) => {
            Err("auth_file and auth_query are for auth = \"scram\" only")
        }
        (Method::Password, ..) if tls == Some(&ClientTls::Off) => Err(
            "auth is password, but a password is accepted over TLS only: write tls.mode = \"require\"",
        ),
        (Method::Password, ..) => Ok(Auth::Password),
        (Method::Relay, ..) => Ok(Auth::Relay),
    }
}

fn query(text: &str) -> Result<String, String> {
    if text.contains("$1") {
        Ok(text.to_owned())
    } else {
        Err(String::from("has no $1, which stands for the user"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::values::choose;
    use super::*;

    fn finished(values: &[(Key, &str)]) -> Result<Auth, String> {
        let last = |wanted: Key| {
            let found = values.iter().find(|(key, _)| *key == wanted);
            found.map(|(_, text)| *text)
        };
        let query = last(Key::AuthQuery).map(query).transpose()?;
        let method = choose(last(Key::Auth).unwrap_or("relay"), &METHODS)?;
        let file = last(Key::AuthFile).map(PathBuf::from);
        fit(method, file, query, Some(&ClientTls::Off)).map_err(str::to_owned)
    }

    #[test]
    fn keys_have_to_fit() {
        let (file, query) = ((Key::AuthFile, "/f"), (Key::AuthQuery, "SELECT $1, $1"));
        let scram = (Key::Auth, "scram");
        assert_eq!(finished(&[]), Ok(Auth::Relay));
        assert_eq!(finished(&[(Key::Auth, "relay")]), Ok(Auth::Relay));
        let source = VerifierSource::File("/f".into());
        assert_eq!(finished(&[scram, file]), Ok(Auth::Scram(source)));
        let source = VerifierSource::Query("SELECT $1, $1".to_owned());
        assert_eq!(finished(&[scram, query]), Ok(Auth::Scram(source)));
        for (values, part) in [
            (vec![scram], "neither auth_file nor auth_query"),
            (vec![scram, file, query], "both given"),
            (vec![file], "are for auth = \"scram\" only"),
            (vec![(Key::Auth, "password"), query], "are for auth"),
            (vec![(Key::Auth, "password")], "over TLS only"),
            (vec![(Key::Auth, "md5")], "write relay, scram or password"),
            (vec![(Key::AuthQuery, "SELECT 1")], "has no $1"),
        ] {
            let error = finished(&values).unwrap_err();
            assert!(error.contains(part), "{values:?}: {error}");
        }
    }
}
