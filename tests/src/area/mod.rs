//! The tests, a file an area. A new file is a `mod` line and a line in [`AREAS`].

mod admission;
mod aio;
mod attacks;
mod background;
mod burglars;
pub(crate) mod capi;
mod checkpoints;
mod clients;
mod clone_answers;
mod clone_checker;
mod clone_crash;
mod clone_filters;
mod clone_identity;
mod clone_inits;
mod clone_kills;
mod clone_limits;
mod clone_load;
mod clone_losses;
mod clone_memory;
mod clone_mounts;
mod clone_networks;
mod clone_objects;
mod clone_programs;
mod clone_scopes;
mod clone_trees;
mod clones;
mod confinement;
mod crash;
mod crash_at_random;
mod daemon_walls;
mod dangling_links;
mod doctor;
mod exec;
mod first_caller;
mod freeze;
mod freeze_kills;
mod freeze_refusals;
mod frozen_again;
mod frozen_settings;
mod full_disk;
mod gate;
mod gate_calls;
mod gate_hold;
mod generation;
mod getting_started;
mod given_devices;
mod habits;
mod host_devices;
mod hostile;
mod hostile_archives;
mod hostile_images;
mod image_files;
mod images;
mod inner_connections;
mod kept_images;
mod kept_state;
mod known_escapes;
mod late_finds;
mod lifecycle;
mod limits;
mod limits_told;
mod listing;
mod logs;
mod mounted_inside;
mod moving;
mod net;
mod never_lost;
mod oci;
mod oci_walls;
mod overbooking;
mod page_sharing;
mod pages;
mod plain_mistakes;
mod programs;
mod readers;
mod reboot;
mod reclaiming;
mod refusals;
mod registry;
mod registry_garbage;
mod registry_layers;
mod registry_names;
mod registry_resume;
mod registry_signatures;
mod reservations;
mod restarts;
mod restore;
mod reused_pids;
mod room;
mod run;
mod self_freeze;
mod servers;
mod settings;
mod shared_counts;
mod signed_images;
mod standard_streams;
mod standby_clones;
mod standing_still;
mod state_root;
mod store;
mod store_crash;
mod store_disorder;
mod store_full;
mod store_kills;
mod store_live;
mod store_unify;
mod syscall_fuzzer;
mod systemd;
mod sysvinit;
mod terminals;
mod trouble;
mod tx;
mod tx_after_point;
mod tx_bystanders;
mod tx_calls;
mod tx_contention;
mod tx_control_groups;
mod tx_crash;
mod tx_disputed;
mod tx_filesystems;
mod tx_guest;
mod tx_guest_meetings;
mod tx_guest_memory;
mod tx_guest_outside;
mod tx_guest_waits;
mod tx_histories;
mod tx_host_users;
mod tx_in_clones;
mod tx_in_memory;
mod tx_in_the_way;
mod tx_in_use;
mod tx_isolation;
mod tx_local_sockets;
mod tx_mount_root;
mod tx_mounts_change;
mod tx_open_commits;
mod tx_outside;
mod tx_own_mounts;
mod tx_packages;
mod tx_parts;
mod tx_power;
mod tx_programs;
mod tx_protection;
mod tx_race;
mod tx_refused;
mod tx_reused_numbers;
mod tx_review;
mod tx_root;
mod tx_serial;
mod tx_shell;
mod tx_spares;
mod tx_swapped;
mod tx_times;
mod tx_undo;
mod tx_undo_others;
mod tx_unseen;
mod tx_users;
mod tx_users_commits;
mod tx_validation;
mod unharmed;
mod views;
mod volume_links;
mod volumes;
mod walls_of_run;
mod wrong_limits;
mod xfstests;

use crate::case::Case;

