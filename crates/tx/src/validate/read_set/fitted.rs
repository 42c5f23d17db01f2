//! The BPF programs, fitted to the running kernel: done once after each boot, and kept beside the transactions.
//!
//! Fitting means reading the kernel's description of all its types, tens of milliseconds of work for a few numbers;
//! what comes out is the same until another kernel runs. A file that others could have written to is none: the
//! directory is root's alone, and the kernel verifies what it loads.

use super::ReadSetError;
use libbpf_rs::{MapCore, Object, ObjectBuilder};
use pando_kernel::probe::btf;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/read_set.bpf.o"));

/// Its maps; what is kept names them by their place here.
pub(super) const MAPS: [&str; 4] = ["records", "scratch", "requests", "outcomes"];

/// The program that walks, and the one that tells who has memory; the kernel's functions that call them.
const WALK: (&str, &str) = ("read_set", "bpf_iter_task_file");
const MEMORY: (&str, &str) = ("in_memory", "bpf_iter_task");

/// `BPF_LD | BPF_IMM | BPF_DW`: what loads the address of a map, or of a function.
const LOAD_ADDRESS: u8 = 0x18;
const OF_MAP: u8 = 1;
const OF_FUNCTION: u8 = 4;

/// The programs as they are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fitted {
    /// Of which boot, and of which program.
    key: String,
    /// What walks.
    pub(super) walk: Code,
    /// What tells who has memory.
    pub(super) memory: Code,
}

/// One program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Code {
    /// The instructions, with numbers of [`MAPS`] for maps.
    instructions: Vec<u64>,
    /// Where its second function begins, if it has one.
    pub(super) second: Option<u32>,
    /// The number of the hook among the kernel's types.
    pub(super) hook: u32,
}

/// One instruction, taken apart as far as is needed.
struct Parts {
    code: u8,
    kind: u8,
    value: i32,
}

fn parts(instruction: u64) -> Parts {
    let bytes = instruction.to_ne_bytes();
    Parts { code: bytes[0], kind: bytes[1] >> 4, value: (instruction >> 32) as u32 as i32 }
}

fn with_value(instruction: u64, value: i32) -> u64 {
    instruction & 0xffff_ffff | u64::from(value.cast_unsigned()) << 32
}

fn refused(error: libbpf_rs::Error) -> ReadSetError {
    ReadSetError::Refused(error.to_string())
}

fn key() -> std::io::Result<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(format!("{} {} {}", boot.trim(), OBJECT.len(), digest()))
}

/// Tells the programs from those of another version, whose records may mean something else.
pub(crate) fn digest() -> u32 {
    crc32fast::hash(OBJECT)
}

impl Fitted {
    /// The one that is kept in a directory, or a new one that is kept there from now on.
    pub(super) fn kept_in(directory: &Path) -> Result<Self, ReadSetError> {
        let key = key().map_err(|error| ReadSetError::Refused(error.to_string()))?;
        let path = directory.join(".read-set");
        let kept = std::fs::read(&path).ok().and_then(|bytes| Self::from_bytes(&bytes));
        if let Some(kept) = kept.filter(|kept| kept.key == key) {
            return Ok(kept);
        }
        let fitted = Self::fit(key)?;
        // Without it the next one has the same work, which is no failure.
        let _ = fitted.keep(&path);
        Ok(fitted)
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (sum, body) = bytes.split_first_chunk::<4>()?;
        (u32::from_le_bytes(*sum) == crc32fast::hash(body)).then(|| postcard::from_bytes(body).ok())?
    }

    fn keep(&self, path: &PathBuf) -> std::io::Result<()> {
        let body = postcard::to_stdvec(self).map_err(std::io::Error::other)?;
        let mut bytes = crc32fast::hash(&body).to_le_bytes().to_vec();
        bytes.extend(body);
        let next = path.with_file_name(format!(".read-set-{}", std::process::id()));
        std::fs::write(&next, bytes)?;
        std::fs::rename(next, path)
    }

