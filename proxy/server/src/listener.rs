//! Listeners on a network address or a unix socket.
//!
//! A listener can be handed to another process of the proxy. The socket's files belong to the process named in the
//! lock file, which removes them at its end.

use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pgpalisade_logins::ClientAddr;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{TcpListener, UnixListener};

use crate::leadership::Grant;

/// An address that clients or operators connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddr {
    /// Port 0 lets the system choose.
    Tcp(SocketAddr),
    /// The socket file, `DIR/.s.PGSQL.PORT`.
    Unix(PathBuf),
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

#[derive(Debug)]
pub struct Accepted {
    pub stream: ClientStream,
    pub client_addr: ClientAddr,
    /// Token that its listener gives.
    pub grant: Option<Arc<Grant>>,
}

/// A client's socket, not registered with a runtime.
#[derive(Debug)]
pub enum ClientStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(SocketFile),
}

impl Listener {
    /// Listens.
    ///
    /// # Errors
    ///
    /// System errors, and `AddrInUse` if another process listens there.
    pub fn bind(address: &ListenAddr) -> io::Result<Self> {
        match address {
            ListenAddr::Tcp(address) => listen(*address).map(Self::Tcp),
            ListenAddr::Unix(path) => SocketFile::bind(path).map(Self::Unix),
        }
    }

    /// Takes over another process's listener: the socket, and for a unix socket its lock file.
    ///
    /// # Errors
    ///
    /// System errors, and `InvalidData` for other descriptors.
    pub fn inherit(descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let mut descriptors = descriptors.into_iter();
        let socket = descriptors.next().ok_or(io::ErrorKind::InvalidData)?;
        let Some(lock) = descriptors.next() else {
            let listener = StdTcpListener::from(socket);
            return TcpListener::from_std(listener).map(Self::Tcp);
        };
        let listener = StdUnixListener::from(socket);
        let address = listener.local_addr()?;
        let path = address.as_pathname().ok_or(io::ErrorKind::InvalidData)?;
        let path = path.to_path_buf();
        Ok(Self::Unix(SocketFile {
            listener: UnixListener::from_std(listener)?,
            lock: LockFile {
                path: lock_path(&path),
                file: lock.into(),
            },
            path,
        }))
    }

    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Tcp(listener) => vec![listener.as_fd()],
            Self::Unix(file) => vec![file.listener.as_fd(), file.lock.file.as_fd()],
        }
    }

    /// Makes this process the owner of the listener's files.
    pub fn claim(&self) -> io::Result<()> {
        match self {
            Self::Tcp(_) => Ok(()),
            Self::Unix(file) => file.lock.claim(),
        }
    }

    /// The listener's address, with the port that the system chose.
    pub fn address(&self) -> io::Result<ListenAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(ListenAddr::Tcp),
            Self::Unix(file) => Ok(ListenAddr::Unix(file.path.clone())),
        }
    }

    /// Cancel safe.
    pub async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                Ok(Accepted {
                    stream: ClientStream::Tcp(stream.into_std()?),
                    client_addr: ClientAddr::Tcp(address),
                    grant: None,
                })
            }
            Self::Unix(file) => Ok(Accepted {
                stream: ClientStream::Unix(file.listener.accept().await?.0.into_std()?),
                client_addr: ClientAddr::Local,
                grant: None,
            }),
        }
    }
}

/// Listens as PostgreSQL does: an address of IPv6 leaves the same port of IPv4 free. The system limits the clients that
/// wait to be accepted.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let kind = Type::STREAM.nonblocking();
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(i32::MAX)?;
    TcpListener::from_std(socket.into())
}

/// A unix socket whose file is removed when its owner drops this.
#[derive(Debug)]
pub struct SocketFile {
    listener: UnixListener,
    path: PathBuf,
    lock: LockFile,
}

impl SocketFile {
    /// Replaces a stale socket file, but never a live one.
    fn bind(path: &Path) -> io::Result<Self> {
        // PostgreSQL does not lock its lock file, so look for a live socket first.
        is_stale(path)?;
        let lock = LockFile::take(path)?;
        if is_stale(path)? {
            fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        // PostgreSQL's default: the directory decides who may connect.
        fs::set_permissions(path, Permissions::from_mode(0o777))?;
        Ok(Self {
            listener,
            path: path.to_path_buf(),
            lock,
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.lock.is_ours() {
            return;
        }
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

/// `.s.PGSQL.PORT.lock` beside the socket, as in PostgreSQL. It contains the pid, which a PostgreSQL of the same user
/// looks for. Between proxies the system's lock decides, because pids are reused.
#[derive(Debug)]
struct LockFile {
    file: File,
    path: PathBuf,
}

impl LockFile {
    fn take(socket: &Path) -> io::Result<Self> {
        let path = lock_path(socket);
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
                .open(&path)?;
            file.try_lock().map_err(|_| in_use())?;
            // The previous owner may have removed the file meanwhile.
            let is_there = fs::symlink_metadata(&path).is_ok_and(|there| {
                file.metadata()
                    .is_ok_and(|ours| (ours.dev(), ours.ino()) == (there.dev(), there.ino()))
            });
            if !is_there {
                continue;
            }
            let lock = Self { file, path };
            lock.claim()?;
            return Ok(lock);
        }
    }

    /// Writes this process's pid at a fixed offset: processes that share the file share its offset.
    fn claim(&self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all_at(pid_line().as_bytes(), 0)
    }

    fn is_ours(&self) -> bool {
        fs::read(&self.path).is_ok_and(|text| text == pid_line().as_bytes())
    }
}

fn lock_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    path.into()
}

fn pid_line() -> String {
    format!("{}\n", std::process::id())
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the lock of a socket");
        }
    }
}

/// Whether a socket without a listener is at the path.
fn is_stale(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => {
            return Err(io::Error::other(
                "a file that is not a socket is in the way",
            ));
        }
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
        // A socket with a full queue is in use too.
        _ => Err(in_use()),
    }
}

fn in_use() -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn one_port_serves_both_families_and_a_burst_waits() {
        let any = |address: &str| Listener::bind(&ListenAddr::Tcp(address.parse().unwrap()));
        let four = any("0.0.0.0:0").unwrap();
        let ListenAddr::Tcp(mut address) = four.address().unwrap() else {
            unreachable!();
        };
        let _six = any(&format!("[::]:{}", address.port())).unwrap();
        address.set_ip([127, 0, 0, 1].into());
        let connect = |_| TcpStream::connect_timeout(&address, Duration::from_millis(500));
        let burst: io::Result<Vec<_>> = (0..300).map(connect).collect();
        burst.unwrap();
    }
}
