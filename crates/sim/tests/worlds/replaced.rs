//! Tests of the whole program that are gone, and what shows the same.
//!
//! A test of a whole program runs one order of events, on a real clock. A [rule](Rule) shows the
//! same in any order, in worlds that reach these [marks](Mark). What needs no world is shown by a
//! test of a crate, or by a scenario of `ringway-hostile`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ringway_sim::{Mark, Rule};

/// A test that is gone.
struct Replaced {
    test: &'static str,
    rules: &'static [Rule],
    marks: &'static [Mark],
    /// Files below `crates`, each with the name of a test or a scenario in it.
    others: &'static [(&'static str, &'static str)],
}

const fn by_worlds(
    test: &'static str,
    rules: &'static [Rule],
    marks: &'static [Mark],
    others: &'static [(&'static str, &'static str)],
) -> Replaced {
    Replaced { test, rules, marks, others }
}

const fn by_crates(
    test: &'static str,
    others: &'static [(&'static str, &'static str)],
) -> Replaced {
    Replaced { test, rules: &[], marks: &[], others }
}

const REPLACED: &[Replaced] = &[
    // Orders of a toolstack, a guest and an administrator.
    by_worlds(
        "a_vif_whose_keys_are_written_one_by_one_in_any_order_is_served",
        &[Rule::Handshake, Rule::Calls],
        &[Mark::KeyByKey, Mark::StateTwice, Mark::HalfMade],
        &[],
    ),
    by_worlds(
        "concurrent_changes_from_both_ends_end_with_the_last_one",
        &[Rule::Calls, Rule::Handshake],
        &[Mark::QueuesOffered, Mark::Reconnected],
        &[],
    ),
    by_worlds(
        "queues_are_changed_from_both_ends_while_a_connection_lives",
        &[Rule::Calls, Rule::Handshake],
        &[Mark::QueuesOffered, Mark::Reconnected],
        &[],
    ),
    by_worlds(
        "a_guest_that_would_not_reconnect_keeps_its_queues_with_another_limit_and_backend",
        &[Rule::Settings, Rule::Handshake],
        &[Mark::SettingUnseen, Mark::Reattached],
        &[(
            "xenbus/tests/handshake.rs",
            "a_restarted_backend_with_a_smaller_offer_keeps_queues_until_the_frontend_reconnects",
        )],
    ),
    by_worlds(
        "a_guest_of_xen_has_more_queues_from_its_next_connection_on",
        &[Rule::Reload],
        &[Mark::ReloadQueues],
        &[(
            "host/tests/virtio/reload.rs",
            "guests_of_xen_are_offered_the_queues_of_all_unless_their_vif_has_its_own",
        )],
    ),
    by_worlds(
        "a_destroyed_guest_and_a_failed_script_end_closed",
        &[Rule::Handshake, Rule::Release],
        &[Mark::GuestKilled, Mark::Removed],
        &[
            ("xenbus/tests/handshake.rs", "a_script_that_fails_at_any_moment_closes_the_vif"),
            (
                "xenbus/tests/handshake.rs",
                "a_removal_at_any_moment_ends_closed_whatever_else_happens",
            ),
        ],
    ),
    by_crates(
        "a_guest_that_cycles_through_the_states_does_not_fill_the_log",
        &[
            (
                "vif-shell/src/log.rs",
                "after_a_burst_occasional_lines_report_how_many_were_left_out",
            ),
            (
                "vif-shell/tests/ends/main.rs",
                "a_guest_that_reconnects_constantly_is_deferred_but_served",
            ),
        ],
    ),
    by_crates(
        "one_queue_has_flat_keys_and_more_have_directories",
        &[
            ("xenbus/tests/stock.rs", "the_keys_are_those_of_a_stock_guest_plus_one_of_ours"),
            ("xenbus/src/config/tests.rs", "flat_keys_are_ignored_with_several_queues"),
        ],
    ),
    // Lifetimes of processes and devices.
    by_worlds(
        "a_backend_that_is_killed_repeatedly_is_restarted_each_time",
        &[Rule::Handshake],
        &[Mark::BackendKilled, Mark::Reattached],
        &[],
    ),
    by_worlds(
        "a_device_on_a_bridge_outlives_a_killed_backend_but_not_its_vif",
        &[Rule::Attachment, Rule::Release],
        &[Mark::BackendKilled, Mark::Removed],
        &[(
            "host/tests/devices/keeper.rs",
            "a_device_is_kept_followed_and_removed_without_the_process_that_uses_it",
        )],
    ),
    by_worlds(
        "a_device_that_a_script_has_renamed_is_found_by_its_note",
        &[Rule::Attachment],
        &[Mark::DeviceRenamed],
        &[(
            "host/tests/devices/script.rs",
            "a_device_is_found_by_its_note_under_any_name_that_it_may_have",
        )],
    ),
    by_worlds(
        "a_virtio_vif_waits_for_a_bridge_that_does_not_exist_yet",
        &[Rule::Explanation, Rule::Attachment],
        &[Mark::BridgeLate, Mark::VirtioUnattached, Mark::VirtioOnBridge],
        &[],
    ),
    by_crates(
        "a_front_end_that_changes_its_rings_endlessly_rarely_involves_the_workers",
        &[("host/tests/virtio/main.rs", "attaching_again_and_again_is_put_off")],
    ),
    by_crates(
        "guests_with_one_queue_that_talk_to_each_other_come_to_share_a_worker",
        &[(
            "worker/tests/worker/placing.rs",
            "ports_with_one_queue_that_talk_to_each_other_come_to_share_a_worker",
        )],
    ),
    // Panics.
    by_worlds(
        "a_vif_that_caused_two_panics_is_quarantined_until_it_is_released",
        &[Rule::Quarantine],
        &[Mark::BackendPanics, Mark::Quarantined, Mark::CallDone, Mark::CallRefused],
        &[],
    ),
    by_worlds(
        "a_virtio_vif_that_caused_two_panics_is_quarantined_until_it_is_released",
        &[Rule::Quarantine],
        &[Mark::BackendPanics, Mark::Quarantined],
        &[(
            "host/tests/virtio/main.rs",
            "a_vif_with_two_panics_accepts_no_front_end_until_it_is_released",
        )],
    ),
    // Limits and rules.
    by_worlds(
        "limits_can_be_set_at_run_time_and_outlive_the_backend",
        &[Rule::Settings, Rule::Calls],
        &[Mark::RateChanged, Mark::CallDone, Mark::SettingUnseen, Mark::VirtioLimited],
        &[],
    ),
    by_worlds(
        "rules_of_both_kinds_are_set_while_they_run_and_outlive_a_killed_backend",
        &[Rule::Settings],
        &[Mark::CallDone, Mark::BackendKilled],
        &[(
            "host/tests/virtio/rules.rs",
            "rules_that_are_set_apply_at_once_and_are_known_to_the_next_process",
        )],
    ),
    by_worlds(
        "a_guest_that_reconnects_repeatedly_floods_no_more_than_others",
        &[Rule::Settings],
        &[Mark::BudgetKept],
        &[],
    ),
    by_worlds(
        "a_link_that_is_set_down_carries_nothing_also_after_a_kill",
        &[Rule::Settings],
        &[Mark::LinkDown, Mark::LinkCut, Mark::BackendKilled],
        &[],
    ),
    by_worlds(
        "an_uplink_joins_another_vlan_while_it_serves",
        &[Rule::Reload],
        &[Mark::ReloadUplink],
        &[],
    ),
    by_worlds(
        "a_guest_gets_the_groups_that_it_orders_and_no_others_also_after_a_kill",
        &[Rule::Settings],
        &[Mark::Ordered, Mark::BackendKilled],
        &[(
            "host/src/chosen.rs",
            "a_process_knows_what_was_ordered_from_the_one_before_or_passes_all",
        )],
    ),
    by_crates(
        "frames_that_are_longer_than_the_vifs_mtu_are_dropped_and_counted",
        &[("engine/tests/rounds/limits.rs", "frames_longer_than_the_mtu_are_dropped_and_counted")],
    ),
    by_crates(
        "an_address_in_use_is_refused_and_shown",
        &[
            ("host/tests/virtio/main.rs", "a_vif_that_cannot_be_beside_the_others_is_refused"),
            (
                "host/tests/virtio/described.rs",
                "an_address_is_the_first_vifs_and_the_others_when_that_is_gone",
            ),
        ],
    ),
    by_crates(
        "what_a_limit_of_floods_drops_is_logged_once",
        &[("host/src/drop_log.rs", "drops_are_logged_when_there_are_more_and_not_often")],
    ),
    by_crates(
        "a_vif_says_what_its_queues_wait_for",
        &[
            ("engine/tests/rounds/limits.rs", "a_queue_shows_what_it_waits_for_and_since_when"),
            ("host/src/waits.rs", "a_wait_has_a_kind_for_scripts_and_the_port_without_room"),
        ],
    ),
    by_crates(
        "a_description_that_cannot_be_used_is_refused_with_file_line_and_key",
        &[
            (
                "description/src/file/tests.rs",
                "a_refusal_names_file_line_key_and_what_was_expected",
            ),
            ("description/src/file/tests.rs", "every_fault_is_named_with_its_line"),
        ],
    ),
    // Mirrors and links.
    by_crates(
        "a_vif_gets_copies_of_others_frames_and_nothing_else",
        &[
            (
                "engine/tests/rounds/mirrors.rs",
                "a_mirror_gets_each_frame_of_its_ports_once_and_nothing_else",
            ),
            (
                "host/tests/virtio/calls.rs",
                "a_mirror_copies_to_its_output_what_it_names_and_ends_with_that",
            ),
        ],
    ),
    by_crates(
        "frames_for_a_link_pass_between_two_guests_that_name_each_other",
        &[
            (
                "switch/tests/classify.rs",
                "frames_for_the_link_pass_between_a_pair_of_ports_except_pause_frames",
            ),
            (
                "host/tests/virtio/calls.rs",
                "a_link_is_there_while_both_its_ends_are_connected_and_name_each_other",
            ),
        ],
    ),
    // Hostile guests.
    by_worlds(
        "protocol_violations_of_a_front_end_cost_no_other_vif",
        &[Rule::Isolation],
        &[Mark::IntruderRequest, Mark::IntruderBytes, Mark::IntruderTruncates],
        &[],
    ),
    by_worlds(
        "a_front_end_with_blocking_calls_stops_no_worker",
        &[Rule::Isolation],
        &[Mark::IntruderPart, Mark::IntruderServed],
        &[],
    ),
    by_crates(
        "a_commit_of_long_paths_and_an_invalid_name_harm_no_other_guest",
        &[("hostile/src/catalogue.rs", "paths-deep")],
    ),
    by_crates(
        "guests_that_keep_the_backend_busy_do_not_starve_others",
        &[
            ("hostile/src/catalogue.rs", "store-storm"),
            ("hostile/src/catalogue.rs", "transactions-conflict"),
        ],
    ),
    by_crates(
        "guests_that_write_names_below_their_state_do_not_end_the_backend",
        &[(
            "vif-shell/tests/ends/main.rs",
            "writes_below_a_guests_state_cause_no_event_in_the_backend",
        )],
    ),
    by_crates(
        "a_guest_cannot_use_the_address_of_another_or_act_as_a_router_or_dhcp_server",
        &[
            ("hostile/src/catalogue/shared.rs", "spoofed-source"),
            ("hostile/src/catalogue/shared.rs", "rogue-router"),
            ("hostile/src/catalogue/shared.rs", "rogue-dhcp"),
            ("switch/tests/rules.rs", "a_locked_port_sends_from_no_address_but_its_own"),
        ],
    ),
    by_crates(
        "the_stock_tools_read_write_list_remove_and_watch_a_running_host",
        &[
            ("xenstore/tests/tools.rs", "the_stock_tools_write_read_list_and_remove"),
            ("xenstore/tests/tools.rs", "xenstore_watch_prints_each_change"),
        ],
    ),
];

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The tests of the whole program that there are.
fn present(folder: &Path) -> String {
    let entries = fs::read_dir(folder).expect("it is there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("it is read").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    assert!(!paths.is_empty(), "there are some");
    paths.iter().map(|path| text(path)).collect()
}

#[test]
fn whatever_replaces_a_test_of_the_whole_program_is_there() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let present = present(&crates.join("ringway/tests/e2e"));
    let mut tests = BTreeSet::new();
    for Replaced { test, rules, marks, others } in REPLACED {
        assert!(tests.insert(*test), "{test} is listed twice");
        assert!(!present.contains(&format!("fn {test}(")), "{test} is there again");
        assert_eq!(rules.is_empty(), marks.is_empty(), "{test}: a rule is shown by marks");
        assert!(!rules.is_empty() || !others.is_empty(), "{test}: nothing shows the same");
        for (file, name) in *others {
            let shown = text(&crates.join(file));
            let is_there = [format!("fn {name}("), format!("\"{name}\"")];
            assert!(is_there.iter().any(|it| shown.contains(it)), "{test}: {name} in {file}");
        }
    }
}
