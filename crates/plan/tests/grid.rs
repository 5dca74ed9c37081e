//! A prediction equals the run, to the byte: allocated, reserved and requested, for every recipe and
//! flag.

use tonnage_plan::{
    Amp, Checkpoint, DeviceKind, OptimizerKind, Options, Outcome, Recipe, Size, predict, train,
};

/// A recipe small enough to run many times.
fn small(recipe: Recipe) -> Options {
    let sizes: &[(Size, usize)] = match recipe {
        Recipe::Mlp => &[(Size::Layers, 3), (Size::Width, 192), (Size::Batch, 128)],
        Recipe::DeepNet => &[(Size::Layers, 4), (Size::Width, 128), (Size::Batch, 256)],
        Recipe::Gpt2 => &[(Size::Layers, 4), (Size::Width, 64), (Size::Batch, 8), (Size::Seq, 48)],
        Recipe::ResNet50 => &[(Size::Width, 8), (Size::Batch, 4), (Size::Image, 32)],
        Recipe::Mimo => &[(Size::Antennas, 16), (Size::Users, 4), (Size::Subcarriers, 500)],
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

/// Every combination of techniques, with the optimizers and settings taken in turn; or every so many.
fn grid(recipe: Recipe, every: usize) {
    let optimizers = [OptimizerKind::AdamW, OptimizerKind::Sgd, OptimizerKind::Adam];
    let confs = [
        "",
        "expandable_segments:True",
        "max_split_size_mb:21",
        "roundup_power2_divisions:4",
        "garbage_collection_threshold:0.6",
    ];
    let mut case = 0usize;
    for amp in [None, Some(Amp::Bf16), Some(Amp::F16)] {
        for checkpoint in [Checkpoint::None, Checkpoint::Every(1), Checkpoint::Sqrt] {
            for accumulate in [1, 2] {
                for offload in [false, true] {
                    case += 1;
                    if !case.is_multiple_of(every) {
                        continue;
                    }
                    let mut options = small(recipe);
                    options.amp = amp;
                    options.checkpoint = checkpoint;
                    options.accumulate = accumulate;
                    options.offload = offload;
                    options.optimizer = optimizers[case % optimizers.len()];
                    options.conf = confs[case % confs.len()].to_owned();
                    compare(&options);
                }
            }
        }
    }
}

#[test]
fn every_mlp_is_predicted() {
    grid(Recipe::Mlp, 1);
}

#[test]
fn every_deepnet_is_predicted() {
    grid(Recipe::DeepNet, 1);
}

#[test]
fn every_gpt2_is_predicted() {
    grid(Recipe::Gpt2, 1);
}

#[test]
fn resnet50_is_predicted_with_every_technique() {
    // Its many layers take long in a build that walks over every block after every request.
    grid(Recipe::ResNet50, 5);
}

#[test]
fn every_setting_and_optimizer_is_predicted_for_every_recipe() {
    for recipe in [Recipe::Mlp, Recipe::DeepNet, Recipe::Gpt2, Recipe::Mimo] {
        for conf in ["", "expandable_segments:True", "max_split_size_mb:21"] {
            for optimizer in [OptimizerKind::Sgd, OptimizerKind::Adam, OptimizerKind::AdamW] {
                let mut options = small(recipe);
                options.conf = conf.to_owned();
                options.optimizer = optimizer;
                compare(&options);
            }
        }
    }
}

#[test]
fn a_limit_that_is_just_enough_is_predicted_too() {
    for recipe in [Recipe::Mlp, Recipe::DeepNet] {
        let mut options = small(recipe);
        let reserved = predict(&options).unwrap().reserved_peak;
        options.limit = Some(reserved);
        assert_eq!(compare(&options).reserved_peak, reserved);
        options.limit = Some(2 << 20);
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
    assert_eq!(symbols.sent, 3 * 500 * 4);
    assert!((low..=high).contains(&symbols.theory), "{symbols:?}");
}

#[test]
fn the_same_seed_gives_the_same_numbers_and_another_others() {
    let mut options = small(Recipe::Gpt2);
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
