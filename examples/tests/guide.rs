//! The figures of the guide's chapters "Fit your model" and "What the documents get wrong": each table
//! there is made here, on `dry` or from PyTorch's own statistics, and compared word by word.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tonnage::memory::DeviceOptions;
use tonnage::tensor::amp::autocast;
use tonnage::tensor::checkpoint::Placement;
use tonnage::tensor::models::{DeepNet, Gpt2, Gpt2Config, ResNet, ResNetConfig, mlp};
use tonnage::tensor::nn::Module;
use tonnage::tensor::offload::Offload;
use tonnage::tensor::optim::{AdamW, Optimizer, Sgd};
use tonnage::tensor::{DType, Device, ErrorKind, Result, Role, Tensor};
use tonnage::{Config, Release};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The guide has this table.
#[track_caller]
fn assert_in_guide(table: &str) {
    let guide = std::fs::read_to_string(root().join("GUIDE.md")).unwrap();
    assert!(guide.contains(table), "the guide does not have this table:\n{table}");
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30))
}

/// How GPT-2 is trained.
#[derive(Clone, Copy)]
struct Training {
    name: &'static str,
    placement: Placement,
    dtype: DType,
    /// Into how many parts a batch is cut.
    parts: usize,
    /// Whether the loss keeps scores only.
    lean: bool,
    offload: bool,
}

const PLAIN: Training = Training {
    name: "none",
    placement: Placement::Keep,
    dtype: DType::F32,
    parts: 1,
    lean: false,
    offload: false,
};

const MIXED: Training = Training { name: "bf16", dtype: DType::Bf16, ..PLAIN };

const EACH: Training =
    Training { name: "a checkpoint for each block", placement: Placement::Each, ..PLAIN };

const EIGHT: Training = Training { name: "8 parts of one text", parts: 8, ..PLAIN };

const TECHNIQUES: [Training; 9] = [
    PLAIN,
    Training { name: "a lean loss", lean: true, ..PLAIN },
    MIXED,
    Training { name: "a checkpoint every 4 blocks", placement: Placement::Every(4), ..PLAIN },
    EACH,
    Training { name: "2 parts of four texts", parts: 2, ..PLAIN },
    EIGHT,
    Training { name: "bf16, a checkpoint for each block", dtype: DType::Bf16, ..EACH },
    Training {
        name: "all three, and a lean loss",
        dtype: DType::Bf16,
        parts: 8,
        lean: true,
        ..EACH
    },
];

/// Two steps of GPT-2 small with texts of 1,024 tokens: the first makes the optimizer's state, the second
/// has everything at once.
fn train(device: &Device, training: Training, batch: usize) -> Result<()> {
    let Training { placement, dtype, parts, lean, offload, .. } = training;
    let model = Gpt2::new(Gpt2Config::small(), device)?.checkpointed(placement);
    let mut adam = AdamW::new(model.parameters(), AdamW::options())?;
    let away = Offload::new(device)?;
    let loss = |tokens: &Tensor| -> Result<Tensor> {
        if !lean {
            return model.loss(tokens, tokens);
        }
        let rows = model.forward(tokens)?.view([tokens.numel(), model.config().vocabulary])?;
        rows.cross_entropy_lean(&tokens.reshape([tokens.numel()])?, &Default::default())
    };
    for _ in 0..2 {
        for _ in 0..parts {
            let tokens = Tensor::zeros([batch / parts, 1024], (device, DType::I64))?;
            let forward = || autocast(dtype, || loss(&tokens));
            let loss = if offload { away.run(forward)? } else { forward()? };
            loss.div(parts as f64)?.backward()?;
        }
        adam.step()?;
        adam.zero_grad(true)?;
    }
    Ok(())
}

/// The largest batch that fits in this much memory.
fn largest_batch(training: Training, capacity: &str) -> usize {
    let fits = |batch: usize| {
        let device = Device::dry(capacity).unwrap();
        match train(&device, training, batch) {
            Ok(()) => true,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Memory(_)), "{error}");
                false
            }
        }
    };
    let (mut low, mut high) = (0, 1);
    while fits(high) {
        (low, high) = (high, 2 * high);
    }
    while high - low > 1 {
        let middle = low.midpoint(high);
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}

/// The most that was allocated and reserved, by this training.
fn peaks(training: Training, batch: usize) -> (u64, u64) {
    let device = Device::dry("80 GiB").unwrap();
    train(&device, training, batch).unwrap();
    (device.memory().max_allocated(), device.memory().max_reserved())
}

