//! Tensors as text, in PyTorch's layout: four digits, columns aligned, the middle of large ones left
//! out.
//!
//! In:  a tensor; only the numbers that are shown are copied out.
//! Out: `tensor([[1.0000, 0.5000], …], dtype=float64)`.

use std::fmt;

use crate::dtype::{Category, DType};
use crate::error::Result;
use crate::number::Complex64;
use crate::tensor::Tensor;

/// PyTorch's defaults.
const DIGITS: usize = 4;
const THRESHOLD: usize = 1000;
const EDGE: usize = 3;
const LINE: usize = 80;

const PREFIX: &str = "tensor(";

/// How numbers are written: chosen once for all of a tensor.
struct Style {
    /// Whole numbers only: a point, no digits behind it.
    whole: bool,
    /// With an exponent.
    scientific: bool,
    width: usize,
}

impl Style {
    /// PyTorch's rule: an exponent if sizes differ by more than 1000, or if digits would not show.
    fn of(numbers: &[f64]) -> Self {
        let sizes: Vec<f64> =
            numbers.iter().filter(|it| it.is_finite() && **it != 0.0).map(|it| it.abs()).collect();
        let mut style =
            Self { whole: sizes.iter().all(|it| it.fract() == 0.0), scientific: false, width: 0 };
        if !sizes.is_empty() {
            let (least, most) = sizes
                .iter()
                .fold((f64::INFINITY, 0.0f64), |(least, most), it| (least.min(*it), most.max(*it)));
            let far = most / least > 1000.0 || most > 1e8;
            style.scientific = far || (!style.whole && least < 1e-4);
        }
        // Only these decide about the width: neither zeros nor infinities.
        let counted = numbers.iter().filter(|it| it.is_finite() && **it != 0.0);
        style.width = counted.map(|it| style.text(*it).len()).max().unwrap_or(1);
        style
    }

    fn text(&self, number: f64) -> String {
        if !number.is_finite() {
            let sign = if number < 0.0 { "-" } else { "" };
            return if number.is_nan() { "nan".to_owned() } else { format!("{sign}inf") };
        }
        if self.scientific {
            // Rust writes 1e5, Python 1e+05.
            let text = format!("{number:.DIGITS$e}");
            let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(exponent) => ('-', exponent),
                None => ('+', exponent),
            };
            return format!("{digits}e{sign}{exponent:0>2}");
        }
        if self.whole { format!("{number:.0}.") } else { format!("{number:.DIGITS$}") }
    }
}

/// The numbers that are shown, as aligned texts.
struct Texts {
    texts: Vec<String>,
    width: usize,
}

impl Texts {
    fn new(tensor: &Tensor) -> Result<Self> {
        let tensor = tensor.detach();
        match tensor.dtype().category() {
            Category::Bool => {
                let truths = tensor.to_vec::<bool>()?;
                let texts = truths.iter().map(|it| if *it { "True" } else { "False" }.to_owned());
                Ok(Self::aligned(texts.collect()))
            }
            Category::Integer => {
                let numbers = tensor.to(DType::I64)?.to_vec::<i64>()?;
                Ok(Self::aligned(numbers.iter().map(i64::to_string).collect()))
            }
            Category::Float => {
                let numbers = tensor.to(DType::F64)?.to_vec::<f64>()?;
                let style = Style::of(&numbers);
                let texts = numbers.iter().map(|it| style.text(*it)).collect();
                Ok(Self { texts, width: style.width })
            }
            Category::Complex => {
                let numbers = tensor.to_vec::<Complex64>()?;
                let [re, im] = [|it: &Complex64| it.re, |it: &Complex64| it.im]
                    .map(|part| numbers.iter().map(|it| f64::from(part(it))).collect::<Vec<_>>());
                let styles = [Style::of(&re), Style::of(&im)];
                let text = |(re, im): (&f64, &f64)| {
                    let (re, size) = (styles[0].text(*re), styles[1].text(im.abs()));
                    let sign = if im.is_sign_negative() { '-' } else { '+' };
                    format!("{re}{sign}{size}j")
                };
                Ok(Self::aligned(re.iter().zip(&im).map(text).collect()))
            }
        }
    }

    fn aligned(texts: Vec<String>) -> Self {
        let width = texts.iter().map(String::len).max().unwrap_or(0);
        Self { texts, width }
    }
}

