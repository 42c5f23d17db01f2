//! Which devices a guest can use, whatever nodes it finds or makes: an allow-list, as a program for control groups of
//! version 2 and as the lines that the devices controller of version 1 takes.

use std::str::FromStr;

/// A line of an allow-list: `c MAJOR:MINOR rwm` or `b …`, with `*` for every minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    kind: Kind,
    major: u32,
    minor: Option<u32>,
    /// BPF_DEVCG_ACC_*: 1 make a node, 2 read, 4 write.
    access: u32,
}

/// BPF_DEVCG_DEV_*
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Block = 1,
    Character = 2,
}

const ACCESS: [(char, u32); 3] = [('m', 1), ('r', 2), ('w', 4)];
const EVERY_ACCESS: u32 = 7;

/// A line that cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("'{0}' is no device; write c 1:3 rwm, b 8:0 r, or c 136:* rw")]
pub struct DeviceError(String);

impl FromStr for Rule {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let read = || {
            let mut words = text.split(' ');
            let kind = match words.next()? {
                "b" => Kind::Block,
                "c" => Kind::Character,
                _ => return None,
            };
            let (major, minor) = words.next()?.split_once(':')?;
            let minor = if minor == "*" { None } else { Some(minor.parse().ok()?) };
            let access = words.next()?.chars().try_fold(0, |access, letter| {
                let (_, bit) = ACCESS.iter().find(|(known, _)| *known == letter)?;
                Some(access | bit)
            })?;
            let complete = words.next().is_none() && access != 0;
            complete.then_some(Self { kind, major: major.parse().ok()?, minor, access })
        };
        read().ok_or_else(|| DeviceError(text.to_owned()))
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.kind == Kind::Block { 'b' } else { 'c' };
        let minor = self.minor.map_or("*".to_owned(), |minor| minor.to_string());
        let access: String = "rwm".chars().filter(|letter| self.access & bit_of(*letter) != 0).collect();
        write!(out, "{kind} {}:{minor} {access}", self.major)
    }
}

fn bit_of(letter: char) -> u32 {
    ACCESS.iter().find(|(known, _)| *known == letter).map_or(0, |(_, bit)| *bit)
}

/// An instruction of eBPF, as the kernel takes it (linux/bpf.h, `struct bpf_insn`).
fn instruction(code: u8, to: u8, from: u8, offset: i16, value: u32) -> u64 {
    let [low, high] = offset.to_le_bytes();
    let [a, b, c, d] = value.to_le_bytes();
    u64::from_le_bytes([code, to | from << 4, low, high, a, b, c, d])
}

const LOAD_WORD: u8 = 0x61;
const COPY: u8 = 0xbf;
const SET: u8 = 0xb7;
const AND: u8 = 0x57;
const SHIFT_RIGHT: u8 = 0x77;
const GO_UNLESS_EQUAL: u8 = 0x55;
const GO: u8 = 0x05;
const EXIT: u8 = 0x95;

/// Registers: the answer, the context, then what is asked for.
const ANSWER: u8 = 0;
const CONTEXT: u8 = 1;
const KIND: u8 = 2;
const MAJOR: u8 = 3;
const MINOR: u8 = 4;
const WANTED: u8 = 5;
const EXCESS: u8 = 6;

/// The program: 1 where a rule allows what is asked for (`struct bpf_cgroup_dev_ctx`: access and kind, major, minor),
/// else 0.
pub fn program(rules: &[Rule]) -> Vec<u64> {
    let mut program = vec![
        instruction(LOAD_WORD, KIND, CONTEXT, 0, 0),
        instruction(LOAD_WORD, MAJOR, CONTEXT, 4, 0),
        instruction(LOAD_WORD, MINOR, CONTEXT, 8, 0),
        instruction(COPY, WANTED, KIND, 0, 0),
        instruction(SHIFT_RIGHT, WANTED, 0, 0, 16),
        instruction(AND, KIND, 0, 0, 0xffff),
    ];
    for rule in rules {
        program.extend(allowed(rule));
    }
    program.extend([instruction(SET, ANSWER, 0, 0, 0), instruction(EXIT, 0, 0, 0, 0)]);
    program
}

fn allowed(rule: &Rule) -> Vec<u64> {
    let mut program = vec![instruction(SET, ANSWER, 0, 0, 1), instruction(EXIT, 0, 0, 0, 0)];
    let mut before = |register: u8, value: u32| {
        let past = i16::try_from(program.len()).expect("a rule is a dozen instructions");
        program.insert(0, instruction(GO_UNLESS_EQUAL, register, 0, past, value));
    };
    if let Some(minor) = rule.minor {
        before(MINOR, minor);
    }
    before(MAJOR, rule.major);
    before(KIND, rule.kind as u32);
    before(EXCESS, 0);
    let excess = [instruction(COPY, EXCESS, WANTED, 0, 0), instruction(AND, EXCESS, 0, 0, EVERY_ACCESS & !rule.access)];
    excess.into_iter().chain(program).collect()
}

