//! Which system calls a guest is refused, compiled for the kernel.
//!
//! When a filter is installed the kernel translates it, and tries it on every number there is, of 64-bit and of 32-bit
//! programs, to learn which are allowed whatever their arguments: with a list of calls tried one by one that takes
//! longer than all other steps of a guest's start. So names are searched by halves, and only calls whose arguments
//! count are looked at one by one.

use super::profile::{self, Condition, Rule};
use pando_api::Profile;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// What a filter refuses.
#[derive(Debug)]
pub(super) struct Filter {
    /// Calls that are refused whatever their arguments, by what they answer. A name that an architecture has not is
    /// passed over there.
    pub(super) refused: BTreeMap<u32, Vec<String>>,
    pub(super) rules: Vec<Rule>,
    /// Whether programs of the 32-bit sibling may make calls at all.
    pub(super) foreign_programs: bool,
}

impl Filter {
    /// The calls that are refused whatever their arguments.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.refused.values().flatten().map(String::as_str)
    }
}

/// How a guest's ids relate to the host's, as far as its filter depends on it.
fn place(profile: Profile, own_ids: bool) -> usize {
    2 * profile as usize + usize::from(own_ids)
}

const PLACES: usize = 6;

/// The program of a profile: `struct sock_filter`s in the machine's own byte order. Without `own_ids` root inside is
/// root outside, and is kept from user namespaces.
pub fn program(profile: Profile, own_ids: bool) -> &'static [u8] {
    static PROGRAMS: [OnceLock<Vec<u8>>; PLACES] = [const { OnceLock::new() }; PLACES];
    PROGRAMS[place(profile, own_ids)].get_or_init(|| encoded(&profile::of(profile).filter(own_ids)))
}

/// The calls of 64-bit programs that a profile refuses whatever their arguments, by name.
pub fn refused(profile: Profile) -> Vec<String> {
    let filter = profile::of(profile).filter(true);
    filter.names().filter(|name| (NATIVE.number)(name).is_some()).map(str::to_owned).collect()
}

/// Whether a first process that has a profile's filter can still take the steps that bring it its root file system, and
/// make processes out of an image.
pub fn lets_plans_pass(profile: Profile, own_ids: bool) -> bool {
    const STEPS: [&str; 9] = [
        "chroot",
        "open_tree",
        "move_mount",
        "mount_setattr",
        "fsopen",
        "fsconfig",
        "fsmount",
        "sethostname",
        "clone3",
    ];
    static ANSWERS: [OnceLock<bool>; PLACES] = [const { OnceLock::new() }; PLACES];
    *ANSWERS[place(profile, own_ids)].get_or_init(|| {
        let filter = profile::of(profile).filter(own_ids);
        let ruled = filter.rules.iter().map(|rule| rule.call.as_str());
        !filter.names().chain(ruled).any(|name| STEPS.contains(&name))
    })
}

/// The program for guests that share the host's network: kinds of sockets that would show or reach what is not theirs.
pub fn shared_network() -> &'static [u8] {
    static PROGRAM: OnceLock<Vec<u8>> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let rules = profile::rules("own_addresses");
        encoded(&Filter { refused: BTreeMap::new(), rules, foreign_programs: true })
    })
}

/// Whether a program of this module's lets a 64-bit program make a call with these arguments.
pub fn lets_pass(program: &[u8], number: i64, arguments: &[u64; 6]) -> bool {
    let Ok(number) = u32::try_from(number) else { return false };
    let instructions: Vec<Instruction> = program.chunks_exact(size_of::<libc::sock_filter>()).map(decode).collect();
    answer(&instructions, (NATIVE.architecture, number), arguments).is_some_and(|(answer, _)| answer == ALLOW.3)
}

/// What a program of ours answers, and in how many instructions.
fn answer(program: &[Instruction], (architecture, number): (u32, u32), arguments: &[u64; 6]) -> Option<(u32, usize)> {
    let (mut at, mut loaded, mut steps) = (0_usize, 0, 0);
    loop {
        let (code, when_true, when_false, value) = *program.get(at)?;
        steps += 1;
        at += 1;
        let holds = match code {
            LOAD => {
                loaded = match value {
                    NUMBER => number,
                    ARCHITECTURE => architecture,
                    offset => {
                        let offset = offset.checked_sub(ARGUMENTS)?;
                        let argument = *arguments.get((offset / 8) as usize)?;
                        if offset.is_multiple_of(8) { argument as u32 } else { (argument >> 32) as u32 }
                    }
                };
                continue;
            }
            JUMP => {
                at += value as usize;
                continue;
            }
            RETURN => return Some((value, steps)),
            IS => loaded == value,
            AT_LEAST => loaded >= value,
            HAS_BIT => loaded & value != 0,
            _ => return None,
        };
        at += usize::from(if holds { when_true } else { when_false });
    }
}

