//! How a GPU attends.
//!
//! In:  sizes, and the memory of queries, keys, values, output, gradients and what the forward kept.
//! Out: launches. Forward, one; backward, four at most: the products of output and gradient, then the gradients of
//!      queries, and those of keys and values. Each number is added up by one block, in one order.
//!
//! 16-bit floats go to tensor cores where heads are no wider than [`WIDEST`]; everything else goes the plain way.

use tonnage_device::cuda::{Arguments, Extent};

use super::Sizes;
use crate::exec::cuda::{Elementwise, Launch, Program, stored, wide};
use crate::exec::{Operand, Operands, Plan};

const TENSOR_CORES: &str = include_str!("tensor_cores.cu");
const PLAIN: &str = include_str!("plain.cu");
const DOTS: &str = include_str!("dots.cu");

/// The widest heads whose sums stay in registers on tensor cores.
const WIDEST: usize = 128;

/// Threads of a block: on tensor cores, the plain way, for products of output and gradient.
const THREADS: u32 = 128;
const PLAIN_THREADS: u32 = 256;
const DOTS_THREADS: u32 = 256;

/// Threads that have a row, of products of output and gradient.
const THREADS_OF_DOT: u64 = 8;

/// Columns that a block makes the plain way.
const SLICE: usize = 64;

/// What a plain program makes, by the names that it has in the program.
#[derive(Clone, Copy)]
enum Part {
    Output,
    Queries,
    Keys,
    Values,
}

/// Output and logsumexp.
pub(super) fn forward(sizes: &Sizes, on: Operands<'_>) -> Plan {
    let ([output, log_sums, ..], [queries, keys, values, ..]) = (on.outputs, on.inputs) else {
        return Plan::nothing();
    };
    if output.layout.numel() == 0 {
        return Plan::nothing();
    }
    let log_sums = numbers_of_rows(log_sums);
    if !suits_tensor_cores(sizes, output) {
        let inputs = [view(queries), view(keys), view(values), NOWHERE, log_sums, NOWHERE];
        return plain(sizes, Part::Output, output, &inputs).into();
    }
    let program = Program::new(
        "attend",
        TENSOR_CORES,
        &tensor_cores(sizes, "FORWARD", &[queries, keys, values], &[output]).borrowed(),
    );
    let made = if sizes.width.max(sizes.depth) <= 64 { 128 } else { 64 };
    let tiles = sizes.rows.div_ceil(made);
    let mut arguments = Arguments::new();
    arguments.push_bytes(&tensor_core_sizes(sizes, tiles));
    let views = [view(queries), view(keys), view(values), view(output), log_sums];
    views.iter().for_each(|it| arguments.push_bytes(&bytes(it)));
    Launch::new(program, blocks(sizes, tiles, THREADS), arguments).into()
}

/// Gradients of queries, keys and values. The last output is room for a number for each row.
pub(super) fn backward(sizes: &Sizes, on: Operands<'_>) -> Plan {
    let (
        [to_queries, to_keys, to_values, dots],
        [queries, keys, values, output, grad, log_sums, ..],
    ) = (on.outputs, on.inputs)
    else {
        return Plan::nothing();
    };
    let outputs = [to_queries, to_keys, to_values];
    if outputs.iter().any(|it| it.layout.numel() == 0) {
        return zeros(&outputs);
    }
    let [heads, rows] = [sizes.heads, sizes.rows].map(|it| it as i64);
    let dots_view = View { at: dots.first(), strides: [heads * rows, rows, 1, 0] };
    let log_sums = numbers_of_rows(log_sums);
    let mut launches = vec![row_products(sizes, output, grad, dots_view)];
    if !suits_tensor_cores(sizes, to_queries) {
        let inputs = [view(queries), view(keys), view(values), view(grad), log_sums, dots_view];
        for (part, to) in [Part::Queries, Part::Keys, Part::Values].into_iter().zip(outputs) {
            launches.push(plain(sizes, part, to, &inputs));
        }
        return Plan::Launches(launches);
    }
    let inputs = [queries, keys, values, grad];
    let of_inputs = inputs.map(view).into_iter().chain([log_sums, dots_view]);
    for (name, part, made, to) in [
        ("attend_grad_queries", "QUERIES", sizes.rows, &outputs[..1]),
        ("attend_grad_keys", "KEYS_AND_VALUES", sizes.keys, &outputs[1..]),
    ] {
        let constants = tensor_cores(sizes, part, &inputs, to);
        let program = Program::new(name, TENSOR_CORES, &constants.borrowed());
        let tiles = made.div_ceil(64);
        let mut arguments = Arguments::new();
        arguments.push_bytes(&tensor_core_sizes(sizes, tiles));
        let views = of_inputs.clone().chain(to.iter().map(|it| view(it)));
        views.for_each(|it| arguments.push_bytes(&bytes(&it)));
        launches.push(Launch::new(program, blocks(sizes, tiles, THREADS), arguments));
    }
    Plan::Launches(launches)
}

