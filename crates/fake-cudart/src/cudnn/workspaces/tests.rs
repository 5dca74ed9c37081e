use serde_json::{Value, json};

use super::layer::{Kind, Pass};
use super::*;

/// A convolution as an engine was set up for it, without dilation.
struct Set {
    pass: Pass,
    engine: i64,
    kind: Kind,
    last: bool,
    /// Images, channels, filters, groups.
    sizes: [u64; 4],
    /// Of images, filters and results.
    spatial: [[u64; 2]; 3],
    stride: u64,
    /// Workspace, tile, depth, blocks along rows and columns.
    settings: [i64; 5],
}

const SET: Set = Set {
    pass: Pass::Forward,
    engine: 62,
    kind: Kind::Half,
    last: true,
    sizes: [18, 832, 224, 1],
    spatial: [[32, 32], [3, 3], [32, 32]],
    stride: 1,
    settings: [0, 3, 0, 4, 1],
};

fn plan(set: &Set) -> Value {
    let kind = match set.kind {
        Kind::Float => "CUDNN_DATA_FLOAT",
        Kind::Half => "CUDNN_DATA_HALF",
        Kind::Bfloat16 => "CUDNN_DATA_BFLOAT16",
    };
    let (operation, names) = match set.pass {
        Pass::Forward => ("FORWARD", ["X", "W", "Y"]),
        Pass::BackwardData => ("BACKWARD_DATA", ["dX", "W", "dY"]),
        Pass::BackwardFilter => ("BACKWARD_FILTER", ["X", "dW", "dY"]),
    };
    let [images, channels, filters, groups] = set.sizes;
    let tensor = |name: &str, first: u64, second: u64, [high, wide]: [u64; 2]| {
        let (image, row) = (second * high * wide, second * wide);
        let strides =
            if set.last { [image, 1, row, second] } else { [image, high * wide, wide, 1] };
        json!({"name": name, "dataType": kind, "dim": [first, second, high, wide], "stride": strides})
    };
    let [image, filter, result] = set.spatial;
    let [workspace, tile, depth, rows, columns] = set.settings;
    let mut knobs = json!({ "CUDNN_KNOB_TYPE_WORKSPACE": workspace });
    if tile >= 0 {
        knobs["CUDNN_KNOB_TYPE_TILE_SIZE"] = tile.into();
        knobs["CUDNN_KNOB_TYPE_TILEK"] = depth.into();
        knobs["CUDNN_KNOB_TYPE_TILE_CGA_M"] = rows.into();
        knobs["CUDNN_KNOB_TYPE_TILE_CGA_N"] = columns.into();
    }
    let mut node = json!({
        "operation": format!("CUDNN_BACKEND_OPERATION_CONVOLUTION_{operation}_DESCRIPTOR"),
        "stride": [set.stride, set.stride],
    });
    for (name, tensor) in names.iter().zip(["120", "119", "121"]) {
        node[name] = tensor.into();
    }
    json!({
        "cudnnVersion": 91900,
        "operationGraph": {
            "tensors": [
                tensor("119", filters, channels / groups, filter),
                tensor("120", images, channels, image),
                tensor("121", images, filters, result),
            ],
            "nodes": [node],
        },
        "GPUProfile": {"multiProcessorCount": 132},
        "engine": {"engineId": set.engine, "smVersion": 900, "knobChoices": knobs},
    })
}

fn known_of(set: &Set, answered: u64) -> Known {
    known(&plan(set).to_string(), answered)
}

