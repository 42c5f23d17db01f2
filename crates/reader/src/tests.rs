//! What readers say of damaged and of mutated input, and what is made of damaged words of theirs. Each test begins with
//! a number that it prints, and that `PANDO_FUZZ_SEED` repeats; `PANDO_FUZZ_ROUNDS` makes more of them.

use crate::fuzz::heard;
use crate::{Entry, Job, Kind, Message, Reader, ReaderError, Shape};
use std::io::{Read, Seek, Write};

/// A generator of numbers that are the same for the same seed (xorshift64*).
struct Dice(u64);

impl Dice {
    fn new(test: &str) -> Self {
        let chosen = std::env::var("PANDO_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok());
        let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = chosen.unwrap_or_else(clock) | 1;
        eprintln!("{test}: PANDO_FUZZ_SEED={seed}");
        Self(seed)
    }

    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below.max(1)
    }

    /// A copy with some bytes changed, cut out, doubled, or replaced by numbers that are often handled wrongly.
    fn mutated(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for _ in 0..=self.next(4) {
            let at = self.next(bytes.len());
            let length = self.next(600).min(bytes.len() - at);
            match self.next(6) {
                0 if !bytes.is_empty() => bytes[at] ^= 1 << self.next(8),
                1 => drop(bytes.drain(at..at + length)),
                2 => {
                    let part = bytes[at..at + length].to_vec();
                    bytes.splice(at..at, part);
                }
                3 => bytes.truncate(at),
                4 if !bytes.is_empty() => bytes[at] = [0, 0x7f, 0x80, 0xff, b'/', b'9'][self.next(6)],
                _ => {
                    let number = [u64::MAX, 1 << 63, 1 << 32, 0][self.next(4)].to_le_bytes();
                    let length = number.len().min(bytes.len() - at);
                    bytes[at..at + length].copy_from_slice(&number[..length]);
                }
            }
        }
        bytes
    }
}

