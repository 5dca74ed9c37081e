//! Products by cuBLASLt against a plain loop.

use tonnage_cuda_libs::blas::{Blas, Epilogue, Math, Matrix, Number, Operands, Product};

use crate::support::{
    Cases, Gpu, Measured, Outcome, distance, missing, pack, random, unpack, words,
};

use Number::{Bf16, Complex32, Complex64, F16, F32, F64};

const TRANSPOSES: [[bool; 2]; 4] = [[false, false], [false, true], [true, false], [true, true]];

/// What a product gives, as numbers.
struct Reference {
    d: Vec<f64>,
    vector: Option<Vec<f64>>,
    aside: Option<Vec<f64>>,
}

/// What a product is computed from.
struct Inputs {
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
    vector: Vec<f64>,
    aside: Vec<f64>,
    alpha: f64,
    beta: f64,
}

/// Numbers of one matrix's memory, for the whole batch.
fn extent(product: &Product, matrix: Matrix) -> usize {
    (matrix.stride * product.batch) as usize
}

fn complex(number: Number) -> usize {
    if matches!(number, Complex32 | Complex64) { 2 } else { 1 }
}

impl Inputs {
    fn new(product: &Product, alpha: f64, beta: f64) -> Self {
        let parts = complex(product.input);
        let of = |matrix, number, seed| random(number, parts * extent(product, matrix), seed);
        let vector = match product.epilogue {
            Epilogue::RowSumsOfA => product.m,
            _ => product.n,
        };
        let aside = product.epilogue.aside().unwrap_or(0) * product.m * product.batch;
        Self {
            a: of(product.a, product.input, 1),
            b: of(product.b, product.input, 2),
            c: of(product.d, product.output, 3),
            vector: random(product.output, vector as usize, 4),
            aside: random(product.output, aside as usize, 5),
            alpha,
            beta,
        }
    }
}

fn at(matrix: Matrix, batch: usize, row: usize, column: usize) -> usize {
    let (leading, stride) = (matrix.leading as usize, matrix.stride as usize);
    let inside = if matrix.transposed { column * leading + row } else { row * leading + column };
    batch * stride + inside
}

/// GELU by its formula with `tanh`, and its derivative.
fn gelu(x: f64) -> (f64, f64) {
    let factor = (2.0 / std::f64::consts::PI).sqrt();
    let t = (factor * (x + 0.044_715 * x * x * x)).tanh();
    let slope = factor * (1.0 + 3.0 * 0.044_715 * x * x);
    (0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)
}

fn reference(product: &Product, inputs: &Inputs) -> Reference {
    let [m, n, k, batch] = [product.m, product.n, product.k, product.batch].map(|it| it as usize);
    let parts = complex(product.input);
    let Inputs { a, b, c, .. } = inputs;
    let mut d = c.clone();
    let mut aside = inputs.aside.clone();
    let row = product.epilogue.aside().unwrap_or(0) as usize;
    for z in 0..batch {
        for i in 0..m {
            for j in 0..n {
                let mut sum = [0.0; 2];
                for p in 0..k {
                    let (x, y) = (at(product.a, z, i, p), at(product.b, z, p, j));
                    if parts == 1 {
                        sum[0] += a[x] * b[y];
                    } else {
                        let [xr, xi, yr, yi] = [a[2 * x], a[2 * x + 1], b[2 * y], b[2 * y + 1]];
                        sum[0] += xr * yr - xi * yi;
                        sum[1] += xr * yi + xi * yr;
                    }
                }
                let place = at(product.d, z, i, j);
                for part in 0..parts {
                    let old = c[parts * place + part];
                    let value = inputs.alpha * sum[part] + inputs.beta * old;
                    d[parts * place + part] = match product.epilogue {
                        Epilogue::None | Epilogue::RowSumsOfA | Epilogue::ColumnSumsOfB => value,
                        Epilogue::Bias => value + inputs.vector[j],
                        Epilogue::Relu { bias, .. } => {
                            (value + if bias { inputs.vector[j] } else { 0.0 }).max(0.0)
                        }
                        Epilogue::Gelu { bias, saved } => {
                            let x = value + if bias { inputs.vector[j] } else { 0.0 };
                            if saved.is_some() {
                                aside[(z * m + i) * row + j] = x;
                            }
                            gelu(x).0
                        }
                        Epilogue::GeluGradient { .. } => {
                            value * gelu(aside[(z * m + i) * row + j]).1
                        }
                        // The mask of the cases below: bits of a byte pattern.
                        Epilogue::ReluGradient { .. } => {
                            if mask_bit((z * m + i) * row + j) {
                                value
                            } else {
                                0.0
                            }
                        }
                    };
                }
            }
        }
    }
    let sums = |rows: usize, columns: usize, value: &dyn Fn(usize, usize) -> f64| {
        (0..columns).map(|j| (0..rows).map(|i| value(i, j)).sum()).collect::<Vec<f64>>()
    };
    let vector = match product.epilogue {
        Epilogue::RowSumsOfA => Some(sums(k, m, &|p, i| a[at(product.a, 0, i, p)])),
        Epilogue::ColumnSumsOfB => Some(sums(k, n, &|p, j| b[at(product.b, 0, p, j)])),
        Epilogue::GeluGradient { bias_gradient: true, .. }
        | Epilogue::ReluGradient { bias_gradient: true, .. } => {
            Some(sums(m, n, &|i, j| d[at(product.d, 0, i, j)]))
        }
        _ => None,
    };
    let saved = matches!(product.epilogue, Epilogue::Gelu { saved: Some(_), .. });
    Reference { d, vector, aside: saved.then_some(aside) }
}

