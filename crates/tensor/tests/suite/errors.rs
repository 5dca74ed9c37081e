//! Errors that read like a compiler's: what met what, at which call, and what to do.

use tonnage_memory::{DeviceId, DeviceOptions};
use tonnage_tensor::nn::{Linear, Module};
use tonnage_tensor::{ConvOptions, DType, Device, Error, ErrorKind, Result, Tensor};

/// The message, with the place of the call as `HERE`: which it is, the test says by its line.
#[track_caller]
fn text<T>(result: Result<T>, line: u32) -> String {
    let error = result.err().unwrap();
    assert_eq!(error.site().file(), file!());
    assert_eq!(error.site().line(), line, "{error}");
    error.to_string().replace(&error.site().to_string(), "HERE")
}

#[test]
fn shapes_and_types_that_do_not_fit_are_named_with_what_to_do() -> Result<()> {
    let device = Device::dry("1 GiB").unwrap();
    let zeros = |shape: &[usize]| Tensor::zeros(shape, &device);
    let (a, b) = (zeros(&[2, 3])?, zeros(&[4, 5])?);
    let whole = Tensor::zeros([3, 2], (&device, DType::I64))?;
    let half = Tensor::zeros([3, 2], (&device, DType::F16))?;
    let images = zeros(&[8, 3, 32, 32])?;

    let (result, line) = (a.matmul(&b), line!());
    assert_eq!(
        text(result, line),
        "matmul: the inner sizes differ\n  --> HERE\n   | self:  float32[2, 3]\n   | other: float32[4, 5]\n   \
         = help: the last size of self (3) must equal the second last of other (4)"
    );
    let (result, line) = (a.add(&b), line!());
    assert_eq!(
        text(result, line),
        "add: the shapes do not broadcast\n  --> HERE\n   | self:  float32[2, 3]\n   | other: float32[4, 5]\n   \
         = help: from the last axis on, sizes must be equal, or one of them 1"
    );
    let (result, line) = (a.matmul(&half), line!());
    assert_eq!(
        text(result, line),
        "matmul: the element types differ\n  --> HERE\n   | self:  float32[2, 3]\n   | other: float16[3, 2]\n   \
         = help: convert with to"
    );
    let (result, line) = (whole.clone().requires_grad_(true), line!());
    assert!(text(result, line).starts_with("requires_grad_: only floats and complex numbers"));
    let (result, line) = (a.t()?.view([6]), line!());
    assert!(text(result, line).contains("float32[3, 2] with strides [1, 3]"));
    let options = ConvOptions::default();
    let (result, line) = (images.conv2d(&zeros(&[64, 4, 3, 3])?, None, options), line!());
    let message = text(result, line);
    assert!(message.starts_with("conv2d: the weight wants 4 channels in each of 1 groups\n"));
    assert!(message.ends_with("= help: the images have 3 channels"), "{message}");
    Ok(())
}

/// A module's error names the line that called the module, not one inside the library.
#[test]
fn errors_inside_modules_name_the_caller() -> Result<()> {
    let device = Device::dry("1 GiB").unwrap();
    let layer = Linear::new(4, 2, &device)?;
    let x = Tensor::zeros([8, 3], &device)?;
    let (result, line) = (layer.forward(&x), line!());
    assert_eq!(
        text(result, line),
        "linear: the sizes do not fit\n  --> HERE\n   | self:   float32[8, 3]\n   \
         | weight: float32[2, 4]\n   | bias:   float32[2]\n   \
         = help: self is […, in], weight [out, in], bias [out]"
    );
    Ok(())
}

#[test]
fn tensors_on_two_devices_do_not_meet() -> Result<()> {
    let options = |id| DeviceOptions { id: DeviceId(id), ..DeviceOptions::default() };
    let [one, two] = [0, 1].map(|id| Device::dry_with("1 GiB", options(id)).unwrap());
    let (a, b) = (Tensor::zeros([2], &one)?, Tensor::zeros([2], &two)?);
    let (result, line) = (a.mul(&b), line!());
    let message = text(result, line);
    assert!(message.contains("on dry:0") && message.contains("on dry:1"), "{message}");
    assert!(message.contains("help: "), "{message}");
    Ok(())
}

#[test]
fn an_overwritten_value_names_the_operation_and_both_lines() -> Result<()> {
    let device = Device::host("64 MiB").unwrap();
    let x = Tensor::ones([3], &device)?.requires_grad_(true)?;
    let (y, saved) = (x.exp()?, line!());
    let (_, changed) = (y.mul_(2.0)?, line!());
    let error = y.sum()?.backward().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Autograd);
    let message = error.to_string();
    for line in [format!("exp at {}:{saved}:", file!()), format!("mul_ at {}:{changed}:", file!())]
    {
        assert!(message.contains(&line), "{line} in {message}");
    }
    Ok(())
}

#[test]
fn what_fails_in_queued_work_is_reported_where_someone_waits_with_the_line_that_queued_it()
-> Result<()> {
    let device = Device::host("64 MiB").unwrap();
    let table = Tensor::ones([4, 2], &device)?;
    let tokens = Tensor::from_slice(&[1i64, 9], [2], &device)?;
    type Wait = fn(&Device, &Tensor) -> Result<()>;
    let waits: [Wait; 3] = [
        |device, _| device.synchronize(),
        |_, y| y.item::<f32>().map(drop),
        |_, y| y.to_vec::<f32>().map(drop),
    ];
    for wait in waits {
        let (rows, line) = (tokens.embedding(&table, None)?, line!());
        // Queued behind it, and none the wiser.
        let sum = rows.sum()?;
        let error: Error = wait(&device, &sum).unwrap_err();
        assert_eq!((error.kind(), error.operation()), (&ErrorKind::Queued, "embedding"));
        assert_eq!((error.site().file(), error.site().line()), (file!(), line), "{error}");
        assert!(error.to_string().contains('9') && error.to_string().contains('4'), "{error}");
        // Reported once; the device goes on.
        device.synchronize()?;
        assert_eq!(table.sum()?.item::<f32>()?, 8.0);
    }
    Ok(())
}
