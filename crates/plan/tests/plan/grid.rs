//! A prediction equals the run, to the byte: allocated, reserved and requested, for every recipe and
//! flag.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use tonnage_plan::{
    Amp, Checkpoint, DeviceKind, OptimizerKind, Options, Outcome, Phase, Recipe, Size, predict,
    train,
};

/// A recipe small enough to run many times, and large enough that blocks lie in both pools.
fn small(recipe: Recipe) -> Options {
    let sizes: &[(Size, usize)] = match recipe {
        Recipe::Mlp => &[(Size::Layers, 3), (Size::Width, 192), (Size::Batch, 2048)],
        Recipe::DeepNet => &[(Size::Layers, 4), (Size::Width, 96), (Size::Batch, 4096)],
        Recipe::Gpt2(_) => &[
            (Size::Layers, 4),
            (Size::Width, 64),
            (Size::Batch, 16),
            (Size::Seq, 96),
            (Size::Vocab, 256),
        ],
        Recipe::ResNet50 => &[(Size::Width, 8), (Size::Batch, 4), (Size::Image, 32)],
        Recipe::Mimo => &[(Size::Antennas, 16), (Size::Users, 4), (Size::Subcarriers, 2000)],
        other => panic!("{other} has no small form"),
    };
    let options = Options::new(recipe);
    let mut options =
        sizes.iter().fold(options, |options, (size, value)| options.with(*size, *value).unwrap());
    options.steps = 3;
    options
}

fn run(options: &Options) -> Outcome {
    let device = DeviceKind::Host.open(options).unwrap();
    train(&device, options, &mut |_| ()).unwrap_or_else(|error| panic!("{options:?}: {error}"))
}

/// Runs, predicts and compares; returns what came out.
fn compare(options: &Options) -> Outcome {
    let (measured, predicted) = (run(options), predict(options).unwrap());
    let which = format!("{} {}", options.recipe(), options.flags());
    let figures = |it: &Outcome| (it.allocated_peak, it.reserved_peak, it.requested_peak);
    assert_eq!(figures(&predicted), figures(&measured), "{which}");
    assert_eq!(predicted.breakdown, measured.breakdown, "{which}");
    assert_eq!(predicted.phases, measured.phases, "{which}");
    assert_eq!(predicted.peak_line, measured.peak_line, "{which}");
    assert_eq!(predicted.requests, measured.requests, "{which}");
    let sum: u64 = measured.breakdown.iter().map(|it| it.1).sum();
    assert_eq!(sum, measured.allocated_peak, "{which}: the parts are the whole");
    assert!(measured.losses.iter().all(|it| it.is_finite()), "{which}: {:?}", measured.losses);
    assert_eq!(measured.skipped_steps, 0, "{which}");
    measured
}

const AMPS: [Option<Amp>; 3] = [None, Some(Amp::Bf16), Some(Amp::F16)];

const CHECKPOINTS: [Checkpoint; 4] =
    [Checkpoint::None, Checkpoint::Every(1), Checkpoint::Every(3), Checkpoint::Sqrt];

const OPTIMIZERS: [OptimizerKind; 3] =
    [OptimizerKind::Sgd, OptimizerKind::Adam, OptimizerKind::AdamW];

const PARTS: [usize; 3] = [1, 2, 4];

/// The last one only acts under a limit.
const CONFS: [&str; 5] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:21",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.6",
];

const SEEDS: [u64; 2] = [0, 7];

/// How many values each flag has, in the order of [`options_of`].
const FLAGS: [usize; 7] =
    [AMPS.len(), CHECKPOINTS.len(), OPTIMIZERS.len(), PARTS.len(), 2, CONFS.len(), SEEDS.len()];

/// A value of each flag, by its place.
type Case = [usize; FLAGS.len()];

/// Cases in which every value of each flag meets every value of each other. The first pair that no
/// case has yet begins one, and each other flag takes the value that brings most such pairs.
fn pairwise() -> Vec<Case> {
    let values = |flag: usize| (0..FLAGS[flag]).map(move |value| (flag, value));
    let all: Vec<_> = (0..FLAGS.len()).flat_map(values).collect();
    let pairs = all.iter().flat_map(|a| all.iter().map(move |b| (*a, *b)));
    let mut open: BTreeSet<_> = pairs.filter(|(a, b)| a.0 < b.0).collect();
    let mut cases = Vec::new();
    while let Some((first, second)) = open.first().copied() {
        let mut taken = vec![first, second];
        for flag in (0..FLAGS.len()).filter(|flag| ![first.0, second.0].contains(flag)) {
            let new = |value: &(usize, usize)| {
                let pair = |other: &(usize, usize)| (*other.min(value), *other.max(value));
                taken.iter().filter(|other| open.contains(&pair(other))).count()
            };
            let best = values(flag).max_by_key(|value| (new(value), Reverse(value.1)));
            taken.extend(best);
        }
        taken.sort_unstable();
        open.retain(|(a, b)| !(taken.contains(a) && taken.contains(b)));
        cases.push(std::array::from_fn(|flag| taken[flag].1));
    }
    cases
}

fn options_of(recipe: Recipe, case: Case) -> Options {
    let [amp, checkpoint, optimizer, parts, offload, conf, seed] = case;
    let mut options = small(recipe);
    options.amp = AMPS[amp];
    options.checkpoint = CHECKPOINTS[checkpoint];
    options.optimizer = OPTIMIZERS[optimizer];
    options.accumulate = PARTS[parts];
    options.offload = offload == 1;
    options.seed = SEEDS[seed];
    if CONFS[conf].starts_with("garbage") {
        options.limit = Some(predict(&options).unwrap().reserved_peak * 5 / 4);
    }
    options.conf = CONFS[conf].to_owned();
    options
}

