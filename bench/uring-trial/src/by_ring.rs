//! The relay on io_uring with a buffer for each direction: what has arrived is sent, and linked to that the next
//! receive, so that one entry into the kernel does both for every connection that had something, and waits.
//!
//! A send that ended well says nothing. One that did not breaks its link, so that no byte is ever received into a
//! buffer that is not sent: that is the back-pressure too.

use std::io;

use io_uring::{opcode, squeue};
use rustix::net::{Shutdown, shutdown};

use crate::intake::{Arrivals, CLIENT, Pair, READ_CHUNK, SERVER};
use crate::ring::{POLL_FIRST, Ring, Tag, What};

/// `MSG_WAITALL | MSG_NOSIGNAL`: the kernel itself goes on with a short send.
const SEND_ALL: i32 = 0x100 | 0x4000;

struct Connection {
    sockets: Pair,
    /// What a side has said.
    buffers: [Vec<u8>; 2],
    /// Receives that the kernel holds, each with the send before it.
    held: usize,
}

pub(crate) fn run(arrivals: Arrivals) -> io::Result<()> {
    let mut ring = Ring::new()?;
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut done = Vec::new();
    ring.arm_bell(&arrivals.bell)?;
    loop {
        ring.turn(1, &mut done)?;
        for (tag, entry) in &done {
            match tag.what {
                What::Bell => admit(&mut ring, &arrivals, &mut connections)?,
                What::Recv => {
                    on_received(&mut ring, &mut connections[tag.index], *tag, entry.result())?
                }
                What::Send => abort(&mut connections[tag.index]),
                What::Cancel => {}
            }
        }
    }
}

fn admit(
    ring: &mut Ring,
    arrivals: &Arrivals,
    connections: &mut Vec<Option<Connection>>,
) -> io::Result<()> {
    for sockets in arrivals.pairs.try_iter() {
        let index = connections
            .iter()
            .position(Option::is_none)
            .unwrap_or_else(|| {
                connections.push(None);
                connections.len() - 1
            });
        let buffers = [vec![0; READ_CHUNK], vec![0; READ_CHUNK]];
        let connection = connections[index].insert(Connection {
            sockets,
            buffers,
            held: 2,
        });
        ring.register(
            Tag {
                what: What::Recv,
                index,
                side: CLIENT,
            },
            &connection.sockets,
        )?;
        for side in [CLIENT, SERVER] {
            let entry = receive(
                connection,
                Tag {
                    what: What::Recv,
                    index,
                    side,
                },
            );
            // SAFETY: the buffer is freed only when the kernel holds no receive of the connection.
            unsafe { ring.push(&[entry])? };
        }
    }
    ring.arm_bell(&arrivals.bell)
}

fn receive(connection: &mut Connection, tag: Tag) -> squeue::Entry {
    let buffer = &mut connection.buffers[tag.side];
    opcode::Recv::new(
        tag.socket(tag.side),
        buffer.as_mut_ptr(),
        buffer.len() as u32,
    )
    .ioprio(POLL_FIRST)
    .build()
    .user_data(tag.pack())
}

fn on_received(
    ring: &mut Ring,
    place: &mut Option<Connection>,
    tag: Tag,
    result: i32,
) -> io::Result<()> {
    let Some(connection) = place.as_mut() else {
        return Ok(());
    };
    let other = 1 - tag.side;
    if result > 0 {
        let sent = Tag {
            what: What::Send,
            ..tag
        };
        let bytes = connection.buffers[tag.side].as_ptr();
        let send = opcode::Send::new(tag.socket(other), bytes, result as u32)
            .flags(SEND_ALL)
            .build()
            .flags(squeue::Flags::IO_LINK | squeue::Flags::SKIP_SUCCESS)
            .user_data(sent.pack());
        // SAFETY: as for the first receive; the send has ended before the receive that is linked to it.
        return unsafe { ring.push(&[send, receive(connection, tag)]) };
    }
    connection.held -= 1;
    if result == 0 {
        // A peer that is gone already is as good as one that was told.
        let _ = shutdown(&connection.sockets[other], Shutdown::Write);
    } else {
        abort(place);
    }
    if place
        .as_ref()
        .is_some_and(|connection| connection.held == 0)
    {
        *place = None;
        ring.forget(tag.index)?;
    }
    Ok(())
}

/// Makes whatever the kernel still holds of the connection end soon.
fn abort(place: &mut Option<Connection>) {
    for socket in place.iter().flat_map(|connection| &connection.sockets) {
        let _ = shutdown(socket, Shutdown::Both);
    }
}
