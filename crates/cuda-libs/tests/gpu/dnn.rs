//! Convolutions by cuDNN against a plain loop.

use tonnage_cuda_libs::blas::{Math, Number};
use tonnage_cuda_libs::dnn::{Convolution, Dnn, Layout4, Operands, Pass, workspace};

use crate::support::{
    Cases, Gpu, Measured, Outcome, distance, missing, pack, random, unpack, words,
};

/// Images, channels in and out, height, width, filter, padding, steps, dilation, groups.
struct Shape {
    name: &'static str,
    sizes: [u64; 5],
    filter: u64,
    padding: u64,
    stride: u64,
    dilation: u64,
    groups: u64,
}

const SHAPES: [Shape; 6] = [
    Shape {
        name: "3x3",
        sizes: [2, 32, 64, 14, 14],
        filter: 3,
        padding: 1,
        stride: 1,
        dilation: 1,
        groups: 1,
    },
    Shape {
        name: "3x3 by 2",
        sizes: [2, 32, 64, 15, 13],
        filter: 3,
        padding: 1,
        stride: 2,
        dilation: 1,
        groups: 1,
    },
    Shape {
        name: "1x1 by 2",
        sizes: [2, 64, 32, 14, 14],
        filter: 1,
        padding: 0,
        stride: 2,
        dilation: 1,
        groups: 1,
    },
    Shape {
        name: "7x7 by 2 of 3",
        sizes: [2, 3, 16, 32, 32],
        filter: 7,
        padding: 3,
        stride: 2,
        dilation: 1,
        groups: 1,
    },
    Shape {
        name: "3x3 dilated",
        sizes: [1, 16, 16, 12, 12],
        filter: 3,
        padding: 2,
        stride: 1,
        dilation: 2,
        groups: 1,
    },
    Shape {
        name: "3x3 in 4 groups",
        sizes: [2, 32, 32, 8, 8],
        filter: 3,
        padding: 1,
        stride: 1,
        dilation: 1,
        groups: 4,
    },
];

fn convolution(shape: &Shape, pass: Pass, number: Number, last: bool) -> Convolution {
    let [images, channels, out, height, width] = shape.sizes;
    let after = |size: u64| {
        (size + 2 * shape.padding - shape.dilation * (shape.filter - 1) - 1) / shape.stride + 1
    };
    let layout =
        |sizes| if last { Layout4::channels_last(sizes) } else { Layout4::channels_first(sizes) };
    let input = layout([images, channels, height, width]);
    let filter = layout([out, channels / shape.groups, shape.filter, shape.filter]);
    let output = layout([images, out, after(height), after(width)]);
    let numbers: u64 =
        [input, filter, output].iter().map(|it| it.sizes.iter().product::<u64>()).sum();
    Convolution {
        pass,
        input,
        filter,
        output,
        padding: [shape.padding; 2],
        stride: [shape.stride; 2],
        dilation: [shape.dilation; 2],
        number,
        math: Math::Full,
        // As tensors ask for it.
        deterministic: true,
        workspace: workspace(numbers * number.size()),
    }
}

fn count(layout: &Layout4) -> usize {
    layout.sizes.iter().product::<u64>() as usize
}

fn at(layout: &Layout4, index: [usize; 4]) -> usize {
    index.iter().zip(layout.strides).map(|(i, stride)| i * stride as usize).sum()
}

/// Calls `body` with the places in input, filter and output of every pair of numbers that are multiplied.
fn each(convolution: &Convolution, mut body: impl FnMut(usize, usize, usize)) {
    let [images, out, rows, columns] = convolution.output.sizes.map(|it| it as usize);
    let [_, of_group, high, wide] = convolution.filter.sizes.map(|it| it as usize);
    let [_, channels, height, width] = convolution.input.sizes.map(|it| it as usize);
    let of_out = out / (channels / of_group);
    let reach = |place: usize, tap: usize, direction: usize, size: usize| {
        let [stride, dilation, padding] =
            [convolution.stride, convolution.dilation, convolution.padding]
                .map(|it| it[direction] as usize);
        (place * stride + tap * dilation).checked_sub(padding).filter(|it| *it < size)
    };
    for image in 0..images {
        for o in 0..out {
            for (i, j) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))) {
                for c in 0..of_group {
                    for (r, s) in (0..high).flat_map(|r| (0..wide).map(move |s| (r, s))) {
                        let (Some(y), Some(x)) = (reach(i, r, 0, height), reach(j, s, 1, width))
                        else {
                            continue;
                        };
                        let channel = o / of_out * of_group + c;
                        body(
                            at(&convolution.input, [image, channel, y, x]),
                            at(&convolution.filter, [o, c, r, s]),
                            at(&convolution.output, [image, o, i, j]),
                        );
                    }
                }
            }
        }
    }
}

