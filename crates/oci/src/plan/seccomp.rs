//! A seccomp profile as a program of classic BPF.
//!
//! ```text
//!   architecture ▷ a section each ▷ the number, by binary search ▷ an answer, or conditions on arguments ▷ an answer
//! ```

use anyhow::{Result, bail};
use oci_spec::runtime::{Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg};
use oci_spec::runtime::{LinuxSeccompFilterFlag, LinuxSeccompOperator};
use std::collections::BTreeMap;

type Instruction = (u16, u8, u8, u32);

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const IS: u16 = 0x15;
const ABOVE: u16 = 0x25;
const AT_LEAST: u16 = 0x35;
const JUMP: u16 = 0x05;
const RETURN: u16 = 0x06;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// Architectures as the kernel names them (linux/audit.h).
const X86_64: u32 = 0xc000_003e;
const I386: u32 = 0x4000_0003;

/// Numbers from here on are calls of the x32 interface.
const X32: u32 = 0x4000_0000;

const KILL_PROCESS: u32 = 0x8000_0000;
const KILL_THREAD: u32 = 0;
const TRAP: u32 = 0x3_0000;
const ERRNO: u32 = 0x5_0000;
const NOTIFY: u32 = 0x7fc0_0000;
const TRACE: u32 = 0x7ff0_0000;
const LOG: u32 = 0x7ffc_0000;
const ALLOW: u32 = 0x7fff_0000;
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// The most instructions of a program (BPF_MAXINSNS).
const LONGEST: usize = 4096;

/// One way to be answered: conditions, all of which hold, and the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Case {
    when: Vec<Condition>,
    answer: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Condition {
    argument: u32,
    operator: LinuxSeccompOperator,
    value: u64,
    second: u64,
}

/// A profile as the kernel takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    /// `struct sock_filter`s of eight bytes.
    pub(crate) program: Vec<u8>,
    /// Flags of seccomp(2).
    pub(crate) flags: u32,
}

/// The filter of a profile.
pub(crate) fn filter(profile: &LinuxSeccomp) -> Result<Filter> {
    const NEW_LISTENER: u32 = 1 << 3;
    let flags = match profile.flags() {
        None => flag(LinuxSeccompFilterFlag::SeccompFilterFlagSpecAllow),
        Some(flags) => flags.iter().fold(0, |all, one| all | flag(*one)),
    };
    let listener = if notifies(profile) { NEW_LISTENER } else { 0 };
    Ok(Filter { program: program(profile)?, flags: flags | listener })
}

fn flag(flag: LinuxSeccompFilterFlag) -> u32 {
    match flag {
        LinuxSeccompFilterFlag::SeccompFilterFlagTsync => 1,
        LinuxSeccompFilterFlag::SeccompFilterFlagLog => 1 << 1,
        LinuxSeccompFilterFlag::SeccompFilterFlagSpecAllow => 1 << 2,
        LinuxSeccompFilterFlag::SeccompFilterFlagWaitKillableRecv => 1 << 5,
    }
}

/// Whether calls wait for somebody's answers.
pub(crate) fn notifies(profile: &LinuxSeccomp) -> bool {
    profile.syscalls().iter().flatten().any(|rule| rule.action() == LinuxSeccompAction::ScmpActNotify)
}

/// Calls by which the process tells where the others arrive.
const TELLING: [&str; 3] = ["write", "sendto", "recvfrom"];

fn program(profile: &LinuxSeccomp) -> Result<Vec<u8>> {
    if profile.default_action() == LinuxSeccompAction::ScmpActNotify {
        bail!("SCMP_ACT_NOTIFY cannot be used as default action");
    }
    for rule in profile.syscalls().iter().flatten().filter(|rule| rule.action() == LinuxSeccompAction::ScmpActNotify) {
        if let Some(name) = rule.names().iter().find(|name| TELLING.contains(&name.as_str())) {
            bail!("SCMP_ACT_NOTIFY cannot be used for the {name} syscall");
        }
    }
    let default = answer(profile.default_action(), profile.default_errno_ret())?;
    let mut program = vec![(LOAD, 0, 0, ARCHITECTURE)];
    for (architecture, section) in [(X86_64, native(profile, default)?), (I386, foreign(profile, default)?)] {
        let length = u32::try_from(section.len())?;
        program.extend([(IS, 1, 0, architecture), (JUMP, 0, 0, length)]);
        program.extend(section);
    }
    program.push((RETURN, 0, 0, KILL_PROCESS));
    if program.len() > LONGEST {
        bail!("the seccomp profile takes {} instructions, and the kernel takes {LONGEST}", program.len());
    }
    Ok(program.into_iter().flat_map(encode).collect())
}