/// What an H200 answered, and cuDNN without a device.
#[test]
fn engines_that_go_through_tiles_follow_the_rule() {
    use Kind::{Bfloat16, Float, Half};
    use Pass::{BackwardData, BackwardFilter, Forward};
    let measured = [
        (131, 15_729_375, SET),
        (
            7_960_723,
            7_960_592,
            Set {
                last: false,
                sizes: [16, 448, 1024, 1],
                spatial: [[13, 13], [1, 1], [13, 13]],
                settings: [0, 6, 1, 1, 2],
                ..SET
            },
        ),
        (
            1_048_767,
            4_194_687,
            Set {
                engine: 67,
                kind: Float,
                sizes: [32, 576, 96, 1],
                spatial: [[10, 10], [3, 3], [5, 5]],
                stride: 2,
                settings: [0, 0, 0, 8, 1],
                ..SET
            },
        ),
        (
            0,
            1_573_407,
            Set {
                pass: BackwardData,
                engine: 67,
                sizes: [40, 24, 896, 1],
                spatial: [[7, 7], [3, 3], [5, 5]],
                settings: [0, 5, 1, 8, 1],
                ..SET
            },
        ),
        (
            131,
            14_156_155,
            Set {
                pass: BackwardData,
                engine: 67,
                kind: Bfloat16,
                sizes: [384, 768, 1152, 1],
                spatial: [[1, 50], [1, 5], [1, 50]],
                settings: [0, 3, 1, 1, 2],
                ..SET
            },
        ),
        (
            70_530_427,
            68_171_027,
            Set {
                pass: BackwardData,
                engine: 71,
                kind: Float,
                last: false,
                sizes: [10, 448, 80, 1],
                spatial: [[56, 56], [4, 4], [55, 55]],
                settings: [0, 3, 0, 1, 2],
                ..SET
            },
        ),
        (
            524_479,
            3_932_895,
            Set {
                pass: BackwardFilter,
                engine: 65,
                sizes: [5, 224, 728, 1],
                spatial: [[72, 72], [1, 1], [72, 72]],
                settings: [0, 1, 1, 2, 4],
                ..SET
            },
        ),
        (
            2_502_291,
            2_502_160,
            Set {
                pass: BackwardFilter,
                engine: 65,
                kind: Bfloat16,
                last: false,
                sizes: [3, 336, 320, 1],
                spatial: [[12, 12], [3, 3], [12, 12]],
                settings: [0, 7, 1, 1, 6],
                ..SET
            },
        ),
        // In groups: so few channels that groups are joined, more, and so many that they come one after the other.
        (
            59_285_751,
            60_563_919,
            Set {
                pass: BackwardFilter,
                engine: 65,
                sizes: [80, 384, 256, 64],
                spatial: [[24, 24], [1, 1], [12, 12]],
                stride: 2,
                settings: [0, 5, 1, 1, 3],
                ..SET
            },
        ),
        (
            1_092_616_339,
            1_098_908_211,
            Set {
                engine: 67,
                kind: Float,
                last: false,
                sizes: [256, 576, 1920, 8],
                spatial: [[16, 16], [3, 3], [16, 16]],
                settings: [0, 9, 0, 4, 1],
                ..SET
            },
        ),
        (
            18_023_360,
            18_023_072,
            Set {
                pass: BackwardFilter,
                engine: 65,
                last: false,
                sizes: [18, 1792, 672, 2],
                spatial: [[9, 9], [3, 3], [9, 9]],
                settings: [1, 0, 1, 1, 8],
                ..SET
            },
        ),
        // Told not to split.
        (
            12_386_451,
            12_386_320,
            Set {
                last: false,
                sizes: [16, 96, 768, 1],
                spatial: [[20, 20], [3, 3], [20, 20]],
                settings: [1, 20, 0, 2, 2],
                ..SET
            },
        ),
    ];
    assert_eq!((measured[0].2.pass, measured[0].2.kind), (Forward, Half));
    for (index, (answered, bytes, set)) in measured.iter().enumerate() {
        assert_eq!(known_of(set, *answered), Known::Bytes(*bytes), "the plan at {index}");
    }
}

/// A layer of an EfficientNet-B0.
const MATMUL: Set = Set {
    engine: 58,
    kind: Kind::Float,
    last: false,
    sizes: [64, 24, 144, 1],
    spatial: [[56, 56], [1, 1], [56, 56]],
    settings: [0, -1, 0, 1, 1],
    ..SET
};

#[test]
fn products_of_matrices_need_what_the_nearest_measured_layer_does() {
    assert_eq!(known_of(&MATMUL, 0), Known::Bytes(0));
    let setting = |workspace| [workspace, -1, 0, 1, 1];
    let measured = Set { settings: setting(1), ..MATMUL };
    assert_eq!(known_of(&measured, 0), Known::Bytes(400));
    let beside = Set { sizes: [65, 24, 144, 1], ..measured };
    assert_eq!(known_of(&beside, 0), Known::Guessed(400, Guess::Matmul));
    // What the library counts for itself stays.
    let filters = Set { pass: Pass::BackwardFilter, engine: 62, ..beside };
    let Known::Guessed(bytes, Guess::Matmul) = known_of(&filters, 7_000_000) else {
        panic!("not a guess");
    };
    assert!((7_000_000..9_000_000).contains(&bytes), "{bytes}");
}

