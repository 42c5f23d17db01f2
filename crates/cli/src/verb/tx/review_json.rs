//! A review for programs.

use super::review_text::{path_of, time};
use pando_tx::{Look, PartReview, Reviewed};
use rustix::fs::FileType;
use serde_json::{Map, Value, json};

/// An entry as an object. What is not UTF-8 stands in it twice: as text with stand-ins, and as base64 under the same
/// name with `_bytes` behind it.
pub(super) fn entry(part: &PartReview, entry: &Reviewed) -> Value {
    let mut object = Map::new();
    object.insert("change".to_owned(), json!(entry.sign));
    put(&mut object, "path", &path_of(part, &entry.path));
    object.insert("directory".to_owned(), json!(entry.is_directory()));
    object.insert("bytes".to_owned(), json!(entry.bytes));
    object.insert("content".to_owned(), json!(entry.content));
    object.insert("replaced".to_owned(), json!(entry.replaced));
    for (name, path) in
        [("moved_from", &entry.moved_from), ("moved_to", &entry.moved_to), ("linked_to", &entry.linked_to)]
    {
        if let Some(path) = path {
            put(&mut object, name, &path_of(part, path));
        }
    }
    if entry.by_other_names {
        object.insert("by_other_names".to_owned(), json!(true));
    }
    if entry.below > 0 {
        object.insert("below".to_owned(), json!(entry.below));
    }
    for (name, look) in [("old", &entry.old), ("new", &entry.new)] {
        object.insert(name.to_owned(), look.as_ref().map_or(Value::Null, state));
    }
    Value::Object(object)
}

/// What an object is like.
fn state(look: &Look) -> Value {
    let mut object = Map::new();
    object.insert("kind".to_owned(), json!(kind(look.kind)));
    object.insert("mode".to_owned(), json!(format!("{:04o}", look.mode)));
    object.insert("uid".to_owned(), json!(look.uid));
    object.insert("gid".to_owned(), json!(look.gid));
    object.insert("size".to_owned(), json!(look.size));
    object.insert("modified".to_owned(), json!(time(look.modified)));
    object.insert("names".to_owned(), json!(look.names));
    if let Some(target) = &look.target {
        put(&mut object, "target", target);
    }
    if let Some((major, minor)) = look.device {
        object.insert("device".to_owned(), json!({ "major": major, "minor": minor }));
    }
    if !look.protection().is_empty() {
        object.insert("chattr".to_owned(), json!(look.protection()));
    }
    if !look.xattrs.is_empty() {
        let attribute = |(name, value): (&Vec<u8>, &Vec<u8>)| {
            let mut object = Map::new();
            put(&mut object, "name", name);
            object.insert("value_bytes".to_owned(), json!(base64(value)));
            Value::Object(object)
        };
        object.insert("xattrs".to_owned(), look.xattrs.iter().map(attribute).collect());
    }
    Value::Object(object)
}

fn kind(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::CharacterDevice => "char",
        FileType::BlockDevice => "block",
        FileType::Unknown => "unknown",
    }
}

fn put(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    object.insert(name.to_owned(), json!(String::from_utf8_lossy(bytes)));
    if std::str::from_utf8(bytes).is_err() {
        object.insert(format!("{name}_bytes"), json!(base64(bytes)));
    }
}

/// RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let letter = char::from(LETTERS[(bits >> (18 - 6 * place) & 0x3f) as usize]);
            out.push(if place <= chunk.len() { letter } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_as_everybody_reads_them() {
        for (bytes, text) in
            [(&b""[..], ""), (b"f", "Zg=="), (b"fo", "Zm8="), (b"foo", "Zm9v"), (b"\xff\xfe\xfd\xfc", "//79/A==")]
        {
            assert_eq!(base64(bytes), text);
        }
    }

    #[test]
    fn what_is_no_text_is_there_as_bytes_too() {
        let mut object = Map::new();
        put(&mut object, "path", b"/a\xff");
        assert_eq!(Value::Object(object), json!({ "path": "/a\u{fffd}", "path_bytes": "L2H/" }));
    }
}