fn allows(profile: &LinuxSeccomp, architecture: Arch) -> bool {
    profile.architectures().as_ref().is_some_and(|listed| listed.contains(&architecture))
}

fn native(profile: &LinuxSeccomp, default: u32) -> Result<Vec<Instruction>> {
    let number = |name: &str| name.parse::<syscalls::x86_64::Sysno>().ok().map(|number| number as u32);
    let mut cases = by_number(profile, default, number)?;
    if allows(profile, Arch::ScmpArchX32) {
        // The same calls by other numbers.
        let others: Vec<_> = cases.iter().map(|(number, cases)| (number | X32, cases.clone())).collect();
        cases.extend(others);
        return Ok(section(&cases, default));
    }
    let refused = [(LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL_PROCESS)];
    Ok([refused.to_vec(), section(&cases, default)].concat())
}

fn foreign(profile: &LinuxSeccomp, default: u32) -> Result<Vec<Instruction>> {
    if !allows(profile, Arch::ScmpArchX86) {
        return Ok(vec![(RETURN, 0, 0, KILL_PROCESS)]);
    }
    let number = |name: &str| name.parse::<syscalls::x86::Sysno>().ok().map(|number| number as u32);
    Ok(section(&by_number(profile, default, number)?, default))
}

/// What is said of each call. A name that this kernel's interface lacks is passed over, as all runtimes do: profiles
/// name calls of all architectures.
fn by_number(
    profile: &LinuxSeccomp,
    default: u32,
    number: impl Fn(&str) -> Option<u32>,
) -> Result<BTreeMap<u32, Vec<Case>>> {
    let mut found: BTreeMap<u32, Vec<Case>> = BTreeMap::new();
    for rule in profile.syscalls().iter().flatten() {
        let answer = answer(rule.action(), rule.errno_ret())?;
        for number in rule.names().iter().filter_map(|name| number(name)) {
            let cases = found.entry(number).or_default();
            cases.extend(
                alternatives(rule.args().as_deref().unwrap_or_default())?.into_iter().map(|when| Case { when, answer }),
            );
        }
    }
    for cases in found.values_mut() {
        // What holds without conditions comes after all that has some, and is the last.
        cases.sort_by_key(|case| case.when.is_empty());
        let unconditional = cases.iter().position(|case| case.when.is_empty());
        cases.truncate(unconditional.map_or(cases.len(), |at| at + 1));
    }
    found.retain(|_, cases| cases.iter().any(|case| case.answer != default));
    Ok(found)
}

/// Conditions on one rule all have to hold, but for several on the same argument, of which one has to.
fn alternatives(arguments: &[LinuxSeccompArg]) -> Result<Vec<Vec<Condition>>> {
    let mut conditions = Vec::new();
    for argument in arguments {
        let index = u32::try_from(argument.index())?;
        if index > 5 {
            bail!("a seccomp rule is about argument {index}; calls have arguments 0 to 5");
        }
        conditions.push(Condition {
            argument: index,
            operator: argument.op(),
            value: argument.value(),
            second: argument.value_two().unwrap_or(0),
        });
    }
    let twice = |a: &Condition| conditions.iter().filter(|b| a.argument == b.argument).count() > 1;
    if conditions.iter().any(twice) {
        return Ok(conditions.into_iter().map(|condition| vec![condition]).collect());
    }
    Ok(vec![conditions])
}

