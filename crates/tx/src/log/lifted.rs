//! Protection by chattr(1) that is in the way of an undo, of what the commit has not protected: of a directory that may
//! only grow, for example, which the commit has put something into. It is lifted where something fails for want of
//! that, and given again at the end.

use crate::tree::confined::{CallPath, Tree};
use crate::tree::path::TreePath;
use crate::tree::protection::Protection;
use rustix::io::Errno;
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// What was lifted in a view.
pub(super) struct Lifted<'a> {
    view: &'a Tree,
    /// The objects, wherever they are by now, and how they were protected.
    protected: RefCell<Vec<(OwnedFd, Protection)>>,
}

impl<'a> Lifted<'a> {
    pub(super) fn new(view: &'a Tree) -> Self {
        Self { view, protected: RefCell::default() }
    }

    /// Does something to a path. Where that is not permitted, it is done again without what protects the path and the
    /// directory that it is in.
    pub(super) fn around<T>(&self, path: &TreePath, mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        match act() {
            Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
                if !self.lift(path)? {
                    return Err(error);
                }
                act()
            }
            done => done,
        }
    }

    /// Whether anything was lifted.
    fn lift(&self, path: &TreePath) -> io::Result<bool> {
        let mut is_lifted = false;
        let parent = path.split().map(|(parent, _)| parent);
        for place in [Some(path), parent.as_ref()].into_iter().flatten() {
            let Some(object) = super::put_back::there(self.view.object(place))? else { continue };
            let protection = Protection::of(&CallPath::of(object.try_clone()?)?)?;
            if protection.is_none() {
                continue;
            }
            Protection::default().give(object.as_fd())?;
            self.protected.borrow_mut().push((object, protection));
            is_lifted = true;
        }
        Ok(is_lifted)
    }

    /// Protects again what is still there.
    pub(super) fn give_again(&self) -> io::Result<()> {
        for (object, protection) in self.protected.borrow_mut().drain(..) {
            if rustix::fs::fstat(&object)?.st_nlink > 0 {
                protection.give(object.as_fd())?;
            }
        }
        Ok(())
    }
}
