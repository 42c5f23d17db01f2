//! Whether this program runs inside a transaction, where it can begin neither a guest nor another transaction.

use crate::complaint::Usage;

/// What mounts of a transaction's view are called: the overlay over a guest's root, and what hides the transactions'
/// own directory on the host.
const VIEW: &str = "pando-tx";

/// Fails inside a transaction, and says what is not supported there. `doing` is what was to be done.
pub(crate) fn refuse(doing: &str) -> Result<(), Usage> {
    let mounts = pando_kernel::file::proc_file::text("/proc/self/mountinfo").unwrap_or_default();
    if !is_of_a_view(&mounts) {
        return Ok(());
    }
    Err(Usage::sentence(format!(
        "{doing} is not supported inside a transaction: this command runs in one (pando tx), and all that it changes is a part of that already. Do it before the transaction begins, or when it has ended"
    )))
}

/// Whether a list of mounts is that of a transaction's view.
fn is_of_a_view(mounts: &str) -> bool {
    let fields = |line: &str| {
        let (before, behind) = line.split_once(" - ")?;
        let mut kind_and_source = behind.split(' ');
        let (kind, source) = (kind_and_source.next()?, kind_and_source.next()?);
        Some((before.split(' ').nth(4)? == "/", kind == "tmpfs", source == VIEW))
    };
    // Of several roots that lie over each other the last is seen.
    let root = mounts.lines().filter_map(fields).rfind(|(is_root, ..)| *is_root);
    let hidden = mounts.lines().filter_map(fields).any(|(_, is_in_memory, is_named)| is_in_memory && is_named);
    hidden || root.is_some_and(|(_, _, is_named)| is_named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_is_known_by_its_root_or_by_what_it_hides() {
        let disk = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n";
        let view = "477 94 0:410 / / rw,relatime - overlay pando-tx rw,lowerdir+=/\n";
        assert!(is_of_a_view(view) && is_of_a_view(&format!("{disk}{view}")));
        assert!(!is_of_a_view(disk) && !is_of_a_view(&format!("{view}{disk}")) && !is_of_a_view(""));
        assert!(!is_of_a_view("477 94 0:410 / /mnt rw - overlay pando-tx rw\n"));
        let hidden = "91 90 0:55 / /var/lib/pando/tx ro - tmpfs pando-tx ro,size=4k\n";
        assert!(is_of_a_view(&format!("477 94 0:410 / / rw - overlay /dev/sda1 rw\n{hidden}")));
    }
}
