//! The program: entry, conversation, exit.

mod bare;
mod converse;
// The compiler calls these whatever the program; those of the C library are not ready yet.
#[path = "../../../shim/src/memory.rs"]
mod memory;

use bare::Strings;

/// What the kernel left on the stack: the line's words, and the environment.
fn front(words: Strings, environment: Strings) {
    if let Some(code) = converse::converse(words, environment) {
        bare::exit(code);
    }
}
