//! Settings of the kernel's that a guest's namespaces have of their own.

use super::{Plan, PlanError, c_string, text};
use crate::policy::profile;
use pando_api::Spec;
use pando_shim::Step;

/// Those of the namespace of System V objects (ipc/ipc_sysctl.c).
const IPC: [&str; 8] = [
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
    "kernel.sem",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
    "kernel.shm_rmid_forced",
];

/// Sets what the spec names, where the first process still sees the /proc that it was made with. None of it reaches
/// beyond the guest's own namespaces.
pub(super) fn set(plan: &mut Plan, spec: &Spec) -> Result<(), PlanError> {
    for (key, value) in &spec.sysctl {
        let refused = |why: &'static str| PlanError::Sysctl { key: key.clone(), why };
        let dotted = key.replace('/', ".");
        let parts = dotted.split('.');
        if parts.clone().any(|part| part.is_empty()) || parts.count() < 2 {
            return Err(refused("it is no setting's name; write for example net.ipv4.ip_forward=1"));
        }
        let of_network = dotted.starts_with("net.");
        if !of_network && !dotted.starts_with("fs.mqueue.") && !IPC.contains(&dotted.as_str()) {
            return Err(refused(
                "no guest has it of its own: it is the whole machine's, and is set on the host by sysctl(8)",
            ));
        }
        if of_network && spec.network.is_the_hosts() {
            return Err(refused(
                "the guest is on the host's network, and it would be the host's; use --net private or --net none",
            ));
        }
        if !profile::of(spec.security_profile()).read_only(spec.user_namespace).any(|path| "proc/sys" == path) {
            let path = if key.contains('/') { key.clone() } else { key.replace('.', "/") };
            let at = c_string("setting", &path)?;
            plan.step(format!("setting {key}"), Step::Setting { at: text(&at), value: value.as_bytes() });
            continue;
        }
        return Err(refused(match spec.user_namespace {
            true => "the profile keeps the guest from the kernel's settings; give it --profile default",
            false => "without a user namespace the guest is kept from the kernel's settings; leave --userns host out",
        }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_api::{Network, Profile};

    fn plan(key: &str, spec: Spec) -> Result<usize, String> {
        let spec = Spec { sysctl: [(key.to_owned(), "1".to_owned())].into(), ..spec };
        let mut plan = Plan::new();
        set(&mut plan, &spec).map(|()| plan.labels.len()).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_of_the_guests_own_namespaces_are_set_and_no_others() {
        for own in ["net.ipv4.ip_forward", "net/ipv4/conf/eth0.1/forwarding", "kernel.shmmax", "fs.mqueue.msg_max"] {
            assert_eq!(plan(own, Spec::default()), Ok(1), "{own}");
        }
        for others in ["kernel.panic", "vm.swappiness", "fs.file-max", "kernel.core_pattern", "net", "net..x", ""] {
            assert!(plan(others, Spec::default()).unwrap_err().contains(others), "{others}");
        }
        let refused = |spec| plan("net.ipv4.ip_forward", spec).unwrap_err();
        assert!(refused(Spec { network: Network::Host, ..Spec::default() }).contains("--net private"));
        assert!(refused(Spec { profile: Some(Profile::Strict), ..Spec::default() }).contains("--profile default"));
        assert!(refused(Spec { user_namespace: false, ..Spec::default() }).contains("--userns host"));
    }
}
