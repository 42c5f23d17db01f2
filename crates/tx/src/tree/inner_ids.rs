//! The ids of users that stand inside of extended attributes: of access lists, and of who is root for a file's
//! capabilities.

use std::ffi::CStr;

/// Bytes of the head of an access list as the kernel gives it, and of each of its entries (linux/posix_acl_xattr.h).
const HEAD: usize = 4;
const ENTRY: usize = 8;

/// Entries that are about one user, or one group.
const OF_ONE: [u16; 2] = [0x02, 0x08];

/// The revision of capabilities that are for one root user alone, and their size: `struct vfs_ns_cap_data`, whose last
/// number is the user (linux/capability.h).
const REVISION: u32 = 0x0300_0000;
const REVISION_MASK: u32 = 0xff00_0000;
const CAPABILITIES: usize = 24;

/// Changes each id in the value of an attribute. What is no such value stays what it is.
pub(crate) fn translate(name: &CStr, value: &mut [u8], now: impl Fn(u32) -> u32) {
    let change = |bytes: &mut [u8]| {
        if let Ok(id) = <[u8; 4]>::try_from(&*bytes) {
            bytes.copy_from_slice(&now(u32::from_le_bytes(id)).to_le_bytes());
        }
    };
    match name.to_bytes() {
        b"system.posix_acl_access" | b"system.posix_acl_default" if value.len() > HEAD => {
            for entry in value[HEAD..].chunks_exact_mut(ENTRY) {
                if OF_ONE.contains(&u16::from_le_bytes([entry[0], entry[1]])) {
                    change(&mut entry[4..]);
                }
            }
        }
        b"security.capability" if value.len() == CAPABILITIES => {
            let revision = u32::from_le_bytes([value[0], value[1], value[2], value[3]]);
            if revision & REVISION_MASK == REVISION {
                change(&mut value[CAPABILITIES - 4..]);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(name: &CStr, value: &[u8]) -> Vec<u8> {
        let mut value = value.to_vec();
        translate(name, &mut value, |id| id + 0x10000);
        value
    }

    #[test]
    fn users_and_groups_of_an_access_list_are_changed_and_nothing_else() {
        let entry = |tag: u16, id: u32| [&tag.to_le_bytes()[..], &6_u16.to_le_bytes(), &id.to_le_bytes()].concat();
        let list = |user: u32, group: u32| {
            [vec![2, 0, 0, 0], entry(1, u32::MAX), entry(2, user), entry(8, group), entry(0x20, u32::MAX)].concat()
        };
        assert_eq!(translated(c"system.posix_acl_access", &list(7, 8)), list(0x10007, 0x10008));
        assert_eq!(translated(c"system.posix_acl_default", &list(7, 8)), list(0x10007, 0x10008));
        assert_eq!(translated(c"user.posix_acl_access", &list(7, 8)), list(7, 8));
        for length in 0..12 {
            assert_eq!(translated(c"system.posix_acl_access", &list(7, 8)[..length]), list(7, 8)[..length]);
        }
    }

    #[test]
    fn capabilities_are_those_of_another_root_user() {
        let of = |revision: u8, root: u32| [&[1, 0, 0, revision][..], &[9; 16], &root.to_le_bytes()].concat();
        assert_eq!(translated(c"security.capability", &of(3, 7)), of(3, 0x10007));
        assert_eq!(translated(c"security.capability", &of(2, 7)), of(2, 7));
        assert_eq!(translated(c"security.capability", &of(3, 7)[..20]), of(3, 7)[..20]);
    }
}
