//! The functions of pando.h.
#![allow(unsafe_code, reason = "they are called by their names from C")]

use crate::failure::Failure;
use crate::flags::Flags;
use crate::transaction::{Ended, Status, abort, begin, end, reason, status};
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_uint};

/// The numbers of `enum pando_tx_result`.
const ERROR: c_int = -1;
const COMMITTED: c_int = 0;
const CONFLICT: c_int = 1;
const AGAIN: c_int = 2;

thread_local! {
    /// What was last given away to be read.
    static TEXT: RefCell<[CString; 2]> = RefCell::default();
}

// SAFETY: no other library has a function of that name; pando.h declares it as it is here. So for the others.
#[unsafe(no_mangle)]
extern "C" fn pando_tx_begin(flags: c_uint) -> c_int {
    let begun = Flags::of(flags).map_err(crate::transaction::note).and_then(begin);
    begun.map_or(ERROR, |tries| c_int::try_from(tries).unwrap_or(c_int::MAX))
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn pando_tx_end() -> c_int {
    match end() {
        Ok(Ended::Committed) => COMMITTED,
        Ok(Ended::Conflict) => CONFLICT,
        Ok(Ended::Again) => AGAIN,
        Err(_) => ERROR,
    }
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn pando_tx_abort(no_restart: c_int) -> c_int {
    match abort(no_restart != 0) {
        Ok(false) => COMMITTED,
        Ok(true) => AGAIN,
        Err(_) => ERROR,
    }
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn pando_tx_status() -> c_int {
    match status() {
        Status::None => 0,
        Status::Active => 1,
        Status::OfAnotherThread => 2,
        Status::Part => 3,
    }
}

// SAFETY: as above. What is returned lives until this thread asks again.
#[unsafe(no_mangle)]
extern "C" fn pando_tx_reason() -> *const c_char {
    text(0, |failure| failure.reason)
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn pando_tx_object() -> *const c_char {
    text(1, |failure| failure.object)
}

/// A text that lives until the same is asked again by this thread; empty where there is nothing to say.
fn text(which: usize, of: fn(Failure) -> String) -> *const c_char {
    let words = reason().map(of).unwrap_or_default().replace('\0', " ");
    TEXT.with_borrow_mut(|texts| {
        texts[which] = CString::new(words).unwrap_or_default();
        texts[which].as_ptr()
    })
}
