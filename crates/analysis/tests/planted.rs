//! Programs with a planted fault: the verdict names it, its bytes and its line.

#[path = "planted/programs.rs"]
mod programs;

mod support;

use programs::Planted;
use support::without_stacks;
use tonnage_analysis::report::{Report, ReportOptions};

const SEEDS: u64 = 8;

fn check(name: &str, program: fn(u64) -> Planted, marks: bool) {
    for seed in 0..SEEDS {
        let Planted { mut file, cause, bytes, line } = program(seed);
        if !marks {
            file.annotations.clear();
        }
        let total = (cause.name() == "outside").then(programs::total);
        let options = ReportOptions { total, ..ReportOptions::default() };
        let report = Report::of(&file, &options).unwrap();
        let verdict = &report.verdict;
        let page = report.to_text(name);
        assert_eq!(verdict.cause, cause, "{name}, seed {seed}: {bytes} bytes\n{page}");
        let off = verdict.bytes.abs_diff(bytes) as f64 / bytes as f64;
        assert!(off <= 0.01, "{name}, seed {seed}: {} instead of {bytes}\n{page}", verdict.bytes);
        let expected = line.map(|line| format!("crates/analysis/tests/planted/programs.rs:{line}"));
        assert_eq!(verdict.line, expected, "{name}, seed {seed}\n{page}");
        let peak = &report.peak.reserved;
        assert_eq!(peak.requested + report.waste.total(), peak.bytes, "{name}, seed {seed}");
        assert!(page.lines().all(|line| line.chars().count() <= 100), "{name}\n{page}");
    }
}

fn check_without_stacks(name: &str, program: fn(u64) -> Planted) {
    for seed in 0..SEEDS {
        let Planted { file, cause, bytes, .. } = program(seed);
        let total = (cause.name() == "outside").then(programs::total);
        let options = ReportOptions { total, ..ReportOptions::default() };
        let report = Report::of(&without_stacks(file), &options).unwrap();
        let (verdict, page) = (&report.verdict, report.to_text(name));
        assert_eq!(verdict.cause, cause, "{name}, seed {seed}: {bytes} bytes\n{page}");
        let off = verdict.bytes.abs_diff(bytes) as f64 / bytes as f64;
        assert!(off <= 0.01, "{name}, seed {seed}: {} instead of {bytes}\n{page}", verdict.bytes);
        assert_eq!(verdict.line, None);
    }
}

macro_rules! planted {
    ($($test:ident: $program:ident;)*) => {
        $(#[test]
        fn $test() {
            check(stringify!($program), programs::$program, true);
            check(stringify!($program), programs::$program, false);
            check_without_stacks(stringify!($program), programs::$program);
        })*
    };
}

planted! {
    losses_that_are_summed_are_a_leak: summed_losses;
    views_that_keep_their_base_are_a_leak: kept_views;
    optimizers_that_take_turns_make_one_iteration: two_optimizers;
    what_is_kept_now_and_then_is_a_leak: kept_now_and_then;
    what_precedes_a_training_is_no_iteration: steady_training;
    growth_is_told_from_the_first_steady_iteration: longer_training;
    longer_batches_are_longer_inputs: longer_inputs;
    sequences_that_grow_a_little_fragment: growing_sequences;
    blocks_cached_on_a_side_stream_are_of_no_use_to_others: hoarding_stream;
    a_small_block_pins_its_segment: pinned_segments;
    what_a_private_pool_caches_is_its_own: private_pool;
    frees_that_wait_for_a_busy_stream_are_pending: pending_frees;
    sizes_over_a_power_of_two_are_rounded: rounded_sizes;
    a_model_that_is_large_is_need: true_need;
    a_way_back_through_equal_layers_is_need: one_way_back;
    one_step_through_equal_layers_is_need: one_step;
    one_pass_through_equal_layers_is_need: one_forward;
    what_others_hold_is_outside: outside;
}
