//! What a fuzzer calls of what is kept of programs, and of what they say.

use super::dentries::{CANARY, Seen, names};
use super::fitted::Fitted;
use super::tenant::Tenant;
use crate::tree::attributes::Moment;
use std::collections::BTreeSet;

/// A file of fitted programs with a checksum that is right.
pub(crate) fn fitted(body: &[u8]) {
    let _ = Fitted::from_bytes(&[&crc32fast::hash(body).to_le_bytes(), body].concat());
}

/// Records of the walk, each behind two bytes with its length: names in them are any bytes that anybody looked up.
pub(crate) fn walk(mut data: &[u8]) {
    let mut all = Vec::new();
    while let Some((length, rest)) = data.split_first_chunk::<2>() {
        let (record, after) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes(*length) & 0x3ff)));
        all.extend(Seen::from_bytes(record));
        data = after;
    }
    let _ = names(&all, &[CANARY.to_owned()], Moment { seconds: 7, nanoseconds: 0 }, &BTreeSet::from([1]));
    let _ = names(&all, &[], Moment::EPOCH, &BTreeSet::new());
}

/// Processes that were noted: what is read is the same when it is written again.
pub(crate) fn tenants(data: &[u8]) {
    let written: Vec<u8> = Tenant::all_of_bytes(data).flat_map(|tenant| tenant.to_bytes()).collect();
    let again: Vec<u8> = Tenant::all_of_bytes(&written).flat_map(|tenant| tenant.to_bytes()).collect();
    assert_eq!(again, written);
}