/// Whether the programs for tensor cores have these sizes. They find the largest score before it is scaled.
fn suits_tensor_cores(sizes: &Sizes, output: &Operand) -> bool {
    let fits = |it: usize| (1..=WIDEST).contains(&it);
    let scale = sizes.scale as f32;
    let is_scaled_up = scale > 0.0 && scale.is_normal();
    output.dtype.size() == 2 && fits(sizes.width) && fits(sizes.depth) && is_scaled_up
}

/// Where rows of heads lie, as programs have it: strides in elements, of batches, heads, rows and columns.
#[derive(Clone, Copy)]
struct View {
    at: u64,
    strides: [i64; 4],
}

const NOWHERE: View = View { at: 0, strides: [0; 4] };

fn view(operand: &Operand) -> View {
    let mut strides = [0; 4];
    let from = operand.layout.strides().iter();
    strides.iter_mut().zip(from).for_each(|(to, from)| *to = *from as i64);
    View { at: operand.first(), strides }
}

/// Of `[batch, heads, rows]`; nowhere if there are none.
fn numbers_of_rows(operand: &Operand) -> View {
    if operand.layout.numel() == 0 { NOWHERE } else { view(operand) }
}

fn bytes(view: &View) -> Vec<u8> {
    let strides = view.strides.iter().flat_map(|it| it.to_ne_bytes());
    view.at.to_ne_bytes().into_iter().chain(strides).collect()
}

/// Whether rows can be moved in units of so many elements: each begins at a multiple of a unit's size, and is of whole
/// units.
fn moves_in(units: usize, operand: &Operand) -> bool {
    let (shape, strides) = (operand.layout.shape(), operand.layout.strides());
    let Some((columns, rest)) = shape.split_last() else { return false };
    let aligned = |(size, stride): (&usize, &usize)| *size == 1 || stride.is_multiple_of(units);
    let unit = (units * operand.dtype.size()) as u64;
    columns.is_multiple_of(units)
        && strides.last() == Some(&1)
        && operand.first().is_multiple_of(unit)
        && rest.iter().zip(strides).all(aligned)
}