fn rounds() -> usize {
    std::env::var("PANDO_FUZZ_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1500)
}

fn tar_archive() -> Vec<u8> {
    let mut maker = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(700);
    header.set_mode(0o755);
    header.set_uid(7);
    header.set_gid(7);
    let attributes = [("SCHILY.xattr.user.a", &b"value"[..]), ("mtime", b"1.5"), ("SCHILY.acl.access", b"u::rwx")];
    maker.append_pax_extensions(attributes).unwrap();
    maker.append_data(&mut header, "d/".repeat(90) + "file", &[7; 700][..]).unwrap();
    header.set_size(0);
    header.set_entry_type(tar::EntryType::Symlink);
    maker.append_link(&mut header, "link", "target").unwrap();
    header.set_entry_type(tar::EntryType::Directory);
    maker.append_data(&mut header, "directory/", &[][..]).unwrap();
    maker.into_inner().unwrap()
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

fn xz(plain: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

fn export() -> Vec<u8> {
    let mut plain = crate::EXPORT_GREETING.to_vec();
    for part in ["web", "about", "tree", "memory", "files"] {
        plain.extend((part.len() as u32).to_le_bytes());
        plain.extend(part.as_bytes());
        plain.extend([0; 4]);
    }
    // Nobody signed it.
    plain.extend([0; 4]);
    zstd::encode_all(&plain[..], 1).unwrap()
}

/// All that a reader says of an input, to the end.
fn read(job: &Job, input: &[u8]) -> Result<(Vec<Message>, u64), ReaderError> {
    let mut file = std::fs::File::from(pando_kernel::memory::file::sealed("input", input, false).unwrap());
    file.rewind().unwrap();
    let mut reader = Reader::start_unconfined(job, file)?;
    let (mut said, mut content) = (Vec::new(), 0);
    loop {
        match reader.next()? {
            end @ Message::End(_) => {
                said.push(end);
                return Ok((said, content));
            }
            message => said.push(message),
        }
        let mut buffer = [0; 4096];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => content += count as u64,
                Err(error) => return Err(reader.lost(&error)),
            }
        }
    }
}

fn of_archives() -> Job {
    Job::Archive { plain: None, end_is_marked: true, content: true }
}

#[test]
fn what_is_in_an_archive_is_said() {
    let plain = tar_archive();
    for archive in [plain.clone(), gzip(&plain), xz(&plain), zstd::encode_all(&plain[..], 1).unwrap()] {
        let (said, content) = read(&of_archives(), &archive).unwrap();
        assert_eq!(content, 700);
        let entries: Vec<&Entry> = said
            .iter()
            .filter_map(|message| match message {
                Message::Entry(entry) => Some(&**entry),
                _ => None,
            })
            .collect();
        assert_eq!((entries.len(), entries[0].xattrs.len(), entries[0].dropped), (3, 1, 1));
        assert_eq!(entries[0].modified, (1, 500_000_000));
        assert_eq!(entries[1].kind, Kind::Symlink(b"target".to_vec()));
    }
    let (said, content) = read(&Job::Export, &export()).unwrap();
    assert_eq!((said.len(), content), (7, 23));
}

/// A reader says something sensible of everything: an end, or what is wrong. One that panics says no more, which is
/// another error.
#[test]
fn mutated_input_is_read_or_refused() {
    let mut dice = Dice::new("mutated_input_is_read_or_refused");
    let plain = tar_archive();
    let index = br#"{"schemaVersion":2,"manifests":[{"mediaType":"a","digest":"sha256:aa","size":3,"platform":{"os":"linux","architecture":"amd64"},"annotations":{"org.opencontainers.image.ref.name":"t"}}]}"#;
    let configuration = br#"{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:aa"]},"config":{"Cmd":["sh"],"Env":["A=b"]}}"#;
    let saved = br#"[{"Config":"a.json","RepoTags":["x:1"],"Layers":["l/layer.tar"]}]"#;
    let corpus: [(Job, Vec<u8>); 10] = [
        (Job::Copy, plain.clone()),
        (of_archives(), plain.clone()),
        (of_archives(), gzip(&plain)),
        (of_archives(), xz(&plain)),
        (of_archives(), zstd::encode_all(&plain[..], 1).unwrap()),
        (Job::Expand, gzip(&plain)),
        (Job::Export, export()),
        (Job::Document(Shape::IndexOrManifest), index.to_vec()),
        (Job::Document(Shape::Configuration), configuration.to_vec()),
        (Job::Document(Shape::Saved), saved.to_vec()),
    ];
    for round in 0..rounds() {
        let (job, input) = &corpus[round % corpus.len()];
        let job = match job {
            Job::Archive { .. } => Job::Archive { plain: None, end_is_marked: round % 2 == 0, content: round % 3 > 0 },
            job => job.clone(),
        };
        let input = dice.mutated(input);
        match serve_all(&job, &input) {
            Ok(said) => assert!(matches!(said.last(), Some(Message::End(_) | Message::Failed(_))), "{said:?}"),
            Err(error) => panic!("{job:?}: {error}: {}", shown(&input)),
        }
    }
}

/// The same without pipe and thread, so that a panic is the test's.
fn serve_all(job: &Job, input: &[u8]) -> Result<Vec<Message>, String> {
    let mut said = Vec::new();
    crate::serve::serve(job, &[], input, &mut said).map_err(|error| error.to_string())?;
    heard(&said)
}

/// What a reader says that was taken over: never more memory than was said, never an entry that cannot be one.
#[test]
fn mutated_words_of_a_reader_are_understood_or_refused() {
    let mut dice = Dice::new("mutated_words_of_a_reader_are_understood_or_refused");
    let mut said = Vec::new();
    crate::serve::serve(&of_archives(), &[], &tar_archive()[..], &mut said).unwrap();
    let mut refused = 0;
    for _ in 0..rounds() * 4 {
        match heard(&dice.mutated(&said)) {
            Err(_) => refused += 1,
            Ok(messages) => {
                for message in messages {
                    if let Message::Entry(entry) = message {
                        assert_eq!(entry.check(), Ok(()));
                    }
                }
            }
        }
    }
    assert!(refused > 0, "nothing was refused: nothing was mutated");
}

fn shown(input: &[u8]) -> String {
    input.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn words_are_shown_without_what_drives_a_terminal() {
    let job = Job::Document(Shape::Saved);
    let error = read(&job, b"[{\"Config\": \x1b[31m}]").unwrap_err();
    assert!(!format!("{error}").contains('\x1b'), "{error}");
}
