//! Packets before a session, and the settings of a startup packet.

use std::str::FromStr;

use bytes::{Buf, Bytes, BytesMut};
use pgpalisade_authority::Scope;
use pgpalisade_fence::TokenValueError;
use pgpalisade_fence::rejection::Rejection;
use pgpalisade_logins::{ClientAddr, SessionLabel};
use pgpalisade_policies::{Access, Mistake};
use pgpalisade_session::access_mode;
use pgpalisade_wire::WireError;
use pgpalisade_wire::startup::{self, StartupPacket, Version};
use pgpalisade_wire::startup_options::{self, Setting};

use super::encryption::{self, Requests};
use super::{LoginError, Silence, proxied};
use crate::certificates::ClientLeg;
use crate::transport::Socket;

pub(super) enum StartupKind {
    Startup(StartupRequest),
    Cancel(Bytes),
}

pub(super) struct StartupRequest {
    packet: Bytes,
    settings: Vec<Setting>,
    user: String,
    database: String,
    pub(super) is_replication: bool,
}

/// Reads packets until the client names its purpose. Offers TLS once, as PostgreSQL does, if configured; declines
/// GSSAPI encryption.
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
                // From here on this packet is judged, recorded and sent.
                let cut = message.with_names_cut().map_err(misread)?;
                let packet = cut.map_or_else(|| packet.clone(), BytesMut::freeze);
                return StartupRequest::read(packet).map(StartupKind::Startup);
            }
        }
    }
}

fn nothing_behind(carry: &BytesMut, request: &'static str) -> Result<(), LoginError> {
    if carry.is_empty() {
        Ok(())
    } else {
        Err(LoginError::EarlyData(request))
    }
}

fn parse(packet: &[u8]) -> Result<StartupPacket<'_>, LoginError> {
    startup::parse(packet).map_err(misread)
}

/// PostgreSQL answers a packet of a wrong length with silence, a malformed one with an error.
const fn misread(error: WireError) -> LoginError {
    match error {
        WireError::Length { .. } => LoginError::NoStartup(Silence::Nonsense(error)),
        _ => LoginError::Layout,
    }
}

async fn read_packet(client: &mut Socket, carry: &mut BytesMut) -> Result<Bytes, LoginError> {
    loop {
        let len = startup::packet_len(carry);
        let len = len.map_err(|error| {
            LoginError::NoStartup(if proxied::is_header(carry) {
                Silence::StrayProxyHeader
            } else {
                Silence::Nonsense(error)
            })
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

/// Reads `replication` as PostgreSQL does: `database`, or a Boolean.
fn is_replication(value: Option<&[u8]>) -> bool {
    match value {
        None => false,
        // Anything but a clear no is a yes.
        Some(value) => match access_mode::parse(value) {
            Some(Access::ReadWrite) => false,
            Some(Access::ReadOnly) | None => true,
        },
    }
}

impl StartupRequest {
    /// Reads a packet whose names are already cut.
    fn read(packet: Bytes) -> Result<Self, LoginError> {
        let StartupPacket::Startup(message) = parse(&packet)? else {
            return Err(LoginError::Layout);
        };
        let text =
            |name| String::from_utf8_lossy(message.get(name).unwrap_or_default()).into_owned();
        Ok(Self {
            user: text("user"),
            database: text("database"),
            is_replication: is_replication(message.get("replication")),
            settings: startup_options::settings(message),
            packet: packet.clone(),
        })
    }

    pub(super) fn who(&self, client_addr: ClientAddr) -> String {
        let (host, label) = (client_addr.host(), self.label(client_addr));
        let (user, database) = (label.user, label.database);
        format!("host \"{host}\", user \"{user}\", database \"{database}\"")
    }

    pub(super) fn token_text(&self) -> Result<Option<String>, Box<Rejection>> {
        self.text("fencing.token")
    }

    pub(super) fn check_names(&self) -> Result<(), Box<Rejection>> {
        let mut names = self.settings.iter().map(|(name, _)| name.as_str());
        match names.find_map(Mistake::in_setting) {
            Some(mistake) => Err(Box::new(Rejection::mistake(&mistake))),
            None => Ok(()),
        }
    }

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

    /// The user's name in the packet, which need not be UTF-8.
    pub(super) fn user(&self) -> &[u8] {
        startup::user(&self.packet)
    }

    pub(super) const fn packet(&self) -> &Bytes {
        &self.packet
    }

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