/// Names and values of a program's constants.
struct Constants(Vec<(&'static str, String)>);

impl Constants {
    fn borrowed(&self) -> Vec<(&str, &dyn std::fmt::Display)> {
        self.0.iter().map(|(name, value)| (*name, value as &dyn std::fmt::Display)).collect()
    }
}

fn tensor_cores(sizes: &Sizes, part: &str, inputs: &[&Operand], outputs: &[&Operand]) -> Constants {
    let kind = stored(inputs[0].dtype);
    Constants(vec![
        ("T", kind.to_owned()),
        ("KIND", format!("\"{kind}\"")),
        ("WIDTH", sizes.width.to_string()),
        ("DEPTH", sizes.depth.to_string()),
        ("CAUSAL", u8::from(sizes.causal).to_string()),
        ("PACKED", u8::from(inputs.iter().all(|it| moves_in(8, it))).to_string()),
        ("PAIRED", u8::from(outputs.iter().all(|it| moves_in(2, it))).to_string()),
        ("PART", part.to_owned()),
    ])
}

/// `Sizes` of the programs for tensor cores.
fn tensor_core_sizes(sizes: &Sizes, tiles: usize) -> Vec<u8> {
    let mut all = counts(&[sizes.heads, sizes.rows, sizes.keys]);
    all.extend((sizes.scale as f32).to_ne_bytes());
    all.extend((tiles as u32).to_ne_bytes());
    all
}

fn counts(counts: &[usize]) -> Vec<u8> {
    counts.iter().flat_map(|it| (*it as u64).to_ne_bytes()).collect()
}

/// So many blocks for each head. More than a grid can have are refused at the launch.
fn blocks(sizes: &Sizes, of_head: usize, threads: u32) -> Extent {
    let all = sizes.batch * sizes.heads * of_head;
    Extent::line(u32::try_from(all).unwrap_or(u32::MAX), threads)
}

/// The products of output and gradient.
fn row_products(sizes: &Sizes, output: &Operand, grad: &Operand, dots: View) -> Launch {
    let dtype = output.dtype;
    let packed = [output, grad].iter().all(|it| moves_in(16 / dtype.size(), it));
    let program = Program::new(
        "attend_dots",
        DOTS,
        &[
            ("T", &stored(dtype)),
            ("C", &wide(dtype)),
            ("DEPTH", &sizes.depth),
            ("PACKED", &u8::from(packed)),
        ],
    );
    let rows = sizes.batch * sizes.heads * sizes.rows;
    let mut arguments = Arguments::new();
    arguments.push_bytes(&counts(&[sizes.heads, sizes.rows, rows]));
    [view(output), view(grad), dots].iter().for_each(|it| arguments.push_bytes(&bytes(it)));
    let blocks = (rows as u64 * THREADS_OF_DOT).div_ceil(u64::from(DOTS_THREADS));
    let extent = Extent::line(u32::try_from(blocks).unwrap_or(u32::MAX), DOTS_THREADS);
    Launch::new(program, extent, arguments)
}

/// One result the plain way. Inputs: queries, keys, values, gradient, logsumexp, products of output and gradient.
fn plain(sizes: &Sizes, part: Part, to: &Operand, inputs: &[View; 6]) -> Launch {
    let dtype = to.dtype;
    // What a tile needs of shared memory stays within 48 KiB.
    let tile = if dtype.size() == 8 { 32 } else { 64 };
    let name = match part {
        Part::Output => "OUTPUT",
        Part::Queries => "QUERIES",
        Part::Keys => "KEYS",
        Part::Values => "VALUES",
    };
    let (made, columns) = match part {
        Part::Output => (sizes.rows, sizes.depth),
        Part::Queries => (sizes.rows, sizes.width),
        Part::Keys => (sizes.keys, sizes.width),
        Part::Values => (sizes.keys, sizes.depth),
    };
    let program = Program::new(
        "attend_plain",
        PLAIN,
        &[
            ("T", &stored(dtype)),
            ("C", &wide(dtype)),
            ("WIDTH", &sizes.width),
            ("DEPTH", &sizes.depth),
            ("CAUSAL", &u8::from(sizes.causal)),
            ("TILE", &tile),
            ("PART", &name),
        ],
    );
    let (tiles, slices) = (made.div_ceil(tile), columns.div_ceil(SLICE));
    let mut all = counts(&[sizes.heads, sizes.rows, sizes.keys]);
    // Without columns all products are zero, whatever they are multiplied by.
    let scale = if sizes.width == 0 { 1.0 } else { sizes.scale };
    all.extend(scale.to_ne_bytes());
    all.extend([tiles, slices].iter().flat_map(|it| (*it as u32).to_ne_bytes()));
    let mut arguments = Arguments::new();
    arguments.push_bytes(&all);
    inputs.iter().chain([&view(to)]).for_each(|it| arguments.push_bytes(&bytes(it)));
    Launch::new(program, blocks(sizes, tiles * slices, PLAIN_THREADS), arguments)
}

/// Of what has no elements somewhere, no gradient is more than zero.
fn zeros(outputs: &[&Operand]) -> Plan {
    let mut launches = Vec::new();
    for output in outputs {
        let outputs = std::slice::from_ref(*output);
        let zero = Elementwise::new("attend_grad_none", wide(output.dtype), "y0 = 0;");
        if let Plan::Launches(more) = zero.plan(Operands { outputs, inputs: &[] }) {
            launches.extend(more);
        }
    }
    Plan::Launches(launches)
}
