//! The relay on io_uring with buffers that all connections share: one receive is armed for each socket and stays so.
//!
//! A send of the ring does not wait at first, so that it has ended when the entry that submits it returns. It says
//! nothing where the socket has taken all, so that the same entry can wait for the next receive. What the socket has
//! not taken is sent again, waiting. While much is unsent, the receive is taken back.
//!
//! What a proxy would need besides: buffers are not shared fairly here. Connections that are read slowly can hold all
//! of them, and then the others wait, at the cost of turns that do nothing.

use std::collections::VecDeque;
use std::io;

use io_uring::{cqueue, opcode, squeue};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, send, shutdown};

use crate::buffer_ring::{BufferRing, GROUP};
use crate::intake::{Arrivals, CLIENT, Pair, SERVER};
use crate::ring::{Ring, Tag, What};

const MSG_DONTWAIT: i32 = 0x40;
/// Less than all is a failure, and so it is reported.
const MSG_WAITALL: i32 = 0x100;
const MSG_NOSIGNAL: i32 = 0x4000;

/// Unsent buffers of one direction, above which nothing more is received for it.
const UNSENT_MAX: usize = 4;

/// Who sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sends {
    InRing,
    /// `send(2)`; only what the socket does not take is left to the ring.
    ByCall,
}

/// The send of a direction's first piece.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Sending {
    #[default]
    Nothing,
    /// Without waiting.
    Now,
    /// When the socket takes it.
    Waiting,
}

/// A part of a shared buffer.
struct Piece {
    buffer: u16,
    from: usize,
    to: usize,
}

/// Bytes from one side to the other.
#[derive(Default)]
struct Direction {
    unsent: VecDeque<Piece>,
    sending: Sending,
    /// The kernel holds the receive.
    receiving: bool,
    cancelling: bool,
    ended: bool,
}

struct Connection {
    sockets: Pair,
    /// By the side that the bytes come from.
    from: [Direction; 2],
}

struct Relay {
    ring: Ring,
    buffers: BufferRing,
    connections: Vec<Option<Connection>>,
    sends: Sends,
    /// Where a send without waiting was queued since the last entry.
    sending_now: Vec<Tag>,
    /// Receives that ended because no buffer was left.
    starved: Vec<Tag>,
}

pub(crate) fn run(arrivals: Arrivals, sends: Sends) -> io::Result<()> {
    let mut ring = Ring::new()?;
    let buffers = BufferRing::register(&ring)?;
    ring.arm_bell(&arrivals.bell)?;
    let mut relay = Relay {
        ring,
        buffers,
        connections: Vec::new(),
        sends,
        sending_now: Vec::new(),
        starved: Vec::new(),
    };
    let mut done = Vec::new();
    let mut sent_now = Vec::new();
    loop {
        relay.ring.turn(1, &mut done)?;
        std::mem::swap(&mut relay.sending_now, &mut sent_now);
        for (tag, entry) in done.iter().filter(|(tag, _)| tag.what == What::Send) {
            relay.on_sent(*tag, entry.result())?;
        }
        for tag in sent_now.drain(..) {
            relay.on_silence(tag)?;
        }
        for (tag, entry) in &done {
            match tag.what {
                What::Bell => relay.admit(&arrivals)?,
                What::Recv => relay.on_received(*tag, entry)?,
                What::Send | What::Cancel => {}
            }
        }
        for tag in std::mem::take(&mut relay.starved) {
            relay.settle(tag)?;
        }
    }
}

impl Relay {
    fn admit(&mut self, arrivals: &Arrivals) -> io::Result<()> {
        for sockets in arrivals.pairs.try_iter() {
            let index = self
                .connections
                .iter()
                .position(Option::is_none)
                .unwrap_or_else(|| {
                    self.connections.push(None);
                    self.connections.len() - 1
                });
            let tag = Tag {
                what: What::Recv,
                index,
                side: CLIENT,
            };
            self.ring.register(tag, &sockets)?;
            self.connections[index] = Some(Connection {
                sockets,
                from: Default::default(),
            });
            self.settle(tag)?;
            self.settle(Tag {
                side: SERVER,
                ..tag
            })?;
        }
        self.ring.arm_bell(&arrivals.bell)
    }

