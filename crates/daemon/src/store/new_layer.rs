//! A layer of an image, written from how a tree differs from the one below it.
//!
//! ```text
//!   difference ─┬─ changed ─▶ list ─────────────────┐
//!               └─ gone ────▶ empty files .wh.NAME ─┴─ tar ─▶ blob, by its digest
//! ```

use crate::store::archiver::Archiver;
use crate::store::layers::is_heard;
use crate::store::tree_difference::{Difference, WHITEOUT};
use pando_api::Progress;
use pando_kernel::file::tree_removal::TemporaryDirectory;
use pando_kernel::filesystem::spare_room::{Refusal, SpareRoom};
use pando_reader::ContentDigest;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::SystemTime;

/// A layer that was written. Its plain content has the same digest as its blob.
#[derive(Clone, Debug)]
pub(crate) struct NewLayer {
    pub(crate) digest: String,
    pub(crate) size: u64,
}

/// Writes what differs in `tree` as a layer among `blobs`.
pub(crate) fn write(
    tree: &Path,
    difference: &Difference,
    blobs: &Path,
    progress: &mpsc::Sender<Progress>,
) -> io::Result<NewLayer> {
    let wanted = || is_heard(progress);
    // Before anything is written: a file that is all hole would take all the room that there is.
    SpareRoom::at(File::open(blobs)?)?.ask(difference.bytes).map_err(no_room)?;
    let beside = tempfile::Builder::new().prefix(".lists-").tempdir_in(blobs)?;
    let beside = TemporaryDirectory::of(beside.keep());
    let [changed, whiteouts, gone] = ["changed", "whiteouts", "gone"].map(|name| beside.path().join(name));
    write_list(&changed, &difference.changed)?;
    write_list(&gone, &make_whiteouts(&whiteouts, &difference.gone)?)?;
    let mut files = Archiver::layer(tree, (&changed, &whiteouts, &gone), &wanted)?;
    let unfinished = blobs.join("unfinished");
    let (digest, size) = copy(&mut files, &File::create(&unfinished)?, progress)?;
    files.finish()?;
    fs::set_permissions(&unfinished, PermissionsExt::from_mode(0o444))?;
    fs::rename(unfinished, blobs.join(digest.trim_start_matches("sha256:")))?;
    Ok(NewLayer { digest, size })
}

/// The names for tar(1), which nothing of theirs is an option of.
fn write_list(path: &Path, names: &BTreeSet<PathBuf>) -> io::Result<()> {
    let mut list = io::BufWriter::new(File::create_new(path)?);
    for name in names {
        list.write_all(b"./")?;
        list.write_all(name.as_os_str().as_bytes())?;
        list.write_all(b"\0")?;
    }
    list.flush()
}

/// Makes the files that say what is gone. They are the same whenever they are made.
fn make_whiteouts(directory: &Path, gone: &BTreeSet<PathBuf>) -> io::Result<BTreeSet<PathBuf>> {
    fs::create_dir(directory)?;
    let make = |path: &PathBuf| -> io::Result<PathBuf> {
        let mut name = OsString::from(WHITEOUT);
        name.push(path.file_name().unwrap_or_default());
        let whiteout = path.with_file_name(name);
        let place = directory.join(&whiteout);
        fs::create_dir_all(place.parent().unwrap_or(directory))?;
        let file = File::create_new(&place).map_err(|error| {
            io::Error::other(format!("no layer can say that '{}' is gone: {error}", path.display()))
        })?;
        file.set_permissions(PermissionsExt::from_mode(0o600))?;
        file.set_modified(SystemTime::UNIX_EPOCH)?;
        Ok(whiteout)
    };
    gone.iter().map(make).collect()
}

/// Copies as much as there is room for; digest and length of it.
fn copy(mut from: impl Read, mut to: &File, progress: &mpsc::Sender<Progress>) -> io::Result<(String, u64)> {
    let mut room = SpareRoom::at(to)?;
    let (mut digest, mut size) = (ContentDigest::default(), 0);
    let mut buffer = vec![0; 256 << 10];
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok((digest.text(), size));
        }
        room.take(count as u64).map_err(no_room)?;
        to.write_all(&buffer[..count])?;
        digest.update(&buffer[..count]);
        size += count as u64;
        let done = i64::try_from(size).unwrap_or(i64::MAX);
        let _ = progress.send(Progress { stage: String::new(), done, total: None });
    }
}

fn no_room(refusal: Refusal) -> io::Error {
    match refusal {
        Refusal::NoRoom(room) => io::Error::other(format!(
            "no space left for its layer: {room}; a layer has no holes, so that a file takes as much as it is long"
        )),
        Refusal::Look(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn equal_differences_make_equal_layers() {
        let place = tempfile::tempdir().unwrap();
        let tree = place.path().join("tree");
        fs::create_dir_all(tree.join("d")).unwrap();
        fs::write(tree.join("d/-x y\n\\101"), "odd").unwrap();
        fs::hard_link(tree.join("d/-x y\n\\101"), tree.join("d/other")).unwrap();
        let changed = ["", "d", "d/-x y\n\\101", "d/other"].map(PathBuf::from);
        let gone = BTreeSet::from([PathBuf::from("d/gone"), PathBuf::from("e")]);
        let difference = Difference { changed: changed.into(), gone, bytes: 3 };
        let (sender, _receiver) = mpsc::channel();
        let made: Vec<NewLayer> = ["one", "two"]
            .iter()
            .map(|name| {
                let blobs = place.path().join(name);
                fs::create_dir(&blobs).unwrap();
                // Reading changes the time of access.
                fs::read(tree.join("d/other")).unwrap();
                write(&tree, &difference, &blobs, &sender).unwrap()
            })
            .collect();
        assert_eq!(made[0].digest, made[1].digest);
        let blob = place.path().join("one").join(made[0].digest.trim_start_matches("sha256:"));
        let listed = std::process::Command::new("tar").arg("-tf").arg(blob).output().unwrap().stdout;
        let listed = OsString::from_vec(listed).into_string().unwrap();
        assert_eq!(listed, "./\n./d/\n./d/-x y\\n\\\\101\n./d/other\n./.wh.e\n./d/.wh.gone\n");
    }
}