/// The mask that gradients of ReLU are given.
fn mask_byte(index: usize) -> u8 {
    (index as u8).wrapping_mul(37) ^ 0x5a
}

fn mask_bit(index: usize) -> bool {
    mask_byte(index / 8) >> (index % 8) & 1 == 1
}

/// What is allowed: rounding of the result, and of what is multiplied.
fn bound(product: &Product) -> f64 {
    match (product.input, product.output, product.math) {
        (_, Bf16, _) => 8e-3,
        (_, F16, _) => 2e-3,
        (F16 | Bf16, ..) | (F32, _, Math::Full) | (Complex32, _, Math::Full) => 1e-5,
        (F32 | Complex32, _, Math::Tf32) => 2e-3,
        _ => 1e-12,
    }
}

fn measure(gpu: &Gpu, blas: &Blas, product: &Product, alpha: f64, beta: f64) -> Outcome<Measured> {
    let inputs = Inputs::new(product, alpha, beta);
    let (a, b) = (
        gpu.upload(&pack(product.input, &inputs.a))?,
        gpu.upload(&pack(product.input, &inputs.b))?,
    );
    let (c, d) = (
        gpu.upload(&pack(product.output, &inputs.c))?,
        gpu.upload(&pack(product.output, &inputs.c))?,
    );
    let vector = gpu.upload(&pack(product.output, &inputs.vector))?;
    let is_mask = matches!(product.epilogue, Epilogue::Relu { .. } | Epilogue::ReluGradient { .. });
    let aside = if is_mask {
        let bytes = product.epilogue.aside().unwrap_or(0) * product.m * product.batch / 8;
        gpu.upload(&(0..bytes as usize).map(mask_byte).collect::<Vec<_>>())?
    } else {
        gpu.upload(&pack(product.output, &inputs.aside))?
    };
    let workspace = gpu.memory(blas.workspace() as usize)?;
    let operands = Operands {
        a: a.address,
        b: b.address,
        c: c.address,
        d: d.address,
        vector: product.epilogue.has_vector().then_some(vector.address),
        aside: product.epilogue.aside().map(|_| aside.address),
        alpha,
        beta,
        workspace: workspace.address,
    };
    // SAFETY: all memory is as large as the product says, and lives until the stream is done.
    let multiply = || unsafe { blas.multiply(product, &operands, gpu.stream) }.map_err(words);
    multiply()?;
    let want = reference(product, &inputs);
    let got = unpack(product.output, &d.download()?);
    let mut error = distance(&got, &want.d);
    let mut note = String::new();
    if let Some(want) = &want.vector {
        let of = distance(&unpack(product.output, &vector.download()?), want);
        note = format!("sums {of:.1e}");
        error = error.max(of);
    }
    if let Some(want) = &want.aside {
        let of = distance(&unpack(product.output, &aside.download()?), want);
        note = format!("{note} saved {of:.1e}");
        error = error.max(of);
    }
    if let Epilogue::Relu { mask: Some(_), .. } = product.epilogue {
        let bits = aside.download()?;
        let row = product.epilogue.aside().unwrap_or(0) as usize;
        let wrong = (0..product.m as usize)
            .flat_map(|i| (0..product.n as usize).map(move |j| (i, j)))
            .filter(|(i, j)| {
                let index = i * row + j;
                let set = bits[index / 8] >> (index % 8) & 1 == 1;
                set != (got[at(product.d, 0, *i, *j)] > 0.0)
            })
            .count();
        note = format!("{note} {wrong} bits of the mask differ");
        if wrong > 0 {
            error = f64::INFINITY;
        }
    }
    let time = gpu.time(10, multiply)?;
    Ok(Measured::new(error, bound(product), time).with(note))
}

