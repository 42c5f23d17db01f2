//! The process's own program, as it is mapped.

use std::ffi::{c_int, c_void};

/// Takes the program's code out of the process's page tables (madvise(2), `MADV_DONTNEED`): it stays in the page cache
/// as long as the kernel likes to keep it, and comes back page by page as it is executed. What was mapped because it
/// lay beside something, or was executed once, stays away.
pub fn let_go_of_code() {
    advise(libc::MADV_DONTNEED);
}

/// Advises the kernel of the program's code: of whole pages of a file's private mapping that nobody may write, which
/// read the same when they are mapped anew.
fn advise(mut advice: c_int) {
    // SAFETY: the callback is one for this function; its data is the advice, which lives until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(advise_of_first), (&raw mut advice).cast()) };
}

/// The first object that is told of is the program itself. Anything but zero ends the telling.
unsafe extern "C" fn advise_of_first(object: *mut libc::dl_phdr_info, _: usize, advice: *mut c_void) -> c_int {
    // SAFETY: sysconf has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    // SAFETY: the C library passes a valid description for the time of the call, with as many headers as it says; the
    // advice is `advise`'s.
    let (base, segments, advice) = unsafe {
        let object = &*object;
        let segments = std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum));
        (object.dlpi_addr, segments, *advice.cast::<c_int>())
    };
    let is_code = |segment: &&libc::Elf64_Phdr| {
        segment.p_type == libc::PT_LOAD && segment.p_flags & libc::PF_X != 0 && segment.p_flags & libc::PF_W == 0
    };
    for segment in segments.iter().filter(is_code) {
        let begin = (base + segment.p_vaddr).next_multiple_of(page);
        let end = (base + segment.p_vaddr + segment.p_memsz) / page * page;
        if begin < end {
            // SAFETY: the advice is to map or to let go of pages that read the same afterwards.
            unsafe { libc::madvise(begin as *mut c_void, (end - begin) as usize, advice) };
        }
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kilobytes of the program's code that are mapped now.
    fn resident() -> u64 {
        let program = std::env::current_exe().unwrap();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut its = false;
        let mut sum = 0;
        for line in maps.lines() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            match words[..] {
                [_, rights, _, _, _, file] if rights.len() == 4 => {
                    its = rights == "r-xp" && program.as_os_str() == file
                }
                ["Rss:", kilobytes, _] if its => sum += kilobytes.parse::<u64>().unwrap(),
                _ => {}
            }
        }
        sum
    }

    #[test]
    fn code_that_is_let_go_comes_back_as_it_is_executed() {
        advise(libc::MADV_POPULATE_READ);
        let before = resident();
        let_go_of_code();
        let after = resident();
        assert!(before > 500 && after < before * 3 / 4, "{before} kB, then {after} kB");
    }
}
