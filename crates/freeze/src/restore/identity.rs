//! Who a thread is: its ids, its capabilities, and its filters of system calls.
//!
//! A filter can answer a call with success and not make it, or end who makes it. So a thread becomes who it was before
//! it has filters of its own, and what holds is read back. Installing a filter takes CAP_SYS_ADMIN, or that no
//! privileges are gained any more: whoever has neither in the end keeps the capability until it has its filters, and
//! gives it up under them by a single call. Whether they let that pass is [judged](crate::restore::filter_verdict)
//! before.

use crate::image::{Credentials, Image, UserSpace};
use crate::restore::filter_verdict;
use crate::restore::script::{Chapter, Writer};

/// What a thread has already of what it was when it was frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inherited<'a> {
    /// So many filters of system calls, the guest's own.
    pub(crate) filters: usize,
    /// Capabilities that it can ever have.
    pub(crate) bounding: u64,
    /// Whether it is root without further groups.
    pub(crate) plain: bool,
    /// The user namespace that it has entered, with all further groups.
    pub(crate) space: Option<&'a UserSpace>,
}

impl Inherited<'_> {
    /// Of the maker, which gives up what no thread of the image has: each call that it makes is one less for every
    /// thread. And the step that installs the first filter.
    pub(crate) fn of_maker(writer: &mut Writer, image: &Image, filters: &[Vec<u8>]) -> (Self, usize) {
        let threads = image.processes.iter().flat_map(|process| &process.threads);
        let bounding = threads.fold(0, |all, thread| all | thread.credentials.capabilities[3]);
        bound(writer, Writer::MAKING, bounding, u64::MAX);
        let place = writer.length(Writer::MAKING);
        install(writer, Writer::MAKING, filters, 0);
        (Self { filters: filters.len(), bounding, plain: true, space: None }, place)
    }
}

/// What becomes of a thread that has become who it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// It has all filters.
    Nothing,
    /// It is given more by another thread.
    ToBeFiltered,
    /// It installs more itself, and keeps what that takes.
    ToFilter,
}

/// CAP_SYS_ADMIN.
const SYS_ADMIN: u64 = 1 << 21;

/// The highest capability of any kernel so far is 40; more are tried.
const CAPABILITIES: u64 = 48;

const KNOWN_CAPABILITIES: u64 = 41;

/// Writes a thread's becoming who it was.
pub(crate) fn become_it(
    writer: &mut Writer,
    chapter: Chapter,
    credentials: &Credentials,
    inherited: Inherited<'_>,
    kept: Kept,
) {
    let seen = inherited.space.map(|space| space.seen(credentials));
    let who = seen.as_ref().unwrap_or(credentials);
    bound(writer, chapter, who.capabilities[3], inherited.bounding);
    // They may be set only while all capabilities are there.
    if who.secure_bits != 0 {
        let arguments = [libc::PR_SET_SECUREBITS as u64, who.secure_bits];
        writer.call(chapter, "setting the secure bits", libc::SYS_prctl, &arguments);
    }
    if inherited.space.is_none() && !(inherited.plain && who.further.is_empty()) {
        let further: Vec<u8> = who.further.iter().flat_map(|group| group.to_le_bytes()).collect();
        let further = writer.data(&further, 8);
        let arguments = [who.further.len() as u64, further];
        writer.call(chapter, "setting further groups", libc::SYS_setgroups, &arguments);
    }
    let [real, effective, saved, of_files] = who.groups.map(u64::from);
    if !(inherited.plain && [real, effective, saved] == [0; 3]) {
        writer.call(chapter, "setting the groups", libc::SYS_setresgid, &[real, effective, saved]);
    }
    if of_files != effective {
        writer.call(chapter, "setting the file-system group", libc::SYS_setfsgid, &[of_files]);
        holds(writer, chapter, "the file-system group", libc::SYS_setfsgid, &[NO_ID], of_files);
    }
    let [real, effective, saved, of_files] = who.users.map(u64::from);
    if inherited.space.is_some() || [real, effective, saved, of_files] != [0; 4] {
        // Capabilities outlive the change of user, to be set as they were.
        writer.attempt(chapter, "keeping capabilities", libc::SYS_prctl, &[libc::PR_SET_KEEPCAPS as u64, 1]);
        writer.call(chapter, "setting the users", libc::SYS_setresuid, &[real, effective, saved]);
        if of_files != effective {
            writer.call(chapter, "setting the file-system user", libc::SYS_setfsuid, &[of_files]);
            holds(writer, chapter, "the file-system user", libc::SYS_setfsuid, &[NO_ID], of_files);
        }
        let keeps = who.secure_bits >> libc::SECBIT_KEEP_CAPS.trailing_zeros() & 1;
        writer.attempt(
            chapter,
            "no longer keeping capabilities",
            libc::SYS_prctl,
            &[libc::PR_SET_KEEPCAPS as u64, keeps],
        );
    }
    let [inheritable, permitted, effective, _, ambient] = who.capabilities;
    let more = if kept == Kept::ToFilter && !may_filter(who) { SYS_ADMIN } else { 0 };
    let sets = [effective | more, permitted | more, inheritable];
    set(writer, chapter, sets);
    for number in (0..CAPABILITIES).filter(|number| ambient >> number & 1 == 1) {
        let arguments = [libc::PR_CAP_AMBIENT as u64, libc::PR_CAP_AMBIENT_RAISE as u64, number, 0, 0];
        writer.call(chapter, "raising an ambient capability", libc::SYS_prctl, &arguments);
    }
    if who.no_new_privileges {
        let arguments = [libc::PR_SET_NO_NEW_PRIVS as u64, 1];
        writer.call(chapter, "giving up new privileges", libc::SYS_prctl, &arguments);
    }
    // Without filters of its own a call that succeeded did what it was to do.
    if kept != Kept::Nothing {
        read_back(writer, chapter, who, inherited, sets);
    }
}

