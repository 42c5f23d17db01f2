//! Password files for a guest made from the host's accounts: every account is there, none has a password.
//!
//! Without `/etc/shadow` the guest's `passwd` and `useradd` fail; with the host's, its hashes could be tried at
//! leisure.

/// A shadow file for the accounts of this passwd file. `!` locks the password; the empty fields switch ageing off.
pub(crate) fn locked_shadow(passwd: &[u8]) -> Vec<u8> {
    let mut shadow = Vec::new();
    for [name, ..] in records::<1>(passwd) {
        shadow.extend_from_slice(name);
        shadow.extend_from_slice(b":!::0:99999:7:::\n");
    }
    shadow
}

/// A gshadow file for this group file: no group password, no administrators, the same members.
pub(crate) fn locked_gshadow(group: &[u8]) -> Vec<u8> {
    let mut gshadow = Vec::new();
    for [name, _, _, members] in records::<4>(group) {
        gshadow.extend_from_slice(name);
        gshadow.extend_from_slice(b":!::");
        gshadow.extend_from_slice(members);
        gshadow.push(b'\n');
    }
    gshadow
}

/// The first `N` fields of each line that has them. Lines of NIS (`+…`, `-…`) name no local account.
fn records<const N: usize>(file: &[u8]) -> impl Iterator<Item = [&[u8]; N]> {
    file.split(|byte| *byte == b'\n').filter_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').take(N).collect();
        let fields: [&[u8]; N] = fields.try_into().ok()?;
        let first = fields.first()?.first()?;
        (!b"+-# ".contains(first)).then_some(fields)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_account_is_there_and_locked() {
        let passwd = b"root:x:0:0:root:/root:/bin/bash\n+::::::\n\nweb:$6$oops:33:33::/:/bin/sh\n";
        assert_eq!(locked_shadow(passwd), b"root:!::0:99999:7:::\nweb:!::0:99999:7:::\n");
    }

    #[test]
    fn groups_keep_their_members() {
        assert_eq!(locked_gshadow(b"root:x:0:\nadm:x:4:a,b\nbroken\n"), b"root:!::\nadm:!::a,b\n");
    }
}