/// The indices of an axis that are shown, and whether some in the middle are not.
fn shown(size: usize, short: bool) -> (usize, bool) {
    if short && size > 2 * EDGE { (2 * EDGE, true) } else { (size, false) }
}

/// The first and last indices of each long axis.
fn edges(tensor: &Tensor) -> Result<Tensor> {
    let mut indices: Vec<Tensor> = vec![tensor.detach()];
    for axis in 0..tensor.dim() {
        let size = tensor.shape()[axis];
        if size > 2 * EDGE {
            let axis = axis as isize;
            indices = indices
                .iter()
                .map(|part| {
                    // The first three, then the last three, as one axis.
                    let sizes: Vec<usize> = part
                        .shape()
                        .iter()
                        .enumerate()
                        .map(|(at, size)| if at as isize == axis { 2 * EDGE } else { *size })
                        .collect();
                    let both = Tensor::empty(sizes, (part.device(), part.dtype()))?;
                    both.narrow(axis, 0, EDGE)?.copy_(&part.narrow(axis, 0, EDGE)?)?;
                    both.narrow(axis, EDGE, EDGE)?.copy_(&part.narrow(
                        axis,
                        size - EDGE,
                        EDGE,
                    )?)?;
                    Ok(both)
                })
                .collect::<Result<_>>()?;
        }
    }
    Ok(indices.swap_remove(0))
}

struct Printer<'a> {
    texts: std::slice::Iter<'a, String>,
    width: usize,
    short: bool,
}

impl Printer<'_> {
    fn element(&mut self) -> String {
        let text = self.texts.next().map_or("", String::as_str);
        format!("{text:>width$}", width = self.width)
    }

    fn print(&mut self, sizes: &[usize], indent: usize) -> String {
        match sizes {
            [] => self.element(),
            [size] => self.row(*size, indent),
            [size, rest @ ..] => {
                let (count, gap) = shown(*size, self.short);
                let mut parts: Vec<String> =
                    (0..count).map(|_| self.print(rest, indent + 1)).collect();
                if gap {
                    parts.insert(EDGE, "...".to_owned());
                }
                let between = format!(",{}{}", "\n".repeat(rest.len()), " ".repeat(indent + 1));
                format!("[{}]", parts.join(&between))
            }
        }
    }

    fn row(&mut self, size: usize, indent: usize) -> String {
        let (count, gap) = shown(size, self.short);
        let mut parts: Vec<String> = (0..count).map(|_| self.element()).collect();
        if gap {
            parts.insert(EDGE, " ...".to_owned());
        }
        let in_a_line = (LINE.saturating_sub(indent) / (self.width + 2)).max(1);
        let lines: Vec<String> = parts.chunks(in_a_line).map(|line| line.join(", ")).collect();
        format!("[{}]", lines.join(&format!(",\n{}", " ".repeat(indent + 1))))
    }
}

/// What stands behind the numbers: what is not the default.
fn suffixes(tensor: &Tensor) -> Vec<String> {
    let mut suffixes = Vec::new();
    let device = tensor.device();
    if device.kind() != "host" || device.id().0 != 0 {
        suffixes.push(format!("device='{device}'"));
    }
    if tensor.numel() == 0 && tensor.dim() != 1 || !device.computes() {
        let sizes: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
        let comma = if sizes.len() == 1 { "," } else { "" };
        suffixes.push(format!("size=({}{comma})", sizes.join(", ")));
    }
    if !matches!(tensor.dtype(), DType::F32 | DType::I64 | DType::Bool | DType::Complex64) {
        suffixes.push(format!("dtype={}", tensor.dtype()));
    }
    match tensor.grad_fn() {
        Some(name) => suffixes.push(format!("grad_fn=<{name}>")),
        None if tensor.requires_grad() => suffixes.push("requires_grad=True".to_owned()),
        None => {}
    }
    suffixes
}

fn body(tensor: &Tensor) -> Result<String> {
    if !tensor.device().computes() {
        return Ok("...".to_owned());
    }
    if tensor.numel() == 0 {
        return Ok("[]".to_owned());
    }
    let short = tensor.numel() > THRESHOLD;
    let part = if short { edges(tensor)? } else { tensor.clone() };
    let Texts { texts, width } = Texts::new(&part)?;
    Ok(Printer { texts: texts.iter(), width, short }.print(tensor.shape(), PREFIX.len()))
}