fn grid(recipe: Recipe) {
    pairwise().into_iter().for_each(|case| drop(compare(&options_of(recipe, case))));
}

#[test]
fn every_two_flags_meet_in_some_case_and_cases_are_few() {
    let cases = pairwise();
    for a in 0..FLAGS.len() {
        for b in 0..a {
            let met: BTreeSet<_> = cases.iter().map(|case| (case[a], case[b])).collect();
            assert_eq!(met.len(), FLAGS[a] * FLAGS[b], "flags {a} and {b}");
        }
    }
    // Settings and checkpoints alone have twenty pairs.
    assert!(cases.len() <= 26, "{}", cases.len());
}

#[test]
fn every_mlp_is_predicted() {
    grid(Recipe::Mlp);
}

#[test]
fn every_deepnet_is_predicted() {
    grid(Recipe::DeepNet);
}

#[test]
fn every_gpt2_is_predicted() {
    grid(Recipe::EMBEDDED);
}

#[test]
fn every_resnet50_is_predicted() {
    grid(Recipe::ResNet50);
}

#[test]
fn graphs_are_predicted_and_their_losses_are_those_without() {
    for recipe in [Recipe::Mlp, Recipe::DeepNet, Recipe::EMBEDDED, Recipe::ResNet50] {
        for (place, optimizer) in OPTIMIZERS.into_iter().enumerate() {
            let mut options = small(recipe);
            options.steps = 4;
            options.optimizer = optimizer;
            options.amp = [None, None, Some(Amp::Bf16)][place];
            options.checkpoint = CHECKPOINTS[place];
            options.accumulate = PARTS[place];
            options.conf = CONFS[place].to_owned();
            let losses = run(&options).losses;
            options.graph = true;
            let outcome = compare(&options);
            assert_eq!(outcome.losses, losses, "{recipe} {}", options.flags());
            assert_eq!(outcome.phases.last().unwrap().phase, Phase::Replay);
        }
    }
}

#[test]
fn every_mimo_is_predicted() {
    for conf in CONFS {
        for (batch, seed) in [(1, 0), (3, 7)] {
            let mut options = small(Recipe::Mimo).with(Size::Batch, batch).unwrap();
            options.seed = seed;
            options.limit = Some(predict(&options).unwrap().reserved_peak * 2);
            options.conf = conf.to_owned();
            compare(&options);
        }
    }
}

#[test]
fn garbage_is_collected_under_a_limit() {
    // Blocks of more than 10 MiB have segments of their own, which can be given back.
    let mut options = small(Recipe::EMBEDDED).with(Size::Batch, 512).unwrap();
    options.limit = Some(predict(&options).unwrap().reserved_peak * 5 / 4);
    options.conf = "garbage_collection_threshold:0.6".to_owned();
    let device = DeviceKind::Dry.open(&options).unwrap();
    train(&device, &options, &mut |_| ()).unwrap();
    assert!(device.memory().stats().num_device_free > 0, "{}", options.flags());
}

#[test]
fn a_limit_that_is_just_enough_is_predicted_too() {
    for recipe in [Recipe::Mlp, Recipe::DeepNet] {
        let mut options = small(recipe);
        let reserved = predict(&options).unwrap().reserved_peak;
        options.limit = Some(reserved);
        assert_eq!(compare(&options).reserved_peak, reserved);
        options.limit = Some(1 << 20);
        let message = predict(&options).unwrap_err().to_string();
        let device = DeviceKind::Host.open(&options).unwrap();
        assert_eq!(train(&device, &options, &mut |_| ()).unwrap_err().to_string(), message);
    }
}

#[test]
fn symbols_are_detected_as_theory_says() {
    let outcome = compare(&small(Recipe::Mimo));
    let symbols = outcome.symbols.unwrap();
    let (low, high) = symbols.interval.unwrap();
    assert_eq!(symbols.sent, 3 * 2000 * 4);
    assert!((low..=high).contains(&symbols.theory), "{symbols:?}");
}

#[test]
fn the_same_seed_gives_the_same_numbers_and_another_others() {
    let mut options = small(Recipe::EMBEDDED);
    let losses = run(&options).losses;
    assert_eq!(losses.len(), 3);
    assert_eq!(run(&options).losses, losses);
    options.seed = 1;
    assert_ne!(run(&options).losses, losses);
}

#[test]
fn a_dry_run_that_repeats_itself_ends_early_and_says_the_same() {
    for recipe in Recipe::ALL.into_iter().filter(|it| it.trains()) {
        let mut options = small(recipe);
        options.steps = 12;
        let mut steps = 0;
        let device = DeviceKind::Dry.open(&options).unwrap();
        let short = train(&device, &options, &mut |_| steps += 1).unwrap();
        assert!(steps < 8, "{recipe}: {steps}");
        // Garbage collection below its threshold does nothing, and is why every step runs.
        options.conf = "garbage_collection_threshold:0.9".to_owned();
        let whole = predict(&options).unwrap();
        assert_eq!(
            (short.allocated_peak, short.reserved_peak, short.phases),
            (whole.allocated_peak, whole.reserved_peak, whole.phases),
            "{recipe}"
        );
    }
}
