//! Sending through an outbox, with io_uring and without.

use std::io::Read as _;
use std::os::unix::net::UnixStream as Peer;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::net::UnixStream;

use super::shared_stream::SendState;
use super::{Batching, SendBatch, Socket, allowed_batching};

const PATIENCE: Duration = Duration::from_secs(10);

struct Connection {
    socket: Socket,
    peer: Peer,
}

impl Connection {
    fn new(sends: &Rc<SendBatch>) -> Self {
        let (ours, peer) = Peer::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        peer.set_nonblocking(true).unwrap();
        let socket = Socket::unix(UnixStream::from_std(ours).unwrap(), sends).unwrap();
        socket.belongs_to(&Context::from_waker(Waker::noop()));
        Self { socket, peer }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.socket.send(bytes).unwrap();
    }

    async fn flush(&mut self) -> std::io::Result<()> {
        let flush = std::future::poll_fn(|cx| self.socket.poll_flush(cx));
        tokio::time::timeout(PATIENCE, flush)
            .await
            .expect("not woken")
    }

    async fn look(&mut self) -> Poll<std::io::Result<()>> {
        std::future::poll_fn(|cx| Poll::Ready(self.socket.poll_flush(cx))).await
    }

    fn received(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut chunk = [0; 64 * 1024];
        loop {
            match self.peer.read(&mut chunk) {
                Ok(read @ 1..) => bytes.extend_from_slice(&chunk[..read]),
                _ => return bytes,
            }
        }
    }
}

fn both<F: Future<Output = ()> + 'static>(test: impl Fn(Rc<SendBatch>) -> F) {
    if allowed_batching(Batching::Auto) == Batching::Off {
        println!("no io_uring here: tested without it only");
    }
    for batching in [Batching::Auto, Batching::Off] {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build_local(Default::default());
        runtime
            .unwrap()
            .block_on(test(Rc::new(SendBatch::new(batching))));
    }
}

#[test]
fn few_bytes_wait_for_the_end_of_the_turn_and_many_do_not() {
    both(async |sends| {
        let (mut one, mut other) = (Connection::new(&sends), Connection::new(&sends));
        one.send(b"a");
        one.send(b"c");
        other.send(b"b");
        assert_eq!((one.received(), other.received()), (vec![], vec![]));
        sends.flush();
        assert_eq!(one.received(), b"ac");
        assert_eq!(other.received(), b"b");
        one.send(&[b'x'; 5000]);
        assert_eq!(one.received(), [b'x'; 5000]);
        for _ in 0..10 {
            one.send(&[b'y'; 4096]);
        }
        assert!(!one.received().is_empty());
    });
}

/// Some lone sends wait, to see whether others send.
#[test]
fn a_session_that_is_alone_is_not_held_up() {
    both(async |sends| {
        let (mut one, mut other) = (Connection::new(&sends), Connection::new(&sends));
        let at_once = |one: &mut Connection| {
            one.send(b"x");
            let is_sent = one.received() == b"x";
            sends.flush();
            assert_eq!(one.received(), if is_sent { vec![] } else { b"x".to_vec() });
            is_sent
        };
        for _ in 0..8 {
            assert!(!at_once(&mut one));
        }
        for _ in 0..3 {
            assert!(!at_once(&mut one));
            for _ in 0..7 {
                assert!(at_once(&mut one));
            }
        }
        one.send(b"x");
        other.send(b"y");
        sends.flush();
        assert_eq!(
            (one.received(), other.received()),
            (b"x".into(), b"y".into())
        );
        for _ in 0..8 {
            assert!(!at_once(&mut one));
        }
        // If something waits, everything after it waits too.
        for _ in 0..16 {
            other.send(b"y");
            assert!(!at_once(&mut one));
            assert_eq!(other.received(), b"y");
        }
    });
}

/// The proxy's own messages to several clients go out together too.
#[test]
fn own_messages_wait_for_the_end_of_the_turn_and_are_forgotten_then() {
    both(async |sends| {
        let mut one = Connection::new(&sends);
        one.socket.put(b"own");
        assert!(one.look().await.is_ready());
        assert_eq!((one.socket.waiting(), one.received()), (0, vec![]));
        sends.flush();
        assert_eq!(one.received(), b"own");
        one.socket.put(&[b'x'; 5000]);
        assert!(one.look().await.is_ready());
        assert_eq!(one.received(), [b'x'; 5000]);
    });
}

#[test]
fn bytes_stay_in_order_however_they_are_sent() {
    both(async |sends| {
        let (mut one, mut other) = (Connection::new(&sends), Connection::new(&sends));
        let mut sent = Vec::new();
        // After the other socket's bytes, appended to its own, and too large for the batch.
        for (number, len) in [1, 2, 4096, 3, 4097, 5, 30_000, 4096, 4096, 1]
            .into_iter()
            .enumerate()
        {
            let bytes = vec![b'a' + u8::try_from(number).unwrap(); len];
            if number % 3 == 0 {
                other.send(b"-");
            }
            one.send(&bytes);
            sent.extend(bytes);
        }
        one.socket.put(b"own");
        one.send(b"behind");
        sent.extend(b"ownbehind");
        one.flush().await.unwrap();
        sends.flush();
        assert!(one.received() == sent);
        assert_eq!(other.received(), b"----");
    });
}