pub(crate) fn run(gpu: &Gpu, cases: &mut Cases) {
    let blas = match Blas::load(gpu.launcher.clone(), &gpu.search) {
        Ok(blas) => blas,
        Err(error) => return missing(cases, "blas: loads", &error),
    };
    println!("cuBLASLt {} from {}", blas.version(), blas.path().display());
    let mut run = |name: String, product: Product, alpha, beta| {
        let body = || measure(gpu, &blas, &product, alpha, beta);
        cases.run(&format!("blas: {name}: {}×{}×{}", product.m, product.n, product.k), body);
    };
    for number in [F16, Bf16, F32, F64, Complex32, Complex64] {
        for transposes in TRANSPOSES {
            let name = format!("{number:?} {transposes:?}");
            let dense = Product::dense([64, 96, 128], transposes, number);
            run(name.clone(), dense, 1.0, 0.0);
            run(
                format!("{name} odd, alpha and beta"),
                Product::dense([33, 17, 65], transposes, number),
                0.5,
                2.0,
            );
            let mut strided = Product::dense([24, 40, 56], transposes, number);
            for matrix in [&mut strided.a, &mut strided.b, &mut strided.d] {
                matrix.leading += 8;
                matrix.stride = matrix.leading * 64 + 32;
            }
            strided.batch = 3;
            run(format!("{name} batch of 3, strided"), strided, 1.0, 1.0);
        }
    }
    for transposes in TRANSPOSES {
        let mut product = Product::dense([64, 96, 128], transposes, F32);
        product.math = Math::Tf32;
        run(format!("F32 by TF32 {transposes:?}"), product, 1.0, 0.0);
        for number in [F16, Bf16] {
            let mut product = Product::dense([64, 96, 128], transposes, number);
            product.output = F32;
            run(format!("{number:?} to F32 {transposes:?}"), product, 1.0, 1.0);
        }
    }
    epilogues(gpu, cases, &blas);
    if gpu.is_real {
        large(gpu, cases, &blas);
        refusals(gpu, cases, &blas);
    }
}

fn epilogues(gpu: &Gpu, cases: &mut Cases, blas: &Blas) {
    let all = [
        Epilogue::Bias,
        Epilogue::Relu { bias: false, mask: None },
        Epilogue::Relu { bias: true, mask: None },
        Epilogue::Relu { bias: false, mask: Some(128) },
        Epilogue::Relu { bias: true, mask: Some(128) },
        Epilogue::Gelu { bias: false, saved: None },
        Epilogue::Gelu { bias: true, saved: None },
        Epilogue::Gelu { bias: false, saved: Some(96) },
        Epilogue::Gelu { bias: true, saved: Some(104) },
        Epilogue::ReluGradient { mask: 128, bias_gradient: false },
        Epilogue::ReluGradient { mask: 128, bias_gradient: true },
        Epilogue::GeluGradient { saved: 96, bias_gradient: false },
        Epilogue::GeluGradient { saved: 96, bias_gradient: true },
        Epilogue::RowSumsOfA,
        Epilogue::ColumnSumsOfB,
    ];
    for number in [Bf16, F16, F32] {
        for epilogue in all {
            for transposes in TRANSPOSES {
                let mut product = Product::dense([64, 96, 128], transposes, number);
                product.epilogue = epilogue;
                let name = format!("blas: {number:?} {transposes:?} {epilogue:?}");
                // Not every epilogue exists for every transposition.
                cases.optional(&name, || measure(gpu, blas, &product, 1.0, 0.0));
            }
        }
    }
}

