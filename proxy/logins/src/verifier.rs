//! What PostgreSQL keeps of a password (`pg_authid.rolpassword`), and what stands for it where there is none.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use crate::scram::{KEY_LEN, Key, hmac};

/// PostgreSQL's own, where nothing else is known.
const ITERATIONS: u32 = 4096;

/// PostgreSQL's own.
const SALT_LEN: usize = 16;

/// A SCRAM verifier. It is no password, but whoever has it can try passwords.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    pub(crate) salt: Vec<u8>,
    pub(crate) iterations: u32,
    pub(crate) stored_key: Key,
    pub(crate) server_key: Key,
}

/// Why a text is no verifier of SCRAM-SHA-256. It does not say what the text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VerifierError {
    /// A hash of the method `md5`.
    #[error(
        "is an MD5 hash, and SCRAM needs \"SCRAM-SHA-256$...\", as pg_authid.rolpassword has it"
    )]
    Md5,
    /// Something else: most often a password.
    #[error(
        "is no SCRAM verifier: it has to begin with SCRAM-SHA-256$, as pg_authid.rolpassword has it"
    )]
    Other,
    /// Begins as one.
    #[error(
        "is a broken SCRAM verifier: SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey> was expected"
    )]
    Broken,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").finish_non_exhaustive()
    }
}

impl FromStr for Verifier {
    type Err = VerifierError;

    fn from_str(text: &str) -> Result<Self, VerifierError> {
        let Some(rest) = text.strip_prefix("SCRAM-SHA-256$") else {
            let is_md5 = text
                .strip_prefix("md5")
                .is_some_and(|hash| hash.len() == 32);
            return Err(match is_md5 {
                true => VerifierError::Md5,
                false => VerifierError::Other,
            });
        };
        parse(rest).ok_or(VerifierError::Broken)
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
        stored_key: Key::from_base64(stored_key)?,
        server_key: Key::from_base64(server_key)?,
    };
    (!verifier.salt.is_empty()).then_some(verifier)
}

/// Whom a name stands for. The exchange is the same for both.
#[derive(Debug, Clone)]
pub enum Account {
    /// Who has a password.
    Known(Verifier),
    /// Who has none, or does not exist: no proof is right.
    Unknown(Verifier),
}

impl Account {
    pub(crate) const fn verifier(&self) -> &Verifier {
        match self {
            Self::Known(verifier) | Self::Unknown(verifier) => verifier,
        }
    }
}

/// Makes verifiers for those who have none. For one name it is always the same.
pub struct Mocks {
    secret: Zeroizing<[u8; KEY_LEN]>,
    iterations: u32,
    salt_len: usize,
}

impl fmt::Debug for Mocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mocks").finish_non_exhaustive()
    }
}

impl Mocks {
    /// Of a secret of this process.
    #[must_use]
    pub fn new(secret: [u8; KEY_LEN]) -> Self {
        Self {
            secret: Zeroizing::new(secret),
            iterations: ITERATIONS,
            salt_len: SALT_LEN,
        }
    }

    /// Makes them look like a true one.
    pub fn resemble(&mut self, verifier: &Verifier) {
        self.iterations = verifier.iterations;
        self.salt_len = verifier.salt.len().min(KEY_LEN);
    }

    /// Stands for somebody without a verifier.
    #[must_use]
    pub fn of(&self, user: &[u8]) -> Account {
        let derive = |what: &[u8]| Key(hmac(&self.secret, &[what, user]));
        let mut salt = derive(b"salt").0.to_vec();
        salt.truncate(self.salt_len);
        Account::Unknown(Verifier {
            salt,
            iterations: self.iterations,
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
    fn refused(text: &str, expect: VerifierError) {
        let error = text.parse::<Verifier>().unwrap_err();
        assert_eq!(error, expect, "{text}");
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }

    #[test]
    fn verifiers() {
        let text = format!("SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==${STORED}:{SERVER}");
        let verifier: Verifier = text.parse().unwrap();
        assert_eq!((verifier.iterations, verifier.salt.len()), (4096, 16));
        assert_eq!(format!("{verifier:?}"), "Verifier { .. }");
        refused("hunter2", VerifierError::Other);
        refused("", VerifierError::Other);
        refused("md5hunter2", VerifierError::Other);
        refused("md500000000000000000000000000000000", VerifierError::Md5);
        for broken in [
            "SCRAM-SHA-256$".to_owned(),
            format!("SCRAM-SHA-256$0:W22ZaA==${STORED}:{SERVER}"),
            format!("SCRAM-SHA-256$-1:W22ZaA==${STORED}:{SERVER}"),
            format!("SCRAM-SHA-256$4096:${STORED}:{SERVER}"),
            format!("SCRAM-SHA-256$4096:hunter2!${STORED}:{SERVER}"),
            format!("SCRAM-SHA-256$4096:W22ZaA==${STORED}"),
            format!("SCRAM-SHA-256$4096:W22ZaA==${STORED}:c2hvcnQ="),
        ] {
            refused(&broken, VerifierError::Broken);
        }
    }

    #[test]
    fn who_does_not_exist_looks_the_same_each_time() {
        let mut mocks = Mocks::new([7; KEY_LEN]);
        let of = |mocks: &Mocks, user: &[u8]| match mocks.of(user) {
            Account::Unknown(verifier) => verifier,
            Account::Known(_) => unreachable!(),
        };
        let first = of(&mocks, b"nobody");
        assert_eq!(first, of(&mocks, b"nobody"));
        assert_eq!((first.iterations, first.salt.len()), (4096, 16));
        assert_ne!(first.salt, of(&mocks, b"somebody").salt);
        assert_ne!(first.salt, of(&Mocks::new([8; KEY_LEN]), b"nobody").salt);
        let text = format!("SCRAM-SHA-256$15000:W22ZaA==${STORED}:{SERVER}");
        mocks.resemble(&text.parse().unwrap());
        let alike = of(&mocks, b"nobody");
        assert_eq!((alike.iterations, alike.salt.len()), (15000, 4));
    }
}
