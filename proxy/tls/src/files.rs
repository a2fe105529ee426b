//! Reading of certificates, keys and other secrets, with a check of permissions.

use std::fs::{Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;
use rustls::RootCertStore;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::VerifierBuilderError;

/// Size limit of a file. The system's bundle has about 250 KiB, and 100,000 users fit into it.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Error for a secret that everybody can access.
pub const OPEN_TO_ALL: &str = "can be read or written by everybody: chmod o-rwx";

/// Content of a file, which decides who may have access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    Certificates,
    /// A password, a token, or verifiers. Access by everybody is an error.
    Secret,
    PrivateKey,
}

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot read {}: {source}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{} {what}", path.display())]
    Content { path: PathBuf, what: String },
    /// Both files are valid, but do not fit.
    #[error("the certificate in {} and its key cannot be used: {}", path.display(), of_pair(error))]
    Pair { path: PathBuf, error: rustls::Error },
    /// The system trusts no certificate, or its store cannot be read.
    #[error("the system has no trusted certificates: {0}")]
    System(String),
    #[error("cannot verify with these certificates: {0}")]
    Verifier(#[from] VerifierBuilderError),
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// Describes an error of a certificate and its key. The library's text names its types.
fn of_pair(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => "the key belongs to another certificate".to_owned(),
        rustls::Error::InvalidCertificate(_) => "the certificate is damaged".to_owned(),
        other => other.to_string(),
    }
}

fn content(path: &Path, what: impl Into<String>) -> FileError {
    FileError::Content {
        path: path.to_path_buf(),
        what: what.into(),
    }
}

/// Reads a file, if its permissions fit its content.
pub fn read_file(path: &Path, holds: Holds) -> Result<Vec<u8>, FileError> {
    let failed = |source| FileError::Read {
        path: path.to_path_buf(),
        source,
    };
    // Opening a pipe must not wait for a writer.
    let mut options = OpenOptions::new();
    let options = options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = options.read(true).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(content(path, "is not a regular file"));
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(content(path, "is larger than 16 MiB"));
    }
    match holds {
        Holds::Certificates => {}
        Holds::Secret if is_open_to_all(&metadata) => return Err(content(path, OPEN_TO_ALL)),
        Holds::Secret => {}
        Holds::PrivateKey => check_permissions(path, &metadata)?,
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    Ok(bytes)
}

pub fn read_secret(path: &Path) -> Result<String, FileError> {
    let text = String::from_utf8(read_file(path, Holds::Secret)?);
    text.map_err(|_| content(path, "is not UTF-8"))
}

#[must_use]
pub fn is_open_to_all(metadata: &Metadata) -> bool {
    metadata.mode() & 0o007 != 0
}

pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let bytes = read_file(path, Holds::Certificates)?;
    let all: Result<Vec<_>, PemError> = CertificateDer::pem_slice_iter(&bytes).collect();
    match all {
        Ok(all) if all.is_empty() => Err(content(path, "holds no certificate in PEM format")),
        Ok(all) => Ok(all),
        Err(error) => Err(content(path, format!("is not valid PEM: {error}"))),
    }
}

pub(crate) fn key(path: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    let bytes = read_file(path, Holds::PrivateKey)?;
    let is_encrypted = bytes.windows(9).any(|part| part == b"ENCRYPTED");
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        PemError::NoItemsFound if is_encrypted => {
            content(path, "is encrypted: a key with a passphrase cannot be used")
        }
        PemError::NoItemsFound => content(path, "holds no private key in PEM format"),
        // The error names what is missing, never what is there.
        _ => content(path, "is not a valid private key"),
    })
}

/// Checks permissions as PostgreSQL does for its own key (`check_ssl_key_file_permissions` in be-secure-common.c).
fn check_permissions(path: &Path, metadata: &Metadata) -> Result<(), FileError> {
    let own = geteuid().as_raw();
    let (owner, mode) = (metadata.uid(), metadata.mode());
    if owner != own && owner != 0 {
        return Err(content(
            path,
            "must be owned by the user of pgpalisade or by root",
        ));
    }
    let is_open = (owner == own && mode & 0o077 != 0) || (owner == 0 && mode & 0o037 != 0);
    if is_open {
        Err(content(
            path,
            "has group or world access: it must have permissions 0600 or less if pgpalisade's user owns it, 0640 or \
             less if root does",
        ))
    } else {
        Ok(())
    }
}

