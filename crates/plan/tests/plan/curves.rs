//! Recipes learn: their losses go down, alike with every technique.

use tonnage_plan::{Amp, Checkpoint, DeviceKind, Options, Recipe, Size, train};

fn losses(options: &Options) -> Vec<f32> {
    let device = DeviceKind::Host.open(options).unwrap();
    train(&device, options, &mut |_| ()).unwrap().losses
}

/// Every fifth loss of a run, as it was when it was written down.
const GPT2: [f32; 12] = [
    5.5133, 4.9509, 4.6694, 4.3348, 4.0323, 3.7767, 3.8935, 3.5569, 3.3433, 3.3369, 3.5756, 3.4495,
];

/// The first loss alone: products are summed in an order that follows the processor's caches, and what that changes in the
/// last digit has grown to a tenth after five steps of this network.
const RESNET50: f32 = 7.2931;

/// Fails if a curve goes elsewhere: sums in another order change digits, and these grow on the way.
#[track_caller]
fn assert_kept(losses: &[f32], kept: &[f32], tolerance: f32) {
    let now: Vec<f32> = losses.iter().step_by(5).copied().collect();
    let near = |(now, kept): (&f32, &f32)| (now - kept).abs() <= tolerance * kept.max(0.1);
    let same = now.len() == kept.len() && now.iter().zip(kept).all(near);
    assert!(same, "now  {now:.4?}\nkept {kept:.4?}");
}

/// The mean of the last quarter: single steps go up and down.
fn late(losses: &[f32]) -> f32 {
    let quarter = &losses[losses.len() - losses.len() / 4..];
    quarter.iter().sum::<f32>() / quarter.len() as f32
}

fn small_gpt2() -> Options {
    let sizes = [(Size::Layers, 2), (Size::Width, 64), (Size::Batch, 8), (Size::Seq, 32)];
    let options = Options::new(Recipe::EMBEDDED);
    let mut options =
        sizes.iter().fold(options, |it, (size, value)| it.with(*size, *value).unwrap());
    options.steps = 60;
    options
}

#[test]
fn gpt2_learns_the_documents() {
    let losses = losses(&small_gpt2());
    // At first all 256 bytes are as likely; later it knows at least how frequent they are.
    assert!((losses[0] - 256f32.ln()).abs() < 0.2, "{}", losses[0]);
    assert!(late(&losses) < 3.6, "{losses:?}");
    assert_kept(&losses, &GPT2, 0.01);
}

#[test]
fn gpt2_learns_the_same_with_every_technique_that_only_moves_memory() {
    let plain = losses(&small_gpt2());
    for (checkpoint, offload, accumulate) in
        [(Checkpoint::Sqrt, false, 1), (Checkpoint::None, true, 1), (Checkpoint::Every(1), true, 1)]
    {
        let mut options = small_gpt2();
        (options.checkpoint, options.offload) = (checkpoint, offload);
        options.accumulate = accumulate;
        assert_eq!(losses(&options), plain, "{}", options.flags());
    }
    for amp in [Amp::Bf16, Amp::F16] {
        let mut options = small_gpt2();
        options.amp = Some(amp);
        let lower = losses(&options);
        assert!((late(&lower) - late(&plain)).abs() < 0.1, "{amp}: {lower:?}");
    }
}

#[test]
fn resnet50_tells_pictures_apart() {
    let sizes = [(Size::Width, 8), (Size::Batch, 8), (Size::Image, 32)];
    let options = Options::new(Recipe::ResNet50);
    let mut options =
        sizes.iter().fold(options, |it, (size, value)| it.with(*size, *value).unwrap());
    options.steps = 40;
    let losses = losses(&options);
    // At first all of 1000 classes are about as likely; then it knows the four there are, and which.
    assert!(losses[0] > 5.0, "{losses:?}");
    assert!(late(&losses) < 4f32.ln(), "{losses:?}");
    assert_kept(&losses[..1], &[RESNET50], 0.001);
    // On one machine, digit by digit.
    options.steps = 5;
    assert_eq!(self::losses(&options), losses[..5]);
}

#[test]
fn mlp_and_deepnet_learn() {
    for (recipe, width, share) in [(Recipe::Mlp, 128, 0.5), (Recipe::DeepNet, 64, 0.7)] {
        let mut options = Options::new(recipe).with(Size::Width, width).unwrap();
        options = options.with(Size::Layers, 3).unwrap();
        options.steps = 60;
        let losses = losses(&options);
        assert!(late(&losses) < share * losses[0], "{recipe}: {losses:?}");
    }
}