/// A rule of an ordered list: of the rules that say something of a use, the last one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderedRule {
    /// `None` for both kinds.
    kind: Option<Kind>,
    major: Option<u32>,
    minor: Option<u32>,
    access: u32,
    allow: bool,
}

impl OrderedRule {
    /// A rule from a line such as `c 1:3 rwm`, with `a` for both kinds and `*` for every number.
    ///
    /// # Errors
    ///
    /// Where the line cannot be read.
    pub fn read(text: &str, allow: bool) -> Result<Self, DeviceError> {
        let any = text.strip_prefix('a').map(|rest| format!("c{rest}"));
        let line = any.as_deref().unwrap_or(text);
        // The number of a kind's rule is read by the same words, whatever stands for it here.
        let every_major = line.split(' ').nth(1).is_some_and(|numbers| numbers.starts_with("*:"));
        let rule: Rule = if every_major { line.replacen("*:", "0:", 1) } else { line.to_owned() }
            .parse()
            .map_err(|_| DeviceError(text.to_owned()))?;
        Ok(Self {
            kind: any.is_none().then_some(rule.kind),
            major: (!every_major).then_some(rule.major),
            minor: rule.minor,
            access: rule.access,
            allow,
        })
    }

    /// Whether it allows what it speaks of.
    pub fn allows(&self) -> bool {
        self.allow
    }

    /// Whether it speaks of every use of every device.
    fn is_about_all(&self) -> bool {
        self.kind.is_none() && self.major.is_none() && self.minor.is_none() && self.access == EVERY_ACCESS
    }
}

impl std::fmt::Display for OrderedRule {
    /// As the devices controller of version 1 takes it.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            None => 'a',
            Some(Kind::Block) => 'b',
            Some(Kind::Character) => 'c',
        };
        let number = |number: Option<u32>| number.map_or("*".to_owned(), |number| number.to_string());
        let access: String = "rwm".chars().filter(|letter| self.access & bit_of(*letter) != 0).collect();
        write!(out, "{kind} {}:{} {access}", number(self.major), number(self.minor))
    }
}

/// What an ordered list begins with: whether everything is allowed or nothing, and the rules that come after.
pub fn after_the_last_for_all(rules: &[OrderedRule]) -> (bool, &[OrderedRule]) {
    match rules.iter().rposition(OrderedRule::is_about_all) {
        Some(at) => (rules[at].allow, &rules[at + 1..]),
        // As a group has it that nobody has said anything to.
        None => (true, rules),
    }
}

/// The program of an ordered list: each kind of use that is asked for has to be allowed by the last rule that says
/// something of it.
pub fn ordered_program(rules: &[OrderedRule]) -> Vec<u64> {
    let (default, rules) = after_the_last_for_all(rules);
    let mut program = vec![
        instruction(LOAD_WORD, KIND, CONTEXT, 0, 0),
        instruction(LOAD_WORD, MAJOR, CONTEXT, 4, 0),
        instruction(LOAD_WORD, MINOR, CONTEXT, 8, 0),
        instruction(COPY, WANTED, KIND, 0, 0),
        instruction(SHIFT_RIGHT, WANTED, 0, 0, 16),
        instruction(AND, KIND, 0, 0, 0xffff),
    ];
    for rule in rules.iter().rev() {
        program.extend(decided(rule));
    }
    program.extend([instruction(SET, ANSWER, 0, 0, u32::from(default)), instruction(EXIT, 0, 0, 0, 0)]);
    program
}

