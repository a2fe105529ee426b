//! The packets in front of a session, and what a startup packet asks for.

use std::str::FromStr;

use bytes::{Buf, Bytes, BytesMut};
use pgpalisade_authority::Scope;
use pgpalisade_policies::{Access, Mistake};

use super::encryption::{self, Requests};
use super::{LoginError, Silence, proxied};
use crate::certificates::ClientLeg;
use crate::fence::TokenValueError;
use crate::rejection::Rejection;
use crate::rejection_log::{ClientAddr, SessionLabel};
use crate::session::read_only;
use crate::session::startup_options::{self, Setting};
use crate::transport::Socket;
use crate::wire::WireError;
use crate::wire::startup::{self, StartupPacket, Version};

/// What a connection turned out to be for.
pub(super) enum StartupKind {
    /// A session.
    Startup(StartupRequest),
    /// To cancel a statement of another session: the packet.
    Cancel(Bytes),
}

/// Whether a session is a stream of the write-ahead log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replication {
    Yes,
    No,
}

/// A startup packet and the settings in it.
pub(super) struct StartupRequest {
    packet: Bytes,
    settings: Vec<Setting>,
    user: String,
    database: String,
    replication: Replication,
}

/// Reads packets until the client says what the connection is for. It gets TLS where there is some, which is offered
/// once, as by PostgreSQL; GSSAPI encryption is declined.
pub(super) async fn read(
    client: &mut Socket,
    carry: &mut BytesMut,
    leg: Option<&ClientLeg>,
) -> Result<StartupKind, LoginError> {
    let mut requests = Requests::ALL;
    if let Some(leg) = leg
        && encryption::begin_unasked(client, carry, leg).await?
    {
        requests = Requests::NONE;
    }
    loop {
        let packet = read_packet(client, carry).await?;
        match parse(&packet)? {
            StartupPacket::SslRequest if requests.ssl => {
                nothing_behind(carry, "SSL")?;
                requests = encryption::answer(client, leg, requests).await?;
            }
            StartupPacket::GssEncRequest if requests.gss => {
                nothing_behind(carry, "GSSAPI encryption")?;
                requests.gss = false;
                client.write_all(b"N").await?;
            }
            StartupPacket::SslRequest => {
                return Err(LoginError::NoProtocol(Version::SSL_REQUEST));
            }
            StartupPacket::GssEncRequest => {
                return Err(LoginError::NoProtocol(Version::GSSENC_REQUEST));
            }
            StartupPacket::OtherVersion(version) => return Err(LoginError::NoProtocol(version)),
            StartupPacket::CancelRequest => return Ok(StartupKind::Cancel(packet)),
            StartupPacket::Startup(message) => {
                // What is judged, recorded and sent is the same from here on.
                let cut = message.with_names_cut().map_err(misread)?;
                let packet = cut.map_or_else(|| packet.clone(), BytesMut::freeze);
                return StartupRequest::read(packet).map(StartupKind::Startup);
            }
        }
    }
}

fn nothing_behind(carry: &BytesMut, request: &'static str) -> Result<(), LoginError> {
    match carry.is_empty() {
        true => Ok(()),
        false => Err(LoginError::EarlyData(request)),
    }
}

fn parse(packet: &[u8]) -> Result<StartupPacket<'_>, LoginError> {
    startup::parse(packet).map_err(misread)
}

/// PostgreSQL says nothing to a packet whose length is wrong, and what is wrong to one that is malformed.
const fn misread(error: WireError) -> LoginError {
    match error {
        WireError::Length { .. } => LoginError::NoStartup(Silence::Nonsense(error)),
        _ => LoginError::Layout,
    }
}

async fn read_packet(client: &mut Socket, carry: &mut BytesMut) -> Result<Bytes, LoginError> {
    loop {
        let len = startup::packet_len(carry);
        let len = len.map_err(|error| match proxied::is_header(carry) {
            true => LoginError::NoStartup(Silence::StrayProxyHeader),
            false => LoginError::NoStartup(Silence::Nonsense(error)),
        })?;
        if let Some(len) = len
            && carry.len() >= len
        {
            return Ok(carry.copy_to_bytes(len));
        }
        let read = client.read_more(carry).await;
        read.map_err(LoginError::of_client)?;
    }
}

