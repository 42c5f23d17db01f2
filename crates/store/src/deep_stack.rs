//! Work that recurses as deep as a tree of files.

use crate::StoreError;
use pando_kernel::Context;

/// Address space only: what is not used costs nothing. The reader of images goes 2,048 directories deep, and in a
/// debugging build each takes several kilobytes.
const STACK: usize = 256 << 20;

/// Runs `work` on a thread of its own, whose stack holds the deepest tree that a layer may have.
pub(crate) fn run<T: Send, E: Send + From<StoreError>>(work: impl FnOnce() -> Result<T, E> + Send) -> Result<T, E> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("store".into())
            .stack_size(STACK)
            .spawn_scoped(scope, work)
            .context(|| "starting a thread".into())
            .map_err(|error| E::from(StoreError::from(error)))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
