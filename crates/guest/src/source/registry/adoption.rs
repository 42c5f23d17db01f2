//! What a client has left in its directory becomes an image that is kept: a layout that only root can change.
//!
//! The layout is made of what was asked for: the manifest is the one that was digested and understood, and its parts
//! have the digests that it says. No document that the client has left is read.
//!
//! The client's directory is another user's, who may have made anything in it. So each part is opened from the
//! directory's descriptor, through no link, and only a plain file of that user's with no other name is taken: that very
//! file, by its descriptor. It is digested once nobody can change it any more, and again when the layout is unpacked.

use super::arrivals::Arrivals;
use super::client::{Client, here};
use super::pull::Manifest;
use super::{Reference, RegistryError};
use crate::source::oci::Part;
use crate::source::root::read_file;
use pando_kernel::file::tree_removal::TemporaryDirectory;
use pando_kernel::file::writers;
use pando_reader::registry_client::USER;
use rustix::fs::{AtFlags, CWD, Gid, Mode, Uid, fchmod, fchown, linkat};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What is kept is read by whoever can enter where it lies, which is root.
const READABLE: Mode = Mode::RUSR.union(Mode::RGRP).union(Mode::ROTH);

/// The blobs of images that are kept already.
pub(super) struct Kept<'a> {
    pub(super) layouts: &'a [PathBuf],
    /// Those of pulls that broke off.
    pub(super) arrived: Arrivals<'a>,
}

impl Kept<'_> {
    /// The file of a part that one of them has.
    pub(super) fn find(&self, part: &Part) -> Option<PathBuf> {
        let (member, is_whole) = (part.member(), |size| size == part.size);
        let fits = |path: &PathBuf| path.symlink_metadata().is_ok_and(|found| found.is_file() && is_whole(found.len()));
        let kept = self.layouts.iter().map(|layout| layout.join(&member)).find(fits);
        kept.or_else(|| self.arrived.find(part))
    }
}

/// Makes a layout of an image in a new directory in `beside`: of its manifest, and of its parts, which are kept or have
/// been sent to the client's directory.
pub(super) fn adopt(
    client: &Client<'_>,
    beside: &Path,
    manifest: &Manifest,
    (sent, kept): (&[(Part, PathBuf)], &Kept<'_>),
) -> Result<TemporaryDirectory, RegistryError> {
    let failed = |source| here(client.reference, "keeping what was pulled", source);
    let made = tempfile::Builder::new().prefix(".new-").tempdir_in(beside).map_err(failed)?;
    let layout = TemporaryDirectory::of(made.keep());
    let to = |member: &str| -> io::Result<PathBuf> {
        let to = layout.path().join(member);
        std::fs::create_dir_all(to.parent().unwrap_or(layout.path()))?;
        Ok(to)
    };
    let write = || -> io::Result<()> {
        let member = format!("blobs/{}", manifest.digest.replace(':', "/"));
        put(&to(&member)?, &manifest.content)?;
        put(&to("oci-layout")?, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        put(&to("index.json")?, index(manifest, client.reference).as_bytes())
    };
    write().map_err(failed)?;
    for (part, from) in sent {
        let to = to(&part.member()).map_err(failed)?;
        // An image may have a layer twice.
        if !to.exists() {
            match kept.find(part) {
                Some(path) => std::fs::hard_link(path, &to).map_err(failed)?,
                None => take_part(client, part, from, &to)?,
            }
        }
    }
    Ok(layout)
}

/// Writes a file that is kept.
fn put(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    file.write_all(content)?;
    fchmod(&file, READABLE)?;
    file.sync_all()
}

/// Takes a part of an image out of a client's directory, and checks what it is.
fn take_part(client: &Client<'_>, part: &Part, from: &Path, to: &Path) -> Result<(), RegistryError> {
    let failed = |source| here(client.reference, "keeping what was pulled", source);
    let image = |source| RegistryError::Image { reference: client.reference.whole(), source };
    let file = match read_file(client.root(), from).map_err(io::Error::from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(image(part.missing(&client.reference.whole())));
        }
        opened => opened.map_err(failed)?,
    };
    take(&file, to).map_err(failed)?;
    let taken = File::open(to).map_err(failed)?;
    part.check(&client.reference.whole(), taken, client.progress()).map_err(image)
}

/// Makes a client's file root's, with one more name; or a copy of it, where somebody may have it open to write to: what
/// the client was can have handed it on.
pub(super) fn take(file: &File, to: &Path) -> io::Result<()> {
    let found = file.metadata()?;
    if found.uid() != USER || found.nlink() != 1 {
        return Err(io::Error::other("a file there is not of what spoke with the registry"));
    }
    fchown(file, Some(Uid::ROOT), Some(Gid::ROOT))?;
    fchmod(file, READABLE)?;
    // From here on nobody opens it anew.
    if writers::has_none(file) {
        file.sync_all()?;
        return Ok(linkat(file, "", CWD, to, AtFlags::EMPTY_PATH)?);
    }
    let copy = File::options().write(true).create_new(true).open(to)?;
    // Not more than was allowed for: it may grow meanwhile.
    io::copy(&mut file.take(found.len()), &mut &copy)?;
    fchmod(&copy, READABLE)?;
    copy.sync_all()
}

/// The index of a layout with one image.
fn index(manifest: &Manifest, reference: &Reference) -> String {
    serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": manifest.kind,
            "digest": manifest.digest,
            "size": manifest.content.len(),
            "annotations": { "org.opencontainers.image.ref.name": reference.whole() },
        }],
    })
    .to_string()
}
