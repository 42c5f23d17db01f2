//! The programs of TxOS's table 5 that are no packages, at its sizes: `pando-bench tx-program NAME DIR SCALE HOW`.

use anyhow::{Context, bail};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// How it is done.
#[derive(Clone, Copy)]
pub(crate) struct How {
    /// Everything is divided by this.
    pub(crate) scale: usize,
    /// Every file is synced when it is written, as a program does that wants to keep it.
    pub(crate) sync: bool,
}

/// Bytes of LFS's large file and of what is read and written of it at a time.
const LARGE: usize = 100 << 20;
const UNIT: usize = 8192;

/// RAB's numbers of files, directories and directories that are copied into.
const FILES: usize = 500;
const DIRECTORIES: usize = 20_000;

pub(crate) fn run(name: &str, at: &Path, how: How) -> anyhow::Result<()> {
    match name {
        "postmark" => postmark(at, how),
        "lfs-create" => each_small(how, |number| put(&at.join(number.to_string()), &[b'x'; 1024], how)),
        "lfs-read" => each_small(how, |number| Ok(std::fs::read(at.join(number.to_string())).map(drop)?)),
        "lfs-delete" => each_small(how, |number| Ok(std::fs::remove_file(at.join(number.to_string()))?)),
        "lfs-write" | "lfs-rewrite" | "lfs-scan" | "lfs-probe" => large(name, &at.join("large"), how),
        "rab-mkdir" => {
            (0..DIRECTORIES / how.scale).try_for_each(|number| Ok(std::fs::create_dir(at.join(format!("d{number}")))?))
        }
        "rab-cp" => copies(at, how),
        "rab-du" => sizes(at).map(|found| println!("{found}")),
        "rab-grep" => search(at).map(|found| println!("{found}")),
        _ => bail!("there is no program '{name}'"),
    }
}

/// What a phase needs that an earlier one left.
pub(crate) fn prepare(name: &str, at: &Path, how: How) -> anyhow::Result<()> {
    let how = How { sync: false, ..how };
    let before: &[&str] = match name {
        "lfs-read" | "lfs-delete" => &["lfs-create"],
        "lfs-rewrite" | "lfs-scan" | "lfs-probe" => &["lfs-write"],
        "rab-cp" => &["rab-mkdir"],
        "rab-du" | "rab-grep" => &["rab-mkdir", "rab-cp"],
        _ => &[],
    };
    if name.starts_with("rab") {
        let mut dice = Dice(88_172_645_463_325_252);
        for number in 0..FILES {
            let text: Vec<u8> = (0..1000).map(|_| b' ' + dice.next(95) as u8).collect();
            std::fs::write(at.join(format!("f{number}")), text)?;
        }
    }
    before.iter().try_for_each(|phase| run(phase, at, how))
}

fn each_small(how: How, one: impl Fn(usize) -> anyhow::Result<()>) -> anyhow::Result<()> {
    (0..10_000 / how.scale).try_for_each(one)
}

fn put(path: &Path, content: &[u8], how: How) -> anyhow::Result<()> {
    let mut file = File::create(path).with_context(|| format!("making {}", path.display()))?;
    file.write_all(content)?;
    if how.sync {
        file.sync_all()?;
    }
    Ok(())
}

/// Mail, as postmark has it: files of 500 to 10,000 bytes are made, removed, read and appended to.
fn postmark(at: &Path, how: How) -> anyhow::Result<()> {
    let (files, steps) = (10_000 / how.scale, 40_000 / how.scale);
    let mut dice = Dice(2_463_534_242);
    let content = vec![b'm'; 10_000];
    let mut there: Vec<usize> = (0..files).collect();
    let mut next = files;
    for number in 0..files {
        put(&at.join(number.to_string()), &content[..500 + dice.next(9500) as usize], how)?;
    }
    for _ in 0..steps {
        let chosen = dice.next(there.len() as u64) as usize;
        let path = at.join(there[chosen].to_string());
        match dice.next(4) {
            0 => {
                put(&at.join(next.to_string()), &content[..500 + dice.next(9500) as usize], how)?;
                there.push(next);
                next += 1;
            }
            1 if there.len() > 1 => {
                std::fs::remove_file(path)?;
                there.swap_remove(chosen);
            }
            2 => drop(std::fs::read(path)?),
            _ => {
                let mut file = File::options().append(true).open(path)?;
                file.write_all(&content[..500])?;
                if how.sync {
                    file.sync_all()?;
                }
            }
        }
    }
    Ok(())
}

/// One large file: written and read, in order and not.
fn large(name: &str, path: &Path, how: How) -> anyhow::Result<()> {
    let units = (LARGE / UNIT / how.scale) as u64;
    let mut dice = Dice(362_436_069);
    let mut unit = vec![b'l'; UNIT];
    // Who only reads does not ask for more: an overlay copies what is opened to be written.
    let writes = matches!(name, "lfs-write" | "lfs-rewrite");
    let mut options = File::options();
    let file = options.read(true).write(writes).create(writes).truncate(name == "lfs-write").open(path)?;
    for number in 0..units {
        let at = UNIT as u64 * if matches!(name, "lfs-rewrite" | "lfs-probe") { dice.next(units) } else { number };
        if writes {
            file.write_all_at(&unit, at)?;
        } else {
            file.read_exact_at(&mut unit, at)?;
        }
        if how.sync && name == "lfs-rewrite" {
            file.sync_data()?;
        }
    }
    if how.sync && name == "lfs-write" {
        file.sync_all()?;
    }
    Ok(())
}

/// The generated files, copied into as many directories.
fn copies(at: &Path, how: How) -> anyhow::Result<()> {
    let count = FILES / how.scale.min(10);
    let contents: Result<Vec<_>, _> = (0..FILES).map(|number| std::fs::read(at.join(format!("f{number}")))).collect();
    let contents = contents?;
    for directory in 0..count {
        let directory = at.join(format!("d{directory}"));
        for (number, content) in contents.iter().enumerate() {
            std::fs::write(directory.join(format!("f{number}")), content)?;
        }
    }
    Ok(())
}

/// What du(1) does.
fn sizes(at: &Path) -> anyhow::Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(at)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        sum += std::os::unix::fs::MetadataExt::blocks(&metadata);
        if metadata.is_dir() {
            sum += sizes(&entry.path())?;
        }
    }
    Ok(sum)
}

/// Looks in all files for what is in none, and adds up their bytes.
fn search(at: &Path) -> anyhow::Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(at)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sum += search(&entry.path())?;
            continue;
        }
        let mut content = Vec::new();
        File::open(entry.path())?.read_to_end(&mut content)?;
        sum += content.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        if content.windows(2).any(|pair| pair == b"\0\0") {
            bail!("found what is not there");
        }
    }
    Ok(sum)
}
