//! A path that is gone along name by name, and whose links are replaced by what they say. Guests write those.

use core::ffi::CStr;

const LONGEST: usize = 4096;

/// A path that is being walked, name by name.
pub struct WalkedPath {
    bytes: [u8; LONGEST],
    length: usize,
}

/// It is longer than any path of the kernel's (PATH_MAX).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathTooLong;

impl WalkedPath {
    /// Begins a walk along the path `text`.
    pub fn new(text: &CStr) -> Result<Self, PathTooLong> {
        let text = text.to_bytes();
        let mut bytes = [0; LONGEST];
        // A zero has to fit in after it.
        bytes.get_mut(..text.len()).filter(|_| text.len() < LONGEST).ok_or(PathTooLong)?.copy_from_slice(text);
        Ok(Self { bytes, length: text.len() })
    }

    /// How many bytes it has.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Where the name that begins at `start` ends.
    pub fn end_of_name(&self, start: usize) -> usize {
        let slash = self.bytes[start..self.length].iter().position(|byte| *byte == b'/');
        slash.map_or(self.length, |length| start + length)
    }

    /// Does something with a part of it.
    pub fn cut<T>(&mut self, from: usize, to: usize, act: impl FnOnce(&CStr) -> T) -> T {
        let saved = core::mem::replace(&mut self.bytes[to], 0);
        let outcome = act(CStr::from_bytes_until_nul(&self.bytes[from..=to]).unwrap_or(c""));
        self.bytes[to] = saved;
        outcome
    }

    /// Puts what a link says in the place of its name, from `start` to `end`: all that is before it too, where that
    /// begins at the root. `read` puts the link's text into the room that there is for it, and says how long it is.
    pub fn follow<E: From<PathTooLong>>(
        &mut self,
        start: usize,
        end: usize,
        read: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        // What comes after the name waits at the end of the room.
        let rest = self.length - end;
        let moved = LONGEST - 1 - rest;
        self.bytes.copy_within(end..self.length, moved);
        let read = read(&mut self.bytes[start..moved])?;
        // One that fills the room may be cut.
        if read == 0 || read >= moved - start {
            return Err(PathTooLong.into());
        }
        let begin = if self.bytes[start] == b'/' { 0 } else { start };
        self.bytes.copy_within(start..start + read, begin);
        self.bytes.copy_within(moved..moved + rest, begin + read);
        self.length = begin + read + rest;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::ffi::CString;
    use std::string::String;
    use std::vec::Vec;

    fn path(text: &str) -> WalkedPath {
        WalkedPath::new(&CString::new(text).unwrap()).unwrap()
    }

    fn text(path: &mut WalkedPath) -> String {
        path.cut(0, path.length(), |text| text.to_str().unwrap().into())
    }

    fn say(link: &[u8]) -> impl FnOnce(&mut [u8]) -> Result<usize, PathTooLong> {
        move |room| {
            // As readlink(2): what does not fit is cut off.
            let length = link.len().min(room.len());
            room[..length].copy_from_slice(&link[..length]);
            Ok(length)
        }
    }

    #[test]
    fn names_are_had_one_by_one() {
        let mut path = path("/etc//resolv.conf");
        let (mut names, mut start) = (Vec::new(), 0);
        while start < path.length() {
            let end = path.end_of_name(start);
            names.push(path.cut(start, end, |name| String::from(name.to_str().unwrap())));
            start = end + 1;
        }
        assert_eq!(names, ["", "etc", "", "resolv.conf"]);
        assert_eq!(path.cut(0, 4, |prefix| CString::from(prefix)).as_c_str(), c"/etc");
        assert_eq!(text(&mut path), "/etc//resolv.conf", "what was cut is whole again");
    }

    #[test]
    fn a_link_takes_the_place_of_its_name_or_of_all_before_it() {
        let mut relative = path("a/link/rest/of it");
        relative.follow(2, 6, say(b"../b")).unwrap();
        assert_eq!(text(&mut relative), "a/../b/rest/of it");
        let mut absolute = path("a/link/rest");
        absolute.follow(2, 6, say(b"/run/x")).unwrap();
        assert_eq!(text(&mut absolute), "/run/x/rest");
        let mut last = path("a/link");
        last.follow(2, 6, say(b"c")).unwrap();
        assert_eq!(text(&mut last), "a/c");
    }

    #[test]
    fn nothing_is_longer_than_a_path_may_be() {
        assert!(WalkedPath::new(&CString::new("a".repeat(LONGEST)).unwrap()).is_err());
        let mut longest = path(&"a".repeat(LONGEST - 1));
        assert_eq!(longest.end_of_name(0), LONGEST - 1);
        assert_eq!(longest.cut(LONGEST - 2, LONGEST - 1, |name| name.to_bytes().len()), 1);
        assert_eq!(longest.follow(0, LONGEST - 1, say(&[b'b'; LONGEST])), Err(PathTooLong));
        for length in [0, 4000, 4090, LONGEST] {
            let mut path = path("link/rest");
            let followed = path.follow(0, 4, say(&[b'x'].repeat(length)));
            assert_eq!(followed.is_ok(), (1..LONGEST - 6).contains(&length), "{length}");
        }
    }

    /// Links of all lengths, in all places, beside what is done to plain strings.
    #[test]
    fn whatever_a_link_says_the_path_is_what_it_would_be() {
        let links: [&[u8]; 6] = [b"/", b"/x", b"..", b"a/b/c", &[b'l'; 300], b"a//"];
        let mut plain = String::from("one/two/three");
        let mut walked = path(&plain);
        for round in 0..2000_usize {
            let (link, at) = (links[round % links.len()], round * 7 % (plain.len() + 1));
            let start = plain[..at].rfind('/').map_or(0, |slash| slash + 1);
            let end = walked.end_of_name(start);
            assert_eq!(end, plain[start..].find('/').map_or(plain.len(), |length| start + length));
            let said = core::str::from_utf8(link).unwrap();
            let next =
                std::format!("{}{said}{}", if said.starts_with('/') { "" } else { &plain[..start] }, &plain[end..]);
            match walked.follow(start, end, say(link)) {
                Ok(()) => plain = next,
                Err(PathTooLong) => {
                    assert!(next.len() + 1 >= LONGEST, "{} bytes fit", next.len());
                    plain = String::from("one/two/three");
                    walked = path(&plain);
                }
            }
            assert_eq!(text(&mut walked), plain);
        }
    }
}
