//! Exports of images as somebody who means harm makes them: taken apart, changed, and put together with right
//! checksums. See docs/image-format.md.

use crate::dice::Dice;
use crate::line::Line;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

const GREETING: &str = "pando image export ";

/// The version that is written today.
const VERSION: u32 = 2;

/// The longest portion of a part.
const PORTION: usize = 1 << 20;

/// Bytes before the body of `about`, `tree` and `memory`.
const HEAD: usize = 4096;

/// What an export consists of.
#[derive(Clone, Debug)]
pub(crate) struct ImageExport {
    /// In the first version there was no signature.
    pub(crate) version: u32,
    name: Vec<u8>,
    about: Vec<u8>,
    tree: Vec<u8>,
    memory: Vec<u8>,
    /// The guest's files, a tar archive.
    files: Vec<u8>,
    /// Of all that comes before it; empty where nobody has signed.
    pub(crate) signature: Vec<u8>,
}

impl ImageExport {
    /// Takes an export apart.
    pub(crate) fn read(path: &Path) -> Self {
        let mut stream = Vec::new();
        let file = File::open(path).expect("an export");
        zstd::Decoder::new(file).and_then(|mut decoder| decoder.read_to_end(&mut stream)).expect("it is compressed");
        let greeting = format!("{GREETING}{VERSION}\n");
        let mut rest = stream.strip_prefix(greeting.as_bytes()).expect("it begins with a greeting");
        let mut part = || {
            let mut content = Vec::new();
            loop {
                let (length, behind) = rest.split_first_chunk().expect("a portion has a length");
                let (portion, behind) = behind.split_at(u32::from_le_bytes(*length) as usize);
                rest = behind;
                if portion.is_empty() {
                    return content;
                }
                content.extend_from_slice(portion);
            }
        };
        let version = VERSION;
        Self { version, name: part(), about: part(), tree: part(), memory: part(), files: part(), signature: part() }
    }

    /// Puts it together.
    pub(crate) fn write(&self, path: &Path) {
        let mut stream = format!("{GREETING}{}\n", self.version).into_bytes();
        let parts = [&self.name, &self.about, &self.tree, &self.memory, &self.files, &self.signature];
        for part in &parts[..if self.version == 1 { 5 } else { 6 }] {
            for portion in part.chunks(PORTION) {
                stream.extend_from_slice(&(portion.len() as u32).to_le_bytes());
                stream.extend_from_slice(portion);
            }
            stream.extend_from_slice(&[0; 4]);
        }
        let packed = zstd::encode_all(&stream[..], 1).expect("memory suffices");
        File::create(path).and_then(|mut file| file.write_all(&packed)).expect("there is room");
    }

    /// One of its parts.
    pub(crate) fn part(&mut self, name: &str) -> &mut Vec<u8> {
        match name {
            "name" => &mut self.name,
            "about" => &mut self.about,
            "tree" => &mut self.tree,
            "memory" => &mut self.memory,
            _ => &mut self.files,
        }
    }

    /// What a signature of it is about.
    pub(crate) fn statement(&self) -> String {
        let parts = [
            ("name", &self.name),
            ("about", &self.about),
            ("tree", &self.tree),
            ("memory", &self.memory),
            ("files", &self.files),
        ];
        let line = |(name, part): (&str, &Vec<u8>)| {
            let sum = Line::new("sha256sum").input(part.clone()).ok();
            format!("sha256:{} {name}\n", sum.split(' ').next().expect("it has a digest"))
        };
        format!("{GREETING}{VERSION}\n{}", parts.into_iter().map(line).collect::<String>())
    }

    /// Changes what its guest's user asked for.
    pub(crate) fn change_spec(&mut self, field: &str, value: serde_json::Value) {
        let mut about: serde_json::Value = serde_json::from_slice(&self.about[HEAD..]).expect("about is JSON");
        about["spec"][field] = value;
        seal(&mut self.about, about.to_string().as_bytes());
    }

    /// Changes what is known of the image itself.
    pub(crate) fn change_about(&mut self, field: &str, value: serde_json::Value) {
        let mut about: serde_json::Value = serde_json::from_slice(&self.about[HEAD..]).expect("about is JSON");
        about[field] = value;
        seal(&mut self.about, about.to_string().as_bytes());
    }

    /// Attaches a packet filter to the first socket that begins so, which listens and has none: what it is, family,
    /// type, protocol.
    pub(crate) fn attach_packet_filter(&mut self, socket: &[u8]) {
        /// One instruction: it lets everything pass.
        const FILTER: [u8; 9] = [8, 6, 0, 0, 0, 0xff, 0xff, 0, 0];
        let mut body = self.tree[HEAD..].to_vec();
        let mut at = body.windows(socket.len()).position(|bytes| bytes == socket).expect("there is such a socket");
        at += socket.len();
        let skip_bytes = |at: usize| {
            let (length, digits) = number(&body[at..]);
            at + digits + length
        };
        let skip_number = |at: usize| at + number(&body[at..]).1;
        // Its name; that it listens, and for how many; options, each a level, a number and a value.
        at = skip_bytes(at);
        assert_eq!(body[at], 1, "it does not listen");
        at = skip_number(at + 1);
        let (options, digits) = number(&body[at..]);
        at += digits;
        for _ in 0..options {
            at = skip_bytes(skip_number(skip_number(at)));
        }
        assert_eq!(body[at], 0, "it has a filter");
        body.splice(at..=at, FILTER);
        seal(&mut self.tree, &body);
    }

