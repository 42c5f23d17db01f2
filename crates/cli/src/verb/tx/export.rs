//! `pando tx diff --export`: the changes of a transaction as an archive, written as the OCI image specification has a
//! layer: what is new or changed is there whole, and an empty file `.wh.NAME` says that NAME goes.

use super::quoted;
use super::review_text::path_of;
use anyhow::{Context, bail};
use pando_tx::{Exported, Look, PartReview, TreePath};
use rustix::fs::FileType;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tar::{Builder, EntryType, Header};

/// How the name begins of an empty file that says what goes.
const WHITEOUT: &[u8] = b".wh.";

/// The longest target of a link that fits in a header.
const IN_HEADER: usize = 100;

/// Writes it to a file, which nobody but its owner may read, or to the standard output.
pub(super) fn write(parts: &[PartReview], file: &Path) -> anyhow::Result<()> {
    let out: Box<dyn Write> = if file == Path::new("-") {
        Box::new(io::stdout().lock())
    } else {
        let opened = File::options().write(true).create(true).truncate(true).mode(0o600).open(file);
        Box::new(opened.with_context(|| format!("cannot make {}", file.display()))?)
    };
    let mut archive =
        Archive { builder: Builder::new(BufWriter::new(out)), links: HashMap::new(), left_out: Vec::new() };
    for part in parts {
        archive.part(part)?;
    }
    let written = archive.builder.into_inner().and_then(|mut out| out.flush());
    written.with_context(|| format!("cannot write {}", file.display()))?;
    for what in archive.left_out {
        eprintln!("pando: left out of the archive: {what}");
    }
    Ok(())
}

struct Archive<W: Write> {
    builder: Builder<W>,
    /// Files with several names, by what tells them apart, and the path of the first.
    links: HashMap<(u64, u64), PathBuf>,
    /// What such an archive cannot hold, as sentences have it.
    left_out: Vec<String>,
}

impl<W: Write> Archive<W> {
    fn part(&mut self, part: &PartReview) -> anyhow::Result<()> {
        let export = part.export().context("cannot read what was moved")?;
        for path in &export.nameless {
            let shown = shown(part, path);
            self.left_out.push(format!("what was changed of a file by its name {shown}, which then went"));
        }
        for path in &export.gone {
            self.gone(part, path)?;
        }
        for (path, exported) in &export.there {
            let doing = || format!("cannot write {} to the archive", shown(part, path));
            self.there(part, path, exported).with_context(doing)?;
        }
        Ok(())
    }

    fn gone(&mut self, part: &PartReview, path: &TreePath) -> anyhow::Result<()> {
        let Some((around, name)) = path.split() else { return Ok(()) };
        if is_reserved(path) {
            self.left_out.push(format!("that {} went, whose name has a meaning of its own there", shown(part, path)));
            return Ok(());
        }
        let whiteout = around.join(OsStr::from_bytes(&[WHITEOUT, name.as_bytes()].concat()));
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_size(0);
        Ok(self.builder.append_data(&mut header, inside(part, &whiteout), io::empty())?)
    }

    fn there(&mut self, part: &PartReview, path: &TreePath, exported: &Exported) -> anyhow::Result<()> {
        let look = &exported.look;
        if is_reserved(path) {
            self.left_out.push(format!("{}, whose name has a meaning of its own there", shown(part, path)));
            return Ok(());
        }
        let at = inside(part, path);
        if at.as_os_str().is_empty() {
            // The root itself, which an archive has as '.'.
            return self.entry(part, path, look, Path::new("./"), None);
        }
        match look.kind {
            FileType::RegularFile => {
                let file = part.content(exported)?;
                self.entry(part, path, look, &at, Some(file))
            }
            FileType::Socket | FileType::Unknown => {
                self.left_out.push(format!("the socket {}", shown(part, path)));
                Ok(())
            }
            _ => self.entry(part, path, look, &at, None),
        }
    }

