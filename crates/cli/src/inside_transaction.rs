//! Whether this program runs inside a transaction, where it can begin neither a guest nor another transaction.

use crate::complaint::Usage;

/// What the overlay calls itself that a transaction's view is made of.
const VIEW: &str = "pando-tx";

/// Fails inside a transaction, and says what is not supported there. `doing` is what was to be done.
pub(crate) fn refuse(doing: &str) -> Result<(), Usage> {
    let mounts = pando_kernel::proc_file::text("/proc/self/mountinfo").unwrap_or_default();
    if !has_a_views_root(&mounts) {
        return Ok(());
    }
    Err(Usage::sentence(format!(
        "{doing} is not supported inside a transaction: this command runs in one (pando tx), and all that it changes is a part of that already. Do it before the transaction begins, or when it has ended"
    )))
}

/// Whether the root in a list of mounts is a transaction's view. Of several that lie over each other the last is seen.
fn has_a_views_root(mounts: &str) -> bool {
    let root = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/"));
    let source = root.and_then(|line| line.split_once(" - ")?.1.split(' ').nth(1));
    source == Some(VIEW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_is_known_by_its_root() {
        let disk = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n";
        let view = "477 94 0:410 / / rw,relatime - overlay pando-tx rw,lowerdir+=/\n";
        assert!(has_a_views_root(view) && has_a_views_root(&format!("{disk}{view}")));
        assert!(!has_a_views_root(disk) && !has_a_views_root(&format!("{view}{disk}")) && !has_a_views_root(""));
        assert!(!has_a_views_root("477 94 0:410 / /mnt rw - overlay pando-tx rw\n"));
    }
}
