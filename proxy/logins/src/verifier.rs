//! PostgreSQL's password verifiers (`pg_authid.rolpassword`), and mocks for users without one.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use crate::scram::{KEY_LEN, ScramKey, hmac};

const ITERATIONS: u32 = 4096;

/// PostgreSQL's.
const SALT_LEN: usize = 16;

/// Separates secrets derived from a private key from all other uses of the key.
const MOCKS: [u8; KEY_LEN] = *b"pgpalisade: mock verifiers, v. 1";

/// Roles may have chosen their own shapes.
const SHAPES_MAX: usize = 16;

/// A SCRAM verifier. It allows guessing the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    pub(crate) salt: Vec<u8>,
    pub(crate) iterations: u32,
    pub(crate) stored_key: ScramKey,
    pub(crate) server_key: ScramKey,
}

const MD5: &str =
    "is an MD5 hash, but SCRAM needs \"SCRAM-SHA-256$...\", as in pg_authid.rolpassword";
const OTHER: &str =
    "is not a SCRAM verifier: it must begin with SCRAM-SHA-256$, as in pg_authid.rolpassword";
const BROKEN: &str = "is a malformed SCRAM verifier: it must be \
                      SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>";

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").finish_non_exhaustive()
    }
}

impl FromStr for Verifier {
    /// What a text that is no verifier is, without the text.
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let Some(rest) = text.strip_prefix("SCRAM-SHA-256$") else {
            let is_md5 = text
                .strip_prefix("md5")
                .is_some_and(|hash| hash.len() == 32);
            return Err(if is_md5 { MD5 } else { OTHER });
        };
        parse(rest).ok_or(BROKEN)
    }
}

fn parse(rest: &str) -> Option<Verifier> {
    let (iterations, rest) = rest.split_once(':')?;
    let (salt, keys) = rest.split_once('$')?;
    let (stored_key, server_key) = keys.split_once(':')?;
    let salt = STANDARD.decode(salt).ok()?;
    let iterations = iterations.parse().ok().filter(|&count: &u32| count > 0)?;
    let verifier = Verifier {
        salt,
        iterations,
        stored_key: ScramKey::from_base64(stored_key)?,
        server_key: ScramKey::from_base64(server_key)?,
    };
    (!verifier.salt.is_empty()).then_some(verifier)
}

/// The account of a user name. Both kinds have the same SCRAM exchange.
#[derive(Debug, Clone)]
pub enum Account {
    Known(Verifier),
    /// No password, or no such user: every proof is wrong.
    Unknown(Verifier),
}

impl Account {
    pub(crate) const fn verifier(&self) -> &Verifier {
        match self {
            Self::Known(verifier) | Self::Unknown(verifier) => verifier,
        }
    }
}

/// Iteration counts and salt lengths of the known verifiers, which every client can see. A mock must not change while
/// the process lives: a change would give it away.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shapes(BTreeSet<(u32, usize)>);

impl Shapes {
    /// The shape that PostgreSQL shows for users without a verifier (`mock_scram_secret` in auth-scram.c). Its
    /// iterations are the setting `scram_iterations`, if the version has it.
    #[must_use]
    pub fn of_server(iterations: Option<u32>) -> Self {
        let iterations = iterations.filter(|count| *count > 0);
        Self([(iterations.unwrap_or(ITERATIONS), SALT_LEN)].into())
    }

    /// Adds the shape of a real verifier. Returns whether it was new.
    pub fn add(&mut self, verifier: &Verifier) -> bool {
        self.0.len() < SHAPES_MAX && self.0.insert(shape(verifier))
    }

    /// One of the shapes, or PostgreSQL's own if none is known.
    fn choose(&self, number: u8) -> (u32, usize) {
        let index = usize::from(number) % self.0.len().max(1);
        let chosen = self.0.iter().nth(index).copied();
        chosen.unwrap_or((ITERATIONS, SALT_LEN))
    }
}

fn shape(verifier: &Verifier) -> (u32, usize) {
    (verifier.iterations, verifier.salt.len().min(KEY_LEN))
}

/// Makes verifiers for users without one: always the same for a name, as long as the shapes stay.
pub struct Mocks {
    secret: Zeroizing<[u8; KEY_LEN]>,
    shapes: Shapes,
}

impl fmt::Debug for Mocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mocks").finish_non_exhaustive()
    }
}

impl Mocks {
    /// Derives a secret from a private key's file by HKDF-Extract:
    /// <https://www.rfc-editor.org/rfc/rfc5869#section-2.2>.
    #[must_use]
    pub fn secret_of(private_key: Vec<u8>) -> [u8; KEY_LEN] {
        hmac(&MOCKS, &[&Zeroizing::new(private_key)])
    }

