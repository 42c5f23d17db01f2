//! Tarballs with bytes changed at random: whatever happens, it happens inside and without a panic.

use super::Place;
use super::archive_maker::{Maker, gzip, xz, zstd};
use proptest::prelude::*;
use tar::EntryType;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_archive_is_too_strange(
        changes in proptest::collection::vec((0_usize..8_192, any::<u8>()), 0..12),
        sums in any::<bool>(),
        length in 0_usize..9_000,
        packed in 0_u8..4,
    ) {
        let place = Place::new();
        let mut archive = Maker::default()
            .directory("a")
            .file("a/b", "content")
            .symlink("l", "../outside")
            .file("l/kept", "evil")
            .link("h", "a/b")
            .pax(&[("path", b"long/name"), ("GNU.sparse.map", b"0,1"), ("GNU.sparse.size", b"9")])
            .file("x", "y")
            .entry(EntryType::GNULongName, "@", "", b"longer/name")
            .file("x", "z")
            .end();
        for (at, byte) in changes {
            let at = at % archive.len();
            archive[at] = byte;
        }
        if sums {
            // So that changed headers are looked at and not refused for their sum alone.
            for block in archive.chunks_exact_mut(512) {
                if block[257..262] == *b"ustar" {
                    block[148..156].fill(b' ');
                    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
                    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
                }
            }
        }
        archive.truncate(length);
        let archive = match packed { 0 => gzip(&archive), 1 => zstd(&archive), 2 => xz(&archive), _ => archive };
        if place.unpack(&archive).is_err() {
            place.assert_nothing_left();
        }
        place.assert_outside_is_untouched();
    }

    #[test]
    fn no_compressed_archive_is_too_strange(at in 0_usize..400, byte in any::<u8>(), packed in 0_u8..3) {
        let place = Place::new();
        let plain = Maker::default().directory("a").file("a/b", "content").symlink("l", "../outside").file("l/x", "").end();
        let mut archive = match packed { 0 => gzip(&plain), 1 => zstd(&plain), _ => xz(&plain) };
        let at = at % archive.len();
        archive[at] ^= byte;
        if place.unpack(&archive).is_err() {
            place.assert_nothing_left();
        }
        place.assert_outside_is_untouched();
    }
}