#[test]
fn what_was_not_measured_is_a_guess_and_engines_that_do_not_ask_answer_for_themselves() {
    assert_eq!(known_of(&Set { engine: 46, ..SET }, 5), Known::AsAnswered);
    for text in ["", "{}", "[1]", "{\"operationGraph\": {\"nodes\": []}, \"engine\": {}}"] {
        assert_eq!(known(text, 5), Known::Guessed(5, Guess::Elsewhere), "{text}");
        assert_eq!(known(text, 0), Known::AsAnswered, "{text}");
    }
    for settings in [[0, 99, 0, 4, 1], [0, 3, 7, 4, 1], [0, 3, 0, 99, 1], [0, 3, 0, -1, 1]] {
        let unlike = known_of(&Set { settings, ..SET }, 5);
        assert_eq!(unlike, Known::Guessed(5, Guess::Unlike), "{settings:?}");
    }
    // Kernels whose rule is not exact.
    let sliced = Set { pass: Pass::BackwardData, engine: 67, settings: [0, 1, 0, 8, 1], ..SET };
    assert!(matches!(known_of(&sliced, 131), Known::Guessed(_, Guess::Tiles)));
}

#[test]
fn elsewhere_the_rule_is_a_guess() {
    let mut newer = plan(&SET);
    newer["cudnnVersion"] = 92000.into();
    let same = Known::Guessed(15_729_375, Guess::Elsewhere);
    assert_eq!(known(&newer.to_string(), 131), same);
    // Half the multiprocessors have half the clusters at once.
    let mut smaller = plan(&SET);
    smaller["GPUProfile"]["multiProcessorCount"] = 66.into();
    let Known::Guessed(bytes, Guess::Elsewhere) = known(&smaller.to_string(), 131) else {
        panic!("not a guess");
    };
    assert!(bytes < 15_729_375, "{bytes}");
    // Which engines ask the device is not known there either.
    let mut another = plan(&Set { engine: 46, ..SET });
    another["engine"]["smVersion"] = 800.into();
    assert_eq!(known(&another.to_string(), 5), Known::Guessed(5, Guess::Elsewhere));
    assert_eq!(known(&another.to_string(), 0), Known::AsAnswered);
    // A GPU that a plan does not tell from the one that was measured.
    let plans = [(SET, 131), (Set { engine: 46, ..SET }, 5), (Set { engine: 46, ..SET }, 0)];
    assert_eq!(
        plans.map(|(set, answered)| known_of(&set, answered).elsewhere(answered)),
        [same, Known::Guessed(5, Guess::Elsewhere), Known::AsAnswered]
    );
}

#[test]
fn images_may_have_three_dimensions_and_sizes_may_be_absurd() {
    let mut deep = plan(&SET);
    for tensor in deep["operationGraph"]["tensors"].as_array_mut().into_iter().flatten() {
        tensor["dim"].as_array_mut().into_iter().for_each(|it| it.insert(2, 1.into()));
        tensor["stride"].as_array_mut().into_iter().for_each(|it| it.insert(2, 1.into()));
    }
    assert_eq!(known(&deep.to_string(), 131), Known::Bytes(15_729_375));
    for absurd in [json!(0), json!(-1), json!(1_u64 << 62), json!("many")] {
        for tensor in 0..3 {
            for place in 0..4 {
                let mut plan = plan(&SET);
                plan["operationGraph"]["tensors"][tensor]["dim"][place] = absurd.clone();
                let _ = known(&plan.to_string(), 131);
            }
        }
    }
    let most = (1 << 31) - 1;
    for pass in [Pass::Forward, Pass::BackwardData, Pass::BackwardFilter] {
        for sizes in [[most; 4], [most, most, most, 1], [1, most, most, 1], [1, most, most, most]] {
            for taps in [1, (1 << 20) - 1, most] {
                let spatial = [[1, 1], [taps, 1], [1, 1]];
                let engine = if pass == Pass::BackwardFilter { 65 } else { 67 };
                let _ = known_of(&Set { pass, engine, sizes, spatial, ..SET }, 131);
            }
        }
    }
}

#[test]
fn measurements_are_written_and_told_apart() {
    let mut all = Measurements::default();
    let layer = Set { settings: [1, -1, 0, 1, 1], ..MATMUL };
    all.add(&plan(&layer).to_string(), 0, 400);
    all.add(&plan(&SET).to_string(), 131, 15_729_376);
    all.add("{}", 0, 0);
    assert_eq!(all.matmuls().len(), 16);
    let rates = all.rates();
    assert!(
        rates.contains("Forward Tiles known: 0 of 1 exact, 1 of 15729376 bytes wrong"),
        "{rates}"
    );
    assert!(rates.contains("Forward Matmul known: 1 of 1 exact"), "{rates}");
}