/// Whether it may install filters as who it is in the end.
fn may_filter(who: &Credentials) -> bool {
    who.no_new_privileges || who.capabilities[2] & SYS_ADMIN != 0
}

/// Writes the installing of its filters, and the giving up of what that took. The step that installs the first one.
pub(crate) fn filter(
    writer: &mut Writer,
    chapter: Chapter,
    who: &Credentials,
    filters: &[Vec<u8>],
    flags: u64,
) -> usize {
    let place = writer.length(chapter);
    install(writer, chapter, filters, flags);
    if !filters.is_empty() && !may_filter(who) {
        let [inheritable, permitted, effective, ..] = who.capabilities;
        set(writer, chapter, [effective, permitted, inheritable]);
    }
    place
}

/// Writes the installing of filters, each by a call that those before it let pass, if there is one.
pub(crate) fn install(writer: &mut Writer, chapter: Chapter, filters: &[Vec<u8>], flags: u64) {
    const SECCOMP_SET_MODE_FILTER: u64 = 1;
    const SECCOMP_MODE_FILTER: u64 = 2;
    let label = "installing a system-call filter";
    for (number, program) in filters.iter().enumerate() {
        let at = writer.data(program, 8);
        let words = writer.words(&[program.len() as u64 / 8, at]);
        let usual = [SECCOMP_SET_MODE_FILTER, flags, words];
        let other = [libc::PR_SET_SECCOMP as u64, SECCOMP_MODE_FILTER, words];
        let before = &filters[..number];
        let is_let = |call, arguments: &[u64]| filter_verdict::let_call(before, call, &[arguments, &[0; 3]].concat());
        if flags == 0 && !is_let(libc::SYS_seccomp, &usual) && is_let(libc::SYS_prctl, &other) {
            writer.call(chapter, label, libc::SYS_prctl, &other);
        } else {
            writer.call(chapter, label, libc::SYS_seccomp, &usual);
        }
    }
}

/// Gives up the capabilities of a set that are not of another.
pub(crate) fn bound(writer: &mut Writer, chapter: Chapter, kept: u64, of: u64) {
    for number in (0..CAPABILITIES).filter(|number| (of & !kept) >> number & 1 == 1) {
        let arguments = [libc::PR_CAPBSET_DROP as u64, number];
        writer.attempt(chapter, "bounding capabilities", libc::SYS_prctl, &arguments);
    }
}

/// The effective, the permitted and the inheritable set, as capset(2) has them.
fn encoded(sets: [u64; 3]) -> Vec<u8> {
    let half = |set: u64, high: bool| if high { (set >> 32) as u32 } else { set as u32 };
    let words = [false, true].map(|high| sets.map(|set| half(set, high)));
    words.iter().flatten().flat_map(|word| word.to_le_bytes()).collect()
}

/// Of capabilities: version 3, and who asks.
const HEADER: [u32; 2] = [0x2008_0522, 0];

fn set(writer: &mut Writer, chapter: Chapter, sets: [u64; 3]) {
    let header: Vec<u8> = HEADER.iter().flat_map(|word| word.to_le_bytes()).collect();
    let (header, sets) = (writer.data(&header, 8), writer.data(&encoded(sets), 8));
    writer.call(chapter, "setting capabilities", libc::SYS_capset, &[header, sets]);
}

