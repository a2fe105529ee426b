//! SCRAM-SHA-256, with channel binding and without: its keys and the form of its messages.
//!
//! Source: <https://www.rfc-editor.org/rfc/rfc5802>, <https://www.rfc-editor.org/rfc/rfc7677>,
//! <https://www.postgresql.org/docs/current/sasl-authentication.html>

pub mod client;
pub mod server;
#[cfg(test)]
mod tests;

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::digest::FixedOutput as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroize as _;

pub const SCRAM: &str = "SCRAM-SHA-256";
pub const SCRAM_PLUS: &str = "SCRAM-SHA-256-PLUS";

pub(crate) const MESSAGE_MAX: usize = 1024;

pub(crate) const KEY_LEN: usize = 32;

const BOUND: &str = "p=tls-server-end-point,,";

/// A key, a signature or a proof. Overwritten on drop, and compared in constant time.
#[derive(Clone)]
pub(crate) struct ScramKey(pub(crate) [u8; KEY_LEN]);

impl Drop for ScramKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for ScramKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl PartialEq for ScramKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for ScramKey {}

impl ScramKey {
    pub(crate) fn from_base64(text: &str) -> Option<Self> {
        let mut bytes = STANDARD.decode(text).ok()?;
        let key = <[u8; KEY_LEN]>::try_from(bytes.as_slice()).ok().map(Self);
        bytes.zeroize();
        key
    }

    fn base64(&self) -> String {
        STANDARD.encode(self.0)
    }

    pub(crate) fn hash(&self) -> Self {
        Self(Sha256::digest(self.0).into())
    }

    fn sign(&self, message: &str) -> Self {
        Self(hmac(&self.0, &[message.as_bytes()]))
    }

    fn xor(&self, other: &Self) -> Self {
        let mut out = self.clone();
        for (byte, other) in out.0.iter_mut().zip(other.0) {
            *byte ^= other;
        }
        out
    }
}

/// HMAC-SHA-256 of `parts`, concatenated.
pub(crate) fn hmac(key: &[u8; KEY_LEN], parts: &[&[u8]]) -> [u8; KEY_LEN] {
    // A key shorter than a block is padded with zeros.
    let mut block = [0; 64];
    for (byte, key) in block.iter_mut().zip(key) {
        *byte = *key;
    }
    let mut mac = Hmac::<Sha256>::new(&block.into());
    for part in parts {
        mac.update(part);
    }
    block.zeroize();
    mac.finalize_fixed().into()
}

#[must_use]
pub fn nonce(random: &[u8; 18]) -> String {
    STANDARD.encode(random)
}

/// Keys for a SCRAM login without the password, from a client's proof.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    pub(crate) salt: Vec<u8>,
    pub(crate) iterations: u32,
    pub(crate) client: ScramKey,
    pub(crate) server: ScramKey,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// TLS of one leg, as far as SCRAM can be bound to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leg {
    Clear,
    /// TLS, with the hash of the server's certificate, or `None` if none is defined.
    Encrypted(Option<Vec<u8>>),
}

impl Leg {
    fn end_point(&self) -> Option<&[u8]> {
        match self {
            Self::Clear => None,
            Self::Encrypted(end_point) => end_point.as_deref(),
        }
    }
}

/// The next attribute's value and the text after it, if the attribute has this name.
fn attribute(text: &str, name: char) -> Option<(&str, &str)> {
    let value = text.strip_prefix(name)?.strip_prefix('=')?;
    Some(value.split_once(',').unwrap_or((value, "")))
}

/// Visible ASCII without the comma, as for PostgreSQL.
fn is_nonce(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b',')
}
