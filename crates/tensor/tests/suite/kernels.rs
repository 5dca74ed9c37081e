//! Convolutions, pools, norms, reductions and elementwise functions against PyTorch's values and
//! gradients, which `data/kernels.py` writes.

use std::path::Path;

use serde_json::Value;
use tonnage_tensor::autograd::BackwardOptions;
use tonnage_tensor::{BatchNormOptions, ConvOptions, DType, Device, PoolOptions, Result, Tensor};

use crate::computing;

type Case = fn(&[Tensor]) -> Result<Vec<Tensor>>;

/// The cases of the script, by name: the first result is the one that goes back.
const CASES: &[(&str, Case)] = &[
    ("conv plain", |x| one(x[0].conv2d(&x[1], Some(&x[2]), conv()))),
    ("conv stride padding", |x| {
        one(x[0].conv2d(&x[1], Some(&x[2]), conv().stride(2).padding([1, 2])))
    }),
    ("conv dilation", |x| one(x[0].conv2d(&x[1], None, conv().dilation(2).padding(2)))),
    ("conv groups", |x| one(x[0].conv2d(&x[1], Some(&x[2]), conv().groups(2)))),
    ("conv depthwise", |x| one(x[0].conv2d(&x[1], None, conv().groups(4).padding(1)))),
    ("conv 1x1", |x| one(x[0].conv2d(&x[1], None, conv()))),
    ("max pool", |x| one(x[0].max_pool2d(pool(3, 2)))),
    ("max pool dilation ceil", |x| one(x[0].max_pool2d(pool(2, 3).dilation(2).ceil_mode(true)))),
    ("avg pool", |x| one(x[0].avg_pool2d(pool(3, 2)))),
    ("avg pool ceil", |x| one(x[0].avg_pool2d(pool(3, 2).ceil_mode(true)))),
    ("avg pool without padding", |x| {
        one(x[0].avg_pool2d(pool(3, 2).ceil_mode(true).count_include_pad(false)))
    }),
    ("adaptive pool", |x| one(x[0].adaptive_avg_pool2d([3, 4]))),
    ("adaptive pool to one", |x| one(x[0].adaptive_avg_pool2d(1))),
    ("batch norm training", |x| {
        let [mean, variance] = statistics(&x[0])?;
        let options = BatchNormOptions::default().momentum(0.2).eps(1e-3);
        let y = x[0].batch_norm(Some(&x[1]), Some(&x[2]), Some([&mean, &variance]), options)?;
        Ok(vec![y, mean, variance])
    }),
    ("batch norm in use", |x| {
        let [mean, variance] = statistics(&x[0])?;
        let options = BatchNormOptions::default().training(false).eps(1e-3);
        one(x[0].batch_norm(Some(&x[1]), Some(&x[2]), Some([&mean, &variance]), options))
    }),
    ("layer norm", |x| one(x[0].layer_norm([4, 5], Some(&x[1]), Some(&x[2]), 1e-5))),
    ("rms norm", |x| one(x[0].rms_norm([5], Some(&x[1]), 1e-5))),
    ("group norm", |x| one(x[0].group_norm(3, Some(&x[1]), Some(&x[2]), 1e-5))),
    ("max", |x| one(x[0].max())),
    ("max of an axis", |x| two(x[0].max_dim(1, false))),
    ("min of an axis", |x| two(x[0].min_dim(0, true))),
    ("argmax", |x| {
        let x = &x[0];
        Ok(vec![x.sum()?, x.argmax(None, false)?, x.argmax(1, false)?, x.argmin(0, false)?])
    }),
    ("var", |x| one(x[0].var_dim(&[0, 2], 1.0, false))),
    ("std", |x| one(x[0].std_dim(&[1], 0.0, true))),
    ("where", |x| one(x[0].gt(0.1)?.where_cond(&x[0], &x[1]))),
    ("masked fill", |x| one(x[0].masked_fill(&x[0].gt(0.3)?, -2.5))),
    ("clamp", |x| one(x[0].clamp(-0.5, 0.75))),
    ("pow", |x| one(x[0].abs()?.pow(1.7)?.add(&x[0].pow(3)?))),
    ("gelu", |x| one(x[0].gelu())),
    ("gelu tanh", |x| one(x[0].gelu_tanh())),
    ("silu", |x| one(x[0].silu())),
    ("tanh", |x| one(x[0].tanh())),
    ("sigmoid", |x| one(x[0].sigmoid())),
    ("rsqrt", |x| one(x[0].square()?.add(0.5)?.rsqrt())),
    ("changed through views", |x| {
        let y = x[0].mul(2.0)?;
        y.select(0, 1)?.mul_(&x[1])?;
        y.t()?.select(0, 1)?.copy_(&x[1].narrow(0, 0, 3)?)?;
        y.slice(1, 0..4, 2)?.exp_()?;
        Ok(vec![y])
    }),
];

