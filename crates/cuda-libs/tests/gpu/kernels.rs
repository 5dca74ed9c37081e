//! Compiled kernels, launches, copies and graphs on the device.

use std::time::{Duration, Instant};

use half::{bf16, f16};
use tonnage_cuda_libs::KernelSource;
use tonnage_device::cuda::{Arguments, Extent};

use crate::support::{Cases, Gpu, Measured, Outcome, words};

const SOURCE: KernelSource = KernelSource::new("gpu_test", include_str!("kernels.cu"));

fn launch(gpu: &Gpu, name: &str, extent: Extent, arguments: &Arguments) -> Outcome<()> {
    let function = gpu.kernels.function(&SOURCE, name).map_err(words)?;
    // SAFETY: every case below gives memory that is large enough and lives until the stream is done.
    unsafe { gpu.launcher.launch(&function, extent, gpu.stream, arguments) }.map_err(words)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|it| f32::from_ne_bytes(*it)).collect()
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|it| it.to_ne_bytes()).collect()
}

pub(crate) fn run(gpu: &Gpu, cases: &mut Cases) {
    cases.run("nvrtc: compiles and loads", || {
        let began = Instant::now();
        let function = gpu.kernels.function(&SOURCE, "scale").map_err(words)?;
        let compiler = gpu.kernels.compiler().map_err(words)?;
        let note = format!("{compiler:?} {:?}", function.needs().map_err(words)?);
        Ok(Measured::new(0.0, 0.0, began.elapsed()).with(note))
    });
    cases.run("launch: scale", || {
        let values: Vec<f32> = (0..100_000).map(|it| it as f32).collect();
        let memory = gpu.upload(&bytes_of(&values))?;
        let arguments = Arguments::new().with(memory.address).with(0.5f32).with(100_000u64);
        launch(gpu, "scale", Extent::line(32, 256), &arguments)?;
        let got = floats(&memory.download()?);
        let right = got.iter().zip(&values).all(|(a, b)| *a == b / 2.0);
        Ok(Measured::exact(right, ""))
    });
    cases.run("launch: arguments of the wrong size are refused", || {
        let memory = gpu.memory(4)?;
        let arguments = Arguments::new().with(memory.address).with(0.5f32).with(1u32);
        let Err(text) = launch(gpu, "scale", Extent::line(1, 32), &arguments) else {
            return Ok(Measured::exact(false, "was not refused"));
        };
        Ok(Measured::exact(text.contains("takes arguments of [8, 4, 8] bytes"), &text))
    });
    cases.run("launch: a bad image is refused with words", || {
        // SAFETY: text that the driver refuses as PTX.
        let Err(error) = (unsafe { gpu.launcher.load(b".version 8.0\n.target sm_80\nnonsense\n") })
        else {
            return Ok(Measured::exact(false, "was loaded"));
        };
        Ok(Measured::exact(true, error.to_string().lines().next().unwrap_or_default()))
    });
    conversions(gpu, cases);
    cases.run("prelude: philox", || {
        let memory = gpu.memory(16)?;
        let arguments = Arguments::new()
            .with(memory.address)
            .with(0x299f_31d0_a409_3822u64)
            .with(0x85a3_08d3_243f_6a88u64)
            .with(0x0370_7344_1319_8a2eu64);
        launch(gpu, "random", Extent::line(1, 1), &arguments)?;
        let got = memory.download()?;
        let want = [0xd16c_fe09u32, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1];
        Ok(Measured::exact(got == want.map(u32::to_ne_bytes).concat(), ""))
    });
    cases.run("prelude: sums and maxima of a block", || {
        let values: Vec<f32> = (0..256).map(|it| (it as f32 - 100.0) / 8.0).collect();
        let (from, to) = (gpu.upload(&bytes_of(&values))?, gpu.memory(8)?);
        let arguments = Arguments::new().with(from.address).with(to.address);
        launch(gpu, "sums", Extent::line(1, 256), &arguments)?;
        let want = [values.iter().sum::<f32>(), 155.0 / 8.0];
        Ok(Measured::exact(floats(&to.download()?) == want, ""))
    });
    cases.run("prelude: packs", || {
        let values: Vec<bf16> = (0..4096).map(|it| bf16::from_f32(it as f32 / 64.0)).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|it| it.to_ne_bytes()).collect();
        let (from, to) = (gpu.upload(&bytes)?, gpu.memory(8192)?);
        let arguments = Arguments::new().with(from.address).with(to.address);
        launch(gpu, "packs", Extent::line(2, 256), &arguments)?;
        let want: Vec<u8> =
            values.iter().flat_map(|it| bf16::from_f32(it.to_f32() * 2.0).to_ne_bytes()).collect();
        Ok(Measured::exact(to.download()? == want, ""))
    });
    cases.run("launch: 200,000 bytes of shared memory", || {
        let to = gpu.memory(4)?;
        let function = gpu.kernels.function(&SOURCE, "shared").map_err(words)?;
        function.allow_shared(200_000).map_err(words)?;
        let arguments = Arguments::new().with(to.address);
        launch(gpu, "shared", Extent::line(1, 256).with_shared(200_000), &arguments)?;
        Ok(Measured::exact(floats(&to.download()?) == [49_999.0], ""))
    });
    cases.run("launch: a structure by value", || {
        let pieces = (0..60).map(|_| gpu.memory(400)).collect::<Outcome<Vec<_>>>()?;
        let mut list = Vec::new();
        pieces.iter().for_each(|it| list.extend(it.address.0.to_ne_bytes()));
        (0..60).for_each(|_| list.extend(100u32.to_ne_bytes()));
        let arguments = Arguments::new().with_bytes(&list).with(7.0f32);
        launch(gpu, "fill_list", Extent::line(60, 64), &arguments)?;
        let mut right = true;
        for (index, piece) in pieces.iter().enumerate() {
            right &= floats(&piece.download()?).iter().all(|it| *it == 7.0 + index as f32);
        }
        Ok(Measured::exact(right, ""))
    });
    copies(gpu, cases);
    graphs(gpu, cases);
    overhead(gpu, cases);
}

