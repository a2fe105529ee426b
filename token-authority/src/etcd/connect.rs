//! Options of a connection to etcd: files, login, habits.

use std::path::Path;
use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};
use pgpalisade_tls::{FileError, Holds, read_file, read_secret};

use super::options::{Login, Options, Tls};

/// Time for one endpoint before the next is asked.
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(800);
/// etcd lets a client ping every 5 s, and disconnects one that pings more often.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// Limits and settings of every client.
fn habits() -> ConnectOptions {
    ConnectOptions::new()
        .with_connect_timeout(ATTEMPT_TIMEOUT)
        .with_keep_alive(KEEP_ALIVE, KEEP_ALIVE_TIMEOUT)
        .with_keep_alive_while_idle(false)
        // A member that has lost its leader reports it at once, also on open watches.
        .with_require_leader(true)
        .with_auto_token_refresh(true)
}

/// Options of a connection, with the current files. The error names the file, and what it is for.
pub(super) fn client_options(options: &Options) -> Result<ConnectOptions, String> {
    let mut connect = habits();
    if let Some(tls) = &options.tls {
        connect = connect.with_tls(tls_options(tls)?);
    }
    if let Some(Login {
        user,
        password_file,
    }) = &options.login
    {
        let password = read_secret(password_file);
        let password = password.map_err(|error| format!("the password file: {error}"))?;
        connect = connect.with_user(user, password.trim_end_matches(['\r', '\n']));
    }
    Ok(connect)
}

fn tls_options(tls: &Tls) -> Result<TlsOptions, String> {
    let what = "the certificate authority (ca)";
    let ca = Certificate::from_pem(pem(what, &tls.ca, Holds::Certificates)?);
    let mut options = TlsOptions::new().ca_certificate(ca);
    if let Some((cert, key)) = &tls.client {
        let cert = pem("the client's certificate (cert)", cert, Holds::Certificates)?;
        let key = pem("the client's key (key)", key, Holds::PrivateKey)?;
        options = options.identity(Identity::from_pem(cert, key));
    }
    Ok(options)
}

fn pem(what: &str, path: &Path, holds: Holds) -> Result<Vec<u8>, String> {
    let bytes = read_file(path, holds).map_err(|error| format!("{what}: {error}"))?;
    if bytes.windows(11).any(|part| part == b"-----BEGIN ") {
        return Ok(bytes);
    }
    let error = FileError::Content {
        path: path.to_owned(),
        what: "is not PEM: a line -----BEGIN is missing".to_owned(),
    };
    Err(format!("{what}: {error}"))
}
