//! Cancel keys of clients that share server connections. A key leads to the connection that serves its client, if
//! one does.
//!
//! A cancel request may hit whatever runs when it arrives, so a connection that one was sent to serves no other
//! client before the cancel connection has closed and a round trip has come back.
//!
//! The keys are known to this process only: after an upgrade in place, the old process's clients cannot cancel.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-CANCELING-REQUESTS>

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use pgpalisade_takeover::PrimaryTerm;
use pgpalisade_wire::backend::tag;
use pgpalisade_wire::{encode, startup};
use tokio::sync::Notify;

/// All keys of this process.
#[derive(Debug, Clone, Default)]
pub(crate) struct CancelKeys(Arc<Mutex<HashMap<Pid, Arc<Slot>>>>);

/// A process id that PostgreSQL could have, in bytes of the protocol.
type Pid = [u8; 4];

#[derive(Debug)]
struct Slot {
    secret: [u8; 4],
    /// The connection that serves the client now.
    serving: Mutex<Option<Arc<Cancellable>>>,
}

/// Whom a cancel request is for.
#[derive(Debug)]
pub(crate) enum Addressee {
    /// The key is not ours.
    Server,
    /// No connection serves the client.
    Nobody,
    Backend(CancelRequest),
}

/// A client's key, valid until it is dropped.
#[derive(Debug)]
pub(crate) struct CancelKey {
    keys: CancelKeys,
    pid: Pid,
    slot: Arc<Slot>,
}

impl CancelKeys {
    pub(crate) fn issue(&self) -> CancelKey {
        let slot = Arc::new(Slot {
            secret: rand::random(),
            serving: Mutex::default(),
        });
        let mut slots = self.0.lock();
        let pid = loop {
            let pid = (rand::random::<i32>() & i32::MAX).max(1).to_be_bytes();
            if !slots.contains_key(&pid) {
                break pid;
            }
        };
        slots.insert(pid, Arc::clone(&slot));
        CancelKey {
            keys: self.clone(),
            pid,
            slot,
        }
    }

    /// Looks up the key of a CancelRequest. A request to a connection is under way until it is dropped.
    pub(crate) fn find(&self, packet: &[u8]) -> Addressee {
        let key = startup::cancel_key(packet).and_then(<[u8]>::split_first_chunk::<4>);
        let slot = key.and_then(|(pid, secret)| {
            let slot = self.0.lock().get(pid).cloned();
            slot.filter(|slot| slot.secret == *secret)
        });
        let Some(slot) = slot else {
            return Addressee::Server;
        };
        // Locked until the request is noted: whoever releases the connection then finds it.
        let serving = slot.serving.lock();
        match &*serving {
            Some(backend) if !backend.is_deposed() => {
                Addressee::Backend(CancelRequest::to(backend))
            }
            _ => Addressee::Nobody,
        }
    }
}

impl CancelKey {
    pub(crate) const fn pid(&self) -> i32 {
        i32::from_be_bytes(self.pid)
    }

    /// Appends BackendKeyData.
    pub(crate) fn put(&self, out: &mut BytesMut) {
        let key = [self.pid, self.slot.secret].concat();
        encode::put_raw(out, tag::BACKEND_KEY_DATA, &key);
    }

    /// From now on requests with this key go to `backend`.
    pub(crate) fn lend(&self, backend: &Arc<Cancellable>) {
        *self.slot.serving.lock() = Some(Arc::clone(backend));
    }

    /// From now on requests with this key go nowhere. [`Cancellable::cancels`] says whether one was sent before.
    pub(crate) fn release(&self) {
        *self.slot.serving.lock() = None;
    }
}

impl Drop for CancelKey {
    fn drop(&mut self) {
        self.release();
        self.keys.0.lock().remove(&self.pid);
    }
}

/// A server connection, as far as cancel requests matter.
#[derive(Debug)]
pub(crate) struct Cancellable {
    /// CancelRequest with the server's own key.
    packet: Bytes,
    term: Option<PrimaryTerm>,
    sent: Mutex<Sent>,
    closed: Notify,
}

#[derive(Debug, Default)]
struct Sent {
    under_way: usize,
    worst: Aftermath,
}

/// What a request leaves behind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Aftermath {
    #[default]
    Nothing,
    /// The signal was sent, and may arrive a moment later.
    Signal,
    /// The server may still read the request.
    Unknown,
}

/// Cancel requests to a connection since the last round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cancels {
    None,
    /// The connection must not be lent on yet: see [`Cancellable::settled`].
    UnderWay,
    /// The connection may be lent on after a round trip.
    Closed,
    /// A request may arrive at any time: the connection must be closed.
    InDoubt,
}

impl Cancellable {
    /// A connection with this BackendKeyData body.
    pub(crate) fn new(key: &[u8], term: Option<PrimaryTerm>) -> Arc<Self> {
        Arc::new(Self {
            packet: startup::cancel_request(key).freeze(),
            term,
            sent: Mutex::default(),
            closed: Notify::new(),
        })
    }

    fn is_deposed(&self) -> bool {
        self.term.as_ref().is_some_and(PrimaryTerm::is_over)
    }

    pub(crate) fn cancels(&self) -> Cancels {
        let sent = self.sent.lock();
        match (sent.under_way, sent.worst) {
            (1.., _) => Cancels::UnderWay,
            (0, Aftermath::Nothing) => Cancels::None,
            (0, Aftermath::Signal) => Cancels::Closed,
            (0, Aftermath::Unknown) => Cancels::InDoubt,
        }
    }

