//! The few tests that between them use each part of Pando once. They run on each kernel that the README names
//! (`--selection`), where all of them would take too long.

/// Their names.
pub(crate) const SELECTION: &[&str] = &[
    "doctor::tries_what_pando_is_for_and_leaves_nothing",
    // Guests of each kind of source.
    "run::on_the_hosts_own_root",
    "lifecycle::from_create_to_rm",
    "lifecycle::from_a_tarball",
    "lifecycle::from_another_guest",
    "images::run_from_an_oci_layout",
    "store::equal_sources_are_one_layer",
    "exec::is_inside_the_guest",
    "clones::a_clone_runs_on_from_the_frozen_instant",
    "restore::a_guest_goes_on_as_itself",
    "tx::what_a_command_did_is_committed_whole",
    "tx::a_command_that_fails_leaves_no_trace",
    "tx_guest::what_a_command_did_is_committed_whole",
    "kept_state::guests_start_with_their_files",
    "kept_state::images_are_cloned_or_say_what_kernel_they_need",
    "kept_state::a_commit_that_was_cut_off_is_finished",
    "limits::processes_are_bounded",
    "limits::memory_bounds_a_hog",
    "network::the_host_keeps_its_own",
    "private::published_ports_lead_inside",
];

#[cfg(test)]
mod tests {
    use super::SELECTION;
    use crate::area;

    #[test]
    fn each_exists() {
        for name in SELECTION {
            assert!(area::all().any(|case| case.name == *name), "there is no test {name}");
        }
    }
}
