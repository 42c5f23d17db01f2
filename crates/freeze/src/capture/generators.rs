//! Programs whose random numbers would be the same in all clones: those that keep a generator in memory which only
//! another pid makes begin anew, as OpenSSL's libcrypto does, and a clone's processes have the pids that they had.
//! Nobody else can make it begin anew, since its locks may be held and its layout is another in each release. So it is
//! said.

use object::LittleEndian;
use object::elf::{FileHeader64, SHN_UNDEF, Sym64};
use object::read::elf::{ElfFile, Sym};
use object::read::{Object, ObjectSection, ReadCache};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

/// What a library or a program that has OpenSSL in it lets others call.
const ENTRY: &[u8] = b"RAND_bytes";

/// Names of more bytes than this are not looked through.
const MOST_NAMES: u64 = 32 << 20;

/// A program of more bytes than this is not looked through: what it says of itself is kept in memory meanwhile, and
/// anybody may have made it. Those that have OpenSSL in them have some 5 to 130 million.
const MOST_BYTES: u64 = 160 << 20;

/// Nor are more files than this.
const MOST_FILES: usize = 1024;

/// A process with such a generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generator {
    /// The process's pid inside the pid namespace.
    pub pid: i32,
    /// The name of the process's first thread.
    pub name: String,
    /// The library or program that has it.
    pub path: String,
}

/// A process, and the files of which it executes.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    pub(crate) pid: i32,
    pub(crate) name: &'a [u8],
    pub(crate) code: Vec<&'a str>,
}

/// Those of some processes whose files lie below a root.
pub(crate) fn find<'a>(programs: impl Iterator<Item = Program<'a>>, root: impl AsFd) -> Vec<Generator> {
    let mut known = BTreeMap::new();
    let mut found = Vec::new();
    for Program { pid, name, code } in programs {
        let mut has = |path: &&'a str| match known.get(path) {
            Some(has) => *has,
            // Whoever has more has made them to be looked through.
            None if known.len() == MOST_FILES => false,
            None => *known.entry(*path).or_insert_with(|| has_one(root.as_fd(), path)),
        };
        let path = code.into_iter().find(&mut has);
        let name = String::from_utf8_lossy(name).into_owned();
        found.extend(path.map(|path| Generator { pid, name, path: path.to_owned() }));
    }
    found
}

/// Whether a file has one. What cannot be read as a program has none.
fn has_one(root: BorrowedFd<'_>, path: &str) -> bool {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let confined = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let Ok(file) = rustix::fs::openat2(root, path, flags, Mode::empty(), confined) else { return false };
    let is_program = rustix::fs::fstat(&file).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_size.cast_unsigned() <= MOST_BYTES
    });
    is_program && gives(File::from(file), ENTRY)
}

/// Whether a library or program gives others a function of a name.
fn gives(file: File, entry: &[u8]) -> bool {
    let data = ReadCache::new(file);
    let Ok(elf) = ElfFile::<FileHeader64<LittleEndian>, _>::parse(&data) else { return false };
    let table = elf.elf_dynamic_symbol_table();
    let Ok(section) = elf.section_by_index(table.string_section()) else { return false };
    if section.size() > MOST_NAMES {
        return false;
    }
    let names = section.data().unwrap_or_default();
    // A name may be the end of a longer one.
    let whole = [entry, &[0]].concat();
    let windows = names.windows(whole.len()).enumerate();
    let places: Vec<_> = windows.filter(|(_, window)| *window == whole).map(|(place, _)| place as u32).collect();
    // Of what it calls itself it has the name, too.
    let is_given = |symbol: &Sym64<LittleEndian>| symbol.st_shndx(LittleEndian) != SHN_UNDEF;
    table.iter().any(|symbol| places.contains(&symbol.st_name(LittleEndian)) && is_given(symbol))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_library_gives_is_told_from_what_it_takes() {
        let find = |name: &str| {
            let places =
                ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];
            places.iter().map(|place| format!("{place}/{name}")).find_map(|path| File::open(path).ok())
        };
        let (Some(c), Some(other)) = (find("libc.so.6"), find("libm.so.6")) else {
            return eprintln!("skipped: there is no C library to look into");
        };
        assert!(gives(c, b"getpid"));
        assert!(!gives(other, b"getpid"), "not its own");
        assert!(!gives(File::open("/proc/self/status").unwrap(), b"getpid"), "no program");
    }
}
