//! What a fuzzer calls. Each takes any bytes, and panics where what a reader promises is broken.

use crate::entry::{Entry, Kind};
use crate::job::{Job, Shape};
use crate::serve::serve;
use crate::wire::{Head, Message, Teller, head, message};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A first byte that chooses, and what follows it.
fn chosen(data: &[u8]) -> (u8, &[u8]) {
    data.split_first().map_or((0, data), |(choice, rest)| (*choice, rest))
}

/// All that a reader says of an input: the last is an end, or what is wrong, and its caller understands every word.
fn said_of(job: &Job, input: &[u8]) -> Vec<Message> {
    let mut said = Vec::new();
    serve(job, &[], input, &mut said).expect("a vector takes everything");
    let messages = heard(&said).expect("a reader says what readers say");
    assert!(matches!(messages.last(), Some(Message::End(_) | Message::Failed(_))), "{messages:?}");
    messages
}

/// What words of a reader mean, without the content.
pub(crate) fn heard(mut said: &[u8]) -> Result<Vec<Message>, String> {
    let mut messages = Vec::new();
    while !said.is_empty() {
        match head(&mut said).map_err(|error| error.to_string())?.0 {
            Head::Message(length) => messages.push(message(&mut said, length).map_err(|error| error.to_string())?),
            Head::Content(length) => said = said.get(length..).ok_or("content that is cut short")?,
        }
    }
    Ok(messages)
}

/// A tar archive, plain or compressed.
pub fn archive(data: &[u8]) {
    let (choice, input) = chosen(data);
    let job = Job::Archive { plain: None, end_is_marked: choice & 1 == 0, content: choice & 2 == 0 };
    for entry in said_of(&job, input) {
        if let Message::Entry(entry) = entry {
            assert_eq!(entry.check(), Ok(()));
        }
    }
}

/// An archive that the tar crate writes, of entries that the bytes choose, is read as those entries.
pub fn archive_of_another_writer(data: &[u8]) {
    let mut rest = data;
    let mut word = move || rest.split_off_first().copied();
    let (mut maker, mut wanted) = (tar::Builder::new(Vec::new()), Vec::new());
    while let (Some(choice), Some(length), Some(size)) = (word(), word(), word()) {
        // Names of up to 765 bytes: longer ones than a header has room for.
        let name: Vec<u8> = (0..usize::from(length) * usize::from(choice >> 6)).map_while(|_| word()).collect();
        let Some((name, kind, size)) = entry_of(choice, name, size.into()) else { continue };
        let mut header = tar::Header::new_gnu();
        header.set_mode(u32::from(choice) << 4 & 0o7777);
        header.set_uid(length.into());
        header.set_gid(size << 8);
        header.set_mtime(u64::from(choice) << 24);
        header.set_size(size);
        header.set_entry_type(match kind {
            Kind::Directory => tar::EntryType::Directory,
            Kind::Symlink(_) => tar::EntryType::Symlink,
            _ => tar::EntryType::Regular,
        });
        let path = Path::new(OsStr::from_bytes(&name));
        let written = match &kind {
            Kind::Symlink(_) => maker.append_link(&mut header, path, "target/of it"),
            _ => maker.append_data(&mut header, path, std::io::repeat(choice).take(size)),
        };
        // It refuses what leads out of a tree, which archives may hold all the same.
        if written.is_ok() {
            wanted.push((name, kind, header.mode().unwrap_or(0), size));
        } else {
            return;
        }
    }
    let archive = maker.into_inner().expect("a vector takes everything");
    let job = Job::Archive { plain: None, end_is_marked: true, content: true };
    let found = said_of(&job, &archive).into_iter().filter_map(|message| match message {
        Message::Entry(entry) => Some((entry.path, entry.kind, entry.mode, entry.size)),
        _ => None,
    });
    assert_eq!(found.collect::<Vec<_>>(), wanted);
}

/// What the other writer takes as it is: neither parts that are `.` or nothing, nor a NUL, nor what leads out.
fn entry_of(choice: u8, name: Vec<u8>, size: u64) -> Option<(Vec<u8>, Kind, u64)> {
    let odd = |part: &[u8]| matches!(part, b"" | b"." | b"..");
    if name.contains(&0) || name.split(|byte| *byte == b'/').any(odd) {
        return None;
    }
    Some(match choice & 3 {
        0 => (name, Kind::Directory, 0),
        1 => (name, Kind::Symlink(b"target/of it".to_vec()), 0),
        _ => (name, Kind::File, size * 7),
    })
}

/// The target for compressed data, of any format.
pub fn expansion(data: &[u8]) {
    said_of(&Job::Expand, data);
}

/// A document of an image.
pub fn document(data: &[u8]) {
    let (choice, input) = chosen(data);
    let shapes = [Shape::Index, Shape::IndexOrManifest, Shape::Configuration, Shape::Saved];
    said_of(&Job::Document(shapes[usize::from(choice) % shapes.len()]), input);
}