    fn on_received(&mut self, tag: Tag, entry: &cqueue::Entry) -> io::Result<()> {
        let Some(connection) = self.connections[tag.index].as_mut() else {
            return Ok(());
        };
        let direction = &mut connection.from[tag.side];
        if !cqueue::more(entry.flags()) {
            direction.receiving = false;
            direction.cancelling = false;
        }
        let result = entry.result();
        if let (1.., Some(buffer)) = (result, cqueue::buffer_select(entry.flags())) {
            direction.unsent.push_back(Piece {
                buffer,
                from: 0,
                to: result as usize,
            });
        } else if result == -Errno::NOBUFS.raw_os_error() {
            // Others of this turn may give theirs back.
            self.starved.push(tag);
            return Ok(());
        } else if result == 0 {
            direction.ended = true;
        } else if result != -Errno::CANCELED.raw_os_error() {
            return self.abort(tag);
        }
        self.settle(tag)
    }

    /// A send has failed, or sent a part, or was one that waited.
    fn on_sent(&mut self, tag: Tag, result: i32) -> io::Result<()> {
        let Some(connection) = self.connections[tag.index].as_mut() else {
            return Ok(());
        };
        connection.from[tag.side].sending = Sending::Nothing;
        if result < 0 && result != -Errno::AGAIN.raw_os_error() {
            return self.abort(tag);
        }
        self.sent(tag, result.max(0) as usize);
        self.queue_send(tag, Sending::Waiting)?;
        self.settle(tag)
    }

    /// A send without waiting that said nothing has sent all.
    fn on_silence(&mut self, tag: Tag) -> io::Result<()> {
        let Some(connection) = self.connections[tag.index].as_mut() else {
            return Ok(());
        };
        let direction = &mut connection.from[tag.side];
        if direction.sending != Sending::Now {
            return Ok(());
        }
        direction.sending = Sending::Nothing;
        let whole = direction
            .unsent
            .front()
            .map_or(0, |piece| piece.to - piece.from);
        self.sent(tag, whole);
        self.settle(tag)
    }

    /// Takes off what has been sent of the first piece.
    fn sent(&mut self, tag: Tag, count: usize) {
        let Some(connection) = self.connections[tag.index].as_mut() else {
            return;
        };
        let unsent = &mut connection.from[tag.side].unsent;
        let Some(piece) = unsent.front_mut() else {
            return;
        };
        piece.from += count;
        if piece.from == piece.to {
            self.buffers.give_back(piece.buffer);
            unsent.pop_front();
        }
    }

    /// Does for a direction what can be done now.
    fn settle(&mut self, tag: Tag) -> io::Result<()> {
        while self.sends == Sends::ByCall && self.send_by_call(tag) {}
        let Some(connection) = self.connections[tag.index].as_mut() else {
            return Ok(());
        };
        let direction = &mut connection.from[tag.side];
        if !direction.unsent.is_empty() {
            // A send that says nothing does only where whatever is to be done after it comes with another event.
            let last = direction.unsent.len() == 1 && !direction.ended;
            let awaited = direction.receiving && !direction.cancelling;
            let how = if last && awaited {
                Sending::Now
            } else {
                Sending::Waiting
            };
            self.queue_send(tag, how)?;
        } else if direction.unsent.is_empty() && direction.ended {
            let _ = shutdown(&connection.sockets[1 - tag.side], Shutdown::Write);
            return self.close_where_done(tag);
        }
        self.settle_receive(tag)
    }

