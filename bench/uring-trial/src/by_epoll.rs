//! The relay on epoll, level triggered: one read and one write for what has arrived, with one buffer for all.
//!
//! The writes are a call each, where the bytes were read, or all that one wake-up has brought are handed to a ring in
//! one call, as the proxy does it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use pgpalisade_sockets::SendRing;

use crate::intake::{Arrivals, CLIENT, Pair, READ_CHUNK, SERVER};

const BELL: u64 = u64::MAX;

struct Connection {
    sockets: Pair,
    /// What is still to be sent to a side. While there is some, the other side is not read.
    unsent: [Vec<u8>; 2],
    /// The side may still send.
    open: [bool; 2],
    waits_for: [EventFlags; 2],
}

/// When what was read is sent.
pub(crate) enum Sends {
    AtOnce,
    Together,
}

/// Most writes of one call, as in the proxy.
const TOGETHER_MAX: usize = 32;

/// What was read, and is not sent yet.
struct Batch {
    ring: SendRing,
    /// Connection, side to send to, and the end of its bytes: they begin where those before it end.
    parts: Vec<(usize, usize, usize)>,
    bytes: Vec<u8>,
}

pub(crate) fn run(arrivals: Arrivals, sends: Sends) -> io::Result<()> {
    let mut batch = match sends {
        Sends::AtOnce => None,
        Sends::Together => Some(Batch {
            ring: SendRing::new(TOGETHER_MAX as u32)?,
            parts: Vec::new(),
            bytes: Vec::new(),
        }),
    };
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(
        &epoll,
        &*arrivals.bell,
        EventData::new_u64(BELL),
        EventFlags::IN,
    )?;
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut scratch = vec![0; READ_CHUNK];
    let mut events = Vec::with_capacity(256);
    loop {
        events.clear();
        match epoll::wait(&epoll, spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let data = event.data.u64();
            if data == BELL {
                admit(&epoll, &arrivals, &mut connections)?;
                continue;
            }
            let (index, side) = ((data / 2) as usize, (data % 2) as usize);
            let Some(connection) = connections[index].as_mut() else {
                continue;
            };
            let place = batch.as_mut().map(|batch| (batch, index));
            let lives = connection
                .on_event(side, event.flags, &mut scratch, place)
                .is_ok()
                && connection.open != [false, false]
                && connection.wait(&epoll, index).is_ok();
            if !lives {
                connections[index] = None;
            }
            if let Some(batch) = batch
                .as_mut()
                .filter(|batch| batch.parts.len() == TOGETHER_MAX)
            {
                batch.send(&epoll, &mut connections);
            }
        }
        if let Some(batch) = &mut batch {
            batch.send(&epoll, &mut connections);
        }
    }
}

impl Batch {
    fn send(&mut self, epoll: &OwnedFd, connections: &mut [Option<Connection>]) {
        let mut start = 0;
        let parts = self.parts.iter().map(|&(index, side, end)| {
            let own = &self.bytes[std::mem::replace(&mut start, end)..end];
            (index, side, own)
        });
        // A connection that has ended since is left out.
        let parts: Vec<_> = parts.filter(|part| connections[part.0].is_some()).collect();
        let sockets = parts.iter().filter_map(|&(index, side, own)| {
            Some((connections[index].as_ref()?.sockets[side].as_fd(), own))
        });
        let sent: Vec<_> = self.ring.send(sockets).collect();
        for (&(index, side, own), sent) in parts.iter().zip(sent) {
            let Some(connection) = connections[index].as_mut() else {
                continue;
            };
            let rest = match sent {
                Ok(sent) if sent == own.len() => continue,
                Ok(sent) => Some(&own[sent..]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(own),
                Err(_) => None,
            };
            let lives = rest.is_some_and(|rest| {
                connection.unsent[side].extend_from_slice(rest);
                connection.wait(epoll, index).is_ok()
            });
            if !lives {
                connections[index] = None;
            }
        }
        self.parts.clear();
        self.bytes.clear();
    }
}

fn admit(
    epoll: &OwnedFd,
    arrivals: &Arrivals,
    connections: &mut Vec<Option<Connection>>,
) -> io::Result<()> {
    rustix::io::read(&*arrivals.bell, &mut [0; 8])?;
    for sockets in arrivals.pairs.try_iter() {
        let free = connections.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            connections.push(None);
            connections.len() - 1
        });
        for (side, socket) in sockets.iter().enumerate() {
            epoll::add(
                epoll,
                socket,
                EventData::new_u64((index * 2 + side) as u64),
                EventFlags::IN,
            )?;
        }
        connections[index] = Some(Connection {
            sockets,
            unsent: [Vec::new(), Vec::new()],
            open: [true, true],
            waits_for: [EventFlags::IN; 2],
        });
    }
    Ok(())
}

impl Connection {
    fn on_event(
        &mut self,
        side: usize,
        flags: EventFlags,
        scratch: &mut [u8],
        batch: Option<(&mut Batch, usize)>,
    ) -> Result<(), Errno> {
        if flags.intersects(EventFlags::OUT | EventFlags::ERR) && !self.unsent[side].is_empty() {
            let sent = write(&self.sockets[side], &self.unsent[side])?;
            self.unsent[side].drain(..sent);
            self.end_side(1 - side)?;
        }
        let other = 1 - side;
        if !flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR)
            || !self.open[side]
            || !self.unsent[other].is_empty()
        {
            return Ok(());
        }
        match rustix::io::read(&self.sockets[side], &mut *scratch) {
            Ok(0) => {
                self.open[side] = false;
                self.end_side(side)
            }
            Ok(read) if let Some((batch, index)) = batch => {
                batch.bytes.extend_from_slice(&scratch[..read]);
                batch.parts.push((index, other, batch.bytes.len()));
                Ok(())
            }
            Ok(read) => {
                let sent = write(&self.sockets[other], &scratch[..read])?;
                self.unsent[other].extend_from_slice(&scratch[sent..read]);
                Ok(())
            }
            Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Tells the other side that nothing more comes from `side`, once it has all of it.
    fn end_side(&self, side: usize) -> Result<(), Errno> {
        if !self.open[side] && self.unsent[1 - side].is_empty() {
            shutdown(&self.sockets[1 - side], Shutdown::Write)?;
        }
        Ok(())
    }

    /// Tells epoll what matters now, where that has changed.
    fn wait(&mut self, epoll: &OwnedFd, index: usize) -> Result<(), Errno> {
        for side in [CLIENT, SERVER] {
            let mut flags = EventFlags::empty();
            flags.set(
                EventFlags::IN,
                self.open[side] && self.unsent[1 - side].is_empty(),
            );
            flags.set(EventFlags::OUT, !self.unsent[side].is_empty());
            if flags != self.waits_for[side] {
                let data = EventData::new_u64((index * 2 + side) as u64);
                epoll::modify(epoll, &self.sockets[side], data, flags)?;
                self.waits_for[side] = flags;
            }
        }
        Ok(())
    }
}

fn write(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    match rustix::io::write(socket, bytes) {
        Err(Errno::AGAIN) => Ok(0),
        done => done,
    }
}
