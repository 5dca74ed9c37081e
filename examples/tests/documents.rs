//! The documents' programs on `dry`, with the library workspaces of PyTorch imitated, against the figures
//! that PyTorch showed on an H200.
//!
//! Each figure is PyTorch's, or smaller for a reason that [`REASONS`] names. The table with all of them
//! is `examples/TABLE.md`; `TONNAGE_WRITE_TABLE=1` writes it anew.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde::Deserialize;
use tonnage::tensor::Device;
use tonnage_examples::{Notes, Point, Program};

macro_rules! programs {
    ($($name:ident = $path:literal,)*) => {
        $(
            #[path = $path]
            #[allow(dead_code, reason = "the test calls the program, not its main")]
            mod $name;
        )*
        /// Every program, in the order of the documents and of the reference.
        const PROGRAMS: &[(&str, Program)] = &[$(($path, $name::program)),*];
    };
}

programs! {
    allocate_and_free = "../000/allocate_and_free.rs",
    allocate_in_a_loop = "../000/allocate_in_a_loop.rs",
    gradients = "../000/gradients.rs",
    give_memory_back = "../001/give_memory_back.rs",
    no_grad = "../001/no_grad.rs",
    data_loading = "../001/data_loading.rs",
    split_size = "../002/split_size.rs",
    preallocation = "../002/preallocation.rs",
    training_step = "../003/training_step.rs",
    checkpointing = "../003/checkpointing.rs",
    square_root = "../003/square_root.rs",
    mixed_precision = "../003/mixed_precision.rs",
    summed_loss = "../003/summed_loss.rs",
    mimo = "../003/mimo.rs",
    after_a_function = "../004/after_a_function.rs",
    references = "../004/references.rs",
    // Programs of which PyTorch's figures were not taken.
    several_devices = "../002/several_devices.rs",
    allocated_and_reserved = "../003/allocated_and_reserved.rs",
    history = "../003/history.rs",
    checkpointed_model = "../003/checkpointed_model.rs",
    in_place = "../003/in_place.rs",
    out_of_memory = "../003/out_of_memory.rs",
    accumulation = "../003/accumulation.rs",
    asynchronous = "../004/asynchronous.rs",
}

/// Where a figure is smaller than PyTorch's, the operation that needs less: by program and point, the
/// first that fits.
const REASONS: &[(&str, &str, &str)] = &[
    ("003-track", "", ADAM),
    ("003-ckpt n=20 dim=512 B=16384", "backward", ROWS),
    ("003-sqrt", "", ROWS),
    ("003-amp", "backward", ROWS),
    ("003-loss", "", SUM),
];

const ADAM: &str =
    "Adam's step goes over the parameters once; PyTorch's makes a temporary of their size";

const ROWS: &str = "The gradient of a bias is a sum over rows; PyTorch's kernel takes scratch memory for \
    its partial sums (64 MiB for 16,384 × 512, 128 MiB for 8,192 × 2,048) where there are many rows";

const SUM: &str = "A sum of many numbers; PyTorch's kernel takes two scratch blocks of 512 bytes";

/// PyTorch's figures at a point.
#[derive(Debug, Deserialize)]
struct Reference {
    example: String,
    point: String,
    allocated: u64,
    reserved: u64,
    peak: u64,
    peak_reserved: u64,
}

impl Reference {
    fn figures(&self) -> [u64; 4] {
        [self.allocated, self.reserved, self.peak, self.peak_reserved]
    }
}

fn figures(point: &Point) -> [u64; 4] {
    [point.allocated, point.reserved, point.peak, point.peak_reserved]
}

fn run_all() -> Vec<Point> {
    let device = Device::dry("139 GiB").unwrap();
    device.set_memory_profile(tonnage::tensor::MemoryProfile::PyTorch);
    let mut notes = Notes::new(&device);
    for (path, program) in PROGRAMS {
        program(&device, &mut notes).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    notes.points().to_vec()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn reference() -> Vec<Reference> {
    let path = root().join("../testdata/examples/examples_reference.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn reason(example: &str, point: &str) -> Option<&'static str> {
    REASONS
        .iter()
        .find(|(program, at, _)| example.starts_with(program) && (at.is_empty() || *at == point))
        .map(|(_, _, reason)| *reason)
}

#[test]
fn every_point_has_pytorch_s_figures_or_fewer_bytes_for_a_stated_reason() {
    let points = run_all();
    let by_name: BTreeMap<_, _> =
        points.iter().map(|it| ((it.example.as_str(), it.point.as_str()), it)).collect();
    let mut table = String::from(
        "# The documents' programs, beside PyTorch's figures\n\n\
         On `dry`, with the workspaces of PyTorch's matrix libraries imitated. PyTorch 2.11 on an H200: \
         `testdata/examples`. Made by `cargo test -p tonnage-examples`.\n\n\
         | program | point | allocated | reserved | peak | peak reserved | PyTorch's, where they differ | why |\n\
         | --- | --- | ---: | ---: | ---: | ---: | --- | --- |\n",
    );
    let mut wrong = String::new();
    for theirs in reference() {
        let Some(ours) = by_name.get(&(theirs.example.as_str(), theirs.point.as_str())) else {
            let _ = writeln!(wrong, "{} {}: no such point", theirs.example, theirs.point);
            continue;
        };
        let (ours, expected) = (figures(ours), theirs.figures());
        let reason = reason(&theirs.example, &theirs.point).unwrap_or("");
        let [a, b, c, d] = ours;
        let _ = write!(table, "| {} | {} | {a} | {b} | {c} | {d} |", theirs.example, theirs.point);
        if ours == expected {
            table += " | |\n";
            continue;
        }
        let [a, b, c, d] = expected;
        let _ = writeln!(table, " {a} / {b} / {c} / {d} | {reason} |");
        let less = ours.iter().zip(expected).all(|(ours, theirs)| *ours <= theirs);
        if !less || reason.is_empty() {
            let _ = writeln!(
                wrong,
                "{} {}:\n  ours     {ours:?}\n  PyTorch  {expected:?}\n  {reason}",
                theirs.example, theirs.point
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    let reference = reference();
    let is_compared = |it: &&str| reference.iter().any(|known| known.example == **it);
    let mut others: Vec<_> = points.iter().map(|it| it.example.as_str()).collect();
    others.dedup();
    others.retain(|it| !is_compared(it));
    let _ = writeln!(
        table,
        "\nPyTorch's figures were not taken of these programs, so there is nothing to compare: {}.",
        others.join(", ")
    );
    let path = root().join("TABLE.md");
    if std::env::var_os("TONNAGE_WRITE_TABLE").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap_or_default(), table, "TABLE.md is out of date");
}

#[test]
fn programs_that_fit_in_ram_have_the_same_figures_there() {
    for (path, program) in PROGRAMS {
        let run = |device: &Device| {
            let mut notes = Notes::new(device);
            program(device, &mut notes).map(|()| notes.points().to_vec())
        };
        let dry = run(&Device::dry("80 GiB").unwrap()).unwrap();
        if dry.iter().map(|it| it.peak_reserved).max() > Some(256 << 20) {
            continue;
        }
        let host = run(&Device::host("1 GiB").unwrap());
        assert_eq!(host.unwrap_or_else(|error| panic!("{path}: {error}")), dry, "{path}");
    }
}
