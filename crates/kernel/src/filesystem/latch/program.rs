//! The smallest program: it sleeps until it is killed.

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// `again: pause(); goto again`
#[cfg(target_arch = "x86_64")]
const CODE: &[u8] = &[0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7];

/// `again: ppoll(0, 0, 0, 0, 0); goto again`: x0 to x4 and x8 are set, the call is made, seven instructions back.
#[cfg(target_arch = "aarch64")]
const CODE: &[u8] = &[
    0x00, 0x00, 0x80, 0xd2, 0x01, 0x00, 0x80, 0xd2, 0x02, 0x00, 0x80, 0xd2, 0x03, 0x00, 0x80, 0xd2, 0x04, 0x00, 0x80,
    0xd2, 0x28, 0x09, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4, 0xf9, 0xff, 0xff, 0x17,
];

/// Where it lies in memory, and how pages are aligned at most.
const ADDRESS: u64 = 0x40_0000;
const ALIGNMENT: u64 = 0x1_0000;

const HEADER: u16 = 64;
const SEGMENT: u16 = 56;

/// It as an executable file (elf(5)) of one segment, which can be read and executed.
pub(super) fn executable() -> Vec<u8> {
    let head = HEADER + SEGMENT;
    let (entry, length) = (ADDRESS + u64::from(head), u64::from(head) + CODE.len() as u64);
    let mut file = Vec::from(*b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    // An executable for this machine, of version 1.
    file.extend([2, MACHINE, 1, 0].into_iter().flat_map(u16::to_le_bytes));
    // Where it begins, where the list of segments is, and that there are no sections.
    file.extend([entry, u64::from(HEADER), 0].into_iter().flat_map(u64::to_le_bytes));
    file.extend([0, 0, HEADER, SEGMENT, 1, 0, 0, 0].into_iter().flat_map(u16::to_le_bytes));
    // To be loaded; readable and executable; from the file's beginning.
    file.extend([1_u32, 5].into_iter().flat_map(u32::to_le_bytes));
    file.extend([0, ADDRESS, ADDRESS, length, length, ALIGNMENT].into_iter().flat_map(u64::to_le_bytes));
    file.extend(CODE);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_parts_have_their_sizes() {
        let file = executable();
        assert_eq!(file.len(), usize::from(HEADER + SEGMENT) + CODE.len());
        assert_eq!(file[18..20], MACHINE.to_le_bytes());
        assert_eq!(file[52..54], HEADER.to_le_bytes());
        assert_eq!(file[64..68], 1_u32.to_le_bytes());
        assert!(file.ends_with(CODE));
    }
}
