//! Everything with more than one step: `cargo xtask help` lists it.

#![forbid(unsafe_code)]

mod busy;

mod checks;

mod drop_in;

mod fleet;

mod fuzz;

mod gpu;

mod install;

#[cfg(test)]
mod layers;

mod oracle;

mod scripts;

mod shell;

mod web;

mod wheel;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  test           install what the tests need and run them all (the README's test command)
  ci             what CI does: format, lints, docs, licences, tests, PyTorch scripts without a GPU, the oracle's light run,
                 benchmarks as smoke tests
  sweep          the n-th device call failing, for every n, over all streams and recordings
  model [SEEDS]  the random model with more seeds (default 20000)
  fuzz [SECONDS] each fuzz target for so long (default 60); grows fuzz/corpus
  bench          how fast recordings replay; keep the result under benches/results/
  soak [SECONDS] sixteen threads on one poisoned device for so long (default 600)
  asan           the host device, the threads, the tensors and the drop-in under AddressSanitizer
  kernels        every kernel compiled for sm_80, sm_90, sm_100 and sm_120, with the compiler from PyPI
  web [--check]  the page of `tonnage view`, from web/; with --check whether the built one matches its sources
  oracle …       PyTorch's own allocator beside the engine, on random streams; --help lists the options
  scripts …      scripts on the fake CUDA libraries against what a GPU did; --light for those that need PyTorch alone,
                 --release 2.15.0 for these with another PyTorch
  drop-in …      PyTorch's allocator beside the drop-in on the fake CUDA libraries; --light for cases that compile nothing,
                 --release 2.15.0 for these with another PyTorch, --scripts for every script of testdata/scripts
  fleet [RANKS]  the snapshots of so many ranks (default 4096), made and reported on: figures, and what was planted; in other
                 people's storage servers and over Ray (3.5 GB under target/fleet)
  driver-names   the names that the fake driver exports, from the header beside PyTorch
  busy [ROUNDS] [PART]  every test that waits for something, or those with PART in their name, so often (default 50)
                 beside 8 busy processes; keep the result under benches/results/
  wheel [--fast] the Python package, as it is published, into target/wheels; with --fast in a few minutes
  python-full [WHEEL]  a wheel, or one that it builds, in clean Pythons, the oldest and the newest here; with other libraries that
                 take its tables, in a notebook that a browser opens, and with PyTorch and what trains with it on the fake
                 libraries (5 GB)
  gpu-bundle     what benches/gpu.sh needs on a machine with a GPU, in one folder
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    let number = arguments.next();
    let done = match command.as_str() {
        "test" => checks::test(),
        "ci" => checks::ci(),
        "sweep" => checks::sweep(),
        "model" => checks::model(number.as_deref().unwrap_or("20000")),
        "fuzz" => fuzz::run(number.as_deref().unwrap_or("60")),
        "bench" => checks::bench(),
        "soak" => checks::soak(number.as_deref().unwrap_or("600")),
        "asan" => checks::asan(),
        "busy" => busy::run(number.as_deref().unwrap_or("50"), arguments.next().as_deref()),
        "kernels" => checks::kernels(),
        "web" => web::web(number.as_deref()),
        "oracle" => oracle::oracle(std::env::args().skip(2)),
        "scripts" => scripts::scripts(std::env::args().skip(2)),
        "drop-in" => drop_in::drop_in(std::env::args().skip(2)),
        "fleet" => fleet::fleet(number.as_deref().unwrap_or("4096")),
        "driver-names" => scripts::driver_names(),
        "wheel" => wheel::build(number.as_deref()),
        "python-full" => wheel::full(number.as_deref()),
        "gpu-bundle" => gpu::bundle(),
        _ => {
            print!("{HELP}");
            return ExitCode::from(if matches!(command.as_str(), "help" | "--help") {
                0
            } else {
                2
            });
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {command}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
