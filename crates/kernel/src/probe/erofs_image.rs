//! The smallest erofs image: an empty root directory.

const BLOCK: usize = 4096;
const SUPERBLOCK: usize = 1024;
/// Where the root's inode lies: right after the superblock. Inodes are numbered in units of 32 bytes.
const ROOT: usize = SUPERBLOCK + 128;

/// Its bytes (fs/erofs/erofs_fs.h).
pub(super) fn bytes() -> Vec<u8> {
    let mut image = vec![0; 2 * BLOCK];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    let root = (ROOT / 32) as u16;
    put(SUPERBLOCK, &0xE0F5_E1E2_u32.to_le_bytes());
    put(SUPERBLOCK + 12, &[BLOCK.trailing_zeros() as u8]);
    put(SUPERBLOCK + 14, &root.to_le_bytes());
    put(SUPERBLOCK + 16, &1_u64.to_le_bytes());
    put(SUPERBLOCK + 36, &2_u32.to_le_bytes());
    // A short inode whose data lie plainly in block 1: mode, links, size, block, number.
    let entries = directory(u64::from(root));
    put(ROOT + 4, &0o040_755_u16.to_le_bytes());
    put(ROOT + 6, &2_u16.to_le_bytes());
    put(ROOT + 8, &(entries.len() as u32).to_le_bytes());
    put(ROOT + 16, &1_u32.to_le_bytes());
    put(ROOT + 20, &1_u32.to_le_bytes());
    put(BLOCK, &entries);
    image
}

/// `.` and `..`: inode, offset of the name, kind; then the names.
fn directory(inode: u64) -> Vec<u8> {
    const DIRECTORY: u8 = 2;
    let mut entries = Vec::new();
    for name in [24_u16, 25] {
        entries.extend(inode.to_le_bytes());
        entries.extend(name.to_le_bytes());
        entries.extend([DIRECTORY, 0]);
    }
    entries.extend(b"...");
    entries
}
