//! The hash of a certificate that a login with SCRAM-SHA-256-PLUS is bound to.
//!
//! Source: <https://www.rfc-editor.org/rfc/rfc5929#section-4>

use der::asn1::AnyRef;
use der::{Decode as _, Reader as _, SliceReader, Tag, Tagged as _};
use sha2::{Digest as _, Sha256, Sha384, Sha512};

/// `AlgorithmIdentifier`s without their outer SEQUENCE, by signature algorithm.
/// <https://www.rfc-editor.org/rfc/rfc5758#section-3.2>, <https://www.rfc-editor.org/rfc/rfc8017#appendix-A.2>
const RSA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01";
const ECDSA: &[u8] = b"\x06\x08\x2a\x86\x48\xce\x3d\x04\x03";

/// The hash of a certificate (DER), by the hash function of its signature.
///
/// `None` unless that is SHA-256, SHA-384 or SHA-512 with RSA (PKCS #1) or ECDSA: OpenSSL, and so PostgreSQL and
/// libpq, has none for the others in use.
#[must_use]
pub fn hash(certificate: &[u8]) -> Option<Vec<u8>> {
    let outer = AnyRef::from_der(certificate).ok()?;
    let mut fields = SliceReader::new(outer.value()).ok()?;
    let _signed = fields.decode::<AnyRef<'_>>().ok()?;
    let algorithm = fields.decode::<AnyRef<'_>>().ok()?;
    if [outer.tag(), algorithm.tag()] != [Tag::Sequence; 2] {
        return None;
    }
    let algorithm = algorithm.value();
    let name = algorithm.strip_prefix(RSA).map(|rest| (b'R', rest));
    let name = name.or_else(|| algorithm.strip_prefix(ECDSA).map(|rest| (b'E', rest)))?;
    match (name.0, name.1.first()?) {
        (b'R', 11) | (b'E', 2) => Some(Sha256::digest(certificate).to_vec()),
        (b'R', 12) | (b'E', 3) => Some(Sha384::digest(certificate).to_vec()),
        (b'R', 13) | (b'E', 4) => Some(Sha512::digest(certificate).to_vec()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let mut out = vec![tag];
        match u8::try_from(content.len()) {
            Ok(len @ 0..=0x7f) => out.push(len),
            _ => {
                out.push(0x82);
                out.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
            }
        }
        out.extend(content);
        out
    }

    fn certificate(algorithm: &[u8]) -> Vec<u8> {
        let mut content = der(0x30, &[7; 300]);
        content.extend(der(0x30, algorithm));
        content.extend(der(3, &[0; 70]));
        der(0x30, &content)
    }

    #[test]
    fn the_hash_is_the_signatures() {
        for (name, last, len) in [
            (RSA, 11, 32),
            (RSA, 12, 48),
            (RSA, 13, 64),
            (ECDSA, 2, 32),
            (ECDSA, 3, 48),
            (ECDSA, 4, 64),
        ] {
            let certificate = certificate(&[name, &[last]].concat());
            assert_eq!(hash(&certificate).unwrap().len(), len, "{name:?} {last}");
        }
        // RSA-PSS, and Ed25519.
        assert_eq!(hash(&certificate(&[RSA, &[10]].concat())), None);
        assert_eq!(hash(&certificate(b"\x06\x03\x2b\x65\x70")), None);
    }

    #[test]
    fn nonsense_is_none() {
        let whole = certificate(&[RSA, &[11]].concat());
        for end in 0..whole.len() {
            assert_eq!(hash(&whole[..end]), None, "{end}");
        }
        assert_eq!(hash(b"\x30\x84\xff\xff\xff\xff"), None);
        assert_eq!(hash(b"\x30\x89\xff\xff\xff\xff\xff\xff\xff\xff\xff"), None);
    }
}