impl fmt::Display for Tensor {
    /// Waits for the numbers. If they cannot be had, the error stands in their place.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = crate::autograd::no_grad(|| body(self));
        let mut text = match body {
            Ok(body) => format!("{PREFIX}{body}"),
            Err(error) => return write!(f, "{PREFIX}<{error}>)"),
        };
        let mut line = text.len() - text.rfind('\n').map_or(0, |at| at + 1);
        for suffix in suffixes(self) {
            if line + suffix.len() + 2 > LINE {
                text += &format!(",\n{}{suffix}", " ".repeat(PREFIX.len()));
                line = PREFIX.len() + suffix.len();
            } else {
                text += &format!(", {suffix}");
                line += suffix.len() + 2;
            }
        }
        write!(f, "{text})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    fn device() -> Device {
        Device::host("64 MiB").unwrap()
    }

    fn floats(numbers: &[f32]) -> String {
        Tensor::from_slice(numbers, [numbers.len()], &device()).unwrap().to_string()
    }

    #[test]
    fn numbers_are_written_as_pytorch_writes_them() {
        for (numbers, text) in [
            (&[1.0, 2.0][..], "tensor([1., 2.])"),
            (&[1.0, 2.5], "tensor([1.0000, 2.5000])"),
            (&[-1.0, 10.0], "tensor([-1., 10.])"),
            (&[0.0, 1e-5], "tensor([0.0000e+00, 1.0000e-05])"),
            (&[1.0, 12345.0], "tensor([1.0000e+00, 1.2345e+04])"),
            (&[f32::NAN, f32::INFINITY, 1.0], "tensor([nan, inf, 1.])"),
            (&[0.0], "tensor([0.])"),
            (&[], "tensor([])"),
        ] {
            assert_eq!(floats(numbers), text);
        }
    }

    #[test]
    fn other_types_shapes_and_the_graph_are_named() -> Result<()> {
        let device = device();
        let x = Tensor::arange(0, 6, 1, &device)?.view([2, 3])?;
        assert_eq!(x.to_string(), "tensor([[0, 1, 2],\n        [3, 4, 5]])");
        assert_eq!(
            x.to(DType::I32)?.narrow(0, 0, 1)?.to_string(),
            "tensor([[0, 1, 2]], dtype=int32)"
        );
        let truths = x.to(DType::Bool)?.narrow(0, 0, 1)?;
        assert_eq!(truths.to_string(), "tensor([[False,  True,  True]])");
        let scalar = Tensor::full((), 2.5, &device)?.requires_grad_(true)?;
        assert_eq!(scalar.to_string(), "tensor(2.5000, requires_grad=True)");
        assert_eq!(scalar.sin()?.to_string(), "tensor(0.5985, grad_fn=<SinBackward>)");
        assert_eq!(Tensor::zeros([0, 3], &device)?.to_string(), "tensor([], size=(0, 3))");
        let complex = Tensor::from_slice(&[Complex64::new(1.0, -2.5)], [1], &device)?;
        assert_eq!(complex.to_string(), "tensor([1.-2.5000j])");
        let dry = Device::dry("1 GiB").unwrap();
        let text = Tensor::zeros([2], &dry)?.to_string();
        assert_eq!(text, "tensor(..., device='dry:0', size=(2,))");
        let cube = Tensor::zeros([2, 1, 2], &device)?.to_string();
        assert_eq!(cube, "tensor([[[0., 0.]],\n\n        [[0., 0.]]])");
        Ok(())
    }

    #[test]
    fn the_middle_of_large_tensors_is_left_out_and_lines_end_at_eighty() -> Result<()> {
        let device = device();
        let long = Tensor::arange(0, 1001, 1, &device)?;
        assert_eq!(long.to_string(), "tensor([   0,    1,    2,  ...,  998,  999, 1000])");
        let square = Tensor::zeros([100, 100], &device)?.to_string();
        let row = "[0., 0., 0.,  ..., 0., 0., 0.]";
        let gap = "        ...,\n        ";
        let rows = format!("{row},\n        ");
        assert_eq!(square, format!("tensor([{rows}{rows}{row},\n{gap}{rows}{rows}{row}])"));
        let lines = Tensor::arange(0, 100, 1, &device)?.to_string();
        assert!(lines.lines().count() > 1 && lines.lines().all(|line| line.len() <= 80), "{lines}");
        assert_eq!(Tensor::arange(0, 1000, 1, &device)?.to_string().matches(',').count(), 999);
        Ok(())
    }
}
