//! Which system calls a guest is denied, compiled for the kernel.

use serde::Deserialize;
use std::collections::BTreeMap;
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

/// The program for guests that share the host's network: kinds of sockets that would show or reach what is not theirs.
///
/// # Panics
///
/// As [`program`].
pub fn shared_network() -> &'static [u8] {
    static PROGRAM: OnceLock<Vec<u8>> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let listed = listed("shared_network").expect("the policy in this crate compiles");
        foreign_numbers().into_iter().chain(listed).flat_map(encode).collect()
    })
}

fn compile() -> Result<Vec<u8>, seccompiler::Error> {
    let instructions = instructions(&denied_whatever_their_arguments(), &listed("default")?);
    Ok(instructions.into_iter().flat_map(encode).collect())
}

/// A list as seccompiler compiles it: call by call.
fn listed(name: &str) -> Result<Vec<Instruction>, seccompiler::Error> {
    let architecture = std::env::consts::ARCH.try_into().map_err(seccompiler::Error::Backend)?;
    let mut programs = seccompiler::compile_from_json(POLICY.as_bytes(), architecture)?;
    let listed = programs.remove(name).unwrap_or_default();
    Ok(listed.iter().map(|one| (one.code, one.jt, one.jf, one.k)).collect())
}

type Instruction = (u16, u8, u8, u32);

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const IS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// This machine's architecture, as the kernel names it (linux/audit.h).
#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;

/// The part of the list's format that tells which calls are denied without a look at their arguments.
#[derive(Deserialize)]
struct Profile {
    match_action: Action,
    filter: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Errno(u32),
}

#[derive(Deserialize)]
struct Rule {
    syscall: String,
    args: Option<serde::de::IgnoredAny>,
}

/// Calls that are denied whatever their arguments, in order, and the error that they give.
#[derive(Debug, Default)]
struct Denied {
    numbers: Vec<u32>,
    errno: u32,
    /// Whether that is all there is in the list.
    everything: bool,
}

fn denied_whatever_their_arguments() -> Denied {
    let profile =
        serde_json::from_str::<BTreeMap<String, Profile>>(POLICY).ok().and_then(|mut all| all.remove("default"));
    let Some(Profile { match_action: Action::Errno(errno), filter }) = profile else { return Denied::default() };
    let plain = filter.iter().filter(|rule| rule.args.is_none());
    let mut numbers: Vec<u32> =
        plain.filter_map(|rule| rule.syscall.parse::<syscalls::Sysno>().ok()).map(|number| number as u32).collect();
    numbers.sort_unstable();
    Denied { everything: numbers.len() == filter.len(), numbers, errno }
}

/// The whole program. When a filter is installed the kernel translates it, and tries it on every number there is to learn which are allowed whatever
/// their arguments: with a list of calls tried one by one that takes longer than all other steps of a guest's start. So what needs no look at
/// arguments is searched by halves, and the list follows only if there is more in it.
fn instructions(denied: &Denied, listed: &[Instruction]) -> Vec<Instruction> {
    if denied.numbers.is_empty() {
        return [foreign_numbers(), listed.to_vec()].concat();
    }
    let head = [(LOAD, 0, 0, ARCHITECTURE), (IS, 1, 0, NATIVE), (RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS)];
    let rest = if denied.everything { vec![(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW)] } else { listed.to_vec() };
    let answer = libc::SECCOMP_RET_ERRNO | denied.errno;
    [head.to_vec(), foreign_numbers(), vec![(LOAD, 0, 0, NUMBER)], search(&denied.numbers, answer), rest].concat()
}

/// How far a conditional jump over `instructions` goes.
fn over(instructions: &[Instruction]) -> u8 {
    u8::try_from(instructions.len()).expect("the list in this crate is short enough for conditional jumps")
}

/// Gives `answer` where a number is among `named`, and falls through where it is not.
fn search(named: &[u32], answer: u32) -> Vec<Instruction> {
    /// So many are tried one by one.
    const FEW: usize = 3;
    if named.len() <= FEW {
        return named.iter().flat_map(|number| [(IS, 0, 1, *number), (RETURN, 0, 0, answer)]).collect();
    }
    let (low, high) = named.split_at(named.len() / 2);
    let (mut lower, upper) = (search(low, answer), search(high, answer));
    // Not among the lower ones: past the upper ones as well, where the search falls through.
    lower.push((IS, over(&upper), over(&upper), 0));
    [vec![(AT_LEAST, over(&lower), 0, high[0])], lower, upper].concat()
}

fn encode((code, when_true, when_false, value): Instruction) -> [u8; 8] {
    let (code, value) = (code.to_ne_bytes(), value.to_ne_bytes());
    [code[0], code[1], when_true, when_false, value[0], value[1], value[2], value[3]]
}

/// Answers calls of the x32 interface as a kernel without it does.
#[cfg(target_arch = "x86_64")]
fn foreign_numbers() -> Vec<Instruction> {
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
        assert!(shared_network().len() / 8 > 10);
    }

    const ALWAYS: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;

    /// What a program answers, and in how many instructions.
    fn answer(program: &[Instruction], architecture: u32, number: u32) -> (u32, usize) {
        let (mut at, mut loaded, mut steps) = (0_usize, 0, 0);
        loop {
            let (code, when_true, when_false, value) = program[at];
            steps += 1;
            let holds = match code {
                LOAD => {
                    loaded = if value == NUMBER { number } else { architecture };
                    at += 1;
                    continue;
                }
                ALWAYS => {
                    at += value as usize + 1;
                    continue;
                }
                RETURN => return (value, steps),
                IS => loaded == value,
                AT_LEAST => loaded >= value,
                other => panic!("no such instruction is expected here: {other:#x}"),
            };
            at += 1 + usize::from(if holds { when_true } else { when_false });
        }
    }

    #[test]
    fn searching_by_halves_changes_no_answer_and_is_short() {
        let (denied, listed) = (denied_whatever_their_arguments(), listed("default").unwrap());
        assert!(denied.everything && denied.numbers.len() > 20, "every name is known: {denied:?}");
        let quick = instructions(&denied, &listed);
        let with_more = instructions(&Denied { everything: false, ..denied }, &listed);
        for number in (0..700).chain([u32::MAX / 4]) {
            for architecture in [NATIVE, 0x4000_0003] {
                let right = answer(&listed, architecture, number).0;
                let (verdict, steps) = answer(&quick, architecture, number);
                assert_eq!(verdict, right, "{number}");
                assert_eq!(answer(&with_more, architecture, number).0, right, "{number}");
                assert!(steps < 20, "{number}: {steps}");
            }
        }
    }
}
