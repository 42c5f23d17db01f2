//! Functions in the kernel's description of its own types (Documentation/bpf/btf.rst).

/// Where `bpf()` finds it too.
pub const PATH: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xEB9F;
const FUNCTION: u32 = 12;

/// The number of the type that is the function `name`; `None` also for what is no such description.
pub fn function(btf: &[u8], name: &str) -> Option<u32> {
    if u16::from_ne_bytes(btf.get(..2)?.try_into().ok()?) != MAGIC {
        return None;
    }
    let header = word(btf, 4)? as usize;
    let section = |at| Some((word(btf, at)? as usize, word(btf, at + 4)? as usize));
    let ((types, types_size), (names, names_size)) = (section(8)?, section(16)?);
    let body = btf.get(header..)?;
    let types = body.get(types..types.checked_add(types_size)?)?;
    let names = body.get(names..names.checked_add(names_size)?)?;
    let mut at = 0;
    // Numbers start at 1: 0 is void.
    for id in 1.. {
        let (offset, info) = (word(types, at)?, word(types, at + 4)?);
        let (kind, members) = (info >> 24 & 0x1f, info as usize & 0xffff);
        if kind == FUNCTION && is_named(names, offset as usize, name) {
            return Some(id);
        }
        at += 12 + trailer(kind, members)?;
    }
    None
}

/// How many bytes follow the head of a type.
fn trailer(kind: u32, members: usize) -> Option<usize> {
    Some(match kind {
        // Pointer, forward, typedef, volatile, const, restrict, function, float, type tag.
        2 | 7..=12 | 16 | 18 => 0,
        // Integer, variable, declaration tag.
        1 | 14 | 17 => 4,
        // Array.
        3 => 12,
        // Structure, union, section, 64-bit enumeration.
        4 | 5 | 15 | 19 => 12 * members,
        // Enumeration, prototype.
        6 | 13 => 8 * members,
        _ => return None,
    })
}

fn is_named(names: &[u8], offset: usize, name: &str) -> bool {
    let rest = names.get(offset..).unwrap_or_default();
    rest.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An integer, a prototype with one parameter, and a function `f` of that kind.
    fn small() -> Vec<u8> {
        let types: [u32; 12] = [3, 1 << 24, 4, 32, 0, 13 << 24 | 1, 1, 0, 1, 1, 12 << 24, 2];
        let names = b"\0f\0int\0";
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        for number in [24, 0, 12 * 4, 12 * 4, names.len() as u32] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend(types.iter().flat_map(|number| number.to_ne_bytes()));
        bytes.extend(names);
        bytes
    }

    #[test]
    fn a_function_is_found_by_its_whole_name() {
        assert_eq!(function(&small(), "f"), Some(3));
        assert_eq!(function(&small(), "int"), None);
        assert_eq!(function(&small(), ""), None);
    }

    #[test]
    fn what_is_cut_or_strange_has_no_functions() {
        let whole = small();
        for length in 0..whole.len() {
            let _ = function(&whole[..length], "f");
        }
        assert_eq!(function(b"no description at all", "f"), None);
    }
}
