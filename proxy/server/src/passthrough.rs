//! A connection that the fence exempts as a whole: a replication connection. Bytes go both ways, unread, until one
//! side closes.
//!
//! As in [`relay`](crate::relay) one task drives both sockets and nothing blocks. While one side accepts nothing, the
//! other side is not read.
//!
//! A stopping proxy gives the connection the time of open transactions, then closes it.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use pgpalisade_fence::ReplicationPermit;

use crate::client_table::ClientEntry;
use crate::relay::{End, Established};
use crate::transport::{Socket, Stall};
use crate::upstream::Upstream;
use crate::worker::Worker;

/// Turns of the loop before other connections of the worker get theirs.
const TURNS_MAX: usize = 8;

enum ServerSide {
    Open,
    /// The server accepts nothing more. Its last messages are relayed.
    Deaf,
    /// The server has closed. The client gets what waits for it.
    Closed(Option<io::Error>),
}

pub(crate) struct Passthrough {
    worker: Rc<Worker>,
    client: Socket,
    server: Upstream,
    permit: ReplicationPermit,
    server_side: ServerSide,
    /// Runs while the client accepts nothing.
    stall: Stall,
}

impl Passthrough {
    /// Relays until one side closes, or the client accepts nothing for too long.
    pub(crate) async fn run(
        worker: Rc<Worker>,
        (client, client_bytes): (Socket, BytesMut),
        established: Established,
        permit: ReplicationPermit,
        entry: &ClientEntry,
    ) -> End {
        let Established {
            server,
            tenure,
            server_bytes,
            ..
        } = established;
        let mut connection = Self {
            worker,
            client,
            server: Upstream::new(server),
            permit,
            server_side: ServerSide::Open,
            stall: Stall::default(),
        };
        std::future::poll_fn(|cx| {
            connection.client.belongs_to(cx);
            connection.server.belongs_to(cx);
            Poll::Ready(())
        })
        .await;
        if let Err(end) = connection.begin(&client_bytes, &server_bytes) {
            return end;
        }
        let over = async {
            match &tenure {
                Some(tenure) => tenure.over().await,
                None => std::future::pending().await,
            }
        };
        let end = tokio::select! {
            end = std::future::poll_fn(|cx| connection.poll(cx)) => end,
            () = over => End::Deposed,
            cause = entry.end.ordered() => End::Forced(cause),
        };
        if let End::ClientLeft = end {
            connection.relay_to_the_end().await;
        }
        connection.client.shut_down_write();
        end
    }

    /// Relays the server's last messages after the client stopped sending, as long as bytes move.
    async fn relay_to_the_end(&mut self) {
        let worker = Rc::clone(&self.worker);
        loop {
            let moves = std::future::poll_fn(|cx| self.poll_last(cx));
            let moved = worker.shared.timers.timeout(worker.close_timeout, moves);
            match moved.await {
                Ok(Ok(())) => tokio::task::yield_now().await,
                Ok(Err(_)) | Err(_) => return,
            }
        }
    }

    fn poll_last(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        let waiting = self.client.waiting();
        self.poll_flush(cx)?;
        if let Poll::Ready(Err(error)) = self.server.poll_end(cx) {
            self.on_deaf_server(&error);
        }
        let has_read = self.poll_server(cx)?;
        if matches!(self.server_side, ServerSide::Closed(_)) && self.client.is_done() {
            return Poll::Ready(Err(End::ServerClosed));
        }
        if has_read || self.client.waiting() < waiting {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    fn begin(&mut self, from_client: &[u8], from_server: &[u8]) -> Result<(), End> {
        let sent = self.client.send(from_server);
        sent.map_err(End::ClientSocket)?;
        self.forward(from_client);
        Ok(())
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        match self.turns(cx) {
            Ok(()) => Poll::Pending,
            Err(end) => Poll::Ready(end),
        }
    }

    fn turns(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        for _ in 0..TURNS_MAX {
            self.poll_flush(cx)?;
            let read_server = self.poll_server(cx)?;
            let read_client = self.poll_client(cx)?;
            if !(read_server || read_client) {
                return match &mut self.server_side {
                    ServerSide::Closed(error) if self.client.is_done() => {
                        Err(error.take().map_or(End::ServerClosed, End::ServerSocket))
                    }
                    _ => Ok(()),
                };
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        if matches!(self.server_side, ServerSide::Open)
            && let Poll::Ready(Err(error)) = self.server.poll_flush(cx)
        {
            self.on_deaf_server(&error);
        }
        let limit = &self.worker.write_stall_limit;
        Ok(self.stall.poll_flush(&mut self.client, limit, cx)?)
    }

    /// Returns whether it did something.
    fn poll_server(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        if !self.client.has_room() || matches!(self.server_side, ServerSide::Closed(_)) {
            return Ok(false);
        }
        let mut scratch = self.worker.scratch.borrow_mut();
        self.server_side = match self.server.poll_read(cx, scratch.room()) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Ok(0)) => ServerSide::Closed(None),
            Poll::Ready(Err(error)) => ServerSide::Closed(Some(error)),
            Poll::Ready(Ok(read)) => {
                self.worker.tally.received_from_server(read);
                let sent = self.client.send(scratch.front(read));
                return sent.map(|()| true).map_err(End::ClientSocket);
            }
        };
        Ok(true)
    }

    /// Returns whether it did something.
    fn poll_client(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        if !self.server.has_room() || !matches!(self.server_side, ServerSide::Open) {
            return Ok(false);
        }
        let worker = Rc::clone(&self.worker);
        let mut scratch = worker.scratch.borrow_mut();
        match self.client.poll_read(cx, scratch.room()) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0)) => Err(End::ClientLeft),
            Poll::Ready(Err(error)) => Err(End::ClientSocket(error)),
            Poll::Ready(Ok(read)) => {
                worker.tally.received_from_client(read);
                self.forward(scratch.front(read));
                Ok(true)
            }
        }
    }

    fn forward(&mut self, bytes: &[u8]) {
        if let Err(error) = self.server.forward_exempt(&self.permit, bytes) {
            self.on_deaf_server(&error);
        }
    }

    /// Reads what the server may have said before the socket is given up.
    fn on_deaf_server(&mut self, error: &io::Error) {
        tracing::debug!(%error, "writing to the server");
        self.server_side = ServerSide::Deaf;
    }
}