/// As PostgreSQL reads it: `database`, or a Boolean.
fn replication(value: Option<&[u8]>) -> Replication {
    match value {
        None => Replication::No,
        // Anything but a clear no is a yes.
        Some(value) => match read_only::parse(value) {
            Some(Access::ReadWrite) => Replication::No,
            Some(Access::ReadOnly) | None => Replication::Yes,
        },
    }
}

impl StartupRequest {
    /// Reads a packet whose names are not too long.
    fn read(packet: Bytes) -> Result<Self, LoginError> {
        let StartupPacket::Startup(message) = parse(&packet)? else {
            return Err(LoginError::Layout);
        };
        let text =
            |name| String::from_utf8_lossy(message.get(name).unwrap_or_default()).into_owned();
        Ok(Self {
            user: text("user"),
            database: text("database"),
            replication: replication(message.get("replication")),
            settings: startup_options::settings(message),
            packet: packet.clone(),
        })
    }

    /// Who connects, in the words of PostgreSQL's own refusals.
    pub(super) fn who(&self, client_addr: ClientAddr) -> String {
        let (host, label) = (client_addr.host(), self.label(client_addr));
        let (user, database) = (label.user, label.database);
        format!("host \"{host}\", user \"{user}\", database \"{database}\"")
    }

    /// The value of `fencing.token`, where there is one.
    pub(super) fn token_text(&self) -> Result<Option<String>, Box<Rejection>> {
        self.text("fencing.token")
    }

    /// Whether each of its settings below `fencing.` is one that can be set.
    pub(super) fn check_names(&self) -> Result<(), Box<Rejection>> {
        let mut names = self.settings.iter().map(|(name, _)| name.as_str());
        match names.find_map(Mistake::in_setting) {
            Some(mistake) => Err(Box::new(Rejection::mistake(&mistake))),
            None => Ok(()),
        }
    }

    /// The value of `fencing.scope`.
    pub(super) fn scope(&self) -> Result<Option<Scope>, Box<Rejection>> {
        let Some(name) = self.text("fencing.scope")?.filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let scope = Scope::from_str(&name);
        scope
            .map(Some)
            .map_err(|error| invalid("fencing.scope", &name, error))
    }

    fn text(&self, setting: &str) -> Result<Option<String>, Box<Rejection>> {
        let Some(value) = startup_options::last(&self.settings, setting) else {
            return Ok(None);
        };
        match std::str::from_utf8(value) {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(_) => {
                let shown = String::from_utf8_lossy(value);
                Err(invalid(setting, &shown, TokenValueError::NotUtf8))
            }
        }
    }

    /// The user, as the server reads it.
    pub(super) fn user(&self) -> Vec<u8> {
        match startup::parse(&self.packet) {
            Ok(StartupPacket::Startup(message)) => message.get("user").unwrap_or_default().to_vec(),
            _ => Vec::new(),
        }
    }

    /// Whether it asks for replication.
    pub(super) const fn asks_for_replication(&self) -> Replication {
        self.replication
    }

    /// The packet, for the server.
    pub(super) const fn packet(&self) -> &Bytes {
        &self.packet
    }

    /// Who this is, for logs and records.
    pub(super) fn label(&self, client_addr: ClientAddr) -> SessionLabel {
        let application_name = startup_options::last(&self.settings, "application_name")
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .filter(|name| !name.is_empty());
        SessionLabel {
            user: self.user.clone(),
            // PostgreSQL's own default.
            database: if self.database.is_empty() {
                self.user.clone()
            } else {
                self.database.clone()
            },
            application_name,
            common_name: None,
            client_addr,
            backend_pid: None,
        }
    }
}

fn invalid(setting: &str, value: &str, why: impl Into<TokenValueError>) -> Box<Rejection> {
    Box::new(Rejection::invalid_value(setting, value, why))
}
