//! Extended attributes in words: capabilities and access lists as the tools for them print them, all others as they
//! are.

use super::quoted;

/// The most bytes of a value that are shown.
const SHOWN: usize = 256;

/// The value of an attribute.
pub(super) fn value(name: &[u8], value: &[u8]) -> String {
    let words = match name {
        b"security.capability" => capabilities(value),
        b"system.posix_acl_access" | b"system.posix_acl_default" => access_list(value),
        _ => None,
    };
    words.unwrap_or_else(|| match value.get(..SHOWN) {
        Some(begin) if value.len() > SHOWN => {
            format!("{}… ({} bytes, {})", quoted::value(begin), value.len(), checksum(value))
        }
        _ => quoted::value(value),
    })
}

/// Something that differs where two long values do (FNV-1a).
fn checksum(value: &[u8]) -> String {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", value.iter().fold(0xcbf2_9ce4_8422_2325, mix))
}

/// `struct vfs_cap_data` and `vfs_ns_cap_data` (linux/capability.h), as getcap(8) prints it.
fn capabilities(value: &[u8]) -> Option<String> {
    const REVISION_2: u32 = 0x0200_0000;
    const REVISION_3: u32 = 0x0300_0000;
    const EFFECTIVE: u32 = 1;
    let number = |at: usize| Some(u32::from_le_bytes(value.get(at * 4..at * 4 + 4)?.try_into().ok()?));
    let head = number(0)?;
    let root = match (head & 0xff00_0000, value.len()) {
        (REVISION_2, 20) => 0,
        (REVISION_3, 24) => number(5)?,
        _ => return None,
    };
    let set = |low: usize, high: usize| Some(u64::from(number(low)?) | u64::from(number(high)?) << 32);
    let (permitted, inheritable) = (set(1, 3)?, set(2, 4)?);
    let effective = if head & EFFECTIVE != 0 { "e" } else { "" };
    let mut words = Vec::new();
    for (these, letters) in
        [(permitted & !inheritable, "p"), (inheritable & !permitted, "i"), (permitted & inheritable, "ip")]
    {
        if these != 0 {
            words.push(format!("{}={effective}{letters}", names(these)));
        }
    }
    if words.is_empty() {
        words.push(format!("={effective}"));
    }
    if root != 0 {
        words.push(format!("[rootid={root}]"));
    }
    Some(words.join(" "))
}

fn names(set: u64) -> String {
    let name = |bit: usize| CAPABILITIES.get(bit).map_or_else(|| bit.to_string(), |name| format!("cap_{name}"));
    let names: Vec<String> = (0..64).filter(|bit| set >> bit & 1 != 0).map(name).collect();
    names.join(",")
}

/// By their numbers (linux/capability.h).
const CAPABILITIES: [&str; 41] = [
    "chown",
    "dac_override",
    "dac_read_search",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "linux_immutable",
    "net_bind_service",
    "net_broadcast",
    "net_admin",
    "net_raw",
    "ipc_lock",
    "ipc_owner",
    "sys_module",
    "sys_rawio",
    "sys_chroot",
    "sys_ptrace",
    "sys_pacct",
    "sys_admin",
    "sys_boot",
    "sys_nice",
    "sys_resource",
    "sys_time",
    "sys_tty_config",
    "mknod",
    "lease",
    "audit_write",
    "audit_control",
    "setfcap",
    "mac_override",
    "mac_admin",
    "syslog",
    "wake_alarm",
    "block_suspend",
    "audit_read",
    "perfmon",
    "bpf",
    "checkpoint_restore",
];

/// An access list as the kernel gives it (linux/posix_acl_xattr.h), in the short form of setfacl(1).
fn access_list(value: &[u8]) -> Option<String> {
    let entries = value.strip_prefix(&2_u32.to_le_bytes())?;
    let entry = |bytes: &[u8]| -> Option<String> {
        let number = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let id = u32::from_le_bytes(bytes[4..8].try_into().ok()?);
        let who = match number(0) {
            0x01 => "u:".to_owned(),
            0x02 => format!("u:{id}"),
            0x04 => "g:".to_owned(),
            0x08 => format!("g:{id}"),
            0x10 => "m:".to_owned(),
            0x20 => "o:".to_owned(),
            _ => return None,
        };
        let bit = |bit: u16, letter: char| if number(2) & bit != 0 { letter } else { '-' };
        Some(format!("{who}:{}{}{}", bit(4, 'r'), bit(2, 'w'), bit(1, 'x')))
    };
    if entries.len() % 8 != 0 {
        return None;
    }
    Some(entries.chunks_exact(8).map(entry).collect::<Option<Vec<_>>>()?.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_named() {
        let of = |head: u32, permitted: u32, inheritable: u32, root: &[u8]| {
            [&head.to_le_bytes()[..], &permitted.to_le_bytes(), &inheritable.to_le_bytes(), &[0; 8], root].concat()
        };
        let text = |bytes: &[u8]| value(b"security.capability", bytes);
        assert_eq!(text(&of(0x0200_0001, 1 << 12, 0, &[])), "cap_net_admin=ep");
        assert_eq!(text(&of(0x0300_0000, 3, 2, &7_u32.to_le_bytes())), "cap_chown=p cap_dac_override=ip [rootid=7]");
        assert_eq!(text(b"x"), "\"x\"");
    }

    #[test]
    fn access_lists_are_written_out() {
        let entry =
            |tag: u16, bits: u16, id: u32| [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat();
        let list =
            [2_u32.to_le_bytes().to_vec(), entry(1, 6, u32::MAX), entry(2, 7, 5), entry(0x20, 4, u32::MAX)].concat();
        assert_eq!(value(b"system.posix_acl_access", &list), "u::rw-,u:5:rwx,o::r--");
        assert!(value(b"system.posix_acl_access", &list[..7]).starts_with('"'));
    }

    #[test]
    fn long_values_that_differ_at_the_end_are_shown_otherwise() {
        let [one, other] = [b'a', b'b'].map(|end| value(b"user.x", &[vec![b'x'; 300], vec![end]].concat()));
        assert!(one != other && one.contains("301 bytes"), "{one}");
    }
}