    #[must_use]
    pub fn new(secret: [u8; KEY_LEN], shapes: Shapes) -> Self {
        Self {
            secret: Zeroizing::new(secret),
            shapes,
        }
    }

    #[must_use]
    pub fn of(&self, user: &[u8]) -> Account {
        let derive = |what: &[u8]| ScramKey(hmac(&self.secret, &[what, user]));
        let [number, ..] = derive(b"shape").0;
        let (iterations, salt_len) = self.shapes.choose(number);
        let mut salt = derive(b"salt").0.to_vec();
        salt.truncate(salt_len);
        Account::Unknown(Verifier {
            salt,
            iterations,
            stored_key: derive(b"stored"),
            server_key: derive(b"server"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORED: &str = "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=";
    const SERVER: &str = "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

    #[track_caller]
    fn refused(text: &str, expect: &str) {
        let error = text.parse::<Verifier>().unwrap_err();
        assert_eq!(error, expect, "{text}");
        assert!(!error.contains("hunter2"));
    }

    #[test]
    fn verifiers() {
        let text = format!("SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==${STORED}:{SERVER}");
        let verifier: Verifier = text.parse().unwrap();
        assert_eq!((verifier.iterations, verifier.salt.len()), (4096, 16));
        assert_eq!(format!("{verifier:?}"), "Verifier { .. }");
        refused("hunter2", OTHER);
        refused("", OTHER);
        refused("md5hunter2", OTHER);
        refused("md500000000000000000000000000000000", MD5);
        for broken in [
            "SCRAM-SHA-256$".to_owned(),
            format!("SCRAM-SHA-256$0:W22ZaA==${STORED}:{SERVER}"),
            format!("SCRAM-SHA-256$-1:W22ZaA==${STORED}:{SERVER}"),
            format!("SCRAM-SHA-256$4096:${STORED}:{SERVER}"),
            format!("SCRAM-SHA-256$4096:hunter2!${STORED}:{SERVER}"),
            format!("SCRAM-SHA-256$4096:W22ZaA==${STORED}"),
            format!("SCRAM-SHA-256$4096:W22ZaA==${STORED}:c2hvcnQ="),
        ] {
            refused(&broken, BROKEN);
        }
    }

    fn mock(secret: u8, shapes: &Shapes, user: &[u8]) -> Verifier {
        match Mocks::new([secret; KEY_LEN], shapes.clone()).of(user) {
            Account::Unknown(verifier) => verifier,
            Account::Known(_) => unreachable!(),
        }
    }

    fn of_shape(iterations: u32, salt: &str) -> Verifier {
        let text = format!("SCRAM-SHA-256${iterations}:{salt}${STORED}:{SERVER}");
        text.parse().unwrap()
    }

    #[test]
    fn who_does_not_exist_has_the_shape_of_the_server() {
        for (setting, expect) in [(None, 4096), (Some(0), 4096), (Some(15000), 15000)] {
            for user in [&b"nobody"[..], b"somebody"] {
                let shown = mock(7, &Shapes::of_server(setting), user);
                assert_eq!(shape(&shown), (expect, 16));
            }
        }
    }

    #[test]
    fn who_does_not_exist_looks_the_same_each_time() {
        let mut shapes = Shapes::default();
        let first = mock(7, &shapes, b"nobody");
        assert_eq!(first, mock(7, &shapes, b"nobody"));
        assert_eq!((first.iterations, first.salt.len()), (4096, 16));
        assert_ne!(first.salt, mock(7, &shapes, b"somebody").salt);
        assert_ne!(first.salt, mock(8, &shapes, b"nobody").salt);
        assert!(shapes.add(&of_shape(15000, "W22ZaA==")));
        let alike = mock(7, &shapes, b"nobody");
        assert_eq!((alike.iterations, alike.salt.len()), (15000, 4));
        assert_eq!(first.salt[..4], alike.salt);
    }

    /// A real verifier's shape does not give it away: some mocks share it.
    #[test]
    fn who_does_not_exist_has_every_shape() {
        let (mut shapes, mut expect) = (Shapes::default(), BTreeSet::new());
        for (iterations, salt) in [(4096, "W22ZaA=="), (4096, "W22Z"), (15000, "W22Z")] {
            let verifier = of_shape(iterations, salt);
            expect.insert(shape(&verifier));
            assert!(shapes.add(&verifier) && !shapes.add(&verifier));
        }
        let users = (0..200).map(|number| format!("nobody{number}"));
        let shown: BTreeSet<_> = users
            .map(|user| shape(&mock(7, &shapes, user.as_bytes())))
            .collect();
        assert_eq!(shown, expect);
        let added = (1..100).filter(|&count| shapes.add(&of_shape(count, "W22Z")));
        assert_eq!(added.count(), SHAPES_MAX - expect.len());
    }
}