#[test]
fn what_a_socket_does_not_take_comes_back_and_goes_first() {
    both(async |sends| {
        let (mut full, mut other) = (Connection::new(&sends), Connection::new(&sends));
        let mut sent = 0;
        // Another socket sends in between.
        while full.socket.shared.status() != SendState::Returned {
            assert!(full.look().await.is_ready());
            full.send(&[b'x'; 1000]);
            other.send(b"y");
            sends.flush();
            assert_eq!(other.received(), b"y");
            sent += 1000;
        }
        full.socket.put(b"own");
        full.send(b"z");
        for _ in 0..3 {
            // Repeated looks must not give a client that accepts nothing new time.
            assert!(full.look().await.is_pending());
            sends.flush();
        }
        assert!(full.socket.waiting() > 0);
        let mut received = full.received();
        full.flush().await.unwrap();
        assert_eq!(full.socket.waiting(), 0);
        received.extend(full.received());
        assert_eq!(received.len(), sent + 4);
        assert!(received.ends_with(b"xownz"));
        full.send(b"1");
        full.send(b"2");
        sends.flush();
        assert_eq!(full.received(), b"12");
    });
}

/// An idle session sleeps, and is woken by returned bytes.
#[test]
fn a_task_is_woken_for_what_came_back() {
    both(async |sends| {
        let Connection {
            mut socket,
            mut peer,
        } = Connection::new(&sends);
        while socket.try_write(&[b'x'; 1000]).is_ok() {}
        let session = tokio::task::spawn_local(async move {
            let mut is_queued = false;
            std::future::poll_fn(|cx| {
                socket.belongs_to(cx);
                let flushed = socket.poll_flush(cx);
                if std::mem::replace(&mut is_queued, true) {
                    return flushed;
                }
                socket.send(b"y").unwrap();
                Poll::Pending
            })
            .await
            .unwrap();
        });
        tokio::task::yield_now().await;
        sends.flush();
        tokio::task::yield_now().await;
        let reading = std::thread::spawn(move || {
            let mut received = Vec::new();
            peer.set_nonblocking(false).unwrap();
            peer.read_to_end(&mut received).unwrap();
            received
        });
        tokio::time::timeout(PATIENCE, session)
            .await
            .expect("not woken")
            .unwrap();
        assert!(reading.join().unwrap().ends_with(b"xy"));
    });
}

/// If the socket is full, the task sleeps and does not poll.
#[test]
fn a_slow_reader_costs_few_turns() {
    both(async |sends| {
        let Connection {
            mut socket,
            mut peer,
        } = Connection::new(&sends);
        const LEN: usize = 4 << 20;
        socket.send(&[b'x'; LEN]).unwrap();
        peer.set_nonblocking(false).unwrap();
        let reading = std::thread::spawn(move || {
            let (mut left, mut chunk) = (LEN, [0; 64 * 1024]);
            while left > 0 {
                left -= peer.read(&mut chunk).unwrap();
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let mut polls = 0;
        let sending = std::future::poll_fn(|cx| {
            polls += 1;
            socket.poll_flush(cx)
        });
        let sent = tokio::time::timeout(PATIENCE, sending).await;
        sent.expect("not woken").unwrap();
        assert!(polls <= LEN / (64 * 1024), "{polls} turns");
        reading.join().unwrap();
    });
}

#[test]
fn a_peer_that_has_gone_is_found_out_at_the_next_turn() {
    both(async |sends| {
        let (mut gone, mut other) = (Connection::new(&sends), Connection::new(&sends));
        gone.peer.shutdown(std::net::Shutdown::Both).unwrap();
        gone.send(b"a");
        other.send(b"b");
        sends.flush();
        assert_eq!(other.received(), b"b");
        let error = gone.flush().await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    });
}

#[test]
fn a_session_may_end_before_the_turn_does() {
    both(async |sends| {
        let (mut one, mut other) = (Connection::new(&sends), Connection::new(&sends));
        one.send(b"last words");
        other.send(b"b");
        drop(one.socket);
        let mut text = String::new();
        sends.flush();
        one.peer.read_to_string(&mut text).unwrap();
        assert_eq!(text, "last words");
        other.send(b"c");
        other.socket.shut_down_write();
        assert_eq!(other.received(), b"bc");
        assert_eq!(other.peer.read(&mut [0]).unwrap(), 0);
    });
}

#[test]
fn any_number_of_sessions_may_send() {
    both(async |sends| {
        let mut connections: Vec<_> = (0..100).map(|_| Connection::new(&sends)).collect();
        for len in [1, 4000] {
            for (number, connection) in (0_u8..).zip(&mut connections) {
                connection.send(&vec![number; len]);
            }
            sends.flush();
            for (number, connection) in (0_u8..).zip(&mut connections) {
                assert_eq!(connection.received(), vec![number; len]);
            }
        }
    });
}

/// If the runtime ran tasks in another order than they were woken, each batch would have one send.
#[test]
fn the_batch_is_sent_when_all_tasks_that_were_ready_have_run() {
    both(async |sends| {
        let flusher = Rc::clone(&sends);
        tokio::task::spawn_local(async move { flusher.flush_after_each_turn().await });
        tokio::task::yield_now().await;
        for _ in 0..3 {
            let connections: Vec<_> = (0..3).map(|_| Connection::new(&sends)).collect();
            let mut peers: Vec<_> = connections
                .iter()
                .map(|connection| connection.peer.try_clone().unwrap())
                .collect();
            for mut connection in connections {
                let mut first = peers[0].try_clone().unwrap();
                tokio::task::spawn_local(async move {
                    // While a task of the turn runs, nothing is sent.
                    assert!(first.read(&mut [0]).is_err());
                    connection.send(b"x");
                    assert!(first.read(&mut [0]).is_err());
                    tokio::time::sleep(Duration::from_millis(20)).await;
                });
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            for peer in &mut peers {
                assert_eq!(peer.read(&mut [0; 2]).unwrap(), 1);
            }
        }
    });
}