/// What is wanted and not decided yet is decided by a rule: denied at once, or taken off what is wanted.
fn decided(rule: &OrderedRule) -> Vec<u64> {
    let end = |answer| [instruction(SET, ANSWER, 0, 0, answer), instruction(EXIT, 0, 0, 0, 0)];
    let mut program = if rule.allow {
        let left = [
            instruction(AND, WANTED, 0, 0, EVERY_ACCESS & !rule.access),
            instruction(GO_UNLESS_EQUAL, WANTED, 0, 2, 0),
        ];
        [left, end(1)].concat()
    } else {
        // Past the end where nothing of it is wanted.
        let asked = [
            instruction(COPY, EXCESS, WANTED, 0, 0),
            instruction(AND, EXCESS, 0, 0, rule.access),
            instruction(GO_UNLESS_EQUAL, EXCESS, 0, 1, 0),
            instruction(GO, 0, 0, 2, 0),
        ];
        [&asked[..], &end(0)].concat()
    };
    let conditions = [(MINOR, rule.minor), (MAJOR, rule.major), (KIND, rule.kind.map(|kind| kind as u32))];
    for (register, value) in conditions.into_iter().filter_map(|(register, value)| Some((register, value?))) {
        let past = i16::try_from(program.len()).expect("a rule is a dozen instructions");
        program.insert(0, instruction(GO_UNLESS_EQUAL, register, 0, past, value));
    }
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a program answers.
    fn answer(program: &[u64], kind: Kind, access: u32, major: u32, minor: u32) -> u64 {
        let context = [kind as u64 | u64::from(access) << 16, u64::from(major), u64::from(minor)];
        let mut registers = [0_u64; 8];
        let mut at = 0_usize;
        loop {
            let [code, pair, low, high, a, b, c, d] = program[at].to_le_bytes();
            let (to, from) = (usize::from(pair & 15), usize::from(pair >> 4));
            let (offset, value) = (i16::from_le_bytes([low, high]), u64::from(u32::from_le_bytes([a, b, c, d])));
            at += 1;
            match code {
                LOAD_WORD => registers[to] = context[offset as usize / 4],
                COPY => registers[to] = registers[from],
                SET => registers[to] = value,
                AND => registers[to] &= value,
                SHIFT_RIGHT => registers[to] >>= value,
                GO_UNLESS_EQUAL if registers[to] != value => at += offset as usize,
                GO_UNLESS_EQUAL => {}
                GO => at += offset as usize,
                EXIT => return registers[0],
                other => panic!("no such instruction is expected here: {other:#x}"),
            }
        }
    }

    #[test]
    fn a_rule_reads_as_it_is_written() {
        for text in ["c 1:3 rwm", "b 8:0 r", "c 136:* rw", "c 5:2 m"] {
            assert_eq!(text.parse::<Rule>().unwrap().to_string(), text);
        }
        for wrong in ["", "c", "x 1:3 r", "c 1 r", "c 1:3", "c 1:3 q", "c 1:3 r x", "c a:3 r", "c 1:3 "] {
            assert!(wrong.parse::<Rule>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_listed_is_allowed_and_nothing_else() {
        let rules: Vec<Rule> =
            ["c 1:3 rw", "c 136:* rwm", "b 8:1 r"].iter().map(|text| text.parse().unwrap()).collect();
        let program = program(&rules);
        let of = |kind, access, major, minor| answer(&program, kind, access, major, minor) == 1;
        assert!(of(Kind::Character, 6, 1, 3) && of(Kind::Character, 2, 1, 3));
        assert!(!of(Kind::Character, 1, 1, 3), "no node may be made");
        assert!(!of(Kind::Block, 2, 1, 3) && !of(Kind::Character, 2, 1, 4));
        assert!(of(Kind::Character, 7, 136, 0) && of(Kind::Character, 7, 136, 1234));
        assert!(of(Kind::Block, 2, 8, 1) && !of(Kind::Block, 6, 8, 1) && !of(Kind::Block, 2, 8, 0));
    }

    #[test]
    fn of_an_ordered_list_the_last_rule_that_says_something_counts() {
        let rule = |text: &str, allow| OrderedRule::read(text, allow).unwrap();
        let rules = [
            rule("c 7:7 rwm", true),
            rule("a *:* rwm", false),
            rule("c *:* m", true),
            rule("c 1:* rw", true),
            rule("c 1:5 w", false),
            rule("b 8:0 r", true),
        ];
        let program = ordered_program(&rules);
        let of = |kind, access, major, minor| answer(&program, kind, access, major, minor) == 1;
        assert!(of(Kind::Character, 7, 1, 3), "by two rules together");
        assert!(of(Kind::Character, 3, 1, 5) && !of(Kind::Character, 4, 1, 5) && !of(Kind::Character, 6, 1, 5));
        assert!(of(Kind::Block, 2, 8, 0) && !of(Kind::Block, 3, 8, 0) && !of(Kind::Block, 1, 8, 0));
        assert!(of(Kind::Character, 1, 7, 7) && !of(Kind::Character, 2, 7, 7), "what came before all was denied");
        let open = ordered_program(&[rule("b *:3 w", false)]);
        assert_eq!(answer(&open, Kind::Block, 4, 9, 3), 0);
        assert_eq!((answer(&open, Kind::Block, 4, 9, 4), answer(&open, Kind::Block, 2, 9, 3)), (1, 1));
        assert_eq!(
            rules.map(|rule| rule.to_string())[1..3],
            ["a *:* rwm", "c *:* rwm"].map(|text| text.replace("c *:* rwm", "c *:* m"))
        );
    }
}