/// An exported image: as it is, or with the compression done here, since no fuzzer gets through that.
pub fn export(data: &[u8]) {
    let (choice, input) = chosen(data);
    if choice & 1 == 0 {
        said_of(&Job::Export, &zstd::encode_all(input, 1).expect("a vector takes everything"));
    } else {
        said_of(&Job::Export, input);
    }
}

/// What `pando cp` brings out of a guest.
pub fn copy_stream(data: &[u8]) {
    for message in said_of(&Job::Copy, data) {
        if let Message::Copied(entry) = message {
            assert!(entry.is_possible(), "{entry:?}");
        }
    }
}

/// What a reader says that was taken over: understood or refused, and what is understood is the same when it is said
/// again.
pub fn words(data: &[u8]) {
    let Ok(messages) = heard(data) else { return };
    let mut said = Vec::new();
    let mut teller = Teller::new(&mut said);
    for message in &messages {
        if let Message::Entry(entry) = message {
            assert_eq!(Entry::check(entry), Ok(()));
        }
        teller.say(0, message).expect("a vector takes everything");
    }
    teller.flush().expect("a vector takes everything");
    drop(teller);
    assert_eq!(heard(&said).expect("it was understood"), messages);
}

/// A file, a link and a directory, with attributes and a long name.
fn plain() -> Vec<u8> {
    let mut maker = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(70);
    header.set_mode(0o755);
    let attributes = [("SCHILY.xattr.user.a", &b"value"[..]), ("mtime", b"-1.5"), ("SCHILY.acl.access", b"u::rwx")];
    let mut write = || {
        maker.append_pax_extensions(attributes)?;
        maker.append_data(&mut header, "d/".repeat(60) + "file", &[7; 70][..])?;
        header.set_size(0);
        header.set_entry_type(tar::EntryType::Symlink);
        maker.append_link(&mut header, "link", "target")?;
        header.set_entry_type(tar::EntryType::Directory);
        maker.append_data(&mut header, "directory/", &[][..])
    };
    write().expect("a vector takes everything");
    maker.into_inner().expect("a vector takes everything")
}

/// Inputs that fuzzing of [`archive`] begins with.
pub fn archives() -> Vec<Vec<u8>> {
    let chosen = |choice: u8, archive: &[u8]| [&[choice], archive].concat();
    let packed = zstd::encode_all(&plain()[..], 1).expect("a vector takes everything");
    vec![chosen(0, &plain()), chosen(3, &plain()), chosen(0, &packed)]
}

/// Inputs that fuzzing of [`expansion`] begins with.
pub fn packed() -> Vec<Vec<u8>> {
    let gzip = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x4b\x04\0\x43\xbe\xb7\xe8\x01\0\0\0";
    vec![zstd::encode_all(&[7; 300][..], 1).expect("a vector takes everything"), gzip.to_vec()]
}

/// Inputs that fuzzing of [`document`] begins with.
pub fn documents() -> Vec<Vec<u8>> {
    let index = r#"{"schemaVersion":2,"manifests":[{"mediaType":"a","digest":"sha256:aa","size":3,"platform":{"os":"linux","architecture":"amd64"},"annotations":{"org.opencontainers.image.ref.name":"t"}}]}"#;
    let manifest = r#"{"schemaVersion":2,"config":{"mediaType":"a","digest":"sha256:aa","size":3},"layers":[{"mediaType":"a","digest":"sha256:aa","size":3}]}"#;
    let configuration = r#"{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:aa"]},"config":{"Cmd":["sh"],"Env":["A=b"]}}"#;
    let saved = r#"[{"Config":"a.json","RepoTags":["x:1"],"Layers":["l/layer.tar"]}]"#;
    let all = [("\0", index), ("\u{1}", manifest), ("\u{2}", configuration), ("\u{3}", saved)];
    all.map(|(choice, text)| format!("{choice}{text}").into_bytes()).into()
}

/// Inputs that fuzzing of [`export`] begins with.
pub fn exports() -> Vec<Vec<u8>> {
    let mut plain = [&[0][..], crate::EXPORT_GREETING].concat();
    for part in ["web", "about", "tree", "memory", "files"] {
        plain.extend((part.len() as u32).to_le_bytes());
        plain.extend(part.as_bytes());
        plain.extend([0; 4]);
    }
    vec![plain]
}

/// Inputs that fuzzing of [`copy_stream`] begins with.
pub fn copies() -> Vec<Vec<u8>> {
    vec![plain()]
}

/// Inputs that fuzzing of [`words`] begins with.
pub fn said() -> Vec<Vec<u8>> {
    let mut said = Vec::new();
    let job = Job::Archive { plain: None, end_is_marked: true, content: true };
    serve(&job, &[], &plain()[..], &mut said).expect("a vector takes everything");
    vec![said]
}
