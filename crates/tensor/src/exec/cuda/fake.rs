//! A GPU without arithmetic: the fake driver under the queue, so that everything around the calls is tested without a GPU.
//!
//! Memory, streams, events, modules, launches with their arguments, copies and products are real or checked as real ones
//! are; kernels are compiled by the real compiler, loaded, and do nothing. Convolutions are by definition, since the fake
//! cuDNN has no engines.

use std::path::{Path, PathBuf};

use tonnage_cuda_libs::Compiler;
use tonnage_cuda_libs::cache::Cache;
use tonnage_cuda_libs::find::Search;
use tonnage_device::cuda::{Cuda, Driver};
use tonnage_fake_cuda::{Fake, Live};
use tonnage_memory::DeviceOptions;

use crate::device::Device;

/// A driver of its own, with its libraries.
pub(crate) struct FakeGpu {
    pub(crate) fake: Fake,
    folder: tempfile::TempDir,
}

impl FakeGpu {
    /// None if there is no compiler here: `cargo xtask test` installs one.
    pub(crate) fn start() -> Option<Self> {
        if let Err(error) = Compiler::load(&Search::here()) {
            println!("not on the fake driver: {error}");
            return None;
        }
        let fake = Fake::start().expect("cargo builds the fake driver with this test");
        let folder = tempfile::tempdir().expect("a folder for links");
        fake.link_libraries(folder.path()).expect("links to the fake's libraries");
        Some(Self { fake, folder })
    }

    /// A new device of it, as large as a `dry` one of two GiB is in tests.
    pub(crate) fn device(&self) -> Device {
        self.try_device().unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn try_device(&self) -> Result<Device, tonnage_memory::OpenError> {
        self.fake.set_capacity(0, 2 << 30);
        // SAFETY: the fake keeps to the driver's interface: that is what it is for.
        let driver = unsafe { Driver::load_from(self.fake.path()) }?;
        let search = Search::here().before(self.folder.path());
        let cuda = Cuda::open_with(driver, 0)?;
        Device::on_cuda(cuda, DeviceOptions::default(), (search, Cache::at(kept())))
    }

    pub(crate) fn assert_nothing_left(&self, context: &str) {
        assert_eq!(self.fake.live(), Live::default(), "{context}");
        assert_eq!(self.fake.used(0), 0, "{context}");
    }
}

/// Where compiled kernels are kept from one test to the next: beside what cargo builds.
fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/test-kernels")
}

mod tests {
    use tonnage_memory::with_stream;

    use super::*;
    use crate::autograd::no_grad;
    use crate::error::{Call, ErrorKind, Result};
    use crate::optim::{Adam, Optimizer, clip_grad_norm_};
    use crate::{ConvOptions, DType, Graph, Tensor};

    fn gpu() -> FakeGpu {
        FakeGpu::start().expect("cargo xtask test installs the compiler")
    }

    /// Uses streams, products, convolutions, indices, random numbers, transfers and an optimizer.
    fn program(device: &Device) -> Result<()> {
        let side = device.create_stream().map_err(|it| Call::here("stream").driver(it))?;
        let weight = Tensor::from_slice(&[0.5f32; 48], [6, 8], device)?.requires_grad_(true)?;
        let rows = Tensor::from_slice(&[1i64, 0, 3, 2], [4], device)?;
        let picked = weight.index_select(0, &rows)?;
        // Written on one stream and read on the other, and dropped while both may be at it.
        let noise = with_stream(&side, || Tensor::randn([4, 8], device))?;
        let hidden = picked.add(&noise)?.dropout(0.5, true)?;
        drop(noise);
        let product = with_stream(&side, || hidden.matmul(&weight.t()?))?;
        let images = product.reshape([1, 1, 4, 6])?;
        let filter = Tensor::ones([2, 1, 3, 3], device)?;
        let seen = images.conv2d(&filter, None, ConvOptions::default().padding(1))?;
        seen.square()?.mean()?.backward()?;
        let mut adam = Adam::new(vec![weight.clone()], Adam::options().lr(0.1))?;
        clip_grad_norm_(std::slice::from_ref(&weight), 1.0)?;
        adam.step()?;
        drop(adam);
        no_grad(|| weight.mul_(0.5))?;
        weight.to(DType::Bf16)?.to(DType::F32)?.to_vec::<f32>()?;
        device.memory().empty_cache()?;
        device.synchronize()
    }

