//! What a spec grants and limits, read from the user's words; and the part of it that each process carries by itself.

use super::profile;
use pando_api::{Rlimit, Spec};
use pando_limit::{Limits, Refusal};
use std::collections::BTreeMap;

/// The limits that a spec speaks of.
pub fn read(spec: &Spec) -> Result<Limits, Refusal> {
    Limits::read(spec.wishes())
}

/// The resource limits of the guest's processes, by name: those that the user gave by name, those that the spec's memory and files stand for, and
/// those of its profile.
pub fn of_processes(spec: &Spec) -> Result<BTreeMap<String, Rlimit>, Refusal> {
    let limits = read(spec)?;
    let granted = [
        ("memlock", limits.memory.locked),
        ("data", limits.memory.anonymous),
        ("as", limits.memory.virtual_size),
        ("nofile", limits.files.each),
    ];
    let granted = granted
        .into_iter()
        .filter_map(|(name, most)| most.map(|most| (name.to_owned(), Rlimit { soft: Some(most), hard: Some(most) })));
    let mut all = profile::of(spec.security_profile()).rlimits();
    all.extend(granted);
    // Whoever names a limit as the kernel does means that one.
    all.extend(spec.rlimits.clone());
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_api::MemoryWish;

    #[test]
    fn a_limit_by_name_wins() {
        let memory = MemoryWish { locked: Some("1M".into()), anonymous: Some("64M".into()), ..MemoryWish::default() };
        let rlimits = BTreeMap::from([("memlock".to_owned(), "5:6".parse().unwrap())]);
        let spec = Spec { memory, rlimits, files: Some("64".into()), ..Spec::default() };
        let all = of_processes(&spec).unwrap();
        assert_eq!((all["memlock"].soft, all["data"].soft, all["nofile"].hard), (Some(5), Some(64 << 20), Some(64)));
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_its_key() {
        let spec = Spec { pids: Some("many".into()), ..Spec::default() };
        assert!(read(&spec).unwrap_err().to_string().starts_with("pids cannot be 'many'"));
    }
}