/// An id that nobody has: setfsuid(2) and setfsgid(2) change nothing then, and say what holds.
const NO_ID: u64 = 0xffff_ffff;

/// A call that says what holds.
fn holds(writer: &mut Writer, chapter: Chapter, what: &str, number: i64, arguments: &[u64], want: u64) {
    writer.exact(chapter, format!("reading back {what}"), number, arguments, want);
}

/// Compares what holds with what is to hold.
fn read_back(writer: &mut Writer, chapter: Chapter, who: &Credentials, inherited: Inherited<'_>, sets: [u64; 3]) {
    let places = |at| vec![at, at + 4, at + 8];
    let bytes = |ids: &[u32]| -> Vec<u8> { ids.iter().flat_map(|id| id.to_le_bytes()).collect() };
    writer.reading(chapter, "reading back the users", libc::SYS_getresuid, places, &bytes(&who.users[..3]));
    writer.reading(chapter, "reading back the groups", libc::SYS_getresgid, places, &bytes(&who.groups[..3]));
    let of_files = [(libc::SYS_setfsuid, who.users[3]), (libc::SYS_setfsgid, who.groups[3])];
    for (number, id) in of_files {
        holds(writer, chapter, "the file-system ids", number, &[NO_ID], u64::from(id));
    }
    if inherited.space.is_none() {
        holds(writer, chapter, "further groups", libc::SYS_getgroups, &[0, 0], who.further.len() as u64);
    }
    let header = writer.data(&bytes(&HEADER), 8);
    let into = |at| vec![header, at];
    writer.reading(chapter, "reading back capabilities", libc::SYS_capget, into, &encoded(sets));
    for number in (0..KNOWN_CAPABILITIES).filter(|number| who.capabilities[3] >> number & 1 == 0) {
        let arguments = [libc::PR_CAPBSET_READ as u64, number];
        holds(writer, chapter, "capabilities that it cannot get", libc::SYS_prctl, &arguments, 0);
    }
    let settings = [
        ("the secure bits", libc::PR_GET_SECUREBITS, who.secure_bits),
        ("new privileges", libc::PR_GET_NO_NEW_PRIVS, u64::from(who.no_new_privileges)),
    ];
    for (what, option, value) in settings {
        holds(writer, chapter, what, libc::SYS_prctl, &[option as u64], value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inherited() -> Inherited<'static> {
        Inherited { filters: 0, bounding: 0, plain: true, space: None }
    }

    fn steps(who: &Credentials, filters: usize) -> Vec<String> {
        let mut writer = Writer::new();
        let kept = if filters == 0 { Kept::Nothing } else { Kept::ToFilter };
        become_it(&mut writer, Writer::MAKING, who, inherited(), kept);
        filter(&mut writer, Writer::MAKING, who, &vec![vec![0; 8]; filters], 0);
        format!("{:?}", writer.finish(9, 3, 1, 0)).lines().map(str::to_owned).collect()
    }

    fn who(effective: u64, no_new_privileges: bool) -> Credentials {
        let capabilities = [0, effective, effective, 0, 0];
        Credentials { users: [7; 4], capabilities, no_new_privileges, ..Credentials::default() }
    }

    #[test]
    fn filters_come_last_but_for_what_they_take() {
        for (who, behind) in [(who(0, true), 0), (who(SYS_ADMIN, false), 0), (who(1, false), 1)] {
            let steps = steps(&who, 1);
            let filter = steps.iter().position(|step| step.contains("installing")).unwrap();
            let read = steps.iter().rposition(|step| step.contains("reading back")).unwrap();
            assert!(read < filter, "{steps:?}");
            assert_eq!(steps.len() - filter - 1, behind, "{steps:?}");
            assert!(behind == 0 || steps.last().unwrap().contains("setting capabilities"), "{steps:?}");
        }
    }

    #[test]
    fn without_filters_nothing_is_read_back() {
        assert!(!steps(&who(1, false), 0).iter().any(|step| step.contains("reading back")));
        let other = Credentials { users: [7, 7, 7, 8], ..Credentials::default() };
        assert_eq!(steps(&other, 0).iter().filter(|step| step.contains("reading back")).count(), 1);
    }

    #[test]
    fn what_no_thread_has_is_given_up_once() {
        let mut writer = Writer::new();
        let (maker, chapter) = (Writer::MAKING, writer.chapter());
        bound(&mut writer, maker, 0b11, u64::MAX);
        bound(&mut writer, chapter, 0b01, 0b11);
        assert_eq!(writer.steps_from(maker, 0).count() as u64, CAPABILITIES - 2);
        assert_eq!(writer.steps_from(chapter, 0).count(), 1);
    }
}
