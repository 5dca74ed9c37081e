//! The real compiler, without a GPU. It comes from PyPI with `cargo xtask test`, or lies where people have it.

use tonnage_cuda_libs::cache::Cache;
use tonnage_cuda_libs::find::Search;
use tonnage_cuda_libs::{Architecture, Compiler, Error, KernelSource, Kernels, check};
use tonnage_device::Device;
use tonnage_device::cuda::{Arguments, Cuda, Driver, Extent};
use tonnage_events::StreamId;
use tonnage_fake_cuda::Fake;

/// Everything of the prelude, in every type.
const PRELUDE: KernelSource = KernelSource::new(
    "prelude",
    r#"
#include "tonnage.cuh"
template <class T>
__device__ void each(const T* x, T* y, float* sums, u64 count) {
    compute_t<T> sum = 0, top = -1e30;
    for (u64 i = global_thread() * 2; i + 1 < count; i += global_threads() * 2) {
        pack<T, 2> p = load_pack<2>(x + i);
        for (int j = 0; j < 2; j++) {
            sum += to_compute(p[j]);
            top = max_op()(top, to_compute(p[j]));
            p[j] = from_compute<T>(to_compute(p[j]) * 2);
        }
        store_pack(y + i, p);
    }
    sum = block_sum<256>(sum);
    top = block_max<256>(warp_max(top) + warp_sum(sum));
    uint4 random = philox(7, global_thread(), 1);
    if (threadIdx.x == 0) sums[blockIdx.x] = (float)sum + (float)top + (float)random.w;
}
extern "C" __global__ void each_f32(const float* x, float* y, float* s, u64 n) { each(x, y, s, n); }
extern "C" __global__ void each_f64(const double* x, double* y, float* s, u64 n) { each(x, y, s, n); }
extern "C" __global__ void each_f16(const f16* x, f16* y, float* s, u64 n) { each(x, y, s, n); }
extern "C" __global__ void each_bf16(const bf16* x, bf16* y, float* s, u64 n) { each(x, y, s, n); }
struct shape { i64 sizes[4]; u32 rank; };
extern "C" __global__ void scale(float* x, float by, u64 count, shape of, bool twice) {
    for (u64 i = global_thread(); i < count; i += global_threads()) x[i] *= twice ? by * by : by;
}
"#,
);

fn compiler() -> Compiler {
    Compiler::load(&Search::here())
        .unwrap_or_else(|error| panic!("cargo xtask test installs it: {error}"))
}

/// The kernels of the program that runs where there is a GPU.
const GPU: KernelSource = KernelSource::new("gpu_test", include_str!("gpu/kernels.cu"));

#[test]
fn every_kernel_of_this_crate_compiles_for_every_architecture() {
    assert_eq!(
        check::failures(&compiler(), &Cache::none(), &[PRELUDE, GPU], &Architecture::TESTED),
        [""; 0]
    );
}

#[test]
fn a_wrong_kernel_gives_the_compilers_words_with_name_and_line() {
    let compiler = compiler();
    let wrong = KernelSource::new("wrong", "extern \"C\" __global__ void f() {\n  int x = y;\n}\n");
    let error = compiler.compile(&wrong, Architecture::new(9, 0)).unwrap_err();
    let Error::Compile { name, architecture, log } = &error else { panic!("{error}") };
    assert_eq!((name.as_str(), architecture.as_str()), ("wrong", "sm_90"));
    assert!(log.contains("wrong.cu(2)") && log.contains("\"y\" is undefined"), "{log}");
    let folder = tempfile::tempdir().unwrap();
    let failures = |sources: &[KernelSource]| {
        let cache = Cache::at(folder.path());
        check::failures(&compiler, &cache, sources, &Architecture::TESTED[..2])
    };
    assert_eq!(failures(&[wrong.clone(), PRELUDE]).len(), 2);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "what compiles is remembered");
    let failures = failures(&[wrong, PRELUDE]);
    assert_eq!(failures.len(), 2, "what does not, is not");
    assert!(
        failures[0].starts_with("the kernel wrong does not compile for sm_80:\n"),
        "{failures:?}"
    );
    let zero = KernelSource::new("zero", "a\0b");
    assert!(matches!(compiler.compile(&zero, Architecture::new(8, 0)), Err(Error::Misuse(_))));
}

#[test]
fn options_are_passed_on_and_decide_the_image() {
    let compiler = compiler();
    let source =
        KernelSource::new("option", "#ifdef BAD\n#error bad\n#endif\n__global__ void f() {}");
    compiler.compile(&source, Architecture::new(8, 0)).unwrap();
    let with = source.with_options(&["--define-macro=BAD"]);
    let error = compiler.compile(&with, Architecture::new(8, 0)).unwrap_err().to_string();
    assert!(error.contains("bad"), "{error}");
}

#[test]
fn a_device_that_the_compiler_does_not_know_gets_ptx() {
    let image = compiler().compile(&PRELUDE, Architecture::new(99, 0)).unwrap().bytes;
    assert!(String::from_utf8_lossy(&image).contains(".entry each_f32"));
    let known = compiler().compile(&PRELUDE, Architecture::new(9, 0)).unwrap().bytes;
    assert!(known.starts_with(b"\x7fELF"));
}

#[test]
fn kernels_are_compiled_once_kept_on_disk_and_launched_with_their_arguments() {
    let fake = Fake::start().expect("cargo builds the fake driver with this test");
    // SAFETY: the fake keeps to the driver's interface.
    let driver = unsafe { Driver::load_from(fake.path()) }.unwrap();
    let mut device = Cuda::open_with(driver, 0).unwrap();
    let memory = device.acquire(2 << 20).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let kernels = || Kernels::with(device.launcher(), Search::here(), Cache::at(folder.path()));
    let first = kernels();
    let scale = first.function(&PRELUDE, "scale").unwrap();
    assert_eq!(fake.live().modules, 1);
    first.function(&PRELUDE, "each_f16").unwrap();
    first.function(&PRELUDE, "scale").unwrap();
    assert_eq!(fake.live().modules, 1, "one source is one module");
    assert!(first.function(&PRELUDE, "missing").unwrap_err().to_string().contains("for missing"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    // Of a cubin too the fake knows the parameters: an address, two numbers, a structure, a flag.
    let shape = [0u8; 40];
    let arguments =
        Arguments::new().with(memory).with(2.0f32).with(8u64).with_bytes(&shape).with(true);
    let (launcher, extent) = (first.launcher(), Extent::line(1, 256));
    // SAFETY: the fake runs nothing.
    unsafe { launcher.launch(&scale, extent, StreamId(0), &arguments) }.unwrap();
    let short = Arguments::new().with(memory).with(2.0f32);
    // SAFETY: refused.
    let error = unsafe { launcher.launch(&scale, extent, StreamId(0), &short) }.unwrap_err();
    assert!(error.to_string().contains("takes arguments of [8, 4, 8, 40, 1] bytes"), "{error}");
    let seen = fake.launches();
    assert_eq!((seen.len(), seen[0].name.as_str()), (1, "scale"));
    assert_eq!(seen[0].argument(0), Some(memory.0.to_ne_bytes()));
    // Another process of the same user, whose compiler may even be gone.
    drop((first, scale));
    assert_eq!(fake.live().modules, 0);
    kernels().function(&PRELUDE, "each_bf16").unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}