fn measure(gpu: &Gpu, dnn: &Dnn, convolution: &Convolution) -> Outcome<Measured> {
    let number = convolution.number;
    let all = [convolution.input, convolution.filter, convolution.output];
    let values: Vec<_> =
        all.iter().zip(1..).map(|(layout, seed)| random(number, count(layout), seed)).collect();
    let memory =
        values.iter().map(|it| gpu.upload(&pack(number, it))).collect::<Outcome<Vec<_>>>()?;
    let workspace = gpu.memory(convolution.workspace as usize)?;
    let operands = Operands {
        input: memory[0].address,
        filter: memory[1].address,
        output: memory[2].address,
        workspace: workspace.address,
    };
    // SAFETY: all memory is as large as the convolution says, and lives until the stream is done.
    let convolve = || unsafe { dnn.convolve(convolution, &operands, gpu.stream) }.map_err(words);
    convolve()?;
    let result = match convolution.pass {
        Pass::InputGradient => 0,
        Pass::FilterGradient => 1,
        Pass::Forward => 2,
    };
    let mut want = vec![0.0; values[result].len()];
    each(convolution, |input, filter, output| match result {
        0 => want[input] += values[1][filter] * values[2][output],
        1 => want[filter] += values[0][input] * values[2][output],
        _ => want[output] += values[0][input] * values[1][filter],
    });
    let got = unpack(number, &memory[result].download()?);
    let bound = match (number, convolution.math) {
        (Number::Bf16, _) => 8e-3,
        (Number::F16, _) => 2e-3,
        (Number::F32, Math::Tf32) => 2e-3,
        // Winograd's sums are not those of the loop.
        (Number::F32, Math::Full) => 5e-5,
        _ => 1e-11,
    };
    let time = gpu.time(10, convolve)?;
    Ok(Measured::new(distance(&got, &want), bound, time))
}

pub(crate) fn run(gpu: &Gpu, cases: &mut Cases) {
    let dnn = match Dnn::load(gpu.launcher.clone(), &gpu.search) {
        Ok(dnn) => dnn,
        Err(error) => return missing(cases, "dnn: loads", &error),
    };
    println!("cuDNN {} from {}", dnn.version(), dnn.path().display());
    let kinds = [
        (Number::F32, Math::Full, false),
        (Number::F32, Math::Full, true),
        (Number::F32, Math::Tf32, false),
        (Number::F16, Math::Full, false),
        (Number::Bf16, Math::Full, false),
        (Number::Bf16, Math::Full, true),
        (Number::F64, Math::Full, false),
    ];
    for shape in &SHAPES {
        for pass in [Pass::Forward, Pass::InputGradient, Pass::FilterGradient] {
            for (number, math, deterministic) in kinds {
                for last in [false, true] {
                    let mut convolution = convolution(shape, pass, number, last);
                    (convolution.math, convolution.deterministic) = (math, deterministic);
                    let layout = if last { "NHWC" } else { "NCHW" };
                    let same = if deterministic { " deterministic" } else { "" };
                    let name =
                        format!("dnn: {} {pass:?} {number:?} {math:?}{same} {layout}", shape.name);
                    let body = || measure(gpu, &dnn, &convolution);
                    // Double precision is not there in every layout, nor are groups.
                    if number == Number::F64 || shape.groups > 1 {
                        cases.optional(&name, body);
                    } else {
                        cases.run(&name, body);
                    }
                }
            }
        }
    }
    speeds(gpu, cases, &dnn);
}

/// Layers of ResNet-50 with 32 images.
fn speeds(gpu: &Gpu, cases: &mut Cases, dnn: &Dnn) {
    let layers = [
        ("stem", [32, 3, 64, 224, 224], 7, 3, 2),
        ("layer1 1x1", [32, 64, 256, 56, 56], 1, 0, 1),
        ("layer1 3x3", [32, 64, 64, 56, 56], 3, 1, 1),
        ("layer2 3x3 by 2", [32, 128, 128, 56, 56], 3, 1, 2),
        ("layer4 3x3", [32, 512, 512, 7, 7], 3, 1, 1),
        ("layer4 1x1", [32, 512, 2048, 7, 7], 1, 0, 1),
    ];
    for (name, sizes, filter, padding, stride) in layers {
        let shape = Shape { name, sizes, filter, padding, stride, dilation: 1, groups: 1 };
        for pass in [Pass::Forward, Pass::InputGradient, Pass::FilterGradient] {
            for (number, last) in [(Number::Bf16, true), (Number::F32, true), (Number::F32, false)]
            {
                let convolution = convolution(&shape, pass, number, last);
                let layout = if last { "NHWC" } else { "NCHW" };
                cases.run(&format!("dnn: speed of {name} {pass:?} {number:?} {layout}"), || {
                    speed(gpu, dnn, &convolution)
                });
            }
        }
    }
}

fn speed(gpu: &Gpu, dnn: &Dnn, convolution: &Convolution) -> Outcome<Measured> {
    let memory = |layout: &Layout4| {
        let bytes = count(layout) * convolution.number.size() as usize;
        let memory = gpu.memory(bytes)?;
        // SAFETY: it lives until the stream is done.
        unsafe { gpu.launcher.fill(memory.address, 0x3c, bytes as u64, gpu.stream) }
            .map_err(words)?;
        Ok::<_, String>(memory)
    };
    let (input, filter) = (memory(&convolution.input)?, memory(&convolution.filter)?);
    let output = memory(&convolution.output)?;
    let workspace = gpu.memory(convolution.workspace as usize)?;
    let operands = Operands {
        input: input.address,
        filter: filter.address,
        output: output.address,
        workspace: workspace.address,
    };
    let time = gpu.time(10, || {
        // SAFETY: all memory is as large as the convolution says, and lives until the stream is done.
        unsafe { dnn.convolve(convolution, &operands, gpu.stream) }.map_err(words)
    })?;
    let [_, of_group, high, wide] = convolution.filter.sizes;
    let work = 2.0 * count(&convolution.output) as f64 * (of_group * high * wide) as f64;
    Ok(Measured::new(0.0, 0.0, time)
        .with(format!("{:.0} TFLOP/s", work / time.as_secs_f64() / 1e12)))
}
