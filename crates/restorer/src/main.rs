//! The holder of a frozen image, and what its clones grow from. See the library for the language it understands.
//!
//! The freezer starts it with a socket as descriptor 0 and nothing else. One `Hold` fills its memory; after that every
//! `Clone` forks the frozen processes from that memory, so that a clone shares every page until one of them writes to
//! it. It ends when the socket closes.

#![no_std]
#![no_main]

mod aio_ring;
mod bare;
mod first;
mod gate;
mod handover;
mod hold;
mod maker;
#[path = "../../shim/src/memory.rs"]
mod memory;
mod packet;
mod run;
mod settle;

/// Called on the kernel's stack, before anything else.
extern "C" fn settle_in() {
    settle::settle();
}

/// Called on the program's own stack.
extern "C" fn program() -> ! {
    bare::block_signals();
    bare::undumpable();
    bare::begin_session_keyring();
    hold::serve()
}
