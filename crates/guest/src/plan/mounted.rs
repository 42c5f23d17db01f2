//! What a guest of a spec has mounted at its start: read off its plan.

use super::init::{Facts, Heritage, of_init};
use super::{PlanError, PrewarmedKind, Want, of_prewarmed_init};
use pando_api::Spec;
use pando_limit::view::View;
use pando_shim::{Attributes, Make, Mountpoint, Step, next_step};

/// Something that a plan mounts in a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Where, from the guest's root on. Links of the guest's may be on the way.
    pub path: String,
    /// The kind of its file system; none for directories and files of the host.
    pub kind: String,
    /// Its attributes, where the plan says all of them.
    pub attributes: Option<Attributes>,
    /// Whether each guest of the spec has it, whatever its kernel and its limits.
    pub always: bool,
}

/// All that is mounted in a guest before anything of its own runs. `unified`: whether this host has a unified cgroup
/// hierarchy; `legacy`: see [`Facts::legacy`].
pub fn mounted(spec: &Spec, unified: bool, legacy: &[(&'static str, String)]) -> Result<Vec<Mounted>, PlanError> {
    let facts = Facts {
        name: "guest".into(),
        unified,
        legacy: legacy.to_vec(),
        file_volumes: Vec::new(),
        heritage: Heritage::None,
        views: View::ALL.to_vec(),
        awaited: false,
        admitted: true,
    };
    let place = |kind: &str| Mounted { path: String::new(), kind: kind.to_owned(), attributes: None, always: true };
    let root = Mounted { path: "/".into(), attributes: Some(Attributes::NO_DEV), ..place("overlay") };
    let mut all = vec![root];
    for plan in [of_prewarmed_init(PrewarmedKind::of(spec), unified)?, of_init(spec, &facts, None)?] {
        let mut rest = plan.steps.as_slice();
        while let Some(Ok(step)) = next_step(&mut rest) {
            let (at, one) = match step {
                Step::Attach { fd, on } => (on.at, attached(plan.wants[usize::from(fd)], &on)),
                Step::Mount { kind, attributes, on, .. } => {
                    let kind = kind.c_str().to_string_lossy().into_owned();
                    let always = on.make != Make::Skip;
                    (on.at, Mounted { path: String::new(), kind, attributes: Some(attributes), always })
                }
                // The null device of a guest's own, or the file itself.
                Step::Mask { at } => (at, Mounted { always: false, ..place("tmpfs") }),
                Step::Protect { at } => {
                    let is_device = at.c_str().to_bytes().starts_with(b"sys");
                    (at, Mounted { always: false, ..place(if is_device { "sysfs" } else { "proc" }) })
                }
                // The root's own attributes.
                Step::Change { at, set, .. } if at.c_str().is_empty() => {
                    let own = all[0].attributes.get_or_insert(Attributes::empty());
                    own.insert(Attributes::from_bits_truncate(set));
                    continue;
                }
                _ => continue,
            };
            let path = format!("/{}", at.c_str().to_string_lossy().trim_start_matches('/'));
            all.push(Mounted { path, ..one });
        }
    }
    if spec.init.is_some() {
        all.push(Mounted { path: "/dev/console".into(), always: false, ..place("devpts") });
    }
    Ok(all)
}

fn attached(want: Want, on: &Mountpoint<'_>) -> Mounted {
    let outside = Mounted { path: String::new(), kind: String::new(), attributes: None, always: on.make != Make::Skip };
    match want {
        // As `devices` makes it.
        Want::Devices => {
            Mounted { kind: "tmpfs".into(), attributes: Some(Attributes::NO_SUID | Attributes::NO_EXEC), ..outside }
        }
        _ => outside,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_api::Volume;

    #[test]
    fn it_is_what_the_plan_mounts() {
        let volume = Volume { source: "/srv".into(), target: "/data/".into(), read_only: true };
        let all = mounted(&Spec { volumes: vec![volume], ..Spec::default() }, true, &[]).unwrap();
        let of = |path: &str| all.iter().find(|one| one.path == path).unwrap_or_else(|| panic!("{path}: {all:?}"));
        assert_eq!(of("/").kind, "overlay");
        assert_eq!((of("/dev").kind.as_str(), of("/proc").kind.as_str()), ("tmpfs", "proc"));
        assert!(of("/data").kind.is_empty() && of("/data").always);
        assert!(!of("/proc/meminfo").always && of("/proc/meminfo").kind.is_empty());
        assert!(all.iter().any(|one| one.kind == "tmpfs" && one.path.starts_with("/proc/")), "what is hidden");
    }
}