fn conv() -> ConvOptions {
    ConvOptions::default()
}

fn pool(kernel: usize, stride: usize) -> PoolOptions {
    PoolOptions::new(kernel).stride(stride).padding(1)
}

fn statistics(x: &Tensor) -> Result<[Tensor; 2]> {
    let options = (x.device(), x.dtype());
    Ok([Tensor::full([2], 0.5, options)?, Tensor::full([2], 2.0, options)?])
}

fn one(result: Result<Tensor>) -> Result<Vec<Tensor>> {
    Ok(vec![result?])
}

fn two(results: Result<(Tensor, Tensor)>) -> Result<Vec<Tensor>> {
    let (values, places) = results?;
    Ok(vec![values, places])
}

fn tensor(value: &Value, device: &Device, dtype: DType) -> Tensor {
    let list = |name: &str| value[name].as_array().unwrap_or_else(|| panic!("no {name}")).iter();
    let shape: Vec<usize> = list("shape").map(|it| it.as_u64().unwrap() as usize).collect();
    let data: Vec<f64> = list("data").map(|it| it.as_f64().unwrap()).collect();
    Tensor::from_slice(&data, shape, device).unwrap().to(dtype).unwrap()
}

#[track_caller]
fn assert_close(name: &str, what: &str, ours: &Tensor, theirs: &Value, tolerance: f64) {
    let theirs = tensor(theirs, ours.device(), DType::F64);
    assert_eq!(ours.shape(), theirs.shape(), "{name}, {what}");
    let [ours, theirs] =
        [ours, &theirs].map(|it| it.to(DType::F64).unwrap().to_vec::<f64>().unwrap());
    for (index, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        let close = (ours - theirs).abs() <= tolerance * theirs.abs().max(1.0);
        assert!(close, "{name}, {what}, element {index}: {ours}, and PyTorch {theirs}");
    }
}

#[test]
fn values_and_gradients_are_pytorch_s() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kernels.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    let cases = file["cases"].as_array().unwrap();
    let names: Vec<&str> = cases.iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, CASES.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    let device = computing("256 MiB");
    for (case, (name, function)) in cases.iter().zip(CASES) {
        for (dtype, tolerance) in [(DType::F64, 1e-10), (DType::F32, 3e-5)] {
            let list = |name: &str| case[name].as_array().unwrap();
            let inputs: Vec<Tensor> = list("inputs")
                .iter()
                .map(|it| tensor(it, &device, dtype).requires_grad_(true).unwrap())
                .collect();
            let results = function(&inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(results.len(), list("results").len(), "{name}");
            for (place, (ours, theirs)) in results.iter().zip(list("results")).enumerate() {
                assert_close(name, &format!("result {place}"), ours, theirs, tolerance);
            }
            let begin = tensor(&case["begin"], &device, dtype);
            results[0].backward_with(Some(&begin), BackwardOptions::default()).unwrap();
            for (place, (input, theirs)) in inputs.iter().zip(list("gradients")).enumerate() {
                let ours = input.grad().unwrap();
                assert_close(name, &format!("gradient {place}"), &ours, theirs, tolerance);
            }
        }
    }
}