/// Bytes asked for that are alive, by what they are for.
fn live(device: &Device, role: Role) -> u64 {
    device.memory().live().iter().filter(|it| it.role == role).map(|it| it.bytes).sum()
}

/// Bytes asked for that the backward will need, beside parameters.
fn saved(device: &Device) -> u64 {
    let of_graph = device.memory().live().into_iter();
    of_graph.filter(|it| it.saved > 0 && it.role != Role::Parameters).map(|it| it.bytes).sum()
}

#[test]
fn formulas_know_what_stays_and_miss_what_the_backward_needs() -> Result<()> {
    let (batch, rows, config) = (8, 1024, Gpt2Config::small());
    let device = Device::dry("80 GiB").unwrap();
    let model = Gpt2::new(config, &device)?;
    let mut adam = AdamW::new(model.parameters(), AdamW::options())?;
    let tokens = Tensor::zeros([batch, rows], (&device, DType::I64))?;
    let loss = model.loss(&tokens, &tokens)?;
    let activations = saved(&device);
    loss.backward()?;
    let gradients = live(&device, Role::Gradients);
    adam.step()?;
    let of_optimizer = live(&device, Role::Optimizer);
    let parameters = live(&device, Role::Parameters);
    let count = model.num_parameters() as u64;
    // What each block puts out, in 32 bits.
    let outputs = (batch * rows * config.width * config.layers * 4) as u64;

    let mut table =
        String::from("| | formula | | exact | off by |\n| --- | --- | ---: | ---: | ---: |\n");
    for (what, formula, says, exact) in [
        ("parameters", "4 P", 4 * count, parameters),
        ("gradients", "4 P", 4 * count, gradients),
        ("Adam", "8 P", 8 * count, of_optimizer),
        ("activations", "B · L · A", outputs, activations),
    ] {
        let off = 100.0 * (says as f64 / exact as f64 - 1.0);
        let (says, exact) = (mib(says), mib(exact));
        let _ = writeln!(table, "| {what} | {formula} | {says} | {exact} | {off:+.1} % |");
    }
    let (peak, _) = peaks(PLAIN, batch);
    // Where the backward begins: scores, and two more of their size.
    let scores = (batch * rows * config.vocabulary * 4) as u64;
    let rest = peak - activations - parameters - of_optimizer;
    assert!(rest.abs_diff(2 * scores) < 4 << 20, "{rest} {scores}");
    assert!(activations - scores > 16 * outputs);
    let says = 16 * count + outputs;
    let off = 100.0 * (says as f64 / peak as f64 - 1.0);
    let _ = writeln!(table, "| peak | | {} | {} | {off:+.1} % |", mib(says), mib(peak));
    assert_in_guide(&table);
    Ok(())
}

#[test]
fn each_technique_has_its_peaks_and_its_largest_batch() {
    let mut table = String::from(
        "| technique | allocated | reserved | largest batch in 8 GiB | in 24 GiB |\n\
         | --- | ---: | ---: | ---: | ---: |\n",
    );
    for training in TECHNIQUES {
        let (allocated, reserved) = peaks(training, 8);
        let [small, large] = ["8 GiB", "24 GiB"].map(|capacity| {
            if training.parts > 1 {
                return String::from("any");
            }
            match largest_batch(training, capacity) {
                0 => String::from("none"),
                batch => batch.to_string(),
            }
        });
        let (name, allocated, reserved) = (training.name, gib(allocated), gib(reserved));
        let _ = writeln!(table, "| {name} | {allocated} | {reserved} | {small} | {large} |");
    }
    // Parts of one text take the memory of one, however many there are.
    assert_eq!(peaks(EIGHT, 8), peaks(Training { parts: 64, ..EIGHT }, 64));
    assert_in_guide(&table);
}

/// One text only: what goes to host memory is real memory, on `dry` too.
#[test]
fn offload_moves_activations_to_host_memory() {
    let device = Device::dry("80 GiB").unwrap();
    train(&device, Training { offload: true, ..PLAIN }, 1).unwrap();
    let (kept, _) = peaks(PLAIN, 1);
    let (away, pinned) = (device.memory().max_allocated(), device.pinned().stats().in_use.peak);
    let table = format!(
        "| one text | allocated | in host memory |\n| --- | ---: | ---: |\n\
         | kept | {} | |\n| offloaded | {} | {} |\n",
        gib(kept),
        gib(away),
        gib(pinned),
    );
    assert_in_guide(&table);
}

