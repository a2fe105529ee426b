//! Hands the listening sockets from one process to the next.
//!
//! The old process starts the new one and sends it the sockets through its standard input. The new process reports
//! when it serves; until then the old one does.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use pgpalisade_server::listener::{ListenAddr, Listener};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::sync::Notify;

/// Tells `serve` that its standard input is the socket.
pub(crate) const SUCCESSOR: &str = "--successor";

/// Comes with the descriptors of a listener.
const LISTENER: u8 = b'L';
/// Follows the last listener.
const COMPLETE: u8 = b'.';
/// From the new process: it takes the connections.
const TAKEN: u8 = b'+';

/// A listener is a socket and, for a unix socket, the lock of its file.
const DESCRIPTORS_MAX: usize = 2;

const RECEIVE_WITHIN: Duration = Duration::from_secs(5);

const START_WITHIN: Duration = Duration::from_secs(60);

/// Waits until a new process has taken over. Failures are only logged. Cancel safe.
pub(crate) async fn successor(asked: &Notify, listeners: &[Arc<Listener>]) -> Successor {
    loop {
        asked.notified().await;
        match Successor::start(listeners).await {
            Ok(successor) => {
                tracing::info!(pid = successor.pid(), "the new process has taken over");
                return successor;
            }
            Err(error) => {
                tracing::error!(%error, "no new process has taken over: this one continues");
                claim(listeners.iter().map(Arc::as_ref));
            }
        }
    }
}

/// Makes this process the owner of the sockets' files.
fn claim<'a>(listeners: impl Iterator<Item = &'a Listener>) {
    for listener in listeners {
        if let Err(error) = listener.claim() {
            tracing::warn!(%error, "writing the lock of a socket");
        }
    }
}

/// The new process, as the old one sees it. Dropping ends it, unless it has taken over.
#[derive(Debug)]
pub(crate) struct Successor {
    process: Child,
    /// Closed at the latest when the old process ends.
    channel: UnixStream,
    has_taken: bool,
}

impl Successor {
    pub(crate) fn pid(&self) -> u32 {
        self.process.id().unwrap_or_default()
    }

    /// Starts the installed program with the same arguments, hands it the listeners, and waits until it has taken
    /// them.
    async fn start(listeners: &[Arc<Listener>]) -> Result<Self, String> {
        // A container ends with its first process.
        if std::process::id() == 1 {
            return Err("this is process 1, and a process that it starts would end with it: replace the container \
                 instead"
                .to_owned());
        }
        let spawned = Self::spawn(listeners);
        let mut successor =
            spawned.map_err(|error| format!("cannot start the new process: {error}"))?;
        tracing::info!(pid = successor.process.id(), "a new process starts");
        let said = tokio::time::timeout(START_WITHIN, successor.channel.read_u8()).await;
        match said {
            Ok(Ok(TAKEN)) => {
                successor.has_taken = true;
                Ok(successor)
            }
            Ok(Ok(_)) => Err("the new process does not understand this version".to_owned()),
            // The log has its last words.
            Ok(Err(_)) => Err("the new process ended".to_owned()),
            Err(_) => Err(format!(
                "the new process was not ready within {START_WITHIN:?}"
            )),
        }
    }

    fn spawn(listeners: &[Arc<Listener>]) -> io::Result<Self> {
        let (channel, theirs) = StdUnixStream::pair()?;
        // Of several hundred listeners the socket does not buffer all.
        channel.set_nonblocking(true)?;
        // The socket buffers them until the new process reads it.
        for listener in listeners {
            send(&channel, LISTENER, &listener.descriptors())?;
        }
        send(&channel, COMPLETE, &[])?;
        Ok(Self {
            channel: UnixStream::from_std(channel)?,
            process: tokio::process::Command::from(command(theirs)?).spawn()?,
            has_taken: false,
        })
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if !self.has_taken {
            // The runtime reaps it. A process that waits for a disk may take for ever to end.
            let _gone_already = self.process.start_kill();
        }
    }
}

/// The command line of this process, with the installed program.
fn command(channel: StdUnixStream) -> io::Result<Command> {
    let mut arguments = std::env::args_os();
    let program = arguments.next().ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    command
        .args(arguments.filter(|argument| argument != SUCCESSOR))
        .arg(SUCCESSOR)
        // Holds the old process's pid.
        .env_remove("WATCHDOG_PID")
        .stdin(Stdio::from(OwnedFd::from(channel)));
    Ok(command)
}

fn send(channel: &StdUnixStream, word: u8, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(
        channel,
        &[IoSlice::new(&[word])],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

#[derive(Debug)]
pub(crate) struct Predecessor {
    channel: UnixStream,
    listeners: Vec<Listener>,
}

impl Predecessor {
    /// Takes the listeners from the standard input. Needs a runtime.
    pub(crate) fn receive() -> io::Result<Self> {
        let channel = StdUnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        channel.set_read_timeout(Some(RECEIVE_WITHIN))?;
        let mut listeners = Vec::new();
        loop {
            let (word, descriptors) = receive(&channel)?;
            match word {
                Some(LISTENER) => listeners.push(Listener::inherit(descriptors)?),
                Some(COMPLETE) => break,
                Some(_) => return Err(io::ErrorKind::InvalidData.into()),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        channel.set_nonblocking(true)?;
        let channel = UnixStream::from_std(channel)?;
        Ok(Self { channel, listeners })
    }

    pub(crate) fn listener(&mut self, address: &ListenAddr) -> Option<Listener> {
        let is_there = |one: &Listener| one.address().is_ok_and(|there| there == *address);
        let index = self.listeners.iter().position(is_there)?;
        Some(self.listeners.swap_remove(index))
    }

    pub(crate) async fn take_over(&mut self, listeners: &[Listener]) {
        claim(listeners.iter());
        if let Err(error) = self.channel.write_u8(TAKEN).await {
            tracing::warn!(%error, "the old process has ended already");
        }
    }

    pub(crate) async fn gone(&mut self) {
        // The read fails once the old process has closed its end.
        while self.channel.read_u8().await.is_ok() {}
    }
}

fn receive(channel: &StdUnixStream) -> io::Result<(Option<u8>, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    // One byte at a time, to keep descriptors with their message.
    let mut word = [0];
    let received = recvmsg(
        channel,
        &mut [IoSliceMut::new(&mut word)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let word = (received.bytes > 0).then(|| u8::from_be_bytes(word));
    Ok((word, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They do not wait for a process that has yet to start.
    #[tokio::test]
    async fn more_listeners_than_the_socket_buffers_are_an_error() {
        let address = ListenAddr::Tcp("127.0.0.1:0".parse().unwrap());
        let listeners: Vec<_> = (0..600)
            .map(|_| Arc::new(Listener::bind(&address).unwrap()))
            .collect();
        let error = Successor::start(&listeners).await.unwrap_err();
        assert!(error.starts_with("cannot start the new process"), "{error}");
    }
}