    /// Waits until no request is under way.
    pub(crate) async fn settled(&self) -> Cancels {
        loop {
            // Before the look, so that no end is missed.
            let closed = self.closed.notified();
            match self.cancels() {
                Cancels::UnderWay => closed.await,
                settled => return settled,
            }
        }
    }

    /// Notes a round trip that began after all cancel connections had closed.
    pub(crate) fn on_round_trip(&self) {
        let mut sent = self.sent.lock();
        if sent.worst == Aftermath::Signal {
            sent.worst = Aftermath::Nothing;
        }
    }
}

/// A request to a connection. It is under way until it is dropped.
#[derive(Debug)]
pub(crate) struct CancelRequest {
    backend: Arc<Cancellable>,
    aftermath: Aftermath,
}

impl CancelRequest {
    fn to(backend: &Arc<Cancellable>) -> Self {
        backend.sent.lock().under_way += 1;
        Self {
            backend: Arc::clone(backend),
            aftermath: Aftermath::Nothing,
        }
    }

    /// The packet, which the caller sends at once.
    pub(crate) fn begin(&mut self) -> Bytes {
        self.aftermath = Aftermath::Unknown;
        self.backend.packet.clone()
    }

    /// The server has closed the cancel connection: it has sent its signal.
    pub(crate) fn close(mut self) {
        self.aftermath = Aftermath::Signal;
    }
}

impl Drop for CancelRequest {
    fn drop(&mut self) {
        let mut sent = self.backend.sent.lock();
        sent.under_way -= 1;
        sent.worst = sent.worst.max(self.aftermath);
        drop(sent);
        self.backend.closed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(key: &CancelKey) -> Bytes {
        let mut out = BytesMut::new();
        key.put(&mut out);
        assert_eq!(out[..5], *b"K\0\0\0\x0c");
        startup::cancel_request(&out[5..]).freeze()
    }

    fn backend() -> Arc<Cancellable> {
        Cancellable::new(b"pid.key.of.the.server", None)
    }

    fn request(keys: &CancelKeys, packet: &[u8]) -> CancelRequest {
        match keys.find(packet) {
            Addressee::Backend(request) => request,
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn a_key_leads_to_the_backend_that_serves_its_client() {
        let keys = CancelKeys::default();
        let (one, other, server) = (keys.issue(), keys.issue(), backend());
        let ours = packet(&one);
        assert!(matches!(keys.find(&ours), Addressee::Nobody));
        one.lend(&server);
        let mut sent = request(&keys, &ours);
        assert_eq!(
            sent.begin(),
            startup::cancel_request(b"pid.key.of.the.server")
        );
        assert!(matches!(keys.find(&packet(&other)), Addressee::Nobody));
        one.release();
        assert!(matches!(keys.find(&ours), Addressee::Nobody));
        drop(one);
        assert!(matches!(keys.find(&ours), Addressee::Server));
    }

    #[test]
    fn other_keys_are_the_servers() {
        let keys = CancelKeys::default();
        let key = keys.issue();
        key.lend(&backend());
        let ours = packet(&key);
        for (at, xor) in [(8, 1), (11, 1), (12, 1), (15, 128)] {
            let mut other = ours.to_vec();
            other[at] ^= xor;
            assert!(matches!(keys.find(&other), Addressee::Server), "{at}");
        }
        let longer = startup::cancel_request(&[&ours[8..], b"more"].concat());
        assert!(matches!(keys.find(&longer), Addressee::Server));
        assert!(matches!(keys.find(&ours[..12]), Addressee::Server));
        assert!(matches!(keys.find(b""), Addressee::Server));
    }

    #[test]
    fn living_keys_differ() {
        let keys = CancelKeys::default();
        let living: Vec<_> = (0..2000).map(|_| keys.issue()).collect();
        assert_eq!(keys.0.lock().len(), living.len());
        assert!(living.iter().all(|key| i32::from_be_bytes(key.pid) > 0));
        drop(living);
        assert!(keys.0.lock().is_empty());
    }

    #[test]
    fn a_request_holds_the_backend_until_it_is_known_to_be_over() {
        let (keys, server) = (CancelKeys::default(), backend());
        let key = keys.issue();
        key.lend(&server);
        let ours = packet(&key);
        drop(request(&keys, &ours));
        assert_eq!(server.cancels(), Cancels::None, "nothing was sent");
        let (mut one, mut other) = (request(&keys, &ours), request(&keys, &ours));
        key.release();
        (one.begin(), other.begin());
        one.close();
        assert_eq!(server.cancels(), Cancels::UnderWay);
        server.on_round_trip();
        other.close();
        assert_eq!(server.cancels(), Cancels::Closed);
        server.on_round_trip();
        assert_eq!(server.cancels(), Cancels::None);
        key.lend(&server);
        let mut lost = request(&keys, &ours);
        lost.begin();
        drop(lost);
        server.on_round_trip();
        assert_eq!(server.cancels(), Cancels::InDoubt);
    }

    #[tokio::test]
    async fn the_end_of_a_request_is_waited_for() {
        let (keys, server) = (CancelKeys::default(), backend());
        let key = keys.issue();
        key.lend(&server);
        assert_eq!(server.settled().await, Cancels::None);
        let mut request = request(&keys, &packet(&key));
        request.begin();
        let ending = async {
            tokio::task::yield_now().await;
            request.close();
        };
        let (settled, ()) = tokio::join!(server.settled(), ending);
        assert_eq!(settled, Cancels::Closed);
    }
}
