//! Programs with a planted fault: the verdict names it, its bytes and its line.

pub(crate) mod programs;

mod variations;

use tonnage_analysis::report::{Cause, Layout, Report, ReportOptions};
use tonnage_snapshot::SnapshotFile;

use crate::support::without_stacks;
use programs::Planted;

const SEEDS: u64 = 8;

/// The report, as a process that runs out of memory makes it. Trying settings takes a hundred times as long and must not
/// change the verdict: the first seed is reported with them too.
fn report(name: &str, seed: u64, file: &SnapshotFile, cause: Cause) -> Report {
    let total = (cause == Cause::Outside).then(programs::total);
    let quick = ReportOptions { total, without_replay: true, ..ReportOptions::default() };
    let report = Report::of(file, &quick).unwrap();
    if seed == 0 {
        let whole = ReportOptions { total, ..ReportOptions::default() };
        let whole = Report::of(file, &whole).unwrap().verdict;
        let told = &report.verdict;
        assert_eq!(
            (told.cause, told.bytes, &told.line),
            (whole.cause, whole.bytes, &whole.line),
            "{name}"
        );
    }
    report
}

fn check(name: &str, program: fn(u64) -> Planted, marks: bool) {
    for seed in 0..SEEDS {
        let Planted { mut file, cause, bytes, line, .. } = program(seed);
        if !marks {
            file.annotations.clear();
        }
        let report = report(name, seed, &file, cause);
        let verdict = &report.verdict;
        let page = report.to_text(name);
        assert_eq!(verdict.cause, cause, "{name}, seed {seed}: {bytes} bytes\n{page}");
        let off = verdict.bytes.abs_diff(bytes) as f64 / bytes as f64;
        assert!(off <= 0.01, "{name}, seed {seed}: {} instead of {bytes}\n{page}", verdict.bytes);
        // Whether a line asked for most of what is needed is no question of fault.
        if cause != Cause::Need || line.is_some() {
            assert_eq!(verdict.line, line, "{name}, seed {seed}\n{page}");
        }
        let peak = &report.peak.reserved;
        assert_eq!(peak.requested + report.waste.total(), peak.bytes, "{name}, seed {seed}");
        let screen = report.to_text_in(name, Layout { columns: Some(100), colours: false });
        // Lines to copy are whole.
        let mut rows = screen.lines().filter(|line| !line.starts_with("        "));
        assert!(rows.all(|line| line.chars().count() <= 100), "{name}\n{screen}");
    }
}

fn check_without_stacks(name: &str, program: fn(u64) -> Planted) {
    for seed in 0..SEEDS {
        let Planted { file, cause, bytes, ring, .. } = program(seed);
        let report = report(name, seed, &without_stacks(file), cause);
        let (verdict, page) = (&report.verdict, report.to_text(name));
        assert_eq!(verdict.cause, cause, "{name}, seed {seed}: {bytes} bytes\n{page}");
        // What leaked before a ring begins is known by its stacks only.
        let off = verdict.bytes.abs_diff(bytes) as f64 / bytes as f64;
        let right = off <= 0.01 || ring;
        assert!(right, "{name}, seed {seed}: {} instead of {bytes}\n{page}", verdict.bytes);
        assert_eq!(verdict.line, None);
    }
}

macro_rules! planted {
    ($($test:ident: $program:path;)*) => {
        $(#[test]
        fn $test() {
            check(stringify!($program), $program, true);
            check(stringify!($program), $program, false);
            check_without_stacks(stringify!($program), $program);
        })*
    };
}

planted! {
    losses_that_are_summed_are_a_leak: programs::summed_losses;
    views_that_keep_their_base_are_a_leak: programs::kept_views;
    optimizers_that_take_turns_make_one_iteration: programs::two_optimizers;
    what_is_kept_now_and_then_is_a_leak: programs::kept_now_and_then;
    what_precedes_a_training_is_no_iteration: programs::steady_training;
    growth_is_told_from_the_first_steady_iteration: programs::longer_training;
    longer_batches_are_longer_inputs: programs::longer_inputs;
    sequences_that_grow_a_little_fragment: programs::growing_sequences;
    blocks_cached_on_a_side_stream_are_of_no_use_to_others: programs::hoarding_stream;
    a_small_block_pins_its_segment: programs::pinned_segments;
    what_a_private_pool_caches_is_its_own: programs::private_pool;
    frees_that_wait_for_a_busy_stream_are_pending: programs::pending_frees;
    sizes_over_a_power_of_two_are_rounded: programs::rounded_sizes;
    a_model_that_is_large_is_need: programs::true_need;
    a_way_back_through_equal_layers_is_need: programs::one_way_back;
    one_step_through_equal_layers_is_need: programs::one_step;
    one_pass_through_equal_layers_is_need: programs::one_forward;
    what_others_hold_is_outside: programs::outside;
    a_small_leak_after_warm_up_is_found: variations::small_leak_after_warm_up;
    a_leak_in_every_tenth_step_is_found: variations::leak_every_tenth_step;
    a_list_that_is_cleared_each_epoch_is_no_leak: variations::list_cleared_each_epoch;
    an_evaluation_between_epochs_is_no_growth: variations::evaluation_between_epochs;
    predictions_that_evaluations_keep_are_a_leak: variations::leak_in_evaluation;
    a_private_pool_in_use_is_need: variations::private_pool_in_use;
    micro_batches_that_differ_are_need: variations::uneven_accumulation;
    a_first_step_that_tries_algorithms_is_need: variations::autotuning_first_step;
    an_average_that_begins_later_is_need: variations::average_begins_later;
    a_copy_that_is_replaced_is_need: variations::copy_replaced_each_step;
    states_that_come_late_are_need: variations::states_come_late;
    a_buffer_that_fills_up_is_no_leak: variations::bounded_buffer;
    batches_fetched_ahead_are_need: variations::batches_ahead;
    graphs_that_few_steps_keep_are_a_leak: variations::short_history_of_graphs;
    few_steps_on_longer_batches_are_longer_inputs: variations::short_history_of_longer_inputs;
    the_longest_input_may_come_in_the_middle: variations::longest_in_the_middle;
    a_leak_is_found_where_the_history_lost_its_beginning: variations::leak_in_a_ring;
    what_copies_ahead_leave_on_their_stream_is_the_streams: variations::stream_after_prefetch;
}
