//! How many threads read a tree that becomes a layer. (Looking for what may be shared reads little, and is quicker with
//! fewer.)

/// How many waits for the disk there are at once at the least. What is not in memory is waited for, each directory,
/// inode and file by itself, and a disk answers eight questions in the time of one or two.
const WAITS: usize = 8;

/// As many as there are processors, where all is in memory; more threads than that take turns, which costs little.
pub(crate) fn count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).max(WAITS)
}