    fn entry(
        &mut self,
        part: &PartReview,
        path: &TreePath,
        look: &Look,
        at: &Path,
        content: Option<File>,
    ) -> anyhow::Result<()> {
        let mut header = Header::new_gnu();
        header.set_mode(look.mode);
        header.set_uid(u64::from(look.uid));
        header.set_gid(u64::from(look.gid));
        header.set_mtime(u64::try_from(look.modified.seconds).unwrap_or(0));
        header.set_size(0);
        header.set_entry_type(entry_type(look.kind));
        if let Some((major, minor)) = look.device {
            header.set_device_major(major)?;
            header.set_device_minor(minor)?;
        }
        let mut extensions = vec![("mtime".to_owned(), precise(look).into_bytes())];
        extensions.extend(self.attributes(part, path, look));
        if let Some(target) = &look.target {
            lead(&mut header, &mut extensions, target)?;
        }
        let several = content.as_ref().filter(|_| look.names > 1).map(File::metadata).transpose()?;
        let first = several.map(|found| (found.dev(), found.ino()));
        if let Some(first) = first.as_ref().and_then(|object| self.links.get(object)) {
            header.set_entry_type(EntryType::Link);
            lead(&mut header, &mut extensions, first.as_os_str().as_bytes())?;
            self.append(&header, extensions, at, None)
        } else {
            self.links.extend(first.map(|object| (object, at.to_owned())));
            self.append(&header, extensions, at, content)
        }
    }

    fn append(
        &mut self,
        header: &Header,
        extensions: Vec<(String, Vec<u8>)>,
        at: &Path,
        content: Option<File>,
    ) -> anyhow::Result<()> {
        let mut header = header.clone();
        self.builder.append_pax_extensions(extensions.iter().map(|(key, value)| (key.as_str(), &value[..])))?;
        let Some(file) = content else { return Ok(self.builder.append_data(&mut header, at, io::empty())?) };
        let size = file.metadata()?.len();
        header.set_size(size);
        let mut content = file.take(size);
        self.builder.append_data(&mut header, at, &mut content)?;
        if content.limit() > 0 {
            bail!("it became shorter meanwhile; end what writes to it, and export once more");
        }
        Ok(())
    }

    /// Extended attributes, as the formats of tar have them.
    fn attributes(&mut self, part: &PartReview, path: &TreePath, look: &Look) -> Vec<(String, Vec<u8>)> {
        let mut all = Vec::new();
        for (name, value) in &look.xattrs {
            match std::str::from_utf8(name) {
                Ok(name) if !name.contains('=') => all.push((format!("SCHILY.xattr.{name}"), value.clone())),
                _ => {
                    let (name, shown) = (quoted::path(name), shown(part, path));
                    self.left_out.push(format!("the attribute {name} of {shown}, whose name it cannot hold"));
                }
            }
        }
        all
    }
}

/// Has an entry lead to a path, or to the content of a link, byte for byte.
fn lead(header: &mut Header, extensions: &mut Vec<(String, Vec<u8>)>, to: &[u8]) -> io::Result<()> {
    if to.len() > IN_HEADER {
        extensions.push(("linkpath".to_owned(), to.to_vec()));
    }
    header.set_link_name_literal(&to[..to.len().min(IN_HEADER)])
}

/// Whether a name on the way says something else in such an archive.
fn is_reserved(path: &TreePath) -> bool {
    path.parts().any(|name| name.as_bytes().starts_with(WHITEOUT))
}

/// A path as an archive has it: from the root on, without a slash in front.
fn inside(part: &PartReview, path: &TreePath) -> PathBuf {
    let bytes = path_of(part, path);
    Path::new(OsStr::from_bytes(&bytes[1..])).to_owned()
}

fn shown(part: &PartReview, path: &TreePath) -> String {
    quoted::path(&path_of(part, path))
}

fn precise(look: &Look) -> String {
    format!("{}.{:09}", look.modified.seconds, look.modified.nanoseconds)
}

fn entry_type(kind: FileType) -> EntryType {
    match kind {
        FileType::Directory => EntryType::Directory,
        FileType::Symlink => EntryType::Symlink,
        FileType::Fifo => EntryType::Fifo,
        FileType::CharacterDevice => EntryType::Char,
        FileType::BlockDevice => EntryType::Block,
        FileType::RegularFile | FileType::Socket | FileType::Unknown => EntryType::Regular,
    }
}
