//! Records of ZooKeeper's protocol in their encoding, Jute: numbers are big-endian, bytes stand behind their length.
//!
//! As much of it as a candidate needs. Source:
//! <https://github.com/apache/zookeeper/blob/release-3.8.0/zookeeper-jute/src/main/resources/zookeeper.jute>.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use super::ZooKeeperError;

/// No frame that is read is longer: a server's own limit is 1 MiB (`jute.maxbuffer`).
pub(super) const FRAME_MAX: usize = 4 * 1024 * 1024;
/// What a session is taken up again with: 16 bytes.
const PASSWORD_MAX: usize = 64;

/// Codes of `KeeperException` that mean something here.
pub(super) const NO_NODE: i32 = -101;
pub(super) const NODE_EXISTS: i32 = -110;
const SESSION_EXPIRED: i32 = -112;

/// Anybody may do anything with a node: what kazoo and Curator say where nothing else is said.
const ALL_PERMISSIONS: i32 = 31;
/// An ephemeral node, with a number behind its name.
const EPHEMERAL_SEQUENTIAL: i32 = 3;
/// Any version.
const ANY: i32 = -1;

/// What a server is asked.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ask<'a> {
    /// A node that stays, without data.
    Make(&'a str),
    /// A node of this session, with a number behind this name.
    MakeCandidate { path: &'a str, data: &'a str },
    /// Data for a node: a step that the ensemble agrees on.
    Write { path: &'a str, data: &'a str },
    /// Whether there is such a node.
    Exists(&'a str),
    /// The names of the nodes below this one.
    Children(&'a str),
    /// That the server has seen what the ensemble has.
    Sync(&'a str),
    /// The end of the session, with its nodes.
    Close,
}

impl Ask<'_> {
    /// As a frame.
    pub(super) fn frame(self, xid: i32) -> BytesMut {
        let code = match self {
            Self::Make(_) => 1,
            Self::MakeCandidate { .. } => 15,
            Self::Write { .. } => 5,
            Self::Exists(_) => 3,
            Self::Children(_) => 8,
            Self::Sync(_) => 9,
            Self::Close => -11,
        };
        let mut frame = begin();
        frame.put_i32(xid);
        frame.put_i32(code);
        match self {
            Self::Make(path) => put_node(&mut frame, path, "", 0),
            Self::MakeCandidate { path, data } => {
                put_node(&mut frame, path, data, EPHEMERAL_SEQUENTIAL);
            }
            Self::Write { path, data } => {
                put_bytes(&mut frame, path.as_bytes());
                put_bytes(&mut frame, data.as_bytes());
                frame.put_i32(ANY);
            }
            Self::Exists(path) | Self::Children(path) => {
                put_bytes(&mut frame, path.as_bytes());
                // It is not to be told of changes.
                frame.put_u8(0);
            }
            Self::Sync(path) => put_bytes(&mut frame, path.as_bytes()),
            Self::Close => {}
        }
        end(frame)
    }
}

/// The session that a connection is for, as it asks for it: a new one has no number and no password.
pub(super) fn connect_frame(
    session: i64,
    password: &[u8],
    last_zxid: i64,
    timeout_ms: i32,
) -> BytesMut {
    let mut frame = begin();
    frame.put_i32(0);
    frame.put_i64(last_zxid);
    frame.put_i32(timeout_ms);
    frame.put_i64(session);
    put_bytes(&mut frame, password);
    // Not with a member that is cut off from the others.
    frame.put_u8(0);
    end(frame)
}

/// The session that a server gives.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Connected {
    /// None is left of it where this is not above 0.
    pub(super) timeout_ms: i32,
    pub(super) session: i64,
    pub(super) password: Vec<u8>,
}

impl Connected {
    pub(super) fn read(mut frame: Bytes) -> Result<Self, ZooKeeperError> {
        let _version = frame.try_get_i32()?;
        let (timeout_ms, session) = (frame.try_get_i32()?, frame.try_get_i64()?);
        let password = get_bytes(&mut frame)?;
        match password.len() > PASSWORD_MAX {
            true => Err(ZooKeeperError::Garbled),
            false => Ok(Self {
                timeout_ms,
                session,
                password: password.to_vec(),
            }),
        }
    }
}

/// What a server answers.
#[derive(Debug)]
pub(super) struct Reply {
    /// Of which request.
    pub(super) xid: i32,
    /// The last transaction that the server has seen.
    pub(super) zxid: i64,
    code: i32,
    body: Bytes,
}

impl Reply {
    pub(super) fn read(mut frame: Bytes) -> Result<Self, ZooKeeperError> {
        Ok(Self {
            xid: frame.try_get_i32()?,
            zxid: frame.try_get_i64()?,
            code: frame.try_get_i32()?,
            body: frame,
        })
    }

    /// What stands behind its head, where it is no failure.
    pub(super) fn body(self) -> Result<Bytes, ZooKeeperError> {
        match self.code {
            0 => Ok(self.body),
            SESSION_EXPIRED => Err(ZooKeeperError::Expired),
            code => Err(ZooKeeperError::Refused(code)),
        }
    }
}

/// The path and the `czxid` of a node that was made.
pub(super) fn made(mut body: Bytes) -> Result<(String, i64), ZooKeeperError> {
    let path = get_text(&mut body)?;
    Ok((path, body.try_get_i64()?))
}

/// The `czxid` of a node, which its state begins with.
pub(super) fn czxid(mut body: Bytes) -> Result<i64, ZooKeeperError> {
    Ok(body.try_get_i64()?)
}

/// Names.
pub(super) fn names(mut body: Bytes) -> Result<Vec<String>, ZooKeeperError> {
    // A number that is too large is not believed: reading ends with the frame.
    let count = body.try_get_i32()?;
    (0..count).map(|_| get_text(&mut body)).collect()
}

fn put_node(frame: &mut BytesMut, path: &str, data: &str, flags: i32) {
    put_bytes(frame, path.as_bytes());
    put_bytes(frame, data.as_bytes());
    frame.put_i32(1);
    frame.put_i32(ALL_PERMISSIONS);
    put_bytes(frame, b"world");
    put_bytes(frame, b"anyone");
    frame.put_i32(flags);
}

fn begin() -> BytesMut {
    BytesMut::from(&[0; 4][..])
}

/// With its length in front.
fn end(mut frame: BytesMut) -> BytesMut {
    let length = u32::try_from(frame.len().saturating_sub(4)).unwrap_or(u32::MAX);
    for (place, byte) in frame.iter_mut().zip(length.to_be_bytes()) {
        *place = byte;
    }
    frame
}

fn put_bytes(frame: &mut BytesMut, bytes: &[u8]) {
    frame.put_i32(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
    frame.put_slice(bytes);
}

/// -1 stands for none.
fn get_bytes(frame: &mut Bytes) -> Result<Bytes, ZooKeeperError> {
    let length = usize::try_from(frame.try_get_i32()?.max(0)).unwrap_or(usize::MAX);
    match length <= frame.len() {
        true => Ok(frame.split_to(length)),
        false => Err(ZooKeeperError::Garbled),
    }
}

fn get_text(frame: &mut Bytes) -> Result<String, ZooKeeperError> {
    let bytes = get_bytes(frame)?.to_vec();
    String::from_utf8(bytes).map_err(|_| ZooKeeperError::Garbled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_a_frame() {
        let frame = Ask::Exists("/a").frame(7);
        let body = [0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 2, b'/', b'a', 0];
        assert_eq!(frame.to_vec(), [&[0, 0, 0, 15][..], &body].concat());
    }

    #[test]
    fn what_is_cut_off_or_too_long_is_no_answer() {
        let cut = |bytes: &'static [u8]| Bytes::from_static(bytes);
        assert!(Reply::read(cut(&[0; 15])).is_err());
        assert!(Reply::read(cut(&[0; 16])).unwrap().body().is_ok());
        assert!(Connected::read(cut(&[0; 19])).is_err());
        // A length beyond the frame, and a count of names that are not there.
        assert!(names(cut(&[0, 0, 0, 1, 0, 0, 0, 9, b'a'])).is_err());
        assert!(names(cut(&[0x7f, 0xff, 0xff, 0xff])).is_err());
        assert_eq!(names(cut(&[0, 0, 0, 1, 0, 0, 0, 1, b'a'])).unwrap(), ["a"]);
        assert!(names(cut(&[0xff; 4])).unwrap().is_empty());
        let mut long = vec![0; 16];
        long.extend([0, 0, 0, 65]);
        long.extend([0; 65]);
        assert!(Connected::read(Bytes::from(long)).is_err());
    }

    #[test]
    fn a_refusal_has_a_code() {
        let answer = |code: i32| {
            let mut frame = vec![0; 12];
            frame.extend(code.to_be_bytes());
            Reply::read(Bytes::from(frame)).unwrap().body().unwrap_err()
        };
        assert!(matches!(answer(-112), ZooKeeperError::Expired));
        assert!(matches!(answer(-101), ZooKeeperError::Refused(NO_NODE)));
    }
}
