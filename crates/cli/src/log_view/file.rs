//! The file of a log: it may have lost its beginning, which is a hole then.

use anyhow::Context;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// How much is read at a time.
pub(super) const PIECE: u64 = 64 * 1024;

/// A log, open for reading.
#[derive(Debug)]
pub(crate) struct LogFile(pub(super) File);

impl LogFile {
    /// The file as the daemon hands it over.
    pub(crate) fn new(file: File) -> Self {
        Self(file)
    }

    /// How far it reaches: bytes.
    pub(crate) fn length(&self) -> anyhow::Result<u64> {
        Ok(self.0.metadata().context("cannot look at it")?.len())
    }

    /// What stands from `at` on, up to a piece, and where that begins: what was cut away is passed over, with the line
    /// that the cut goes through. None at the end.
    pub(crate) fn read(&self, mut at: u64) -> anyhow::Result<Option<(u64, Vec<u8>)>> {
        match standing(&self.0, at)? {
            None => return Ok(None),
            Some(data) if data > at => at = next_line(&self.0, data)?,
            Some(_) => {}
        }
        let mut piece = vec![0; usize::try_from(PIECE)?];
        let length = self.0.read_at(&mut piece, at).context("cannot read it")?;
        piece.truncate(length);
        Ok((length > 0).then_some((at, piece)))
    }
}

/// Where something stands from `at` on: the beginning of a long log was cut away and is a hole. None where nothing
/// does.
pub(super) fn standing(log: &File, at: u64) -> anyhow::Result<Option<u64>> {
    match seek(log, SeekFrom::Data(at)) {
        Ok(standing) => Ok(Some(standing)),
        Err(Errno::NXIO) => Ok(None),
        // A log that was never written to is the null device.
        Err(Errno::SPIPE | Errno::INVAL) => Ok(Some(at)),
        Err(error) => Err(error).context("cannot look where it begins"),
    }
}

/// Where the line after the one at `at` begins, if that is near: the cut goes through a line.
fn next_line(log: &File, at: u64) -> anyhow::Result<u64> {
    let mut piece = vec![0; usize::try_from(PIECE)?];
    let length = log.read_at(&mut piece, at).context("cannot read it")?;
    let newline = piece[..length].iter().position(|byte| *byte == b'\n');
    Ok(at + newline.map_or(0, |newline| newline as u64 + 1))
}

/// Where the last `lines` lines begin, found from the end: logs grow large.
pub(crate) fn start_of_last(log: &LogFile, lines: u64) -> anyhow::Result<u64> {
    let end = log.length()?;
    if lines == 0 {
        return Ok(end);
    }
    // Nothing before that is worth a look.
    let begin = standing(&log.0, 0)?.unwrap_or(end);
    let mut piece = vec![0; usize::try_from(PIECE)?];
    let (mut at, mut found) = (end, 0);
    while at > begin {
        let from = at.saturating_sub(PIECE).max(begin);
        let piece = &mut piece[..usize::try_from(at - from)?];
        log.0.read_exact_at(piece, from).context("cannot read it")?;
        for (index, byte) in piece.iter().enumerate().rev() {
            let position = from + index as u64;
            // The newline at the very end closes the last line and begins none.
            if *byte == b'\n' && position + 1 != end {
                found += 1;
                if found >= lines {
                    return Ok(position + 1);
                }
            }
        }
        at = from;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn last(text: &str, lines: u64) -> String {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let from = usize::try_from(start_of_last(&LogFile(file), lines).unwrap()).unwrap();
        text[from..].to_owned()
    }

    #[test]
    fn the_last_lines_are_found_from_the_end() {
        assert_eq!(last("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(last("a\nb\nc", 1), "c");
        assert_eq!(last("a\nb\n", 9), "a\nb\n");
        assert_eq!(last("", 3), "");
        assert_eq!(last("\n\n", 1), "\n");
        let long = "x".repeat(100_000);
        assert_eq!(last(&format!("{long}\n{long}\ny\n"), 2), format!("{long}\ny\n"));
    }

    #[test]
    fn a_beginning_that_was_cut_away_is_passed_over() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"of a line\nwhole\nlast\n", 1 << 20).unwrap();
        assert_eq!(standing(&file, 0).unwrap(), Some(1 << 20));
        assert_eq!(next_line(&file, 1 << 20).unwrap(), (1 << 20) + 10);
        assert_eq!(standing(&file, (1 << 20) + 21).unwrap(), None);
        let file = LogFile(file);
        assert_eq!(start_of_last(&file, 1).unwrap(), (1 << 20) + 16);
        assert_eq!(file.read(0).unwrap(), Some(((1 << 20) + 10, b"whole\nlast\n".to_vec())));
        assert_eq!(standing(&File::open("/dev/null").unwrap(), 0).unwrap(), Some(0));
    }

    #[test]
    fn no_line_is_none() {
        assert_eq!(last("a\nb", 0), "");
        assert_eq!(last("a\nb\n", 0), "");
    }
}