fn answer(action: LinuxSeccompAction, errno: Option<u32>) -> Result<u32> {
    Ok(match action {
        LinuxSeccompAction::ScmpActAllow => ALLOW,
        LinuxSeccompAction::ScmpActLog => LOG,
        LinuxSeccompAction::ScmpActErrno => ERRNO | (errno.unwrap_or(EPERM) & 0xffff),
        LinuxSeccompAction::ScmpActTrace => TRACE | (errno.unwrap_or(EPERM) & 0xffff),
        LinuxSeccompAction::ScmpActTrap => TRAP,
        LinuxSeccompAction::ScmpActKill | LinuxSeccompAction::ScmpActKillThread => KILL_THREAD,
        LinuxSeccompAction::ScmpActKillProcess => KILL_PROCESS,
        LinuxSeccompAction::ScmpActNotify => NOTIFY,
    })
}

/// What is asked of a call's number.
fn section(cases: &BTreeMap<u32, Vec<Case>>, default: u32) -> Vec<Instruction> {
    // Ranges of numbers that are answered alike, each by its first.
    let mut ranges: Vec<(u32, Vec<Case>)> = vec![(0, Vec::new())];
    for (number, cases) in cases {
        let last = &ranges[ranges.len() - 1];
        if last.0 == *number {
            ranges.pop();
        }
        if ranges.last().is_none_or(|(_, before)| before != cases) {
            ranges.push((*number, cases.clone()));
        }
        ranges.push((number + 1, Vec::new()));
    }
    // Calls that are newer than the profile are none: a program then does without, where a refusal would end it.
    let newest = cases.keys().filter(|number| **number & X32 == 0).max().map(|number| number + 1);
    let unknown = |first: u32| newest == Some(first) && default & 0xffff_0000 == ERRNO;
    let leaves: Vec<(u32, Vec<Instruction>)> = ranges
        .into_iter()
        .map(|(first, cases)| {
            let otherwise = if unknown(first) { ERRNO | ENOSYS } else { default };
            (first, leaf(&cases, otherwise))
        })
        .collect();
    [vec![(LOAD, 0, 0, NUMBER)], search(&leaves)].concat()
}

fn search(leaves: &[(u32, Vec<Instruction>)]) -> Vec<Instruction> {
    if let [(_, leaf)] = leaves {
        return leaf.clone();
    }
    let (low, high) = leaves.split_at(leaves.len() / 2);
    let (lower, upper) = (search(low), search(high));
    let past = lower.len() as u32;
    [vec![(AT_LEAST, 0, 1, high[0].0), (JUMP, 0, 0, past)], lower, upper].concat()
}

fn leaf(cases: &[Case], otherwise: u32) -> Vec<Instruction> {
    let mut program = Vec::new();
    for case in cases {
        program.extend(tried(case));
    }
    if cases.last().is_none_or(|case| !case.when.is_empty()) {
        program.push((RETURN, 0, 0, otherwise));
    }
    program
}

/// Answers where all conditions of a case hold, and falls through where one does not.
fn tried(case: &Case) -> Vec<Instruction> {
    let mut program = vec![(RETURN, 0, 0, case.answer)];
    for condition in case.when.iter().rev() {
        program = [holds(condition, program.len() as u8), program].concat();
    }
    program
}

/// Falls through where a condition on 64 bits holds, and goes `past` instructions further where it does not.
fn holds(condition: &Condition, past: u8) -> Vec<Instruction> {
    use LinuxSeccompOperator as Op;
    let at = ARGUMENTS + 8 * condition.argument;
    let (low, high) = ((LOAD, 0, 0, at), (LOAD, 0, 0, at + 4));
    let (low_value, high_value) = (condition.value as u32, (condition.value >> 32) as u32);
    // Two comparisons of halves: the upper decides, or leaves it to the lower.
    let ordered = |decides: u16, when_above: bool, lower: u16, when_lower: bool| {
        let (hold, fail) = (3, past + 3);
        let upper = if when_above { (decides, hold, 0, high_value) } else { (decides, fail, 0, high_value) };
        let unequal = if when_above { (IS, 0, past + 2, high_value) } else { (IS, 0, 2, high_value) };
        let last = if when_lower { (lower, 0, past, low_value) } else { (lower, past, 0, low_value) };
        vec![high, upper, unequal, low, last]
    };
    match condition.operator {
        Op::ScmpCmpEq => vec![high, (IS, 0, past + 2, high_value), low, (IS, 0, past, low_value)],
        Op::ScmpCmpNe => vec![high, (IS, 0, 2, high_value), low, (IS, past, 0, low_value)],
        Op::ScmpCmpGt => ordered(ABOVE, true, ABOVE, true),
        Op::ScmpCmpGe => ordered(ABOVE, true, AT_LEAST, true),
        Op::ScmpCmpLt => ordered(ABOVE, false, AT_LEAST, false),
        Op::ScmpCmpLe => ordered(ABOVE, false, ABOVE, false),
        Op::ScmpCmpMaskedEq => {
            // The first value is the mask, the second what is left.
            let (low_rest, high_rest) = (condition.second as u32, (condition.second >> 32) as u32);
            vec![
                high,
                (AND, 0, 0, high_value),
                (IS, 0, past + 3, high_rest),
                low,
                (AND, 0, 0, low_value),
                (IS, 0, past, low_rest),
            ]
        }
    }
}