    /// Captures a step with products, a convolution, indices, random numbers and an optimizer, and replays it.
    fn captured_program(device: &Device) -> Result<()> {
        let side = device.create_stream().map_err(|it| Call::here("stream").driver(it))?;
        let weight = Tensor::from_slice(&[0.5f32; 48], [6, 8], device)?.requires_grad_(true)?;
        let rows = Tensor::from_slice(&[1i64, 0, 3, 2], [4], device)?;
        let filter = Tensor::ones([2, 1, 3, 3], device)?;
        let mut adam = Adam::new(vec![weight.clone()], Adam::options().lr(0.1))?;
        let mut step = || {
            let hidden = weight.index_select(0, &rows)?.dropout(0.5, true)?.matmul(&weight.t()?)?;
            let images = hidden.reshape([1, 1, 4, 6])?;
            let seen = images.conv2d(&filter, None, ConvOptions::default().padding(1))?;
            let loss = seen.square()?.mean()?;
            loss.backward()?;
            adam.step()?;
            adam.zero_grad(true)?;
            Ok(loss.detach())
        };
        step()?;
        let (graph, loss) = Graph::capture(device, step)?;
        for _ in 0..2 {
            rows.copy_(&Tensor::from_slice(&[3i64, 1, 0, 0], [4], device)?)?;
            graph.replay()?;
            with_stream(&side, || graph.replay())?;
            loss.item::<f32>()?;
        }
        drop(graph);
        loss.to_vec::<f32>()?;
        device.memory().empty_cache()?;
        device.synchronize()
    }

    /// Asks for everything back. What fails once works the second time.
    fn give_everything_back(device: &Device, which: &str) {
        device.synchronize().or_else(|_| device.synchronize()).unwrap_or_else(|error| {
            panic!("{which}: {error}");
        });
        for _ in 0..3 {
            let _ = device.memory().empty_cache();
            let _ = device.pinned().empty_cache();
        }
        let live: Vec<_> = device.memory().live().into_iter().collect();
        assert!(live.is_empty(), "{which}: {live:?}");
    }

    #[test]
    fn any_driver_call_may_fail_and_nothing_stays() {
        fail_every_call(program);
    }

    #[test]
    fn any_driver_call_of_a_graph_may_fail_and_nothing_stays() {
        fail_every_call(captured_program);
    }

    fn fail_every_call(program: fn(&Device) -> Result<()>) {
        let gpu = gpu();
        let (mut noticed, mut calls) = (0, 0);
        loop {
            let which = format!("call {calls} fails");
            gpu.fake.reset();
            let device = gpu.device();
            gpu.fake.fail_after(calls, 999);
            match program(&device) {
                Ok(()) => {}
                Err(error) => {
                    let is_expected = matches!(
                        error.kind(),
                        ErrorKind::Memory(_)
                            | ErrorKind::Driver(_)
                            | ErrorKind::Pinned(_)
                            | ErrorKind::NoKernel
                    );
                    assert!(is_expected, "{which}: {error}");
                    noticed += 1;
                }
            }
            let failed = gpu.fake.failed() > 0;
            gpu.fake.clear_failures();
            give_everything_back(&device, &which);
            program(&device).unwrap_or_else(|error| panic!("{which}, again: {error}"));
            drop(device);
            gpu.assert_nothing_left(&which);
            if !failed {
                break;
            }
            calls += 1;
        }
        assert!(noticed > 50 && calls > 100, "{calls} calls, of which {noticed} were noticed");
    }