    /// Says whether there may be more to send so.
    fn send_by_call(&mut self, tag: Tag) -> bool {
        let Some(connection) = self.connections[tag.index].as_ref() else {
            return false;
        };
        let direction = &connection.from[tag.side];
        let (Some(piece), false) = (
            direction.unsent.front(),
            direction.sending != Sending::Nothing,
        ) else {
            return false;
        };
        let bytes = self.buffers.bytes(piece.buffer, piece.from..piece.to);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // An error is left to the ring, which meets it again.
        let Ok(count) = send(&connection.sockets[1 - tag.side], bytes, flags) else {
            return false;
        };
        let whole = count == bytes.len();
        self.sent(tag, count);
        whole
    }

    /// Gives the first piece to the ring, unless it has it.
    fn queue_send(&mut self, tag: Tag, how: Sending) -> io::Result<()> {
        let Some(connection) = self.connections[tag.index].as_mut() else {
            return Ok(());
        };
        let direction = &mut connection.from[tag.side];
        let (Some(piece), Sending::Nothing) = (direction.unsent.front(), direction.sending) else {
            return Ok(());
        };
        let bytes = self.buffers.bytes(piece.buffer, piece.from..piece.to);
        let send_tag = Tag {
            what: What::Send,
            ..tag
        };
        let socket = tag.socket(1 - tag.side);
        let send = opcode::Send::new(socket, bytes.as_ptr(), bytes.len() as u32);
        direction.sending = how;
        let send = if how == Sending::Now {
            self.sending_now.push(send_tag);
            let entry = send
                .flags(MSG_NOSIGNAL | MSG_WAITALL | MSG_DONTWAIT)
                .build();
            entry.flags(squeue::Flags::SKIP_SUCCESS)
        } else {
            send.flags(MSG_NOSIGNAL).build()
        };
        // SAFETY: the buffer is given back only when the send has ended.
        unsafe { self.ring.push(&[send.user_data(send_tag.pack())]) }
    }

    /// Arms the receive of a direction, or takes it back, by how much is unsent.
    fn settle_receive(&mut self, tag: Tag) -> io::Result<()> {
        let Some(connection) = self.connections[tag.index].as_mut() else {
            return Ok(());
        };
        let direction = &mut connection.from[tag.side];
        let room = direction.unsent.len() < UNSENT_MAX;
        let entry = if room && !direction.receiving && !direction.ended {
            direction.receiving = true;
            opcode::RecvMulti::new(tag.socket(tag.side), GROUP)
                .build()
                .user_data(
                    Tag {
                        what: What::Recv,
                        ..tag
                    }
                    .pack(),
                )
        } else if !room && direction.receiving && !direction.cancelling {
            direction.cancelling = true;
            opcode::AsyncCancel::new(
                Tag {
                    what: What::Recv,
                    ..tag
                }
                .pack(),
            )
            .build()
            .user_data(
                Tag {
                    what: What::Cancel,
                    ..tag
                }
                .pack(),
            )
        } else {
            return Ok(());
        };
        // SAFETY: a receive from shared buffers points to nothing, nor does a cancellation.
        unsafe { self.ring.push(&[entry]) }
    }

    /// Makes whatever the kernel still holds of the connection end soon.
    fn abort(&mut self, tag: Tag) -> io::Result<()> {
        let Some(connection) = self.connections[tag.index].as_mut() else {
            return Ok(());
        };
        for socket in &connection.sockets {
            let _ = shutdown(socket, Shutdown::Both);
        }
        for direction in &mut connection.from {
            direction.ended = true;
            let held = usize::from(direction.sending != Sending::Nothing);
            for piece in direction.unsent.drain(held..) {
                self.buffers.give_back(piece.buffer);
            }
        }
        self.close_where_done(tag)
    }

    fn close_where_done(&mut self, tag: Tag) -> io::Result<()> {
        let place = &mut self.connections[tag.index];
        let done = |direction: &Direction| {
            direction.ended
                && !direction.receiving
                && direction.sending == Sending::Nothing
                && direction.unsent.is_empty()
        };
        if place
            .as_ref()
            .is_some_and(|connection| connection.from.iter().all(done))
        {
            *place = None;
            self.ring.forget(tag.index)?;
        }
        Ok(())
    }
}
