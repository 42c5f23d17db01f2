//! The process's own heap (malloc(3)).

/// Gives the kernel back what is free in the heap: the C library keeps it, for it may be wanted again (malloc_trim(3),
/// in glibc since 2.8 of every arena). It takes milliseconds where much is free.
pub fn give_back() {
    // SAFETY: it takes the arenas' own locks and touches free memory alone.
    unsafe { libc::malloc_trim(0) };
}