fn conversions(gpu: &Gpu, cases: &mut Cases) {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    type Widen = fn(u16) -> f32;
    let widen: [(&str, Widen); 2] = [
        ("widen_bf16", |bits| bf16::from_bits(bits).to_f32()),
        ("widen_f16", |bits| f16::from_bits(bits).to_f32()),
    ];
    for (name, want) in widen {
        cases.run(&format!("prelude: {name}, all values"), || {
            let (from, to) = (gpu.upload(&all)?, gpu.memory(4 << 16)?);
            let arguments = Arguments::new().with(from.address).with(to.address);
            launch(gpu, name, Extent::line(256, 256), &arguments)?;
            let got = floats(&to.download()?);
            let same = |(bits, got): (u16, &f32)| {
                let want = want(bits);
                want.to_bits() == got.to_bits() || want.is_nan() && got.is_nan()
            };
            Ok(Measured::exact((0..=u16::MAX).zip(&got).all(same), ""))
        });
    }
    cases.run("prelude: narrowing rounds as the host does", || {
        // Every exponent, with parts of the mantissa that are ties, just below and just above.
        let values: Vec<f32> = (0..1u32 << 20)
            .map(|it| f32::from_bits(it << 12 | [0, 1, 0x800, 0xfff][it as usize % 4]))
            .map(|it| if it.is_nan() { 1.0 } else { it })
            .collect();
        let from = gpu.upload(&bytes_of(&values))?;
        let (narrow, half) = (gpu.memory(2 << 20)?, gpu.memory(2 << 20)?);
        let arguments = Arguments::new().with(from.address).with(narrow.address).with(half.address);
        launch(gpu, "narrow", Extent::line(4096, 256), &arguments)?;
        let want: Vec<u8> =
            values.iter().flat_map(|it| bf16::from_f32(*it).to_ne_bytes()).collect();
        let brains = narrow.download()? == want;
        let want: Vec<u8> = values.iter().flat_map(|it| f16::from_f32(*it).to_ne_bytes()).collect();
        let halves = half.download()? == want;
        Ok(Measured::exact(brains && halves, &format!("bf16 {brains}, f16 {halves}")))
    });
}

fn copies(gpu: &Gpu, cases: &mut Cases) {
    cases.run("copies: pinned memory, within the device, fills", || {
        const SIZE: usize = 1 << 20;
        let (one, two) = (gpu.memory(SIZE)?, gpu.memory(SIZE)?);
        let pinned = gpu.with_device(|device| device.pinned());
        let host = pinned.acquire(2 * SIZE).map_err(words)?;
        // SAFETY: pinned memory of two megabytes, the second half after the first.
        let back = unsafe { host.add(SIZE) };
        for index in 0..SIZE {
            let place = host.as_ptr().wrapping_add(index);
            // SAFETY: inside the first half, which nothing uses yet.
            unsafe { place.write(index as u8) };
        }
        let (launcher, stream) = (&gpu.launcher, gpu.stream);
        // SAFETY: here and below: all of it lives until the stream is done.
        unsafe { launcher.copy_to_device(one.address, host.as_ptr(), SIZE, stream) }
            .map_err(words)?;
        // SAFETY: as above.
        unsafe { launcher.copy_within(two.address, one.address, SIZE as u64, stream) }
            .map_err(words)?;
        // SAFETY: as above.
        unsafe { launcher.fill_words(two.address, 0x0102_0304, 4, stream) }.map_err(words)?;
        // SAFETY: as above.
        unsafe { launcher.fill(two.address.offset(16), 9, 16, stream) }.map_err(words)?;
        // SAFETY: as above.
        unsafe { launcher.copy_to_host(back.as_ptr(), two.address, SIZE, stream) }
            .map_err(words)?;
        gpu.synchronize()?;
        // SAFETY: the copy is done, and wrote all of it.
        let got = unsafe { std::slice::from_raw_parts(back.as_ptr(), SIZE) }.to_vec();
        let right = got[..16] == [4, 3, 2, 1].repeat(4)
            && got[16..32] == [9; 16]
            && got[32..].iter().enumerate().all(|(index, it)| *it == (index + 32) as u8);
        // SAFETY: nothing uses it any more.
        unsafe { pinned.release(host) }.map_err(words)?;
        Ok(Measured::exact(right, ""))
    });
}

