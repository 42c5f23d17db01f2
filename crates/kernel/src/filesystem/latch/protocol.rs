//! What the kernel asks of the server of a file system, and what this one answers (linux/fuse.h).
//!
//! ```text
//!   /      a directory                            asked for                     answer
//!   └ latch  the program, which can be executed   its attribute `user.pando`    none yet
//!                                                 anything else                 at once
//! ```

use std::time::Duration;

/// The file.
pub(super) const FILE: &str = "latch";

/// Its attribute.
const ATTRIBUTE: &[u8] = b"user.pando";

const ROOT: u64 = 1;
const LATCH: u64 = 2;

/// How long the kernel may keep what it knows of both, in seconds: as long as they are there.
const FOREVER: u64 = 1 << 30;

/// The seconds by which the kernel's clock for late answers may go wrong.
const CLOCK: u64 = 15;

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const RELEASE: u32 = 18;
const GETXATTR: u32 = 22;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const RELEASEDIR: u32 = 29;
const INTERRUPT: u32 = 36;
const DESTROY: u32 = 38;
const BATCH_FORGET: u32 = 42;

/// The version that is spoken.
const VERSION: [u32; 2] = [7, 31];
/// FUSE_INIT_EXT: more flags follow; among them FUSE_REQUEST_TIMEOUT.
const MORE_FLAGS: u32 = 1 << 30;
const REQUEST_TIMEOUT: u32 = 1 << 10;
const LARGEST_WRITE: u32 = 4096;

/// A request's head, and what precedes the name of an attribute.
const HEAD: usize = 40;
const BEFORE_NAME: usize = 8;

/// What a request is to the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// It has this answer.
    Answered(Vec<u8>),
    /// The one of this number is to be answered late.
    Waits(u64),
    /// The one of this number was called away.
    Interrupted(u64),
    /// It has no answer.
    Nothing,
}

/// The file system.
#[derive(Debug)]
pub(super) struct Server {
    program: Vec<u8>,
    longest: Duration,
}

impl Server {
    /// A file system with this program, whose attribute is answered within this time.
    pub(super) fn new(program: Vec<u8>, longest: Duration) -> Self {
        Self { program, longest }
    }

    /// What a request is. What is too short to be one has no answer.
    pub(super) fn asked(&mut self, request: &[u8]) -> Asked {
        let (Some(kind), Some(number), Some(node)) = (word(request, 4), long(request, 8), long(request, 16)) else {
            return Asked::Nothing;
        };
        let body = request.get(HEAD..).unwrap_or_default();
        let answer = match kind {
            FORGET | BATCH_FORGET | DESTROY => return Asked::Nothing,
            INTERRUPT => return long(body, 0).map_or(Asked::Nothing, Asked::Interrupted),
            GETXATTR if body.get(BEFORE_NAME..).is_some_and(|name| text(name) == ATTRIBUTE) => {
                return Asked::Waits(number);
            }
            GETXATTR => Err(libc::ENODATA),
            INIT => Ok(self.begin(body)),
            LOOKUP if node == ROOT && text(body) == FILE.as_bytes() => {
                Ok([longs(&[LATCH, 1, FOREVER, FOREVER, 0]), self.attributes(LATCH)].concat())
            }
            LOOKUP => Err(libc::ENOENT),
            GETATTR => Ok([longs(&[FOREVER, 0]), self.attributes(node)].concat()),
            OPEN | OPENDIR => Ok(longs(&[0, 0])),
            READ => Ok(self.read(body)),
            RELEASE | RELEASEDIR | FLUSH => Ok(Vec::new()),
            _ => Err(libc::ENOSYS),
        };
        Asked::Answered(match answer {
            Ok(body) => reply(number, 0, &body),
            Err(error) => reply(number, error, &[]),
        })
    }

    /// What the kernel is told first of all.
    fn begin(&self, body: &[u8]) -> Vec<u8> {
        let is_offered = |at, flag| word(body, at).is_some_and(|flags| flags & flag != 0);
        let is_timed = is_offered(12, MORE_FLAGS) && is_offered(16, REQUEST_TIMEOUT);
        let (flags, more) = if is_timed { (MORE_FLAGS, REQUEST_TIMEOUT) } else { (0, 0) };
        let seconds = if is_timed { (self.longest.as_secs() + CLOCK).min(u64::from(u16::MAX)) } else { 0 };
        // No reading ahead; of requests at once the usual number; times to the nanosecond.
        let mut words = vec![VERSION[0], VERSION[1], 0, flags, 0, LARGEST_WRITE, 1, 0, more, 0];
        // The timeout is a number of 16 bits; what follows is unused.
        words.extend([seconds as u32, 0, 0, 0, 0, 0]);
        words.into_iter().flat_map(u32::to_ne_bytes).collect()
    }

