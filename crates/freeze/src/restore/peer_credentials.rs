//! How connections come to be somebody's: the kernel notes the effective ids of whoever calls connect(2), listen(2) or
//! socketpair(2), and tells them to the other end (SO_PEERCRED). So the maker has these ids for the one call.
//!
//! It keeps its capabilities meanwhile (SECBIT_NO_SETUID_FIXUP): the mode of a socket's file may be another by now than
//! the one that let its process connect.

use crate::image::PeerCredentials;
use crate::restore::script::Writer;

const MAKING: crate::restore::script::Chapter = Writer::MAKING;

/// An id that a call leaves as it is.
const SAME: u64 = u32::MAX as u64;

/// Writes steps that are done with somebody's effective ids and further groups: with nobody's where it is not known
/// whose they are.
pub(crate) fn acting_as<T>(
    writer: &mut Writer,
    who: Option<&PeerCredentials>,
    act: impl FnOnce(&mut Writer) -> T,
) -> T {
    let nobody = PeerCredentials::nobody();
    let who = who.unwrap_or(&nobody);
    if who.is_plain_root() {
        return act(writer);
    }
    secure_bits(writer, "keeping capabilities as somebody else", libc::SECBIT_NO_SETUID_FIXUP as u64);
    become_it(writer, "taking a peer's", who);
    let acted = act(writer);
    become_it(writer, "giving up a peer's", &PeerCredentials::default());
    secure_bits(writer, "keeping capabilities no longer", 0);
    // Whatever is made from here on is root's.
    writer.exact(MAKING, "being root's user again", libc::SYS_geteuid, &[], 0);
    writer.exact(MAKING, "being root's group again", libc::SYS_getegid, &[], 0);
    acted
}

fn become_it(writer: &mut Writer, label: &str, who: &PeerCredentials) {
    let further: Vec<u8> = who.further.iter().flat_map(|group| group.to_le_bytes()).collect();
    let at = writer.data(&further, 8);
    writer.call(MAKING, format!("{label} further groups"), libc::SYS_setgroups, &[who.further.len() as u64, at]);
    writer.call(MAKING, format!("{label} group"), libc::SYS_setresgid, &[SAME, who.group.into(), SAME]);
    writer.call(MAKING, format!("{label} user"), libc::SYS_setresuid, &[SAME, who.user.into(), SAME]);
    // Another user makes memory what fs.suid_dumpable says. This is the holder's, and nobody's to look into.
    let label = format!("{label} user and not to be looked into");
    writer.call(MAKING, label, libc::SYS_prctl, &[libc::PR_SET_DUMPABLE as u64, 0]);
}

fn secure_bits(writer: &mut Writer, label: &str, bits: u64) {
    writer.call(MAKING, label, libc::SYS_prctl, &[libc::PR_SET_SECUREBITS as u64, bits]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_not_the_maker_takes_steps_and_goes_back() {
        let steps = |who: Option<&PeerCredentials>| {
            let mut writer = Writer::new();
            acting_as(&mut writer, who, |writer| writer.call(MAKING, "acting", libc::SYS_connect, &[]));
            format!("{:?}", writer.finish(1, 1, 0, 0))
        };
        assert_eq!(steps(Some(&PeerCredentials::default())).lines().count(), 1);
        let somebody = PeerCredentials { user: 1000, group: 0, further: vec![5] };
        for who in [None, Some(&somebody)] {
            let text = steps(who);
            let place = |label: &str| text.find(label).unwrap_or_else(|| panic!("{text}"));
            assert!(
                place("taking a peer's user") < place("acting") && place("acting") < place("being root's user again")
            );
        }
    }
}