fn graphs(gpu: &Gpu, cases: &mut Cases) {
    cases.run("graph: captured on two streams, launched three times", || {
        let side = gpu.with_device(|device| device.create_stream()).map_err(words)?;
        let memory = gpu.upload(&bytes_of(&[1.0; 64]))?;
        let function = gpu.kernels.function(&SOURCE, "scale").map_err(words)?;
        let arguments = Arguments::new().with(memory.address).with(2.0f32).with(64u64);
        let launcher = &gpu.launcher;
        let capture = launcher.capture(gpu.stream).map_err(words)?;
        launch(gpu, "scale", Extent::line(1, 64), &arguments)?;
        launcher.order_behind(side, gpu.stream).map_err(words)?;
        // SAFETY: the memory lives until the end of the case.
        unsafe { launcher.launch(&function, Extent::line(1, 64), side, &arguments) }
            .map_err(words)?;
        launcher.order_behind(gpu.stream, side).map_err(words)?;
        // The allocator may obtain memory during a capture.
        drop(gpu.memory(2 << 20)?);
        let graph = capture.finish().map_err(words)?;
        let nodes = graph.nodes();
        for _ in 0..3 {
            // SAFETY: as above; the module stays loaded.
            unsafe { launcher.launch_graph(&graph, gpu.stream) }.map_err(words)?;
        }
        let right = floats(&memory.download()?).iter().all(|it| *it == 64.0);
        gpu.with_device(|device| device.destroy_stream(side)).map_err(words)?;
        Ok(Measured::exact(right && nodes == 2, &format!("{nodes} nodes")))
    });
}

fn overhead(gpu: &Gpu, cases: &mut Cases) {
    for inside in [false, true] {
        let name = format!(
            "launch: time of the host for one, context {}",
            if inside { "kept current" } else { "entered" }
        );
        cases.run(&name, || {
            let memory = gpu.memory(4)?;
            let function = gpu.kernels.function(&SOURCE, "scale").map_err(words)?;
            let _entered = if inside { Some(gpu.launcher.enter().map_err(words)?) } else { None };
            gpu.synchronize()?;
            let began = Instant::now();
            const TIMES: u32 = 500;
            for _ in 0..TIMES {
                let arguments = Arguments::new().with(memory.address).with(1.0f32).with(1u64);
                // SAFETY: the memory lives until the stream is done.
                unsafe {
                    gpu.launcher.launch(&function, Extent::line(1, 32), gpu.stream, &arguments)
                }
                .map_err(words)?;
            }
            let took = began.elapsed() / TIMES;
            gpu.synchronize()?;
            Ok(Measured::new(0.0, 0.0, took))
        });
    }
    cases.run("kernels: time to find a function again", || {
        let began = Instant::now();
        for _ in 0..1000 {
            gpu.kernels.function(&SOURCE, "scale").map_err(words)?;
        }
        Ok(Measured::new(0.0, 0.0, began.elapsed() / 1000))
    });
    cases.run("copies: bandwidth of a copy within the device", || {
        const SIZE: u64 = 1 << 30;
        let (one, two) = (gpu.memory(SIZE as usize)?, gpu.memory(SIZE as usize)?);
        let took: Duration = gpu.time(10, || {
            // SAFETY: both live until the stream is done, which `time` waits for.
            unsafe { gpu.launcher.copy_within(two.address, one.address, SIZE, gpu.stream) }
                .map_err(words)
        })?;
        let rate = 2.0 * SIZE as f64 / took.as_secs_f64();
        let peak = gpu.launcher.properties().hardware.bandwidth();
        let note = format!("{:.2} TB/s of {:.2}", rate / 1e12, peak as f64 / 1e12);
        Ok(Measured::new(0.0, 0.0, took).with(note))
    });
}