/// Shapes of GPT-2 and of the residual MLP: some numbers are compared, and the speed is told.
fn large(gpu: &Gpu, cases: &mut Cases, blas: &Blas) {
    let full = Math::Full;
    let shapes = [
        ([8192, 2304, 768], [false, true], Bf16, full, Epilogue::Bias),
        ([8192, 768, 768], [false, true], Bf16, full, Epilogue::Bias),
        (
            [8192, 3072, 768],
            [false, true],
            Bf16,
            full,
            Epilogue::Gelu { bias: true, saved: Some(3072) },
        ),
        ([8192, 768, 3072], [false, true], Bf16, full, Epilogue::Bias),
        ([8192, 50304, 768], [false, true], Bf16, full, Epilogue::None),
        ([8192, 768, 50304], [false, false], Bf16, full, Epilogue::None),
        ([50304, 768, 8192], [true, false], Bf16, full, Epilogue::None),
        ([3072, 768, 8192], [true, false], Bf16, full, Epilogue::RowSumsOfA),
        (
            [8192, 3072, 768],
            [false, false],
            Bf16,
            full,
            Epilogue::GeluGradient { saved: 3072, bias_gradient: true },
        ),
        ([8192, 4096, 4096], [false, true], F32, full, Epilogue::Bias),
        ([8192, 4096, 4096], [false, true], F32, Math::Tf32, Epilogue::Bias),
    ];
    for (sizes, transposes, number, math, epilogue) in shapes {
        let mut product = Product::dense(sizes, transposes, number);
        (product.epilogue, product.math) = (epilogue, math);
        let name =
            format!("blas: speed of {sizes:?} {transposes:?} {number:?} {math:?} {epilogue:?}");
        cases.optional(&name, || speed(gpu, blas, &product));
    }
}

fn speed(gpu: &Gpu, blas: &Blas, product: &Product) -> Outcome<Measured> {
    let size = |matrix: Matrix, number: Number| extent(product, matrix) * number.size() as usize;
    let memory = |bytes| {
        gpu.memory(bytes).and_then(|it| {
            // SAFETY: it lives until the stream is done.
            unsafe { gpu.launcher.fill(it.address, 0x3c, bytes as u64, gpu.stream) }
                .map_err(words)?;
            Ok(it)
        })
    };
    let (a, b) = (memory(size(product.a, product.input))?, memory(size(product.b, product.input))?);
    let d = memory(size(product.d, product.output))?;
    let vector = memory((product.m.max(product.n) * product.output.size()) as usize)?;
    let aside = memory(size(product.d, product.output))?;
    let workspace = gpu.memory(blas.workspace() as usize)?;
    let operands = Operands {
        a: a.address,
        b: b.address,
        c: d.address,
        d: d.address,
        vector: product.epilogue.has_vector().then_some(vector.address),
        aside: product.epilogue.aside().map(|_| aside.address),
        alpha: 1.0,
        beta: 0.0,
        workspace: workspace.address,
    };
    let time = gpu.time(20, || {
        // SAFETY: all memory is as large as the product says, and lives until the stream is done.
        unsafe { blas.multiply(product, &operands, gpu.stream) }.map_err(words)
    })?;
    let work = 2.0 * product.m as f64 * product.n as f64 * product.k as f64;
    let note = format!("{:.0} TFLOP/s", work / time.as_secs_f64() / 1e12);
    Ok(Measured::new(0.0, 0.0, time).with(note))
}

fn refusals(gpu: &Gpu, cases: &mut Cases, blas: &Blas) {
    cases.run("blas: GELU in f64 is right, or refused with its shape", || {
        let mut product = Product::dense([64, 96, 128], [false, false], F64);
        product.epilogue = Epilogue::Gelu { bias: true, saved: Some(96) };
        match measure(gpu, blas, &product, 1.0, 0.0) {
            // Its tanh has fewer digits than its products.
            Ok(measured) => Ok(Measured { bound: 1e-10, ..measured }),
            Err(text) => Ok(Measured::exact(text.contains("64×128 by 128×96"), &text)),
        }
    });
}
