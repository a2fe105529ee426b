//! Both ends of a connection in memory.

use std::fs::{Permissions, set_permissions, write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::{ALPN, AcceptFiles, Acceptor, Connector, SslMode, SslSettings};

fn made() -> rcgen::CertifiedKey<rcgen::KeyPair> {
    rcgen::generate_simple_self_signed(vec!["db".to_owned()]).unwrap()
}

fn written(dir: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = dir.path().join(name);
    write(&path, text).unwrap();
    set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path
}

fn acceptor(client_ca: Option<&str>) -> Acceptor {
    let (dir, made) = (tempfile::tempdir().unwrap(), made());
    let files = AcceptFiles {
        certificate: written(&dir, "crt", &made.cert.pem()),
        key: written(&dir, "key", &made.signing_key.serialize_pem()),
        client_ca: client_ca.map(|ca| written(&dir, "ca", ca)),
    };
    Acceptor::load(&files, ALPN).unwrap()
}

fn pair() -> (TlsState, TlsState) {
    let settings = SslSettings {
        mode: SslMode::Require,
        ..SslSettings::default()
    };
    let mut client = Connector::load(&settings).unwrap().session("db").unwrap();
    let mut server = acceptor(None).session().unwrap();
    let mut bytes = BytesMut::new();
    while client.is_handshaking() || server.is_handshaking() {
        client.take_output(&mut bytes).unwrap();
        server.on_handshake(&bytes.split()).unwrap();
        server.take_output(&mut bytes).unwrap();
        client.on_handshake(&bytes.split()).unwrap();
    }
    assert!(client.has_agreed_protocol() && server.has_agreed_protocol());
    (client, server)
}

/// All text from `bytes`, received in parts of `part` bytes.
fn decrypted(session: &mut TlsState, bytes: &[u8], part: usize) -> Vec<u8> {
    let mut text = Vec::new();
    let mut buf = vec![0; part];
    for bytes in bytes.chunks(part) {
        buf[..bytes.len()].copy_from_slice(bytes);
        let mut read = session.decrypt(&mut buf, bytes.len()).unwrap();
        loop {
            text.extend_from_slice(&buf[..read]);
            match session.read(&mut buf) {
                Some(more) => read = more,
                None => break,
            }
        }
    }
    text
}

#[test]
fn text_comes_out_in_order_however_it_is_cut() {
    for part in [1, 7, 4096, 16 * 1024, 64 * 1024] {
        let (mut client, mut server) = pair();
        let mut bytes = BytesMut::new();
        let mut text = Vec::new();
        for len in [1_usize, 5, 16 * 1024, 16 * 1024 + 1, 100_000, 3, 64 * 1024] {
            let piece: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            client.encrypt(&piece, &mut bytes).unwrap();
            text.extend(piece);
        }
        assert!(
            decrypted(&mut server, &bytes, part) == text,
            "in parts of {part}"
        );
    }
}

/// An incomplete record must leave room for what follows it.
#[test]
fn a_buffer_may_be_smaller_than_a_record() {
    let (mut client, mut server) = pair();
    let mut bytes = BytesMut::new();
    client.encrypt(&[7; 16 * 1024], &mut bytes).unwrap();
    client.encrypt(&[8; 16 * 1024], &mut bytes).unwrap();
    // The first record without its last byte, and then small parts.
    let first = bytes.split_to(16 * 1024);
    let mut text = decrypted(&mut server, &first, 64 * 1024);
    text.extend(decrypted(&mut server, &bytes, 4096));
    assert_eq!(text.len(), 32 * 1024);
    assert!(text[..16 * 1024] == [7; 16 * 1024] && text[16 * 1024..] == [8; 16 * 1024]);
}

#[test]
fn the_end_is_said_and_heard() {
    let (mut client, mut server) = pair();
    let mut bytes = BytesMut::new();
    client.encrypt(b"last", &mut bytes).unwrap();
    client.close(&mut bytes).unwrap();
    let mut buf = [0; 1024];
    let len = bytes.len();
    buf[..len].copy_from_slice(&bytes);
    assert_eq!(server.decrypt(&mut buf, len).unwrap(), 4);
    assert_eq!(&buf[..4], b"last");
    assert_eq!(server.read(&mut buf), Some(0));
}

#[test]
fn changed_bytes_are_no_text() {
    let (mut client, mut server) = pair();
    let mut bytes = BytesMut::new();
    client.encrypt(b"text", &mut bytes).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    assert!(server.decrypt(&mut bytes, last + 1).is_err());
}

#[test]
fn a_handshake_has_a_limit() {
    let mut server = acceptor(None).session().unwrap();
    // A ClientHello of 64 KiB, in records that never complete it.
    let mut hello = vec![22, 3, 1, 0x40, 0];
    hello.extend([1, 0, 0xff, 0xff]);
    hello.resize(5 + 0x4000, 0);
    let mut sent = 0;
    let error = loop {
        match server.on_handshake(&hello) {
            Ok(()) => sent += hello.len(),
            Err(error) => break error,
        }
        assert!(sent <= HANDSHAKE_BYTES_MAX, "{sent} bytes were taken");
    };
    println!("{error}");
}

/// A path through many certificates is not looked for.
#[test]
fn a_client_with_a_long_chain_is_refused_at_once() {
    for (intermediates, expect) in [(5, "invalid peer certificate"), (6, "sent 6 intermediate")] {
        let (dir, own) = (tempfile::tempdir().unwrap(), made());
        let chain = own.cert.pem().repeat(1 + intermediates);
        let settings = SslSettings {
            mode: SslMode::Require,
            certificate: Some((
                written(&dir, "crt", &chain),
                written(&dir, "key", &own.signing_key.serialize_pem()),
            )),
            ..SslSettings::default()
        };
        let mut client = Connector::load(&settings).unwrap().session("db").unwrap();
        let mut server = acceptor(Some(&made().cert.pem())).session().unwrap();
        let mut bytes = BytesMut::new();
        let refused = loop {
            client.take_output(&mut bytes).unwrap();
            if let Err(error) = server.on_handshake(&bytes.split()) {
                break error.to_string();
            }
            server.take_output(&mut bytes).unwrap();
            client.on_handshake(&bytes.split()).unwrap();
        };
        assert!(refused.contains(expect), "{refused}");
    }
}

fn certificate(names: &[(rcgen::DnType, &str)]) -> rcgen::Certificate {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    for (kind, name) in names {
        params.distinguished_name.push(kind.clone(), *name);
    }
    let key = rcgen::KeyPair::generate().unwrap();
    params.self_signed(&key).unwrap()
}

fn name_of(names: &[(rcgen::DnType, &str)]) -> Option<String> {
    common_name(certificate(names).der())
}

#[test]
fn a_common_name_is_taken_where_it_cannot_be_misread() {
    use rcgen::DnType::{CommonName, CustomDnType, OrganizationName};
    let one = (CommonName, "scheduler");
    assert_eq!(
        name_of(std::slice::from_ref(&one)).as_deref(),
        Some("scheduler")
    );
    let more = [(OrganizationName, "admin"), one.clone()];
    assert_eq!(name_of(&more).as_deref(), Some("scheduler"));
    assert_eq!(name_of(&[]), None);
    assert_eq!(name_of(&[(OrganizationName, "admin")]), None);
    assert_eq!(name_of(&[(CommonName, "")]), None);
    assert_eq!(name_of(&[(CommonName, "admin\0.example")]), None);
    assert_eq!(name_of(&[(CommonName, "admin\n")]), None);
    let cut = certificate(std::slice::from_ref(&one));
    assert!((0..cut.der().len()).all(|end| common_name(&cut.der()[..end]).is_none()));
    let second = (CustomDnType(vec![2, 5, 4, 3]), "admin");
    assert_eq!(name_of(&[one, second]), None);
    assert_eq!(common_name(b"nonsense"), None);
}