pub(crate) fn roots(path: &Path) -> Result<RootCertStore, FileError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path)? {
        let added = store.add(certificate);
        added.map_err(|_| content(path, "holds a certificate that is damaged"))?;
    }
    Ok(store)
}

pub(crate) fn system_roots() -> Result<RootCertStore, FileError> {
    let found = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    let (added, _) = store.add_parsable_certificates(found.certs);
    match (added, found.errors.first()) {
        (1.., _) => Ok(store),
        (0, Some(error)) => Err(FileError::System(error.to_string())),
        (0, None) => Err(FileError::System(String::from("none was found"))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn key_with_mode(mode: u32) -> Result<PrivateKeyDer<'static>, FileError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let pair = rcgen::KeyPair::generate().unwrap();
        write(&path, pair.serialize_pem()).unwrap();
        set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        key(&path)
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        assert!(key_with_mode(0o600).is_ok());
        assert!(key_with_mode(0o400).is_ok());
        for mode in [0o640, 0o604, 0o620, 0o660, 0o666] {
            let error = key_with_mode(mode).unwrap_err().to_string();
            assert!(
                error.contains("has group or world access"),
                "{mode:o}: {error}"
            );
        }
    }

    #[test]
    fn what_is_no_key_is_said_without_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        for (text, part) in [
            ("", "holds no private key"),
            (
                "-----BEGIN PRIVATE KEY-----\nhunter2!\n-----END PRIVATE KEY-----\n",
                "is not a valid private key",
            ),
            (
                "-----BEGIN ENCRYPTED PRIVATE KEY-----\naHVudGVyMg==\n-----END ENCRYPTED PRIVATE KEY-----\n",
                "is encrypted",
            ),
        ] {
            write(&path, text).unwrap();
            set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            let error = key(&path).unwrap_err().to_string();
            assert!(
                error.contains(part) && !error.contains("hunter2"),
                "{error}"
            );
        }
        let error = key(dir.path()).unwrap_err().to_string();
        assert!(error.contains("is not a regular file"), "{error}");
        assert!(certificates(&path).is_err());
        let long = std::fs::File::create(&path).unwrap();
        long.set_len(FILE_BYTES_MAX + 1).unwrap();
        let error = certificates(&path).unwrap_err().to_string();
        assert!(error.contains("is larger than 16 MiB"), "{error}");
    }

    #[test]
    fn a_key_of_another_certificate_is_said_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let [own, other] = [(), ()].map(|()| rcgen::KeyPair::generate().unwrap());
        let certificate = rcgen::CertificateParams::default().self_signed(&own);
        let files = crate::AcceptFiles {
            certificate: dir.path().join("certificate"),
            key: dir.path().join("key"),
            client_ca: None,
        };
        write(&files.certificate, certificate.unwrap().pem()).unwrap();
        write(&files.key, other.serialize_pem()).unwrap();
        set_permissions(&files.key, Permissions::from_mode(0o600)).unwrap();
        let error = crate::Acceptor::load(&files, b"").unwrap_err().to_string();
        assert!(
            error.ends_with("cannot be used: the key belongs to another certificate"),
            "{error}"
        );
    }

    #[test]
    fn a_secret_that_everybody_may_read_or_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        write(&path, "hunter2\n").unwrap();
        for mode in [0o600, 0o640, 0o660] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_secret(&path).unwrap(), "hunter2\n", "{mode:o}");
        }
        for mode in [0o604, 0o602, 0o601, 0o666] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = read_secret(&path).unwrap_err().to_string();
            assert!(error.contains(OPEN_TO_ALL), "{mode:o}: {error}");
            assert!(read_file(&path, Holds::Certificates).is_ok());
        }
        write(&path, b"hunter2\xff").unwrap();
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let error = read_secret(&path).unwrap_err().to_string();
        assert!(error.ends_with("is not UTF-8"), "{error}");
    }
}
