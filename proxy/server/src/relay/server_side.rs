//! Reading the server: its messages go on to the client, except those that the session keeps or replaces.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::{End, Relay, Side, behind, keep};
use crate::session::action::Disposition;
use crate::upstream::Rest;
use crate::wire::backend;
use crate::wire::header::{self, HEADER_LEN};

/// Size limit for collecting a message that the session understands: any description of rows or parameters. Longer
/// ones (an error with a huge field) are judged by their header.
const UNDERSTOOD_MAX: usize = 512 * 1024;

impl Relay {
    #[inline]
    pub(super) fn poll_server(&mut self, cx: &mut Context<'_>) -> Result<Side, End> {
        if !self.client.socket.has_room() {
            return Ok(Side::Unasked);
        }
        if self.server.upstream.is_awaited(cx) {
            Ok(Side::Drained)
        } else {
            self.read_server(cx)
        }
    }

    fn read_server(&mut self, cx: &mut Context<'_>) -> Result<Side, End> {
        let worker = Rc::clone(&self.client.worker);
        let mut scratch = worker.scratch.borrow_mut();
        let read = match self.server.upstream.poll_read(cx, scratch.room()) {
            Poll::Pending => return Ok(Side::Drained),
            Poll::Ready(Ok(read @ 1..)) => read,
            Poll::Ready(closed) => {
                return if self.server.awaits_declaration && self.session.is_terminated() {
                    Ok(Side::Drained)
                } else {
                    Err(self.on_server_closed(closed))
                };
            }
        };
        worker.tally.received_from_server(read);
        let bytes = scratch.front(read);
        if self.server.kept.is_empty() {
            let done = self.on_server_bytes(bytes)?;
            keep(&mut self.server.kept, bytes, done);
        } else {
            // The new bytes continue the kept message.
            self.server.kept.extend_from_slice(bytes);
            self.on_kept_server_bytes()?;
        }
        Ok(Side::Read)
    }

    pub(super) fn on_kept_server_bytes(&mut self) -> Result<(), End> {
        let kept = std::mem::take(&mut self.server.kept);
        let done = self.on_server_bytes(&kept)?;
        self.server.kept = behind(kept, done);
        Ok(())
    }

    fn on_server_closed(&mut self, closed: io::Result<usize>) -> End {
        if !self.server.upstream.is_ended() || !self.session.is_answered() {
            self.follow_policy();
            if let Some(ending) = self.session.on_server_closed() {
                return self.ended(ending);
            }
        }
        closed.map_or_else(End::ServerSocket, |_| End::ServerClosed)
    }

    /// Processes the server's bytes, and returns how many are done with.
    fn on_server_bytes(&mut self, bytes: &[u8]) -> Result<usize, End> {
        let (mut at, mut sent) = (0, 0);
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            if self.server.rest != Rest::None {
                let rest = std::mem::take(&mut self.server.rest);
                at += self.pass_rest(rest, bytes, &mut sent, at)?;
                match self.server.rest {
                    Rest::None => continue,
                    Rest::Relay(_) | Rest::Drop(_) => break,
                }
            }
            let header = match header::parse(rest, backend::body_max) {
                Ok(Some(header)) => header,
                Ok(None) => break,
                Err(error) => return Err(End::ServerSocket(io::Error::other(error))),
            };
            let whole = rest.get(HEADER_LEN..header.frame_len());
            let is_whole = whole.is_some();
            if !is_whole
                && header.body_len <= UNDERSTOOD_MAX
                && self.session.understands(header.tag)
            {
                break;
            }
            let body = whole.unwrap_or_else(|| rest.get(HEADER_LEN..).unwrap_or_default());
            let disposition = self.session.on_backend(header.tag, body);
            if !self.session.output().is_empty() {
                // The session's own messages go out after everything before this one.
                self.relay(bytes, &mut sent, at)?;
                self.put_output();
            }
            let rest = match disposition {
                // The usual case: a complete message, relayed together with what follows.
                Disposition::Relay if is_whole => {
                    at += header.frame_len();
                    continue;
                }
                Disposition::Relay => Rest::Relay(header.frame_len()),
                Disposition::Drop => Rest::Drop(header.frame_len()),
                Disposition::Terminated => {
                    self.relay(bytes, &mut sent, at)?;
                    self.on_terminated(body)?;
                    Rest::Drop(header.frame_len())
                }
                Disposition::End(ending) => {
                    self.relay(bytes, &mut sent, at)?;
                    return Err(self.ended(ending));
                }
            };
            at += self.pass_rest(rest, bytes, &mut sent, at)?;
        }
        self.relay(bytes, &mut sent, at)?;
        Ok(at)
    }

    fn on_terminated(&mut self, error: &[u8]) -> Result<(), End> {
        self.follow_policy();
        match self.session.on_terminated(error) {
            Some(ending) => Err(self.ended(ending)),
            None => Ok(()),
        }
    }

    /// Handles what is here of a message's rest, and returns its length. Relayed bytes go out with what follows them;
    /// before a drop, everything earlier goes out.
    #[inline]
    fn pass_rest(
        &mut self,
        rest: Rest,
        bytes: &[u8],
        sent: &mut usize,
        at: usize,
    ) -> Result<usize, End> {
        let here = bytes.len() - at;
        match rest {
            Rest::None => Ok(0),
            Rest::Relay(left) => {
                if here < left {
                    self.server.rest = Rest::Relay(left - here);
                }
                Ok(here.min(left))
            }
            Rest::Drop(left) => {
                self.relay(bytes, sent, at)?;
                let here = here.min(left);
                *sent = at + here;
                if here < left {
                    self.server.rest = Rest::Drop(left - here);
                }
                Ok(here)
            }
        }
    }

    fn relay(&mut self, bytes: &[u8], sent: &mut usize, at: usize) -> Result<(), End> {
        let ready = bytes.get(*sent..at).unwrap_or_default();
        *sent = at;
        if ready.is_empty() {
            return Ok(());
        }
        self.client.socket.send(ready).map_err(End::ClientSocket)
    }
}