    #[test]
    fn who_waits_for_the_device_does_not_break_a_capture_of_another_thread() -> Result<()> {
        let gpu = gpu();
        let device = gpu.device();
        let x = Tensor::ones([16, 16], &device)?;
        x.matmul(&x)?.add(1.0)?;
        let (graph, _) = Graph::capture(&device, || {
            let y = x.matmul(&x)?;
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| -> Result<()> {
                    x.add(2.0)?;
                    device.synchronize()?;
                    device.memory().empty_cache()?;
                    // Another engine of the GPU goes, with its kernels and libraries.
                    let other = gpu.device();
                    let x = Tensor::ones([8, 8], &other)?;
                    x.matmul(&x)?.add(1.0)?;
                    drop(other);
                    Ok(())
                });
                waits.join().expect("does not panic")
            })?;
            y.add(1.0)
        })?;
        graph.replay()?;
        device.synchronize()
    }

    #[test]
    fn captures_beside_threads_that_wait_for_the_device() -> Result<()> {
        let gpu = gpu();
        let device = gpu.device();
        let x = Tensor::ones([16, 16], &device)?;
        x.matmul(&x)?.add(1.0)?;
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        x.add(2.0).and_then(|_| device.synchronize()).expect("works beside");
                        device.memory().empty_cache().expect("works beside");
                    }
                });
            }
            let captured = (0..50).try_for_each(|_| {
                let (graph, _) = Graph::capture(&device, || x.matmul(&x)?.add(1.0))?;
                graph.replay()
            });
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            captured
        })?;
        device.synchronize()
    }

    #[test]
    fn a_replay_that_fails_has_stepped_nothing() -> Result<()> {
        let gpu = gpu();
        let device = gpu.device();
        let weight = Tensor::ones([8], &device)?.requires_grad_(true)?;
        let mut adam = Adam::new(vec![weight.clone()], Adam::options())?;
        let step = |adam: &mut Adam| {
            weight.sum()?.backward()?;
            adam.step()?;
            adam.zero_grad(true)
        };
        step(&mut adam)?;
        let (graph, ()) = Graph::capture(&device, || step(&mut adam))?;
        graph.replay()?;
        device.synchronize()?;
        assert_eq!(adam.steps(), [2]);
        let mut failed = 0;
        for calls in 0..40 {
            let before = adam.steps();
            gpu.fake.fail_after(calls, 999);
            let replayed = graph.replay();
            gpu.fake.clear_failures();
            failed += usize::from(replayed.is_err());
            let more = u64::from(replayed.is_ok());
            assert_eq!(adam.steps()[0], before[0] + more, "call {calls} fails: {replayed:?}");
        }
        assert!(failed > 2, "{failed}");
        device.synchronize().or_else(|_| device.synchronize())
    }

    #[test]
    fn streams_come_and_go_and_nothing_grows() -> Result<()> {
        let gpu = gpu();
        let device = gpu.device();
        let x = Tensor::ones([16, 16], &device)?;
        let mut seen = Vec::new();
        for _ in 0..30 {
            let side = device.create_stream().map_err(|it| Call::here("stream").driver(it))?;
            let y = with_stream(&side, || x.matmul(&x)?.add(1.0)?.sum())?;
            y.add(&x)?.to_vec::<f32>()?;
            drop((y, side));
            let memory = device.memory();
            memory.empty_cache()?;
            let live = gpu.fake.live();
            seen.push((memory.allocated(), memory.reserved(), live.streams, live.events));
        }
        seen.dedup();
        // Events are pooled: the first rounds may make some.
        assert!(seen.len() <= 3, "{seen:?}");
        drop(x);
        drop(device);
        gpu.assert_nothing_left("at the end");
        Ok(())
    }

    #[test]
    fn large_tensors_come_over_little_pinned_memory() -> Result<()> {
        let gpu = gpu();
        let device = gpu.device();
        let numbers: Vec<f32> = (0..40 << 20).map(|it| (it % 1021) as f32).collect();
        let x = Tensor::from_slice(&numbers, [numbers.len()], &device)?;
        let most = device.pinned().stats().reserved.peak;
        assert!(most <= 3 * (32 << 20), "160 MiB went over {most} bytes");
        assert!(x.to_vec::<f32>()? == numbers, "and came back as they were");
        Ok(())
    }

    #[test]
    fn shared_memory_is_allowed_for_every_launch_that_asks_for_more() -> Result<()> {
        use tonnage_device::cuda::{Arguments, Extent};

        use crate::exec::cuda::{Launch, Operands, Plan, Program};
        use crate::exec::{Args, Kernel};

        struct Shares(u32);

        impl Kernel for Shares {
            fn host(&self, _: &mut Args<'_>) -> Result<(), String> {
                Ok(())
            }

            fn cuda(&self, _: Operands<'_>) -> Plan {
                let text = "extern \"C\" __global__ void tonnage_shares() {}";
                let extent = Extent { grid: [1; 3], block: [32, 1, 1], shared: self.0 };
                Launch::new(Program::new("shares", text, &[]), extent, Arguments::new()).into()
            }
        }
        let gpu = gpu();
        let device = gpu.device();
        let x = Tensor::zeros([1], &device)?;
        let call = Call::here("shares");
        for kib in [16, 64, 100, 64, 200] {
            call.launch(Shares(kib << 10), &[&x], &[])?;
        }
        let error = call.launch(Shares(300 << 10), &[&x], &[]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Driver(_)), "{error}");
        call.launch(Shares(200 << 10), &[&x], &[])
    }
}
