//! What a fuzzer calls. Each takes any bytes, and panics where what is promised of them is broken.

use crate::change::upper::marks_of;
use crate::change::{Op, Steps};
use crate::journal::file::Journal;
use crate::prewarm::prewarmed::State;
use crate::prewarm::ticket::Ticket;
use crate::state::name::TxName;
use crate::state::overlay_part::OverlayPart;
use crate::state::record::Record;
use crate::tree::path::TreePath;
use crate::validate::read_set;
use std::collections::BTreeMap;

/// A journal behind a checksum that is right: it is refused, or says the same when it is written again, of no place
/// outside of its trees.
pub fn journal(data: &[u8]) {
    let _ = Journal::from_bytes(data);
    let Ok(journal) = Journal::from_bytes(&Journal::around(data)) else { return };
    let again = postcard::to_stdvec(&journal).expect("a vector takes everything");
    assert_eq!(Journal::from_bytes(&Journal::around(&again)).expect("it was written just now"), journal);
}

/// A valid journal, as a seed for [`journal`].
pub fn journals() -> Vec<Vec<u8>> {
    let at = TreePath::new(b"a/\xff").expect("a path");
    let change = vec![Op::Move { at, ino: 7, directory: false, marked: true, over: None }];
    let part = OverlayPart::new("/".into(), "/base".into());
    let journal = Journal {
        durable: true,
        parts: vec![(part, Steps { change, ..Steps::default() })],
        kept: None,
        privileged: Vec::new(),
    };
    vec![postcard::to_stdvec(&journal).expect("a vector takes everything")]
}

/// Records of transactions, and what is kept of those that are made ahead.
pub fn records(data: &[u8]) {
    if let Ok(record) = serde_json::from_slice::<Record>(data) {
        let again = serde_json::to_vec(&record).expect("a vector takes everything");
        let again: Record = serde_json::from_slice(&again).expect("it was written just now");
        assert_eq!(again, record);
        let _ = (record.age(), record.has_sound_times());
    }
    let _ = State::from_bytes(data);
    read_set::fuzz::fitted(data);
    read_set::fuzz::tenants(data);
    let text = String::from_utf8_lossy(data);
    if let Ok(ticket) = text.parse::<Ticket>() {
        assert_eq!(ticket.to_string().parse(), Ok(ticket));
    }
    if let Ok(name) = text.parse::<TxName>() {
        assert!(!name.as_ref().contains(['/', '\0']) && name.as_ref() != "..");
    }
}

/// What a program in the kernel says of the names that a view knows.
pub fn walk(data: &[u8]) {
    read_set::fuzz::walk(data);
}

/// What an overlay's attributes say: name and value, each behind a byte with its length.
pub fn overlay_attributes(mut data: &[u8]) {
    let mut all = BTreeMap::new();
    let mut word = || {
        let (length, rest) = data.split_first()?;
        let (word, after) = rest.split_at(rest.len().min(usize::from(*length)));
        data = after;
        Some(word.to_vec())
    };
    while let (Some(name), Some(value)) = (word(), word()) {
        all.insert(name, value);
    }
    marks_of(&all);
}

/// Valid files, as seeds for [`records`].
pub fn kept() -> Vec<Vec<u8>> {
    let name = r#"{"name":"run-1","begun":{"seconds":7,"nanoseconds":0},"parts":[],"group":"/g","holder":7,"places":["/a"],"listener":null,"lost":null,"command":["sh"]}"#;
    vec![name.into(), b"spare-1/7/8".to_vec(), vec![0xff, 1, 0]]
}
