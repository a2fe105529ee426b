//! A password that a client has sent in clear text.

use std::fmt;

use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, Zeroizing};

/// Overwritten on drop, compared in constant time, and hidden from `Debug`.
#[derive(Clone)]
pub struct Password(Zeroizing<Vec<u8>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PasswordError {
    /// The body does not end with its only NUL.
    #[error("invalid password packet size")]
    Size,
    #[error("empty password returned by client")]
    Empty,
}

impl PartialEq for Password {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Password {}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl Password {
    /// Takes the password out of the body of a PasswordMessage, and overwrites the body.
    pub fn take(body: &mut [u8]) -> Result<Self, PasswordError> {
        let password = Self::read(body);
        body.zeroize();
        password
    }

    fn read(body: &[u8]) -> Result<Self, PasswordError> {
        match body.split_last() {
            Some((0, password)) if !password.contains(&0) => {
                if password.is_empty() {
                    Err(PasswordError::Empty)
                } else {
                    Ok(Self(Zeroizing::new(password.to_vec())))
                }
            }
            _ => Err(PasswordError::Size),
        }
    }

    pub(crate) fn expose(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages() {
        let read =
            |body: &[u8]| Password::take(&mut body.to_vec()).map(|password| password.0.to_vec());
        assert_eq!(read(b"hunter2\0"), Ok(b"hunter2".to_vec()));
        assert_eq!(read(b"\0"), Err(PasswordError::Empty));
        for body in [&b""[..], b"hunter2", b"hun\0ter2\0", b"\0\0"] {
            assert_eq!(read(body), Err(PasswordError::Size), "{body:?}");
        }
        let mut body = *b"hunter2\0";
        let shown = format!("{:?}", Password::take(&mut body));
        assert_eq!((shown.as_str(), body), ("Ok([secret])", [0; 8]));
    }
}
