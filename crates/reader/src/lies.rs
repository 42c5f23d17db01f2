//! What a reader says that was taken over, where a test plants it: hostile, but made of the messages that readers say.

use crate::entry::{Entry, Kind};
use crate::serve::End;
use crate::wire::{LONGEST_CONTENT, Message, Teller};
use std::io::{self, Write};

/// Tells one, by its name; after a colon may stand a path.
pub(crate) fn tell(lie: &str, out: impl Write) -> io::Result<()> {
    let (name, path) = lie.split_once(':').unwrap_or((lie, ""));
    if name == "silence" {
        loop {
            std::thread::park();
        }
    }
    let mut teller = Teller::new(out);
    teller.say(0, &Message::Begun)?;
    for entry in entries(name, path) {
        let content = entry.size.min(3);
        teller.say(u64::MAX, &Message::Entry(Box::new(entry)))?;
        teller.content(0, &b"lie"[..usize::try_from(content).unwrap_or(0)])?;
    }
    // Without end, until nobody listens any more.
    while name.starts_with("content-") {
        teller.content(1, &[0; LONGEST_CONTENT])?;
    }
    if name == "another-job" {
        teller.say(0, &Message::Part(1))?;
    }
    teller.say(0, &Message::End(End { agrees: true }))?;
    teller.flush()
}

fn entries(name: &str, path: &str) -> Vec<Entry> {
    let file = |path: &str, size| entry(path, Kind::File, size);
    let one = match name {
        // Content that nobody was told of: of a directory; of a file beyond its end.
        "content-of-a-directory" => entry("d", Kind::Directory, 0),
        "content-beyond-the-end" => file("f", 3),
        "content-that-fills-the-disk" => file("f", 1 << 62),
        // Fewer bytes than were told of.
        "less-content" => file("f", 4),
        "climbs" => file("../../../../../../climbed", 3),
        "is-the-root" => file("/", 3),
        "leads-away" => {
            let bait = |kind| entry("bait", kind, 0);
            let link = bait(Kind::Symlink(path.into()));
            let hard = entry("hard", Kind::HardLink(b"bait/kept".to_vec()), 0);
            return vec![link, file("bait/planted", 3), hard, bait(Kind::Directory), file("bait/later", 3)];
        }
        "runs-backwards" => entry("f", Kind::Sparse(vec![(8, 2), (0, 1)], 10), 3),
        "nobodys" => Entry { uid: u32::MAX, ..file("f", 3) },
        _ => return Vec::new(),
    };
    vec![one]
}

fn entry(path: &str, kind: Kind, size: u64) -> Entry {
    Entry {
        path: path.into(),
        kind,
        uid: 0,
        gid: 0,
        mode: 0o6777,
        accessed: (0, 0),
        modified: (0, 0),
        xattrs: Vec::new(),
        size,
        offset: u64::MAX,
        content_offset: u64::MAX,
        dropped: u64::MAX,
    }
}
