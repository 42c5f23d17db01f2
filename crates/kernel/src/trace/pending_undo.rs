//! What a thread of ours has changed and will put back as it was, also when its maker is no more: see
//! [`survivor`](crate::trace::survivor).

use crate::trace::survivor::Undivided;
use std::cell::Cell;
use std::fmt::Debug;
use std::ptr;

/// Something that is to be put back.
pub(crate) trait PutBack: Debug {
    /// Does it, with system calls alone: locks in this memory may be held by a thread that is no more, the allocator's
    /// among them. What was not changed yet is none the worse for it.
    fn put_back(&self);
}

/// A change that is to be undone. Dropped, it is undone.
#[derive(Debug)]
pub(crate) struct PendingUndo(Box<Entry>);

#[derive(Debug)]
struct Entry {
    what: Box<dyn PutBack>,
    forgiven: Cell<bool>,
    /// What this thread owes besides, and has for longer.
    earlier: Cell<*const Entry>,
}

thread_local! {
    /// What this thread came to owe last.
    static NEWEST: Cell<*const Entry> = const { Cell::new(ptr::null()) };
}

impl PendingUndo {
    /// From here on it is pending_undo: before anything is changed.
    pub(crate) fn new(what: impl PutBack + 'static) -> Self {
        let earlier = Cell::new(NEWEST.get());
        let entry = Box::new(Entry { what: Box::new(what), forgiven: Cell::new(false), earlier });
        NEWEST.set(&raw const *entry);
        Self(entry)
    }

    /// It stays as it is, whichever process dies. Allocates and frees nothing.
    pub(crate) fn forgive(&self) {
        self.0.forgiven.set(true);
    }
}

impl Entry {
    fn settle(&self) {
        if !self.forgiven.get() {
            self.what.put_back();
        }
    }

    /// Takes it from the list. What came last is found first.
    fn unlink(&self) {
        let own: *const Self = self;
        if NEWEST.get() == own {
            return NEWEST.set(self.earlier.get());
        }
        let mut next = NEWEST.get();
        // SAFETY: what is listed is there until it has been taken from the list, by this thread.
        while let Some(entry) = unsafe { next.as_ref() } {
            if entry.earlier.get() == own {
                return entry.earlier.set(self.earlier.get());
            }
            next = entry.earlier.get();
        }
    }
}

impl Drop for PendingUndo {
    fn drop(&mut self) {
        let undivided = Undivided::begin();
        self.0.settle();
        self.0.unlink();
        drop(undivided);
    }
}

/// Puts back all that this thread owes, what came last first.
pub(crate) fn put_back_all() {
    let mut next = NEWEST.get();
    // SAFETY: what is listed is there until it has been taken from the list, by this thread, which does nothing else
    // now.
    while let Some(entry) = unsafe { next.as_ref() } {
        entry.settle();
        next = entry.earlier.get();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[derive(Debug)]
    struct Count(Rc<Cell<u32>>, u32);

    impl PutBack for Count {
        fn put_back(&self) {
            self.0.set(self.0.get() * 10 + self.1);
        }
    }

    #[test]
    fn what_is_owed_is_put_back_in_any_order_and_what_is_forgiven_is_not() {
        let count = Rc::new(Cell::new(0));
        let owe = |number: u32| PendingUndo::new(Count(Rc::clone(&count), number));
        let (first, second, third, fourth) = (owe(1), owe(2), owe(3), owe(4));
        drop(second);
        assert_eq!(count.get(), 2);
        third.forgive();
        put_back_all();
        assert_eq!(count.get(), 241);
        drop((fourth, first, third));
        assert_eq!(count.get(), 24141);
        put_back_all();
        assert_eq!(count.get(), 24141, "nothing is pending_undo any more");
    }
}