/// PyTorch's peak of allocated bytes at a point of the documents' programs.
fn pytorch_s_peak(example: &str, point: &str) -> u64 {
    let path = root().join("testdata/examples/examples_reference.json");
    let points: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let is = |it: &&Value| it["example"] == example && it["point"] == point;
    points.as_array().unwrap().iter().find(is).unwrap()["peak"].as_u64().unwrap()
}

#[test]
fn checkpointing_saves_nothing_where_weights_set_the_peak() -> Result<()> {
    let peak = |batch: usize, placement: Placement| -> Result<u64> {
        let device = Device::dry("80 GiB").unwrap();
        let model = DeepNet::new(512, 20, &device)?.checkpointed(placement);
        let x = Tensor::randn([batch, 512], &device)?;
        model.forward(&x)?.sum()?.backward()?;
        Ok(device.memory().max_allocated())
    };
    let mut table = String::from(
        "| batch | kept | checkpointed | PyTorch, kept | PyTorch, checkpointed |\n\
         | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for batch in [128, 1024, 16_384] {
        let ours = [peak(batch, Placement::Keep)?, peak(batch, Placement::Each)?];
        let [kept, checkpointed] = ours.map(mib);
        let _ = write!(table, "| {batch} | {kept} | {checkpointed} |");
        let theirs = ["False", "True"].map(|word| {
            // PyTorch was not asked about the one in the middle.
            let name = format!("003-ckpt n=20 dim=512 B={batch} ckpt={word}");
            if batch == 1024 { String::new() } else { mib(pytorch_s_peak(&name, "backward")) }
        });
        let _ = writeln!(table, " {} | {} |", theirs[0], theirs[1]);
        if batch == 128 {
            assert!(ours[1] >= ours[0]);
        }
    }
    assert_in_guide(&table);
    Ok(())
}

const MIB: u64 = 1 << 20;

fn dry_with(conf: &str) -> tonnage::memory::Device {
    let config = Config::parse(conf, Release::V2_11).unwrap();
    let options = DeviceOptions { config, ..DeviceOptions::default() };
    tonnage::memory::Device::dry_with("8 GiB", options).unwrap()
}

#[test]
fn max_split_size_is_about_blocks_above_it() {
    // Bytes reserved after a block of `first` was freed and `count` of `then` are asked for.
    let reserved = |conf: &str, first: u64, then: u64, count: usize| {
        let device = dry_with(conf);
        drop(device.allocate(first).unwrap());
        let blocks: Vec<_> = (0..count).map(|_| device.allocate(then).unwrap()).collect();
        let reserved = device.memory().reserved();
        drop(blocks);
        reserved / MIB
    };
    let mut table = String::from(
        "| freed, then asked for | defaults | `max_split_size_mb:128` |\n| --- | ---: | ---: |\n",
    );
    for (first, then, count) in [(100, 25, 4), (200, 50, 4), (1000, 50, 4)] {
        let [default, split] = ["", "max_split_size_mb:128"]
            .map(|conf| reserved(conf, first * MIB, then * MIB, count));
        let _ = writeln!(
            table,
            "| {first} MiB, then {count} × {then} MiB | {default} MiB | {split} MiB |"
        );
    }
    assert_in_guide(&table);
}

#[test]
fn max_split_size_changes_nothing_in_the_document_s_own_program() -> Result<()> {
    let stats = |conf: &str| -> Result<_> {
        let config = Config::parse(conf, Release::V2_11).unwrap();
        let options = DeviceOptions { config, ..DeviceOptions::default() };
        let device = Device::dry_with("80 GiB", options).unwrap();
        let [a, b] = [Tensor::randn([1000, 1000], &device)?, Tensor::randn([1000, 1000], &device)?];
        let _c = a.matmul(&b)?;
        let stats = device.memory().stats();
        Ok((stats.allocated_bytes, stats.reserved_bytes, stats.num_device_alloc))
    };
    assert_eq!(stats("max_split_size_mb:512")?, stats("")?);
    assert_eq!(stats("max_split_size_mb:1024")?, stats("")?);
    Ok(())
}

