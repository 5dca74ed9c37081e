//! What fits, what each technique buys, what to do when memory does not suffice; and the snapshot.

use tonnage_plan::{
    DeviceKind, Error, Options, Recipe, Size, Technique, fit, predict, suggest, train,
};
use tonnage_replay::recording::{RecordingOptions, replay_recording};
use tonnage_tensor::Role;

const MIB: u64 = 1 << 20;

fn deepnet(layers: usize, width: usize, batch: usize) -> Options {
    let options = Options::new(Recipe::DeepNet).with(Size::Layers, layers).unwrap();
    options.with(Size::Width, width).and_then(|it| it.with(Size::Batch, batch)).unwrap()
}

fn mlp(width: usize, batch: usize) -> Options {
    let options = Options::new(Recipe::Mlp).with(Size::Width, width).unwrap();
    options.with(Size::Batch, batch).unwrap()
}

#[test]
fn the_largest_batch_fits_and_the_next_does_not() {
    let options = deepnet(6, 128, 1);
    let fitted = fit(&options, 24 * MIB).unwrap();
    let fits = |batch: usize| {
        let mut options = options.clone().with(Size::Batch, batch).unwrap();
        options.limit = Some(24 * MIB);
        match predict(&options) {
            Ok(_) => true,
            Err(Error::OutOfMemory { .. }) => false,
            Err(other) => panic!("{other}"),
        }
    };
    assert!(fitted.batch > 100, "{}", fitted.batch);
    assert!(fits(fitted.batch) && !fits(fitted.batch + 1), "{}", fitted.batch);
    assert!(fitted.outcome.unwrap().reserved_peak <= 24 * MIB);
    let gain = |technique| fitted.gains.iter().find(|it| it.technique == technique).unwrap();
    for technique in [Technique::CheckpointEach, Technique::Accumulate(8), Technique::Offload] {
        let gain = gain(technique);
        assert!(gain.saved > 0 && gain.batch > fitted.batch, "{gain:?}");
        assert_eq!(gain.recomputed.kernels > 0, technique == Technique::CheckpointEach, "{gain:?}");
    }
    // A step is the forward, and a backward of twice its arithmetic.
    let [each, sqrt] = [Technique::CheckpointEach, Technique::CheckpointSqrt].map(gain);
    assert!((0.2..=1.0 / 3.0).contains(&each.recomputed_share), "{each:?}");
    assert!(each.recomputed_share > sqrt.recomputed_share, "{sqrt:?}");
}

#[test]
fn a_model_that_is_too_large_by_itself_fits_with_no_batch() {
    let fitted = fit(&deepnet(6, 512, 1), 4 * MIB).unwrap();
    assert_eq!((fitted.batch, fitted.outcome.is_none()), (0, true));
}

#[test]
fn without_a_limit_a_prediction_has_no_ceiling() {
    // Twenty layers with weights of 64 GiB.
    let outcome = predict(&deepnet(20, 1 << 17, 8)).unwrap();
    assert!(outcome.reserved_peak > 20 << 36, "{}", outcome.reserved_peak);
}

#[test]
fn values_that_are_offloaded_in_a_prediction_take_no_memory_of_the_machine() {
    // Each of them is 64 GiB.
    let options = Technique::Offload.apply(&deepnet(4, 16_384, 1 << 20)).unwrap();
    let without = predict(&deepnet(4, 16_384, 1 << 20)).unwrap();
    let outcome = predict(&options).unwrap();
    assert!(outcome.reserved_peak < without.reserved_peak, "{}", outcome.reserved_peak);
}

#[test]
fn a_limit_that_is_too_small_ends_with_a_verdict_and_a_suggestion_that_works() {
    for (options, percent) in [
        (deepnet(8, 128, 2048), 90),
        (deepnet(8, 128, 2048), 60),
        (deepnet(8, 128, 2048), 30),
        (Options::new(Recipe::EMBEDDED), 50),
        (mlp(128, 4096), 80),
    ] {
        let mut options = options;
        options.steps = 2;
        options.limit = Some(predict(&options).unwrap().reserved_peak * percent / 100);
        let which = format!("{} {}", options.recipe(), options.flags());
        let device = DeviceKind::Host.open(&options).unwrap();
        let error = train(&device, &options, &mut |_| ()).unwrap_err();
        assert!(error.out_of_memory().is_some(), "{which}");
        assert!(error.to_string().contains("Verdict: "), "{which}: {error}");
        drop(device);
        let suggestion = suggest(&options).unwrap().unwrap_or_else(|| panic!("{which}"));
        assert_eq!(suggestion.options.limit, options.limit, "{which}");
        let device = DeviceKind::Host.open(&suggestion.options).unwrap();
        let outcome = train(&device, &suggestion.options, &mut |_| ()).unwrap();
        assert_eq!(outcome.reserved_peak, suggestion.outcome.reserved_peak, "{which}");
    }
    let mut hopeless = deepnet(6, 512, 8);
    hopeless.limit = Some(2 * MIB);
    assert!(suggest(&hopeless).unwrap().is_none());
}

#[test]
fn the_snapshot_of_a_run_replays_exactly() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, conf) in [
        (DeviceKind::Host, ""),
        (DeviceKind::Host, "expandable_segments:True"),
        (DeviceKind::Dry, ""),
    ] {
        let path = folder.path().join("run.pickle");
        let mut options = deepnet(3, 128, 512);
        options.steps = 3;
        options.conf = conf.to_owned();
        options.save = Some(path.clone());
        let outcome = train(&kind.open(&options).unwrap(), &options, &mut |_| ()).unwrap();
        let file = tonnage_snapshot::open(&path).unwrap();
        let replayed = replay_recording(&file, &RecordingOptions::default()).unwrap();
        assert!(replayed.exact(), "{kind} {conf}: {:?}", replayed.difference);
        let (stats, peak) = (replayed.stats, outcome.allocated_peak);
        assert_eq!(stats.max_memory_allocated(), peak, "{kind} {conf}");
        assert_eq!(stats.max_memory_reserved(), outcome.reserved_peak, "{kind} {conf}");
    }
}

#[test]
fn formulas_are_exact_where_the_textbook_is_and_off_where_it_is_not() {
    let mut options = deepnet(20, 512, 128);
    options.steps = 2;
    let outcome = predict(&options).unwrap();
    assert_eq!(outcome.parameters, 20 * 2 * (512 * 512 + 512));
    for formula in outcome.formulas() {
        let error = formula.error().unwrap_or_else(|| panic!("{formula:?}"));
        assert!(error.abs() < 0.2, "{formula:?}: {error}");
        if formula.name == "parameters" || formula.name == "gradients" {
            assert_eq!(error, 0.0, "{formula:?}");
        }
    }
    assert_eq!(outcome.most_of(Role::Parameters), 4 * outcome.parameters);
}
