//! Which system calls a guest is denied, compiled for the kernel.

use std::sync::OnceLock;

/// The list, as data (the format is seccompiler's).
pub const POLICY: &str = include_str!("seccomp.json");

/// Numbers from here on are calls of the x32 interface: the same calls by other numbers, past a list that names each once.
#[cfg(target_arch = "x86_64")]
const X32: u32 = 0x4000_0000;

/// The program of the default profile: `struct sock_filter`s in the machine's own byte order.
///
/// # Panics
///
/// If the list in this crate cannot be compiled, which its test rules out.
pub fn program() -> &'static [u8] {
    static PROGRAM: OnceLock<Vec<u8>> = OnceLock::new();
    PROGRAM.get_or_init(|| compile().expect("the policy in this crate compiles"))
}

fn compile() -> Result<Vec<u8>, seccompiler::Error> {
    let architecture = std::env::consts::ARCH.try_into().map_err(seccompiler::Error::Backend)?;
    let mut programs = seccompiler::compile_from_json(POLICY.as_bytes(), architecture)?;
    let listed = programs.remove("default").unwrap_or_default();
    let instructions = foreign_numbers().into_iter().chain(listed.iter().map(|one| (one.code, one.jt, one.jf, one.k)));
    Ok(instructions.flat_map(encode).collect())
}

type Instruction = (u16, u8, u8, u32);

fn encode((code, when_true, when_false, value): Instruction) -> [u8; 8] {
    let (code, value) = (code.to_ne_bytes(), value.to_ne_bytes());
    [code[0], code[1], when_true, when_false, value[0], value[1], value[2], value[3]]
}

/// Answers calls of the x32 interface as a kernel without it does.
#[cfg(target_arch = "x86_64")]
fn foreign_numbers() -> Vec<Instruction> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    const NUMBER: u32 = 0;
    let no_such_call = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    vec![(LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, X32), (RETURN, 0, 0, no_such_call)]
}

#[cfg(not(target_arch = "x86_64"))]
fn foreign_numbers() -> Vec<Instruction> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_compiles() {
        let program = program();
        assert_eq!(program.len() % 8, 0);
        assert!(program.len() / 8 > 30);
    }
}