/// A program that refuses calls by name, each with what it answers, to programs of either kind, and allows all others.
pub fn refusing(calls: &[(i32, &[&str])]) -> Vec<u8> {
    let named =
        |(errno, names): &(i32, &[&str])| (errno.unsigned_abs(), names.iter().map(|&name| name.to_owned()).collect());
    encoded(&Filter { refused: calls.iter().map(named).collect(), rules: Vec::new(), foreign_programs: true })
}

fn encoded(filter: &Filter) -> Vec<u8> {
    compile(filter).into_iter().flat_map(encode).collect()
}

type Instruction = (u16, u8, u8, u32);

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const IS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const HAS_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const ALLOW: Instruction = (RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// Numbers from here on are calls of the x32 interface: the same calls by other numbers, past a list that names each
/// once.
const X32: u32 = 0x4000_0000;

/// Architectures as the kernel names them (linux/audit.h).
const X86_64: u32 = 0xc000_003e;
const I386: u32 = 0x4000_0003;

/// A way into the kernel: its name, and the numbers of its calls.
#[derive(Clone, Copy)]
struct Interface {
    architecture: u32,
    number: fn(&str) -> Option<u32>,
}

const NATIVE: Interface = Interface {
    architecture: X86_64,
    number: |name| name.parse::<syscalls::x86_64::Sysno>().ok().map(|number| number as u32),
};
const FOREIGN: Interface = Interface {
    architecture: I386,
    number: |name| name.parse::<syscalls::x86::Sysno>().ok().map(|number| number as u32),
};

/// The whole program: a section for each interface that may be used, and death by SIGSYS for all others.
fn compile(filter: &Filter) -> Vec<Instruction> {
    let no_such_call = (RETURN, 0, 0, refusal(libc::ENOSYS as u32));
    let native = [vec![(LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, X32), no_such_call], section(filter, NATIVE)].concat();
    let foreign = if filter.foreign_programs {
        [vec![(LOAD, 0, 0, NUMBER)], section(filter, FOREIGN)].concat()
    } else {
        vec![(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS)]
    };
    let past_native = u32::try_from(native.len()).expect("the lists in this crate are short");
    let head = vec![
        (LOAD, 0, 0, ARCHITECTURE),
        (IS, 3, 0, NATIVE.architecture),
        (IS, 1, 0, FOREIGN.architecture),
        (RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        (JUMP, 0, 0, past_native),
    ];
    [head, native, foreign].concat()
}

/// What is asked of a call's number, which is loaded.
fn section(filter: &Filter, interface: Interface) -> Vec<Instruction> {
    let mut program = Vec::new();
    for (errno, names) in &filter.refused {
        let mut numbers: Vec<u32> = names.iter().filter_map(|name| (interface.number)(name)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        program.extend(search(&numbers, refusal(*errno)));
    }
    let mut by_call: BTreeMap<u32, Vec<&Rule>> = BTreeMap::new();
    for rule in &filter.rules {
        if let Some(number) = (interface.number)(&rule.call) {
            by_call.entry(number).or_default().push(rule);
        }
    }
    for (number, rules) in by_call {
        let tried: Vec<_> = rules.into_iter().flat_map(refused_when).chain([ALLOW]).collect();
        program.push((IS, 0, over(&tried), number));
        program.extend(tried);
    }
    program.push(ALLOW);
    program
}

fn refusal(errno: u32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno
}

/// Refuses where all conditions of a rule hold, and falls through where one does not.
fn refused_when(rule: &Rule) -> Vec<Instruction> {
    let mut program = vec![(RETURN, 0, 0, refusal(rule.errno))];
    // From the last condition to the first: each knows how far it is to the rule's end.
    for condition in rule.when.iter().rev() {
        let past = over(&program);
        program = [holds(condition, past), program].concat();
    }
    program
}

/// Falls through where a condition holds, and goes `past` instructions further where it does not.
fn holds(condition: &Condition, past: u8) -> Vec<Instruction> {
    let Condition { argument, upper, among, not_among, any_bit } = condition;
    let mut tests: Vec<Instruction> = Vec::new();
    for value in not_among.iter().flatten().rev() {
        tests.insert(0, (IS, over(&tests) + past, 0, *value));
    }
    if let Some(bits) = any_bit {
        tests.insert(0, (HAS_BIT, 0, over(&tests) + past, *bits));
    }
    if let Some(values) = among {
        let rest = over(&tests);
        // The first that matches goes on after the jump that follows the last.
        let mut matches = vec![(JUMP, 0, 0, u32::from(rest + past))];
        for value in values.iter().rev() {
            matches.insert(0, (IS, over(&matches), 0, *value));
        }
        tests = [matches, tests].concat();
    }
    [vec![(LOAD, 0, 0, ARGUMENTS + 8 * argument + 4 * u32::from(*upper))], tests].concat()
}

/// How far a conditional jump over `instructions` goes.
fn over(instructions: &[Instruction]) -> u8 {
    u8::try_from(instructions.len()).expect("the lists in this crate are short enough for conditional jumps")
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

fn decode(instruction: &[u8]) -> Instruction {
    let code = u16::from_ne_bytes([instruction[0], instruction[1]]);
    let value = u32::from_ne_bytes([instruction[4], instruction[5], instruction[6], instruction[7]]);
    (code, instruction[2], instruction[3], value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
    const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;

    fn answer(program: &[Instruction], architecture: u32, number: u32, arguments: [u32; 6]) -> (u32, usize) {
        super::answer(program, (architecture, number), &arguments.map(u64::from)).unwrap()
    }

    fn compiled(profile: Profile) -> (Filter, Vec<Instruction>) {
        let filter = profile::of(profile).filter(true);
        let program = compile(&filter);
        (filter, program)
    }

    #[test]
    fn every_name_is_known_to_one_of_the_interfaces() {
        for profile in [Profile::Default, Profile::Strict, Profile::System] {
            for name in compiled(profile).0.names() {
                assert!((NATIVE.number)(name).or((FOREIGN.number)(name)).is_some(), "{name}");
            }
        }
    }

    #[test]
    fn what_is_named_is_refused_and_nothing_else() {
        for profile in [Profile::Default, Profile::Strict, Profile::System] {
            let (filter, program) = compiled(profile);
            for interface in [NATIVE, FOREIGN] {
                let answers = |number: u32| {
                    let of = |name: &String| (interface.number)(name) == Some(number);
                    filter.refused.iter().find(|(_, names)| names.iter().any(of)).map(|(errno, _)| *errno)
                };
                let ruled: Vec<u32> = filter.rules.iter().filter_map(|rule| (interface.number)(&rule.call)).collect();
                for number in (0..700).filter(|number| !ruled.contains(number)) {
                    let (verdict, steps) = answer(&program, interface.architecture, number, [0; 6]);
                    let right = match (interface.architecture, answers(number)) {
                        (I386, _) if !filter.foreign_programs => KILL,
                        (_, Some(errno)) => refusal(errno),
                        (_, None) => ALLOWED,
                    };
                    assert_eq!(verdict, right, "{profile:?} {number}");
                    assert!(steps < 30, "{profile:?} {number}: {steps}");
                }
            }
            assert_eq!(answer(&program, X86_64, X32 + 1, [0; 6]).0, refusal(libc::ENOSYS as u32));
            assert_eq!(answer(&program, 0xc000_00b7, 1, [0; 6]).0, KILL, "of another machine");
        }
    }

    #[test]
    fn arguments_count_where_a_rule_says_so() {
        let number = |name: &str| (NATIVE.number)(name).unwrap();
        let strict = compiled(Profile::Strict).1;
        let of = |name: &str, arguments: &[u32]| {
            let mut all = [0; 6];
            all[..arguments.len()].copy_from_slice(arguments);
            answer(&strict, X86_64, number(name), all).0
        };
        let family = refusal(libc::EAFNOSUPPORT as u32);
        assert_eq!(of("socket", &[libc::AF_UNIX as u32]), ALLOWED);
        assert_eq!(of("socket", &[libc::AF_PACKET as u32]), family);
        assert_eq!(of("socket", &[libc::AF_NETLINK as u32, 3, 0]), ALLOWED);
        assert_eq!(of("socket", &[libc::AF_NETLINK as u32, 3, 4]), family);
        assert_eq!(of("clone", &[libc::SIGCHLD as u32]), ALLOWED);
        assert_eq!(of("clone", &[libc::CLONE_NEWUSER as u32 | 17]), refusal(libc::EPERM as u32));
        assert_eq!(of("clone3", &[]), refusal(libc::ENOSYS as u32));
        assert_eq!(of("ioctl", &[0, 0x5412]), refusal(libc::EPERM as u32));
        assert_eq!(of("ioctl", &[0, 0x5413]), ALLOWED);
        let option = |level: i32, name: i32| of("setsockopt", &[3, level as u32, name as u32]);
        for filter in [
            libc::SO_ATTACH_FILTER,
            libc::SO_ATTACH_BPF,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            libc::SO_ATTACH_REUSEPORT_EBPF,
        ] {
            assert_eq!(option(libc::SOL_SOCKET, filter), refusal(libc::ENOPROTOOPT as u32), "{filter}");
            assert_eq!(option(libc::IPPROTO_TCP, filter), ALLOWED, "another level's option {filter}");
        }
        assert_eq!(option(libc::SOL_SOCKET, libc::SO_DETACH_FILTER), ALLOWED);
        assert_eq!(of("io_setup", &[]), refusal(libc::ENOSYS as u32));
        let (kept, other) = (libc::RLIMIT_CORE, libc::RLIMIT_NOFILE);
        assert_eq!((of("setrlimit", &[kept]), of("setrlimit", &[other])), (refusal(0), ALLOWED));
        assert_eq!(of("prlimit64", &[0, kept, 0x1000]), refusal(0), "a new limit of cores");
        assert_eq!(of("prlimit64", &[0, kept, 0]), ALLOWED, "it may be looked at");
        assert_eq!(of("prlimit64", &[0, other, 0x1000]), ALLOWED);
    }

    #[test]
    fn what_a_kernel_may_lack_is_answered_as_if_it_did() {
        for profile in [Profile::Default, Profile::Strict, Profile::System] {
            let program = compiled(profile).1;
            for name in ["add_key", "request_key", "keyctl", "io_uring_setup", "io_uring_enter", "io_uring_register"] {
                let verdict = answer(&program, X86_64, (NATIVE.number)(name).unwrap(), [0; 6]).0;
                assert_eq!(verdict, refusal(libc::ENOSYS as u32), "{profile:?} {name}");
            }
        }
    }

    #[test]
    fn whose_root_is_the_hosts_makes_no_user_namespaces_by_any_call_of_either_interface() {
        const NEWUSER: u32 = libc::CLONE_NEWUSER as u32;
        for profile in [Profile::Default, Profile::Strict, Profile::System] {
            let filter = profile::of(profile).filter(false);
            let program = compile(&filter);
            let interfaces = [NATIVE, FOREIGN].into_iter().take(if filter.foreign_programs { 2 } else { 1 });
            for interface in interfaces {
                let of = |name: &str, flags: u32| {
                    let number = (interface.number)(name).unwrap();
                    answer(&program, interface.architecture, number, [flags, 0, 0, 0, 0, 0]).0
                };
                for call in ["unshare", "clone"] {
                    assert_eq!(of(call, NEWUSER | 17), refusal(libc::EPERM as u32), "{profile:?} {call}");
                }
                assert_eq!(of("clone3", 0), refusal(libc::ENOSYS as u32), "{profile:?}");
                assert_eq!(of("clone", 17), ALLOWED, "{profile:?}");
            }
        }
        let own = compiled(Profile::Default).1;
        assert_eq!(answer(&own, X86_64, (NATIVE.number)("unshare").unwrap(), [NEWUSER, 0, 0, 0, 0, 0]).0, ALLOWED);
    }

    #[test]
    fn on_a_shared_network_both_interfaces_are_held_to_the_same_sockets() {
        let filter =
            Filter { refused: BTreeMap::new(), rules: profile::rules("own_addresses"), foreign_programs: true };
        let program = compile(&filter);
        let family = refusal(libc::EAFNOSUPPORT as u32);
        for interface in [NATIVE, FOREIGN] {
            let socket = (interface.number)("socket").unwrap();
            let of = |family: i32, protocol: u32| {
                answer(&program, interface.architecture, socket, [family as u32, 0, protocol, 0, 0, 0]).0
            };
            assert_eq!((of(libc::AF_INET, 0), of(libc::AF_VSOCK, 0)), (ALLOWED, family));
            assert_eq!((of(libc::AF_NETLINK, 15), of(libc::AF_NETLINK, 4)), (ALLOWED, family));
            let ports = [3, libc::IPPROTO_IP as u32, 51, 0, 0, 0];
            let set = (interface.number)("setsockopt").unwrap();
            let answered = answer(&program, interface.architecture, set, ports).0;
            assert_eq!(answered, refusal(libc::ENOPROTOOPT as u32), "IP_LOCAL_PORT_RANGE");
        }
        let all = (FOREIGN.number)("socketcall").unwrap();
        assert_eq!(answer(&program, I386, all, [1; 6]).0, refusal(libc::ENOSYS as u32));
    }
}
