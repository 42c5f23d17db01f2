//! Reading what others wrote, with a bound on what it becomes in memory.
//!
//! A byte that describes can become many: an empty name takes 24 in memory, a process that is nothing but zeros a
//! thousand. A byte of content stays one. An export packs a gigabyte of either into a kilobyte. So what comes from
//! elsewhere may describe no more than [`MOST`] bytes' worth; content is bounded by the length of the file.

use postcard::Deserializer;
use postcard::de_flavors::Flavor;
use serde::Deserialize;
use std::cell::Cell;
use std::rc::Rc;

/// Bytes that describe: hundreds of thousands of areas of memory, in thousands of processes. What they become is below
/// a gigabyte.
pub(crate) const MOST: usize = 32 << 20;

/// Why something is not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unread {
    #[error("it describes more than an image that comes from elsewhere may")]
    TooMuch,
    #[error("it cannot be read ({0})")]
    Wrong(postcard::Error),
}

/// Reads all of it, of which no more than `most` bytes describe.
pub(crate) fn from_bytes<'a, T: Deserialize<'a>>(bytes: &'a [u8], most: usize) -> Result<T, Unread> {
    let left = Rc::new(Cell::new(most));
    let mut source = Deserializer::from_flavor(Counted { rest: bytes, left: Rc::clone(&left) });
    let read = T::deserialize(&mut source);
    read.map_err(|error| if left.get() == 0 { Unread::TooMuch } else { Unread::Wrong(error) })
}

/// Bytes, one by one or in pieces, of which the former are counted.
struct Counted<'a> {
    rest: &'a [u8],
    /// Shared with who looks at it afterwards.
    left: Rc<Cell<usize>>,
}

impl<'a> Flavor<'a> for Counted<'a> {
    type Remainder = &'a [u8];
    type Source = &'a [u8];

    fn pop(&mut self) -> postcard::Result<u8> {
        let left = self.left.get().checked_sub(1).ok_or(postcard::Error::DeserializeUnexpectedEnd)?;
        self.left.set(left);
        self.rest.split_off_first().copied().ok_or(postcard::Error::DeserializeUnexpectedEnd)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }

    fn try_take_n(&mut self, count: usize) -> postcard::Result<&'a [u8]> {
        self.rest.split_off(..count).ok_or(postcard::Error::DeserializeUnexpectedEnd)
    }

    fn finalize(self) -> postcard::Result<&'a [u8]> {
        Ok(self.rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::image;
    use crate::image::Image;

    #[test]
    fn what_is_read_is_what_was_written() {
        let bytes = postcard::to_stdvec(&image()).unwrap();
        assert_eq!(from_bytes::<Image>(&bytes, MOST), Ok(image()));
        assert!(matches!(from_bytes::<Image>(&bytes[..bytes.len() - 1], MOST), Err(Unread::Wrong(_))));
    }

    #[test]
    fn what_describes_is_bounded_and_content_is_not() {
        let mut one = image();
        let described = |image: &Image| postcard::to_stdvec(image).unwrap().len();
        one.pipes[0].content = vec![7; 100_000];
        let bytes = postcard::to_stdvec(&one).unwrap();
        assert_eq!(from_bytes::<Image>(&bytes, described(&image())), Ok(one.clone()));
        one.pipes = Vec::new();
        one.processes[0].threads[0].filters = vec![Vec::new(); 100_000];
        let bytes = postcard::to_stdvec(&one).unwrap();
        assert_eq!(from_bytes::<Image>(&bytes, 50_000), Err(Unread::TooMuch));
    }

    /// The format says nothing of how content is read.
    #[test]
    fn content_is_written_as_it_always_was() {
        #[derive(serde::Serialize)]
        struct OneByOne<'a> {
            capacity: u32,
            content: &'a [u8],
            path: Option<String>,
            mount_space: Option<usize>,
        }
        let pipe = &image().pipes[0];
        let content = pipe.content.as_slice();
        let old = OneByOne { capacity: pipe.capacity, content, path: None, mount_space: pipe.mount_space };
        assert_eq!(postcard::to_stdvec(pipe).unwrap(), postcard::to_stdvec(&old).unwrap());
    }
}