    fn attributes(&self, node: u64) -> Vec<u8> {
        let (mode, size) = match node {
            ROOT => (libc::S_IFDIR | 0o755, 0),
            _ => (libc::S_IFREG | 0o755, self.program.len() as u64),
        };
        // Number, size, blocks, three times; their nanoseconds, mode, names, owner, group, device, block size, flags.
        let rest = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0];
        let head = longs(&[node, size, size.div_ceil(512), 0, 0, 0]);
        head.into_iter().chain(rest.into_iter().flat_map(u32::to_ne_bytes)).collect()
    }

    fn read(&self, body: &[u8]) -> Vec<u8> {
        let (Some(offset), Some(size)) = (long(body, 8), word(body, 16)) else { return Vec::new() };
        let rest = usize::try_from(offset).ok().and_then(|offset| self.program.get(offset..)).unwrap_or_default();
        rest[..rest.len().min(size as usize)].to_vec()
    }
}

/// That the file has no such attribute.
pub(super) fn no_attribute(request: u64) -> Vec<u8> {
    reply(request, libc::ENODATA, &[])
}

/// That the request was called away.
pub(super) fn interrupted(request: u64) -> Vec<u8> {
    reply(request, libc::EINTR, &[])
}

fn reply(request: u64, error: i32, body: &[u8]) -> Vec<u8> {
    let length = (16 + body.len()) as u32;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend((-error).to_ne_bytes());
    bytes.extend(request.to_ne_bytes());
    bytes.extend(body);
    bytes
}

fn longs(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// What stands before the first zero.
fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: u32, node: u64, body: &[u8]) -> Vec<u8> {
        let words = [(HEAD + body.len()) as u32, kind].into_iter().flat_map(u32::to_ne_bytes);
        let mut bytes: Vec<u8> = words.chain(longs(&[9, node])).collect();
        bytes.resize(HEAD, 0);
        bytes.extend(body);
        bytes
    }

    fn server() -> Server {
        Server::new(b"program".to_vec(), Duration::from_secs(2))
    }

    #[test]
    fn its_attribute_alone_is_answered_late() {
        let name = |name: &[u8]| [&[0; BEFORE_NAME][..], name, b"\0"].concat();
        let asked = |kind, body: &[u8]| server().asked(&request(kind, LATCH, body));
        assert_eq!(asked(GETXATTR, &name(ATTRIBUTE)), Asked::Waits(9));
        assert_eq!(asked(GETXATTR, &name(b"user.pand")), Asked::Answered(no_attribute(9)));
        assert_eq!(asked(INTERRUPT, &longs(&[9])), Asked::Interrupted(9));
        assert_eq!(asked(FORGET, &[]), Asked::Nothing);
        assert_eq!(server().asked(&[1, 2, 3]), Asked::Nothing);
    }

    #[test]
    fn answers_have_the_kernels_layout() {
        let length = |kind, node, body: &[u8]| match server().asked(&request(kind, node, body)) {
            Asked::Answered(bytes) => bytes.len() - 16,
            other => panic!("{other:?}"),
        };
        assert_eq!(length(LOOKUP, ROOT, b"latch\0"), 128);
        assert_eq!(length(LOOKUP, ROOT, b"other\0"), 0);
        assert_eq!(length(GETATTR, LATCH, &[]), 104);
        assert_eq!(length(OPEN, LATCH, &[]), 16);
        assert_eq!(length(INIT, 0, &[0xff; 64]), 64);
        let read = |offset: u64, size: u32| {
            let body = [longs(&[0, offset]), size.to_ne_bytes().to_vec()].concat();
            length(READ, LATCH, &body)
        };
        assert_eq!([read(0, 3), read(0, 100), read(5, 100), read(100, 1)], [3, 7, 2, 0]);
    }

    #[test]
    fn late_answers_have_a_bound_where_the_kernel_knows_one() {
        let seconds = |body: &[u8]| match server().asked(&request(INIT, 0, body)) {
            Asked::Answered(bytes) => word(&bytes, 16 + 40).unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!((seconds(&[0xff; 64]), seconds(&[0; 16])), (2 + CLOCK as u32, 0));
    }
}