    fn fit(key: String) -> Result<Self, ReadSetError> {
        // What it has to say about a refusal is in its errors as well.
        libbpf_rs::set_print(None);
        let object = ObjectBuilder::default().open_memory(OBJECT).and_then(libbpf_rs::OpenObject::load);
        let object = object.map_err(refused)?;
        let types = std::fs::read(btf::PATH).map_err(|error| ReadSetError::Refused(error.to_string()))?;
        let code = |named| Code::of(&object, &types, named);
        Ok(Self { key, walk: code(WALK)?, memory: code(MEMORY)? })
    }
}

impl Code {
    fn of(object: &Object, types: &[u8], (name, hook): (&str, &str)) -> Result<Self, ReadSetError> {
        let lacks = |what: &str| ReadSetError::Refused(format!("its program lacks {what}"));
        let program = object.progs().find(|one| one.name() == name).ok_or_else(|| lacks("itself"))?;
        let number_of = |fd: i32| {
            let map = object.maps().find(|map| map.as_fd().as_raw_fd() == fd)?;
            MAPS.iter().position(|name| map.name() == *name).and_then(|number| i32::try_from(number).ok())
        };
        let mut second = None;
        let mut instructions = Vec::new();
        let mut wide = false;
        for (at, one) in program.insns().iter().enumerate() {
            let registers = u64::from(one.src_reg()) << 4 | u64::from(one.dst_reg());
            let rest = u64::from(one.off.cast_unsigned()) << 16 | u64::from(one.imm.cast_unsigned()) << 32;
            let mut instruction = u64::from(one.code) | registers << 8 | rest;
            let Parts { code, kind, value } = parts(instruction);
            // The second half of a wide instruction is no instruction.
            if code == LOAD_ADDRESS && !wide {
                match kind {
                    OF_MAP => {
                        instruction = with_value(instruction, number_of(value).ok_or_else(|| lacks("a map"))?);
                    }
                    OF_FUNCTION => second = u32::try_from(at as i64 + i64::from(value) + 1).ok(),
                    _ => {}
                }
            }
            wide = code == LOAD_ADDRESS && !wide;
            instructions.push(instruction);
        }
        let hook = btf::function(types, hook).ok_or_else(|| lacks("what calls it"))?;
        Ok(Self { instructions, second, hook })
    }

    /// The instructions for maps with these descriptors.
    pub(super) fn instructions(&self, maps: [i32; MAPS.len()]) -> Vec<u64> {
        let mut wide = false;
        let put = |instruction: &u64| {
            let Parts { code, kind, value } = parts(*instruction);
            let is_map = code == LOAD_ADDRESS && !wide && kind == OF_MAP;
            wide = code == LOAD_ADDRESS && !wide;
            let map = usize::try_from(value).ok().and_then(|number| maps.get(number));
            map.filter(|_| is_map).map_or(*instruction, |fd| with_value(*instruction, *fd))
        };
        self.instructions.iter().map(put).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_get_their_descriptors_and_all_else_stays() {
        let load = |kind: u64, value: u64| 0x18 | kind << 12 | value << 32;
        let other = 0x1234_5678_0000_00b7_u64;
        // The last one looks like a map's load, and is the second half of a number.
        let instructions = vec![load(1, 2), 0, other, load(4, 7), 0, load(0, 1), load(1, 1)];
        let code = Code { instructions, second: Some(5), hook: 9 };
        let put = code.instructions([10, 11, 12, 13]);
        assert_eq!(put, [load(1, 12), 0, other, load(4, 7), 0, load(0, 1), load(1, 1)]);
    }

    #[test]
    fn what_is_kept_is_read_again_and_damage_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept");
        let code = |second| Code { instructions: vec![1, 2, 3], second, hook: 2 };
        let fitted = Fitted { key: "k".into(), walk: code(Some(1)), memory: code(None) };
        fitted.keep(&path).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        assert_eq!(Fitted::from_bytes(&bytes), Some(fitted));
        bytes[6] ^= 1;
        assert_eq!(Fitted::from_bytes(&bytes), None);
    }
}