/// The long ones first, so that the others run beside them.
const AREAS: &[&[Case]] = &[
    crash_at_random::CASES,
    sysvinit::CASES,
    generation::CASES,
    getting_started::CASES,
    pages::CASES,
    given_devices::CASES,
    gate::CASES,
    gate_calls::CASES,
    gate_hold::CASES,
    tx_after_point::CASES,
    tx_bystanders::CASES,
    tx_calls::CASES,
    tx_contention::CASES,
    tx_control_groups::CASES,
    tx_crash::CASES,
    tx_disputed::CASES,
    tx_power::CASES,
    tx_filesystems::CASES,
    tx::CASES,
    tx_local_sockets::CASES,
    tx_mount_root::CASES,
    tx_mounts_change::CASES,
    tx_open_commits::CASES,
    tx_own_mounts::CASES,
    tx_outside::CASES,
    tx_packages::CASES,
    tx_parts::CASES,
    tx_guest::CASES,
    tx_guest_meetings::CASES,
    tx_guest_memory::CASES,
    tx_guest_outside::CASES,
    tx_guest_waits::CASES,
    tx_histories::CASES,
    tx_host_users::CASES,
    tx_in_clones::CASES,
    tx_in_memory::CASES,
    tx_in_the_way::CASES,
    tx_in_use::CASES,
    tx_isolation::CASES,
    tx_programs::CASES,
    tx_protection::CASES,
    tx_race::CASES,
    tx_refused::CASES,
    tx_reused_numbers::CASES,
    tx_review::CASES,
    tx_root::CASES,
    tx_serial::CASES,
    tx_shell::CASES,
    tx_spares::CASES,
    tx_swapped::CASES,
    tx_times::CASES,
    tx_undo::CASES,
    tx_undo_others::CASES,
    tx_unseen::CASES,
    tx_users::CASES,
    tx_users_commits::CASES,
    tx_validation::CASES,
    xfstests::CASES,
    crash::CASES,
    trouble::CASES,
    full_disk::CASES,
    settings::CASES,
    freeze::CASES,
    admission::CASES,
    aio::CASES,
    frozen_again::CASES,
    frozen_settings::CASES,
    freeze_refusals::CASES,
    clone_answers::CASES,
    clone_checker::CASES,
    clone_crash::CASES,
    freeze_kills::CASES,
    clone_kills::CASES,
    clone_limits::CASES,
    clone_load::CASES,
    clone_losses::CASES,
    clone_memory::CASES,
    clone_mounts::CASES,
    clone_networks::CASES,
    clone_objects::CASES,
    clone_scopes::CASES,
    clone_trees::CASES,
    clones::CASES,
    clone_filters::CASES,
    clone_identity::CASES,
    clone_inits::CASES,
    inner_connections::CASES,
    kept_images::CASES,
    kept_state::CASES,
    reboot::CASES,
    clone_programs::CASES,
    syscall_fuzzer::CASES,
    systemd::CASES,
    burglars::CASES,
    known_escapes::CASES,
    late_finds::CASES,
    attacks::CASES,
    hostile::CASES,
    hostile_archives::CASES,
    hostile_images::CASES,
    readers::CASES,
    reclaiming::CASES,
    signed_images::CASES,
    daemon_walls::CASES,
    standby_clones::CASES,
    checkpoints::CASES,
    clients::CASES,
    refusals::CASES,
    restore::CASES,
    limits::CASES,
    limits_told::CASES,
    reservations::CASES,
    overbooking::CASES,
    wrong_limits::CASES,
    reused_pids::CASES,
    room::CASES,
    doctor::CASES,
    run::CASES,
    lifecycle::CASES,
    background::CASES,
    restarts::CASES,
    habits::CASES,
    standing_still::CASES,
    exec::CASES,
    listing::CASES,
    logs::CASES,
    standard_streams::CASES,
    plain_mistakes::CASES,
    first_caller::CASES,
    dangling_links::CASES,
    confinement::CASES,
    unharmed::CASES,
    walls_of_run::CASES,
    views::CASES,
    volume_links::CASES,
    volumes::CASES,
    terminals::CASES,
    capi::CASES,
    programs::CASES,
    image_files::CASES,
    images::CASES,
    self_freeze::CASES,
    servers::CASES,
    shared_counts::CASES,
    mounted_inside::CASES,
    moving::CASES,
    net::conformance::CASES,
    net::addresses::CASES,
    net::bandwidth::CASES,
    net::clones::CASES,
    never_lost::CASES,
    oci::CASES,
    oci_walls::CASES,
    registry::CASES,
    registry_garbage::CASES,
    registry_layers::CASES,
    registry_names::CASES,
    registry_resume::CASES,
    registry_signatures::CASES,
    page_sharing::CASES,
    net::connection_kills::CASES,
    net::connections::CASES,
    net::host_mode::CASES,
    net::guard::CASES,
    net::private::CASES,
    net::named::CASES,
    host_devices::CASES,
    net::same_ports::CASES,
    net::thousand::CASES,
    state_root::CASES,
    store::CASES,
    store_crash::CASES,
    store_unify::CASES,
    store_live::CASES,
    store_full::CASES,
    store_kills::CASES,
    store_disorder::CASES,
];

/// Every test.
pub(crate) fn all() -> impl Iterator<Item = Case> {
    AREAS.iter().flat_map(|cases| cases.iter().copied())
}
