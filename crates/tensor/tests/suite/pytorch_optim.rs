//! Optimizers and clipping against PyTorch's numbers: `data/optim.py` makes `data/optim.json`.

use serde_json::Value;
use tonnage_tensor::optim::{Adam, AdamW, Optimizer, Sgd, clip_grad_norm_};
use tonnage_tensor::{Device, Result, Tensor};

use crate::computing;

/// None until the script was run where PyTorch is.
fn reference() -> Option<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/optim.json");
    let text = std::fs::read_to_string(path).ok()?;
    Some(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}")))
}

fn numbers(value: &Value) -> Vec<Vec<f64>> {
    serde_json::from_value(value.clone()).unwrap()
}

fn tensors(reference: &Value, values: &Value, device: &Device) -> Result<Vec<Tensor>> {
    let shapes: Vec<Vec<usize>> = serde_json::from_value(reference["shapes"].clone()).unwrap();
    let each = shapes.iter().zip(numbers(values));
    each.map(|(shape, numbers)| Tensor::from_slice(&numbers, &shape[..], device)).collect()
}

fn assert_close(got: &[Tensor], expected: &Value, tolerance: f64, what: &str) -> Result<()> {
    for (got, expected) in got.iter().zip(numbers(expected)) {
        for (got, expected) in got.to_vec::<f64>()?.iter().zip(&expected) {
            assert!((got - expected).abs() <= tolerance, "{what}: {got} is not {expected}");
        }
    }
    Ok(())
}

fn optimizer(name: &str, parameters: Vec<Tensor>) -> Result<Box<dyn Optimizer>> {
    let sgd = Sgd::options(0.1);
    let adam = Adam::options().lr(0.01);
    Ok(match name {
        "sgd" => Box::new(Sgd::new(parameters, sgd)?),
        "sgd_decay" => Box::new(Sgd::new(parameters, sgd.weight_decay(0.05))?),
        "sgd_momentum" => {
            let options = sgd.momentum(0.9).dampening(0.3).weight_decay(0.05);
            Box::new(Sgd::new(parameters, options)?)
        }
        "sgd_nesterov" => Box::new(Sgd::new(parameters, sgd.momentum(0.9).nesterov(true))?),
        "adam" => Box::new(Adam::new(parameters, adam)?),
        "adam_decay" => Box::new(Adam::new(parameters, adam.betas(0.8, 0.95).weight_decay(0.1))?),
        "adamw" => Box::new(AdamW::new(parameters, AdamW::options().lr(0.01).weight_decay(0.1))?),
        other => panic!("the data has a case {other} that this test does not know"),
    })
}

#[test]
fn every_step_is_pytorch_s() -> Result<()> {
    let Some(reference) = reference() else { return Ok(()) };
    let device = computing("64 MiB");
    for (name, steps) in reference["cases"].as_object().unwrap() {
        let parameters = tensors(&reference, &reference["start"], &device)?
            .into_iter()
            .map(|it| it.requires_grad_(true))
            .collect::<Result<Vec<_>>>()?;
        let mut optimizer = optimizer(name, parameters.clone())?;
        let gradients = reference["gradients"].as_array().unwrap();
        for (step, (gradients, expected)) in
            gradients.iter().zip(steps.as_array().unwrap()).enumerate()
        {
            let gradients = tensors(&reference, gradients, &device)?;
            for (parameter, gradient) in parameters.iter().zip(gradients) {
                parameter.set_grad(Some(gradient))?;
            }
            optimizer.step()?;
            assert_close(&parameters, expected, 1e-12, &format!("{name}, step {step}"))?;
        }
    }
    Ok(())
}

#[test]
fn clipping_is_pytorch_s() -> Result<()> {
    let Some(reference) = reference() else { return Ok(()) };
    let device = computing("64 MiB");
    let parameters = tensors(&reference, &reference["start"], &device)?;
    let gradients = tensors(&reference, &reference["gradients"][0], &device)?;
    for (parameter, gradient) in parameters.iter().zip(&gradients) {
        parameter.set_grad(Some(gradient.clone()))?;
    }
    let clip = &reference["clip"];
    let norm = clip_grad_norm_(&parameters, clip["max"].as_f64().unwrap())?.unwrap();
    let expected = clip["norm"].as_f64().unwrap();
    assert!((norm.item::<f64>()? - expected).abs() < 1e-6 * expected, "the norm is an f32");
    assert_close(&gradients, &clip["gradients"], 1e-6, "clip")
}
