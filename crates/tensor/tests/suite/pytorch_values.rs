//! Results and gradients against PyTorch's: `data/functions.json`, written by `data/functions.py`.

use serde_json::Value;
use tonnage_tensor::{
    AttentionOptions, Complex64, CrossEntropyOptions, DType, Device, Reduction, Result, Tensor,
};

use crate::computing;

const DATA: &str = include_str!("../data/functions.json");

/// What PyTorch computed in 64 bits differs in the last digits only; complex numbers have 32.
fn tolerance(dtype: DType) -> f64 {
    if dtype == DType::F64 { 1e-12 } else { 2e-4 }
}

fn numbers<T>(value: &Value, number: impl Fn(&Value) -> T) -> Vec<T> {
    value["data"].as_array().expect("numbers").iter().map(number).collect()
}

fn float(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn tensor(value: &Value, device: &Device) -> Result<Tensor> {
    let sizes = value["shape"].as_array().expect("sizes");
    let shape: Vec<usize> = sizes.iter().map(|it| it.as_u64().expect("a size") as usize).collect();
    match value["dtype"].as_str() {
        Some("int64") => Tensor::from_slice(
            &numbers(value, |it| it.as_i64().expect("an integer")),
            shape,
            device,
        ),
        Some("complex64") => {
            let parts = numbers(value, |it| float(it) as f32);
            let complex: Vec<_> = parts.chunks(2).map(|it| Complex64::new(it[0], it[1])).collect();
            Tensor::from_slice(&complex, shape, device)
        }
        _ => Tensor::from_slice(&numbers(value, float), shape, device)?.to(DType::F64),
    }
}

/// The largest difference.
fn far(a: &Tensor, b: &Tensor) -> Result<f64> {
    assert_eq!(a.shape(), b.shape());
    let far = a.to(b.dtype())?.sub(b)?.to(wide(b))?.abs()?.to(DType::F64)?.to_vec::<f64>()?;
    Ok(far.into_iter().fold(0.0, f64::max))
}

fn wide(x: &Tensor) -> DType {
    if x.dtype() == DType::Complex64 { DType::Complex64 } else { DType::F64 }
}

fn solve(z: &Tensor, b: &Tensor) -> Result<Tensor> {
    let size = z.shape()[z.dim() - 1];
    let rows = Tensor::arange(0, size as i64, 1, z.device())?;
    let gram = z.conj()?.transpose(-1, -2)?.matmul(z)?;
    gram.add(&rows.one_hot(size)?.to(z.dtype())?)?.solve_hermitian(b)
}

/// The function that PyTorch computed under this name.
fn compute(name: &str, x: &[Tensor]) -> Result<Tensor> {
    let options = CrossEntropyOptions::default();
    let attention = AttentionOptions::default();
    match name {
        "softmax" => x[0].softmax(1),
        "log_softmax" => x[0].log_softmax(-1),
        "gelu" => x[0].gelu(),
        "gelu_tanh" => x[0].gelu_tanh(),
        "cross_entropy" | "cross_entropy_space" => x[0].cross_entropy(&x[1]),
        "cross_entropy_lean" => x[0].cross_entropy_lean(&x[1], &options),
        "cross_entropy_weight" => {
            x[0].cross_entropy_with(&x[1], &options.weight(x[2].detach()).ignore_index(2))
        }
        "nll_loss" => x[0].nll_loss(&x[1], &options.reduction(Reduction::None)),
        "mse_loss" => x[0].mse_loss(&x[1], Reduction::Mean),
        "embedding" => x[0].embedding(&x[1], Some(1)),
        "cat" => Tensor::cat(&[&x[0], &x[1]], 1),
        "stack" => Tensor::stack(&[&x[0], &x[1]], 1),
        "split" => x[0].split(2, 1)?[1].mul(&x[0].split(2, 1)?[0]),
        "gather" => x[0].gather(1, &x[1]),
        "index_select" => x[0].index_select(1, &x[1]),
        "index_add" => x[0].index_add(1, &x[1], &x[2], 0.5),
        "scatter_add" => x[0].scatter_add(0, &x[1], &x[2]),
        "one_hot" => x[0].one_hot(5),
        "tril" => x[0].tril(-1),
        "triu" => x[0].triu(1),
        "attention" => x[0].scaled_dot_product_attention(&x[1], &x[2], attention),
        "attention_causal" => {
            x[0].scaled_dot_product_attention(&x[1], &x[2], attention.causal(true))
        }
        "gram" => x[0].conj()?.transpose(-1, -2)?.matmul(&x[0])?.abs(),
        "solve" => solve(&x[0], &x[1]),
        "solve_complex" => solve(&x[0], &x[1])?.abs(),
        other => panic!("no function {other}"),
    }
}

fn check(name: &str, case: &Value, device: &Device) -> Result<()> {
    let list = |key: &str| case[key].as_array().expect("a list");
    let inputs = list("inputs")
        .iter()
        .map(|it| {
            let x = tensor(it, device)?;
            if x.dtype() == DType::I64 { Ok(x) } else { x.requires_grad_(true) }
        })
        .collect::<Result<Vec<_>>>()?;
    let y = compute(name, &inputs)?;
    let expected = tensor(&case["output"], device)?;
    let tolerance = inputs.iter().map(|it| tolerance(wide(it))).fold(0.0, f64::max);
    assert!(far(&y, &expected)? <= tolerance, "{name}: {y}\n{expected}");
    if y.requires_grad() {
        let indices = Tensor::arange(0, y.numel() as i64, 1, (device, DType::F64))?;
        let weights = indices.cos()?.view(y.shape())?.to(y.dtype())?;
        y.mul(&weights)?.sum()?.backward()?;
    }
    for (place, (input, expected)) in inputs.iter().zip(list("grads")).enumerate() {
        if expected.is_null() {
            continue;
        }
        let expected = tensor(expected, device)?;
        let grad = input.grad().expect("a gradient where PyTorch has one");
        assert!(far(&grad, &expected)? <= tolerance, "{name}, input {place}: {grad}\n{expected}");
    }
    Ok(())
}

#[test]
fn results_and_gradients_are_pytorch_s() -> Result<()> {
    let device = computing("256 MiB");
    let cases: Value = serde_json::from_str(DATA).unwrap();
    let cases = cases.as_array().unwrap();
    assert_eq!(cases.len(), 25);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        check(name, case, &device)?;
        if name == "cross_entropy" {
            check("cross_entropy_lean", case, &device)?;
        }
    }
    Ok(())
}
