//! Permits for the next messages.

use std::collections::VecDeque;
use std::io;

use pgpalisade_fence::Permit;

const KEPT_WHEN_EMPTY: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Admitted {
    permits: VecDeque<Permit>,
    /// Bytes to come of the current message.
    rest: usize,
}

impl Admitted {
    #[inline]
    pub(super) fn push(&mut self, permit: Permit) {
        self.permits.push_back(permit);
    }

    #[inline]
    pub(super) const fn rest(&self) -> usize {
        self.rest
    }

    /// Spends permits on these bytes, each on the message that it was made for.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` for a message without a permit of its type and length.
    #[inline]
    pub(super) fn spend(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        loop {
            let Some(behind) = bytes.get(self.rest..) else {
                self.rest -= bytes.len();
                return Ok(());
            };
            if behind.is_empty() {
                self.rest = 0;
                return Ok(());
            }
            bytes = behind;
            self.rest = self.spend_one(bytes)?;
        }
    }

    /// Spends the next permit on the first message, and returns its length.
    #[inline]
    fn spend_one(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let permit = self.permits.pop_front();
        let frame_len = permit.and_then(|permit| permit.frame_len(bytes));
        if self.permits.is_empty() && self.permits.capacity() > KEPT_WHEN_EMPTY {
            self.permits = VecDeque::new();
        }
        frame_len.ok_or_else(|| io::ErrorKind::PermissionDenied.into())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pgpalisade_policies::{Mode, Policy, Who};

    use super::*;
    use pgpalisade_fence::{Fence, SessionFence};
    use pgpalisade_wire::header::{HEADER_LEN, Header};

    fn fence() -> SessionFence {
        let fence = Fence::new(Policy::default(), Arc::default(), Mode::Enforce).unwrap();
        Arc::new(fence).for_session(&Who {
            user: "u",
            database: "d",
            application_name: None,
            client: None,
            common_name: None,
        })
    }

    fn admitted(messages: &[(u8, usize)]) -> Admitted {
        let fence = fence();
        let mut admitted = Admitted::default();
        for (tag, body_len) in messages {
            let message = Header {
                tag: *tag,
                body_len: *body_len,
            };
            admitted.push(fence.admit_harmless(message).unwrap());
        }
        admitted
    }

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap();
        [&[tag], &length.to_be_bytes()[..], body].concat()
    }

    #[test]
    fn each_permit_is_for_its_message() {
        let (parse, sync) = (message(b'P', b"x\0SELECT 1\0\0\0"), message(b'S', b""));
        let both = [parse.clone(), sync.clone()].concat();
        let permits = [(b'P', parse.len() - HEADER_LEN), (b'S', 0)];
        assert!(admitted(&permits).spend(&both).is_ok());
        // In any pieces of which one has the whole first header.
        for at in HEADER_LEN..parse.len() {
            let mut admitted = admitted(&permits);
            assert!(admitted.spend(&both[..at]).is_ok());
            assert_eq!(admitted.rest(), parse.len() - at);
            assert!(admitted.spend(&both[at..]).is_ok(), "{at}");
            assert_eq!(admitted.rest(), 0);
        }
        for (permits, bytes) in [
            // No permit, or too few.
            (&[][..], &sync),
            (&permits[..1], &both),
            // Another type, another length, another order.
            (&[(b'C', parse.len() - HEADER_LEN)][..], &parse),
            (&[(b'P', parse.len() - HEADER_LEN - 1)][..], &parse),
            (&[(b'P', parse.len() - HEADER_LEN + 1)][..], &parse),
            (&[permits[1], permits[0]][..], &both),
        ] {
            let denied = admitted(permits).spend(bytes).unwrap_err();
            assert_eq!(
                denied.kind(),
                io::ErrorKind::PermissionDenied,
                "{permits:?}"
            );
        }
    }
}
