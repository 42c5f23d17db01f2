//! What a spec grants and limits, read from the user's words; and the part of it that each process carries by itself.

use super::{limits, profile};
use pando_api::{Rlimit, Spec};
use pando_limit::{Limits, Refusal};
use std::collections::BTreeMap;

/// The limits that a spec speaks of.
pub fn read(spec: &Spec) -> Result<Limits, Refusal> {
    Limits::read(spec.requests())
}

/// The resource limits of the guest's processes, by name: those that the user gave by name, those that the spec's
/// memory and files stand for, and those of its profile.
pub fn of_processes(spec: &Spec) -> Result<BTreeMap<String, Rlimit>, Refusal> {
    let wanted = read(spec)?;
    let granted = [
        ("memlock", wanted.memory.locked),
        ("data", wanted.memory.anonymous),
        ("as", wanted.memory.virtual_size),
        ("nofile", wanted.files.each),
    ];
    let granted = granted
        .into_iter()
        .filter_map(|(name, most)| most.map(|most| (name.to_owned(), Rlimit { soft: Some(most), hard: Some(most) })));
    let mut all = profile::of(spec.security_profile()).rlimits();
    all.extend(granted);
    // A user who names a limit as the kernel does means that one.
    all.extend(spec.rlimits.clone());
    all.entry("core".to_owned()).and_modify(|core| *core = limits::without_pipe(*core));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_api::MemoryRequest;

    #[test]
    fn a_limit_by_name_wins() {
        let memory =
            MemoryRequest { locked: Some("1M".into()), anonymous: Some("64M".into()), ..MemoryRequest::default() };
        let rlimits = BTreeMap::from([("memlock".to_owned(), "5:6".parse().unwrap())]);
        let spec = Spec { memory, rlimits, files: Some("64".into()), ..Spec::default() };
        let all = of_processes(&spec).unwrap();
        assert_eq!((all["memlock"].soft, all["data"].soft, all["nofile"].hard), (Some(5), Some(64 << 20), Some(64)));
    }

    #[test]
    fn no_core_means_none_for_a_program_of_core_pattern_either() {
        let rlimits = |text: &str| BTreeMap::from([("core".to_owned(), text.parse().unwrap())]);
        let none = of_processes(&Spec { rlimits: rlimits("0"), ..Spec::default() }).unwrap()["core"];
        let own = limits::within_own("core", Rlimit { soft: Some(1), hard: Some(1) });
        assert_eq!(none, own);
        let some = of_processes(&Spec { rlimits: rlimits("4096"), ..Spec::default() }).unwrap()["core"];
        assert_eq!(some.soft, Some(4096));
        assert!(!of_processes(&Spec::default()).unwrap().contains_key("core"));
        let strict = Spec { profile: Some(pando_api::Profile::Strict), ..Spec::default() };
        assert_eq!(of_processes(&strict).unwrap()["core"], own);
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_its_key() {
        let spec = Spec { pids: Some("many".into()), ..Spec::default() };
        assert!(read(&spec).unwrap_err().to_string().starts_with("pids cannot be 'many'"));
    }
}
