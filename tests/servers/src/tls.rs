//! Certificates for servers, proxies and clients.

use std::fs::{Permissions, metadata, read, set_permissions, write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use tempfile::TempDir;

use crate::machine::{Signal, signal, wait_for};
use crate::postgres::scratch_dir;
use crate::proxy::Proxy;
pub use crate::tls_client::{Pair, TlsClient};

#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: TempDir,
}

#[derive(Debug, Clone, Copy)]
pub enum Validity {
    Now,
    Past,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        // Authorities with the same name would look like one with two keys.
        let name = format!("authority {:x?}", key.public_key_raw());
        params
            .distinguished_name
            .push(DnType::CommonName, &name[..60]);
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        let dir = scratch_dir();
        write(dir.path().join("ca.crt"), issuer.pem()).expect("write a certificate");
        Self { issuer, dir }
    }

    pub fn certificate(&self) -> PathBuf {
        self.path("ca.crt")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Issues a certificate for these host names and addresses. Its files are named after `whose`.
    pub fn issue(&self, whose: &str, hosts: &[&str], validity: Validity) -> Pair {
        let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        let mut params = CertificateParams::new(hosts).expect("names of hosts");
        params.distinguished_name.push(DnType::CommonName, whose);
        if let Validity::Past = validity {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2001, 12, 31);
        }
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.issuer).expect("a certificate");
        let pair = Pair {
            certificate: self.path(&format!("{whose}.crt")),
            key: self.path(&format!("{whose}.key")),
        };
        write(&pair.certificate, signed.pem()).expect("write a certificate");
        write(&pair.key, key.serialize_pem()).expect("write a key");
        set_permissions(&pair.key, Permissions::from_mode(0o600)).expect("close the key");
        pair
    }

    /// For 127.0.0.1 and localhost, valid now.
    pub fn issue_local(&self, whose: &str) -> Pair {
        self.issue(whose, &["127.0.0.1", "localhost"], Validity::Now)
    }

    /// For a PostgreSQL that presents a certificate.
    pub fn settings(&self, pair: &Pair) -> Vec<String> {
        let key = self.lend(&[&pair.key], pair.key.with_extension("server-key"));
        vec![
            "ssl=on".to_owned(),
            format!("ssl_cert_file={}", pair.certificate.display()),
            format!("ssl_key_file={}", key.display()),
            format!("ssl_ca_file={}", self.certificate().display()),
        ]
    }

    /// Concatenates these files for a server of another user, which must own its key.
    pub fn lend(&self, files: &[&Path], lent: PathBuf) -> PathBuf {
        let texts = files.iter().map(|file| read(file).expect("a PEM file"));
        write(&lent, texts.collect::<Vec<_>>().concat()).expect("write a copy");
        set_permissions(&lent, Permissions::from_mode(0o600)).expect("close the copy");
        let owner = metadata(self.dir.path()).expect("the directory");
        chown(&lent, Some(owner.uid()), Some(owner.gid())).expect("give a copy away");
        lent
    }

    pub fn client(&self) -> TlsClient {
        TlsClient::new(&self.certificate(), None)
    }
}

/// Makes a proxy reload its files, and returns what it logs.
pub fn reload(proxy: &Proxy) -> String {
    let before = proxy.output().len();
    signal(proxy.pid(), Signal::HUP);
    wait_for("the proxy to read its certificates again", || {
        let output = proxy.output();
        let new = output.get(before..)?;
        new.lines()
            .find(|line| line.contains("files for TLS"))
            .map(str::to_owned)
    })
}
