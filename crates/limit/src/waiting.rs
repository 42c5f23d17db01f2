//! How long a group's processes wait for a processor, read again and again: the file is opened once.

use crate::groups::Groups;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Reads for how long one process or more of a group wanted to run and did not.
#[derive(Debug)]
pub struct WaitMeter(File);

impl WaitMeter {
    /// The meter of groups. Only version 2 tells, and only where the kernel looks after pressure (`psi=1`; since Linux
    /// 4.20).
    pub fn open(groups: &Groups) -> Option<Self> {
        File::open(groups.inner()?.join("cpu.pressure")).ok().map(Self)
    }

    /// Microseconds so far; `None` where the kernel says nothing after all.
    pub fn read(&self) -> Option<u64> {
        let mut bytes = [0; 256];
        let length = self.0.read_at(&mut bytes, 0).ok()?;
        total(&String::from_utf8_lossy(&bytes[..length]))
    }
}

fn total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split(' ').find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_read_off_the_kernels_words() {
        let text =
            "some avg10=1.00 avg60=0.00 avg300=0.00 total=81035882\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!((total(text), total("")), (Some(81_035_882), None));
    }

    #[test]
    fn who_cannot_tell_has_no_meter() {
        assert!(WaitMeter::open(&Groups::default()).is_none());
    }
}
