//! What a file contains, in 32 bytes.

use composefs::fsverity::{FsVerityHasher, Sha256HashValue, compute_verity};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A multiple of the digest's own block.
const BUFFER: usize = 256 << 10;

/// The digest of an open file's content, and its length in bytes. The file's offset stays where it is.
pub(crate) fn of_file(file: &File) -> std::io::Result<(Sha256HashValue, u64)> {
    let mut hasher = FsVerityHasher::<Sha256HashValue>::new();
    // Most files are small; one more byte than there are shows the end at once.
    let room = usize::try_from(file.metadata()?.len()).unwrap_or(BUFFER).saturating_add(1);
    let mut buffer = vec![0; room.next_multiple_of(FsVerityHasher::<Sha256HashValue>::BLOCK_SIZE).min(BUFFER)];
    let mut at = 0;
    loop {
        let filled = fill(file, &mut buffer, at)?;
        // Whole blocks, but for the last: `fill` stops short at the end of the file alone.
        for block in buffer[..filled].chunks(FsVerityHasher::<Sha256HashValue>::BLOCK_SIZE) {
            hasher.add_block(block);
        }
        at += filled as u64;
        if filled < buffer.len() {
            return Ok((hasher.digest(), at));
        }
    }
}

/// The content of a small file, and its digest: read once, so that what is written elsewhere is what the digest is of,
/// whatever writes to the file meanwhile. `None` for a larger one than `most` bytes.
pub(crate) fn of_small_file(
    file: &File,
    size: u64,
    most: usize,
) -> std::io::Result<Option<(Sha256HashValue, Vec<u8>)>> {
    let Some(room) = usize::try_from(size).ok().filter(|size| *size <= most) else { return Ok(None) };
    // One more byte than there are shows that it has not grown.
    let mut content = vec![0; room + 1];
    let filled = fill(file, &mut content, 0)?;
    if filled > room {
        return Ok(None);
    }
    content.truncate(filled);
    Ok(Some((compute_verity(&content), content)))
}

fn fill(file: &File, buffer: &mut [u8], at: u64) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_file_has_the_digest_of_its_bytes() {
        for length in [0, 1, 4_095, 4_096, 4_097, BUFFER - 1, BUFFER, BUFFER + 1, 3 * BUFFER] {
            let bytes: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&bytes).unwrap();
            let expected = composefs::fsverity::compute_verity::<Sha256HashValue>(&bytes);
            assert_eq!(of_file(&file).unwrap(), (expected, length as u64), "{length}");
        }
    }
}
