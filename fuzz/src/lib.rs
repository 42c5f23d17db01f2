//! Fuzz targets: all that parses what a guest, an image, an archive, a neighbour or a client can write.
//!
//! A target takes any bytes. It panics where a promise is broken: that damage is refused, that what is understood is
//! the same when it is written again, that what two programs read is the same. Time and memory are bounded from
//! outside. The targets stand beside the code that they are about, in each crate's `fuzz.rs`.
//!
//! ```text
//!   ./x test        corpus/TARGET/*  ─▶ plain tests (tests/replay.rs)
//!   ./x test slow   corpus, seeds    ─▶ libFuzzer, which follows coverage, a minute each
//!                                    ─▶ what is found goes to the corpus with its fix
//! ```
//!
//! Seeds are made by the code that writes the formats, so that they stay right when a format changes. The corpus has
//! what libFuzzer found beyond them, made small, and each input that once broke a promise.

mod requests;
mod steps;

use std::path::PathBuf;

/// A parser that is fuzzed, and the inputs that fuzzing begins with.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, and that of its directory in the corpus.
    pub name: &'static str,
    /// The function, which takes any bytes and panics where a promise is broken.
    pub run: fn(&[u8]),
    /// Makes the inputs that fuzzing begins with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// The longest input that is worth trying, in bytes.
    pub longest: usize,
}

/// More memory than any input may take: bytes. What decompressors take is bounded by themselves.
pub const MOST_MEMORY: usize = 256 << 20;

/// All targets, of all crates.
pub const TARGETS: &[Target] = &[
    target("archive", pando_reader::fuzz::archive, 16 << 10).seeded(pando_reader::fuzz::archives),
    target("archive_of_another_writer", pando_reader::fuzz::archive_of_another_writer, 2 << 10),
    target("expansion", pando_reader::fuzz::expansion, 4 << 10).seeded(pando_reader::fuzz::packed),
    target("document", pando_reader::fuzz::document, 2 << 10).seeded(pando_reader::fuzz::documents),
    target("export", pando_reader::fuzz::export, 4 << 10).seeded(pando_reader::fuzz::exports),
    target("copy_stream", pando_reader::fuzz::copy_stream, 8 << 10).seeded(pando_reader::fuzz::copies),
    target("reader_words", pando_reader::fuzz::words, 4 << 10).seeded(pando_reader::fuzz::said),
    target("image_tree", pando_freeze::fuzz::tree, 16 << 10).seeded(pando_freeze::fuzz::trees),
    target("image_file", pando_freeze::fuzz::image_file, 8 << 10).seeded(pando_freeze::fuzz::image_files),
    target("task_records", pando_freeze::fuzz::task_records, 8 << 10),
    target("proc_files", pando_freeze::fuzz::proc_files, 4 << 10).seeded(pando_freeze::fuzz::texts),
    target("kernel_texts", pando_kernel::fuzz::proc_texts, 2 << 10).seeded(pando_freeze::fuzz::texts),
    target("kernel_messages", pando_kernel::fuzz::messages, 2 << 10),
    target("journal", pando_tx::fuzz::journal, 4 << 10).seeded(pando_tx::fuzz::journals),
    target("transaction_records", pando_tx::fuzz::records, 4 << 10).seeded(pando_tx::fuzz::kept),
    target("transaction_walk", pando_tx::fuzz::walk, 4 << 10),
    target("overlay_attributes", pando_tx::fuzz::overlay_attributes, 1 << 10),
    target("known_files", pando_store::fuzz::known_files, 2 << 10).seeded(pando_store::fuzz::tables),
    target("layer_notes", pando_store::fuzz::notes, 1 << 10).seeded(|| vec!["ab".repeat(32).into()]),
    target("layer_image", pando_store::fuzz::layer_image, 16 << 10).seeded(pando_store::fuzz::layer_images),
    target("accounts", pando_guest::fuzz::accounts, 2 << 10).seeded(accounts),
    target("settings", pando_guest::fuzz::settings, 1 << 10).seeded(settings),
    target("words", pando_guest::fuzz::words, 256).seeded(words),
    target("guest_records", pando_daemon::fuzz::records, 2 << 10).seeded(pando_daemon::fuzz::specs),
    target("freeze_door", pando_daemon::fuzz::freeze_door, 512).seeded(|| vec![b"7 warm\n8 -\n".to_vec()]),
    target("requests", requests::requests, 2 << 10).seeded(requests::seeds),
    target("plans", steps::plans, 2 << 10).seeded(steps::seeds),
    target("quantities", pando_limit::fuzz::quantities, 256).seeded(quantities),
    target("network", pando_net::fuzz::network, 2 << 10),
];

const fn target(name: &'static str, run: fn(&[u8]), longest: usize) -> Target {
    Target { name, run, seeds: Vec::new, longest }
}

impl Target {
    const fn seeded(self, seeds: fn() -> Vec<Vec<u8>>) -> Self {
        Self { seeds, ..self }
    }

    /// The one of a name.
    pub fn named(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// The directory in which its corpus lies.
    pub fn corpus(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name)
    }
}

fn accounts() -> Vec<Vec<u8>> {
    let passwd = "web\nroot:x:0:0:root:/root:/bin/sh\nweb:x:33:33::/var/www:/bin/false\n";
    vec![format!("{passwd}adm:x:4:root,web\nwww:x:33:\n").into_bytes()]
}

fn settings() -> Vec<Vec<u8>> {
    let tables = pando_guest::settings::TABLES.iter().map(|(table, keys)| {
        let keys: String = keys.iter().map(|key| format!("{} = \"on\"\n", key.name)).collect();
        format!("[{table}]\n{keys}").into_bytes()
    });
    tables.collect()
}

fn words() -> Vec<Vec<u8>> {
    let sources = ["host", "debian:bookworm+nginx,curl", "oci:/a/b:tag", "guest:web-2", "./tree", "/a.tar.xz"];
    sources.map(|source| source.as_bytes().to_vec()).into()
}

fn quantities() -> Vec<Vec<u8>> {
    let kill = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\
                oom_memcg=/pando/1,task_memcg=/pando/1/a,task=sh,pid=7,uid=0";
    [kill, "1.5G", "25%", "0-3,7", "10mbit"].map(|text| text.as_bytes().to_vec()).into()
}
