//! What a review comes to on disk: everything that is there afterwards and was not before, whole, and the names that
//! have gone.

use super::PartReview;
use super::look::{Ids, Look};
use crate::tree::confined::{Tree, is_missing, leads_elsewhere};
use crate::tree::path::TreePath;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;

/// The changes on one mount, without need of what was there before but for what did not change.
#[derive(Debug, Default)]
pub struct Export {
    /// Names that are to be taken away first.
    pub gone: BTreeSet<TreePath>,
    /// What is to be there, directories before what is in them.
    pub there: BTreeMap<TreePath, Exported>,
    /// Files that were changed by a name which then went: under which names they are to be found is not known.
    pub nameless: BTreeSet<TreePath>,
}

/// Something that is to be there.
#[derive(Debug)]
pub struct Exported {
    /// The object's attributes, beside its content.
    pub look: Look,
    content: Content,
}

/// Where the content of a file lies.
#[derive(Debug)]
enum Content {
    Upper(TreePath),
    Live(TreePath),
}

impl PartReview {
    /// What it comes to.
    ///
    /// # Errors
    ///
    /// What reading a directory that was moved says.
    pub fn export(&self) -> io::Result<Export> {
        let mut export = Export::default();
        for entry in &self.entries {
            let path = &entry.path;
            let Some(look) = &entry.new else {
                export.there.retain(|at, _| !at.is_within(path));
                export.gone.insert(path.clone());
                continue;
            };
            if entry.by_other_names {
                export.nameless.insert(path.clone());
                continue;
            }
            if let Some(from) = entry.moved_from.as_ref().filter(|_| look.is_directory()) {
                self.moved(from, path, &mut export)?;
            }
            let content = Content::Upper(path.clone());
            export.there.insert(path.clone(), Exported { look: look.clone(), content });
        }
        Ok(export)
    }

    /// All that lies below a directory of the live tree, under its new name.
    fn moved(&self, from: &TreePath, to: &TreePath, export: &mut Export) -> io::Result<()> {
        let live = self.part.live_tree()?;
        let ids = Ids::of(self.part.target.as_ref());
        let mut left = vec![(from.clone(), to.clone())];
        while let Some((from, to)) = left.pop() {
            for name in live.names(&from)? {
                let (from, to) = (from.join(&name), to.join(&name));
                let object = match live.object(&from) {
                    // It has gone, or something is mounted there.
                    Err(error) if is_missing(&error) || leads_elsewhere(&error) => continue,
                    object => object?,
                };
                let look = Look::of(object, None, ids)?;
                if look.is_directory() {
                    left.push((from.clone(), to.clone()));
                }
                export.there.insert(to, Exported { look, content: Content::Live(from) });
            }
        }
        Ok(())
    }

    /// The content of a regular file that is to be there.
    ///
    /// # Errors
    ///
    /// What opening it says.
    pub fn content(&self, exported: &Exported) -> io::Result<File> {
        match &exported.content {
            Content::Upper(path) => Tree::open(&self.part.upper())?.file(path, false),
            Content::Live(path) => self.part.live_tree()?.file(path, false),
        }
    }
}