#[test]
fn max_split_size_makes_pytorch_reserve_more() {
    let reserved = |workload: &str, config: &str| {
        let path = root().join(format!("testdata/traces/{workload}.{config}.json"));
        let run: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(run["error"], Value::Null);
        run["stats"]["reserved_bytes.all.peak"].as_u64().unwrap()
    };
    let mut names: Vec<String> = std::fs::read_dir(root().join("testdata/traces"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".default.json").map(str::to_owned))
        .collect();
    names.sort();
    let mut table = String::from(
        "| PyTorch reserved at the most | defaults | `max_split_size_mb:128` | `expandable_segments:True` |\n\
         | --- | ---: | ---: | ---: |\n",
    );
    for name in &names {
        let [default, split, expandable] =
            ["default", "split128", "expandable"].map(|config| reserved(name, config));
        assert!(split >= default, "{name}");
        let _ =
            writeln!(table, "| {name} | {} | {} | {} |", mib(default), mib(split), mib(expandable));
    }
    assert_eq!(names.len(), 11);
    assert_in_guide(&table);
}

/// What PyTorch 2.11 allocates at the most in this step, on an H200: `tensor/tests/suite/pytorch_models.rs`.
const RESNET_IN_PYTORCH: &str = "2932.4 MiB";

#[test]
fn resnet_50_needs_less_than_half_of_what_the_document_says() -> Result<()> {
    let device = Device::dry("80 GiB").unwrap();
    let model = ResNet::new(ResNetConfig::resnet50(), &device)?;
    let images = Tensor::zeros([32, 3, 224, 224], &device)?;
    let kinds = Tensor::zeros([32], (&device, DType::I64))?;
    let mut sgd = Sgd::new(model.parameters(), Sgd::options(0.1).momentum(0.9))?;
    let mut activations = 0;
    for _ in 0..2 {
        let loss = model.forward(&images)?.cross_entropy(&kinds)?;
        activations = saved(&device);
        loss.backward()?;
        sgd.step()?;
        sgd.zero_grad(true)?;
    }
    let table = format!(
        "| ResNet-50, batch 32, 224 × 224, SGD with momentum | |\n| --- | ---: |\n\
         | parameters | {} |\n| momentum | {} |\n| activations, after the forward | {} |\n\
         | peak | {} |\n| peak in PyTorch | {RESNET_IN_PYTORCH} |\n",
        mib(live(&device, Role::Parameters)),
        mib(live(&device, Role::Optimizer)),
        mib(activations),
        mib(device.memory().max_allocated()),
    );
    assert_in_guide(&table);
    Ok(())
}

/// Batches of a program, each dropped after its step; then the cache is emptied, or it is not.
fn batches(
    device: &Device,
    model: &dyn Module,
    batch: &dyn Fn() -> Result<(Tensor, Tensor)>,
    empties: bool,
) -> Result<()> {
    let mut sgd = Sgd::new(model.parameters(), Sgd::options(0.1))?;
    for _ in 0..100 {
        let (data, target) = batch()?;
        model.forward(&data)?.cross_entropy(&target)?.backward()?;
        sgd.step()?;
        sgd.zero_grad(true)?;
        drop((data, target));
        if empties {
            device.memory().empty_cache().unwrap();
        }
    }
    Ok(())
}

#[test]
fn emptying_the_cache_in_a_loop_saves_nothing_and_asks_the_driver_again() -> Result<()> {
    let mut table = String::from(
        "| 100 batches of 32 | | peak allocated | peak reserved | calls of the driver |\n\
         | --- | --- | ---: | ---: | ---: |\n",
    );
    for (name, large) in [("100 → 1,024 → 10", false), ("ResNet-50", true)] {
        let mut peaks = Vec::new();
        for (how, empties) in [("as it is", false), ("`empty_cache` after each", true)] {
            let device = Device::dry("80 GiB").unwrap();
            let kinds = || Tensor::zeros([32], (&device, DType::I64));
            if large {
                let model = ResNet::new(ResNetConfig::resnet50(), &device)?;
                let batch = || Ok((Tensor::zeros([32, 3, 224, 224], &device)?, kinds()?));
                batches(&device, &model, &batch, empties)?;
            } else {
                let model = mlp(&[100, 1024, 10], &device)?;
                let batch = || Ok((Tensor::zeros([32, 100], &device)?, kinds()?));
                batches(&device, &model, &batch, empties)?;
            }
            let (memory, stats) = (device.memory(), device.memory().stats());
            let (allocated, reserved) = (memory.max_allocated(), memory.max_reserved());
            let calls = stats.num_device_alloc + stats.num_device_free;
            let (a, r) = (mib(allocated), mib(reserved));
            let _ = writeln!(table, "| {name} | {how} | {a} | {r} | {calls} |");
            peaks.push((allocated, reserved));
        }
        assert_eq!(peaks[0], peaks[1], "emptying saves nothing\n{table}");
    }
    assert_in_guide(&table);
    Ok(())
}