    /// Puts other bytes in the place of some of the tree, wherever these are; how often they were there.
    pub(crate) fn replace_in_tree(&mut self, old: &[u8], new: &[u8]) -> usize {
        let (mut body, mut count) = (Vec::new(), 0);
        let mut rest = &self.tree[HEAD..];
        while let Some(first) = rest.first() {
            if let Some(behind) = rest.strip_prefix(old) {
                body.extend_from_slice(new);
                (rest, count) = (behind, count + 1);
            } else {
                body.push(*first);
                rest = &rest[1..];
            }
        }
        seal(&mut self.tree, &body);
        count
    }

    /// Damages the tree in one to four places, behind a checksum that is right: other bits, other numbers, something
    /// left out or said twice.
    pub(crate) fn damage_tree(&mut self, dice: &mut Dice) {
        let mut body = self.tree[HEAD..].to_vec();
        for _ in 0..=dice.throw(4) {
            let at = dice.throw(body.len().max(1) as u64) as usize;
            let length = (dice.throw(40) as usize).min(body.len() - at);
            match dice.throw(6) {
                0 => drop(body.drain(at..at + length)),
                1 => {
                    let again = body[at..at + length].to_vec();
                    body.splice(at..at, again);
                }
                2 if length > 0 => body[at] = [0, 1, 0x7f, 0x80, 0xff, b'/', b'.'][dice.throw(7) as usize],
                3 => {
                    let number = [0, 1 << 31, 1 << 32, 1 << 47, u64::MAX][dice.throw(5) as usize];
                    body.splice(at..(at + 1).min(body.len()), varint(number));
                }
                _ if length > 0 => body[at] ^= 1 << dice.throw(8),
                _ => {}
            }
        }
        seal(&mut self.tree, &body);
    }

    /// Puts another path in the place of one, wherever the tree has it; how often it did.
    pub(crate) fn replace_path(&mut self, old: &str, new: &str) -> usize {
        self.replace_in_tree(&text(old), &text(new))
    }

    /// The filters of the first thread, as the tree has them: how many, and each with its length. All threads of a
    /// guest that adds none have the same.
    pub(crate) fn filters(&self) -> Vec<u8> {
        // The first thing that a filter does is to look at the architecture of the call.
        const START: [u8; 8] = [0x20, 0, 0, 0, 4, 0, 0, 0];
        let body = &self.tree[HEAD..];
        let at = body.windows(8).position(|bytes| bytes == START).expect("there is a filter");
        let is_one = |from: &usize| {
            let (length, bytes) = number(&body[from + 1..]);
            body[*from] == 1 && from + 1 + bytes == at && length > 0 && length.is_multiple_of(8)
        };
        let from = (at.saturating_sub(4)..at).find(is_one).expect("its threads have one filter each");
        let (length, _) = number(&body[from + 1..]);
        body[from..at + length].to_vec()
    }

    /// Puts a fifo in the place of a file, as old as that was.
    pub(crate) fn make_fifo(&mut self, path: &str, scratch: &Path) {
        const SCRIPT: &str = r#"
            mkdir files
            tar --extract --preserve-permissions --numeric-owner --xattrs --directory files
            mv "files$1" old
            mkfifo "files$1"
            touch --reference old "files$1"
            tar --create --format=posix --numeric-owner --xattrs --directory files --file packed .
            rm -r --one-file-system files old
        "#;
        let files = std::mem::take(&mut self.files);
        Line::new("sh").args(["-euc", SCRIPT, "sh", path]).directory(scratch).input(files).ok();
        let packed = scratch.join("packed");
        self.files = std::fs::read(&packed).expect("it was made");
        std::fs::remove_file(packed).expect("it was made");
    }
}

/// Gives a file of an image another body, and the length and checksum of that.
fn seal(image_file: &mut Vec<u8>, body: &[u8]) {
    image_file.truncate(HEAD);
    image_file[16..24].copy_from_slice(&(body.len() as u64).to_le_bytes());
    image_file[24..40].copy_from_slice(&xxh3_128(body).to_le_bytes());
    image_file.extend_from_slice(body);
}

/// A number as the tree has it.
pub(crate) fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 128 {
        bytes.push(number as u8 | 128);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// The number at the beginning of these bytes, and how many of them it takes.
fn number(bytes: &[u8]) -> (usize, usize) {
    let length = bytes.iter().take(9).take_while(|byte| **byte >= 128).count() + 1;
    let digits = bytes.iter().take(length).rev();
    (digits.fold(0, |number, byte| number << 7 | usize::from(byte & 127)), length)
}

/// A text as the tree has it.
pub(crate) fn text(text: &str) -> Vec<u8> {
    [&varint(text.len() as u64)[..], text.as_bytes()].concat()
}