fn encode((code, when_true, when_false, value): Instruction) -> [u8; 8] {
    let (code, value) = (code.to_ne_bytes(), value.to_ne_bytes());
    [code[0], code[1], when_true, when_false, value[0], value[1], value[2], value[3]]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would answer.
    fn run(program: &[u8], architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let mut at = 0;
        let mut loaded = 0_u32;
        loop {
            let bytes = &program[at * 8..at * 8 + 8];
            let code = u16::from_ne_bytes([bytes[0], bytes[1]]);
            let value = u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            at += 1;
            let holds = match code {
                LOAD => {
                    loaded = match value {
                        NUMBER => number,
                        ARCHITECTURE => architecture,
                        offset => {
                            let argument = arguments[((offset - ARGUMENTS) / 8) as usize];
                            if offset % 8 == 0 { argument as u32 } else { (argument >> 32) as u32 }
                        }
                    };
                    continue;
                }
                AND => {
                    loaded &= value;
                    continue;
                }
                JUMP => {
                    at += value as usize;
                    continue;
                }
                RETURN => return value,
                IS => loaded == value,
                ABOVE => loaded > value,
                AT_LEAST => loaded >= value,
                other => panic!("instruction {other:#x}"),
            };
            at += usize::from(if holds { bytes[2] } else { bytes[3] });
        }
    }

    fn compiled(json: &str) -> Vec<u8> {
        program(&serde_json::from_str(json).unwrap()).unwrap()
    }

    fn number(name: &str) -> u32 {
        name.parse::<syscalls::x86_64::Sysno>().unwrap() as u32
    }

    #[test]
    fn what_is_listed_is_answered_and_all_else_by_default() {
        let profile = compiled(
            r#"{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":5,"architectures":["SCMP_ARCH_X86_64"],
                "syscalls":[{"names":["read","write","no_such_call","clone3"],"action":"SCMP_ACT_ALLOW"},
                            {"names":["mount"],"action":"SCMP_ACT_ERRNO","errnoRet":7}]}"#,
        );
        let of = |name: &str| run(&profile, X86_64, number(name), [0; 6]);
        assert_eq!((of("read"), of("write"), of("clone3")), (ALLOW, ALLOW, ALLOW));
        assert_eq!((of("open"), of("mount"), of("ptrace")), (ERRNO | 5, ERRNO | 7, ERRNO | 5));
        assert_eq!(run(&profile, X86_64, 600, [0; 6]), ERRNO | ENOSYS, "newer than the profile");
        assert_eq!(run(&profile, X86_64, X32 | 1, [0; 6]), KILL_PROCESS);
        assert_eq!(run(&profile, I386, 3, [0; 6]), KILL_PROCESS, "not listed");
        assert_eq!(run(&profile, 0xc000_00b7, 1, [0; 6]), KILL_PROCESS, "another machine's");
    }

    #[test]
    fn both_interfaces_of_a_machine_have_their_own_numbers() {
        let profile = compiled(
            r#"{"defaultAction":"SCMP_ACT_ALLOW","architectures":["SCMP_ARCH_X86_64","SCMP_ARCH_X86","SCMP_ARCH_X32"],
                "syscalls":[{"names":["mkdir"],"action":"SCMP_ACT_KILL_PROCESS"}]}"#,
        );
        assert_eq!(run(&profile, X86_64, 83, [0; 6]), KILL_PROCESS);
        assert_eq!(run(&profile, X86_64, X32 | 83, [0; 6]), KILL_PROCESS);
        assert_eq!((run(&profile, I386, 39, [0; 6]), run(&profile, I386, 83, [0; 6])), (KILL_PROCESS, ALLOW));
    }

    #[test]
    fn every_comparison_is_of_all_64_bits() {
        let values = [0, 1, 5, 6, 7, 0xffff_ffff, 0x1_0000_0000, 0x1_0000_0005, 0x1_0000_0006, u64::MAX];
        for limit in values {
            type Meaning = fn(u64, u64) -> bool;
            let operators: [(&str, Meaning); 6] = [
                ("SCMP_CMP_EQ", |a, b| a == b),
                ("SCMP_CMP_NE", |a, b| a != b),
                ("SCMP_CMP_GT", |a, b| a > b),
                ("SCMP_CMP_GE", |a, b| a >= b),
                ("SCMP_CMP_LT", |a, b| a < b),
                ("SCMP_CMP_LE", |a, b| a <= b),
            ];
            for (name, meaning) in operators {
                let profile = compiled(&format!(
                    r#"{{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{{"names":["dup3"],"action":"SCMP_ACT_ERRNO",
                        "args":[{{"index":1,"value":{limit},"op":"{name}"}},{{"index":0,"value":3,"op":"SCMP_CMP_EQ"}}]}}]}}"#
                ));
                for value in values {
                    let verdict = run(&profile, X86_64, number("dup3"), [3, value, 0, 0, 0, 0]);
                    let right = if meaning(value, limit) { ERRNO | EPERM } else { ALLOW };
                    assert_eq!(verdict, right, "{value:#x} {name} {limit:#x}");
                    assert_eq!(run(&profile, X86_64, number("dup3"), [4, value, 0, 0, 0, 0]), ALLOW);
                }
            }
        }
    }

    #[test]
    fn flags_are_compared_under_a_mask_and_conditions_on_one_argument_are_alternatives() {
        let profile = compiled(
            r#"{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[
                {"names":["clone"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":2114060288,"valueTwo":0,"op":"SCMP_CMP_MASKED_EQ"}]},
                {"names":["personality"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":0,"op":"SCMP_CMP_EQ"},{"index":0,"value":8,"op":"SCMP_CMP_EQ"}]}]}"#,
        );
        let of = |name: &str, first: u64| run(&profile, X86_64, number(name), [first, 0, 0, 0, 0, 0]);
        assert_eq!((of("clone", 17), of("clone", 0x1000_0000 | 17)), (ALLOW, ERRNO | EPERM));
        assert_eq!((of("personality", 0), of("personality", 8), of("personality", 9)), (ALLOW, ALLOW, ERRNO | EPERM));
    }

    #[test]
    fn calls_that_wait_for_answers_bring_a_listener() {
        let read = |text: &str| filter(&serde_json::from_str(text).unwrap());
        let rule = |name: &str| {
            format!(
                r#"{{"defaultAction":"SCMP_ACT_ALLOW","flags":["SECCOMP_FILTER_FLAG_LOG"],"syscalls":[{{"names":["{name}"],"action":"SCMP_ACT_NOTIFY"}}]}}"#
            )
        };
        let waiting = read(&rule("mkdir")).unwrap();
        assert_eq!(waiting.flags, 2 | 8);
        assert_eq!(run(&waiting.program, X86_64, number("mkdir"), [0; 6]), NOTIFY);
        assert_eq!(read(r#"{"defaultAction":"SCMP_ACT_ALLOW"}"#).unwrap().flags, 4);
        assert!(read(&rule("write")).unwrap_err().to_string().contains("for the write syscall"));
        assert!(read(r#"{"defaultAction":"SCMP_ACT_NOTIFY"}"#).unwrap_err().to_string().contains("default action"));
    }
}
