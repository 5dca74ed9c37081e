//! The plan of a shape: its graph of one operation, and the first engine of the heuristics that keeps what was asked.

use std::sync::Arc;

use super::convolution::{Convolution, Layout4, Pass};
use super::descriptor::Owned;
use super::sys::{
    BACKWARD_DATA, BACKWARD_FILTER, CROSS_CORRELATION, FORWARD, Handle, MODE_A, MODE_FALLBACK,
    NOTE_DOWN_CONVERT_INPUTS, NOTE_NONDETERMINISTIC, NOTE_TENSOR_CORE, NOTES_MOST, Status, Table,
    attribute, data, kind, of,
};
use crate::Result;
use crate::blas::{Math, Number};

/// Numbers of the three tensors in a plan: input, filter, output.
pub(super) const IDS: [i64; 3] = [1, 2, 3];

/// The strictest alignment that an engine can ask for.
const ALIGNMENT_MOST: i64 = 16;

/// What decides a plan: the shape, and how well addresses are aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) convolution: Convolution,
    /// Of input, filter and output, in bytes, up to 16.
    pub(super) alignments: [i64; 3],
}

/// The alignment of an address.
pub(super) fn alignment(address: u64) -> i64 {
    (1i64 << address.trailing_zeros().min(4)).min(ALIGNMENT_MOST)
}

/// A plan that can be executed, and what it refers to.
pub(super) struct Plan {
    pub(super) plan: Owned,
    _config: Owned,
    _graph: Graph,
}

fn data_type(number: Number) -> i32 {
    match number {
        Number::F16 => data::HALF,
        Number::Bf16 => data::BFLOAT16,
        Number::F64 => data::DOUBLE,
        _ => data::FLOAT,
    }
}

/// One operation, with its tensors.
pub(super) struct Graph {
    graph: Owned,
    _operation: Owned,
    _convolution: Owned,
    _tensors: [Owned; 3],
}

impl Graph {
    /// Describes a shape. Without a handle, as far as the operation.
    pub(super) fn describe(table: &Arc<Table>, handle: Option<Handle>, key: &Key) -> Result<Self> {
        let what = &key.convolution;
        let tensor = |place: usize, layout: &Layout4| {
            tensor(table, what, layout, IDS[place], key.alignments[place])
        };
        let tensors = [tensor(0, &what.input)?, tensor(1, &what.filter)?, tensor(2, &what.output)?];
        let convolution = convolution(table, what)?;
        let (which, names) = match what.pass {
            Pass::Forward => (kind::CONVOLUTION_FORWARD, FORWARD),
            Pass::InputGradient => (kind::CONVOLUTION_BACKWARD_DATA, BACKWARD_DATA),
            Pass::FilterGradient => (kind::CONVOLUTION_BACKWARD_FILTER, BACKWARD_FILTER),
        };
        let operation = Owned::new(table, which, what)?;
        let is_double = what.number == Number::F64;
        operation.set_factor(names.alpha, 1.0, is_double, what)?;
        operation.set_factor(names.beta, 0.0, is_double, what)?;
        operation.set_descriptor(names.convolution, &convolution, what)?;
        for (name, tensor) in [names.input, names.filter, names.output].into_iter().zip(&tensors) {
            operation.set_descriptor(name, tensor, what)?;
        }
        operation.finish(what)?;
        let graph = Owned::new(table, kind::OPERATION_GRAPH, what)?;
        graph.set_descriptor(attribute::GRAPH_OPERATIONS, &operation, what)?;
        if let Some(handle) = handle {
            graph.set_handle(attribute::GRAPH_HANDLE, handle, what)?;
            graph.finish(what)?;
        }
        Ok(Self { graph, _operation: operation, _convolution: convolution, _tensors: tensors })
    }
}

fn tensor(
    table: &Arc<Table>,
    what: &Convolution,
    layout: &Layout4,
    id: i64,
    alignment: i64,
) -> Result<Owned> {
    let tensor = Owned::new(table, kind::TENSOR, what)?;
    let signed = |values: &[u64; 4]| values.map(|it| it as i64);
    tensor.set_choice(attribute::TENSOR_DATA_TYPE, of::DATA_TYPE, data_type(what.number), what)?;
    tensor.set_numbers(attribute::TENSOR_DIMENSIONS, &signed(&layout.sizes), what)?;
    tensor.set_numbers(attribute::TENSOR_STRIDES, &signed(&layout.strides), what)?;
    tensor.set_numbers(attribute::TENSOR_UNIQUE_ID, &[id], what)?;
    tensor.set_numbers(attribute::TENSOR_BYTE_ALIGNMENT, &[alignment], what)?;
    tensor.finish(what)?;
    Ok(tensor)
}

fn convolution(table: &Arc<Table>, what: &Convolution) -> Result<Owned> {
    let made = Owned::new(table, kind::CONVOLUTION, what)?;
    let signed = |values: [u64; 2]| values.map(|it| it as i64);
    // Sums of 16-bit numbers are f32.
    let compute = if what.number == Number::F64 { data::DOUBLE } else { data::FLOAT };
    made.set_numbers(attribute::CONVOLUTION_SPATIAL_DIMS, &[2], what)?;
    made.set_choice(attribute::CONVOLUTION_COMPUTE_TYPE, of::DATA_TYPE, compute, what)?;
    made.set_choice(attribute::CONVOLUTION_MODE, of::CONVOLUTION_MODE, CROSS_CORRELATION, what)?;
    made.set_numbers(attribute::CONVOLUTION_PRE_PADDINGS, &signed(what.padding), what)?;
    made.set_numbers(attribute::CONVOLUTION_POST_PADDINGS, &signed(what.padding), what)?;
    made.set_numbers(attribute::CONVOLUTION_DILATIONS, &signed(what.dilation), what)?;
    made.set_numbers(attribute::CONVOLUTION_FILTER_STRIDES, &signed(what.stride), what)?;
    made.finish(what)?;
    Ok(made)
}

impl Plan {
    /// Chooses the plan of a shape; none if no engine keeps what was asked. The device's context is current.
    pub(super) fn make(table: &Arc<Table>, handle: Handle, key: &Key) -> Result<Option<Self>> {
        let what = &key.convolution;
        let graph = Graph::describe(table, Some(handle), key)?;
        for mode in [MODE_A, MODE_FALLBACK] {
            let heuristic = Owned::new(table, kind::ENGINE_HEURISTIC, what)?;
            heuristic.set_descriptor(attribute::HEURISTIC_OPERATION_GRAPH, &graph.graph, what)?;
            heuristic.set_choice(attribute::HEURISTIC_MODE, of::HEURISTIC_MODE, mode, what)?;
            if heuristic.try_finish() != Status::SUCCESS {
                continue;
            }
            let results = attribute::HEURISTIC_RESULTS;
            for config in heuristic.get_descriptors(results, kind::ENGINE_CONFIG, None, what)? {
                if let Some(plan) = try_config(table, handle, &config, what)? {
                    return Ok(Some(Self { plan, _config: config, _graph: graph }));
                }
            }
        }
        Ok(None)
    }
}

/// The plan of an engine, if it keeps what was asked and fits the workspace.
fn try_config(
    table: &Arc<Table>,
    handle: Handle,
    config: &Owned,
    what: &Convolution,
) -> Result<Option<Owned>> {
    let engines = config.get_descriptors(attribute::CONFIG_ENGINE, kind::ENGINE, Some(1), what)?;
    for engine in &engines {
        let name = attribute::ENGINE_NUMERICAL_NOTE;
        let notes = engine.get_choices(name, of::NUMERICAL_NOTE, NOTES_MOST, what)?;
        if !keeps(what, &notes) {
            return Ok(None);
        }
    }
    let plan = Owned::new(table, kind::EXECUTION_PLAN, what)?;
    plan.set_handle(attribute::PLAN_HANDLE, handle, what)?;
    plan.set_descriptor(attribute::PLAN_ENGINE_CONFIG, config, what)?;
    if plan.try_finish() != Status::SUCCESS {
        return Ok(None);
    }
    let size = plan.get_number(attribute::PLAN_WORKSPACE_SIZE, what)?;
    let fits = u64::try_from(size).is_ok_and(|size| size <= what.workspace);
    Ok(fits.then_some(plan))
}

/// Whether an engine with these notes keeps what was asked. Tensor cores multiply `f32` as TF32; to make halves of it is
/// more than that, and never asked for.
fn keeps(what: &Convolution, notes: &[i32]) -> bool {
    let is_single = what.number == Number::F32;
    let is_full = is_single && what.math == Math::Full;
    !(is_single && notes.contains(&NOTE_DOWN_CONVERT_INPUTS)
        || is_full && notes.contains(&NOTE_TENSOR_CORE)
        || what.deterministic && notes.contains(&NOTE_NONDETERMINISTIC))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn small(pass: Pass, number: Number) -> Convolution {
        Convolution {
            pass,
            input: Layout4::channels_last([2, 8, 11, 9]),
            filter: Layout4::channels_last([16, 8, 3, 3]),
            output: Layout4::channels_last([2, 16, 6, 5]),
            padding: [1, 1],
            stride: [2, 2],
            dilation: [1, 1],
            number,
            math: Math::Full,
            deterministic: false,
            workspace: super::super::workspace(1 << 20),
        }
    }

    #[test]
    fn engines_that_round_or_differ_are_passed_over_where_asked() {
        let mut what = small(Pass::Forward, Number::F32);
        assert!(keeps(&what, &[3, 5]) && !keeps(&what, &[3, NOTE_TENSOR_CORE]));
        assert!(!keeps(&what, &[NOTE_DOWN_CONVERT_INPUTS]));
        assert!(keeps(&what, &[NOTE_NONDETERMINISTIC]));
        what.math = Math::Tf32;
        what.deterministic = true;
        assert!(keeps(&what, &[NOTE_TENSOR_CORE]) && !keeps(&what, &[NOTE_NONDETERMINISTIC]));
        assert!(!keeps(&what, &[NOTE_TENSOR_CORE, NOTE_DOWN_CONVERT_INPUTS]));
        let half = small(Pass::Forward, Number::F16);
        assert!(keeps(&half, &[NOTE_TENSOR_CORE, NOTE_DOWN_CONVERT_INPUTS]));
        assert_eq!([0, 1, 8, 24, 4096].map(alignment), [16, 1, 8, 8, 16]);
    }

    /// Descriptors need no device: where the library and a driver are, it takes them all.
    #[test]
    fn the_library_takes_every_description() {
        let Ok(found) = crate::find::Search::here().open(&super::super::CUDNN) else {
            println!("skipped: there is no cuDNN here");
            return;
        };
        let table = Arc::new(Table::resolve(&found).unwrap());
        println!("{}", found.keep().display());
        for pass in [Pass::Forward, Pass::InputGradient, Pass::FilterGradient] {
            for number in [Number::F16, Number::Bf16, Number::F32, Number::F64] {
                let mut convolution = small(pass, number);
                let alignments = [16, 8, number.size() as i64];
                match Graph::describe(&table, None, &Key { convolution, alignments }) {
                    // Parts of the library are linked against the driver's.
                    Err(error) if error.to_string().contains("SUBLIBRARY_LOADING_FAILED") => {
                        println!("skipped: {error}");
                        return;
                    }
                    described => drop(described.unwrap()),
                }
                convolution.output.sizes[2] = 7;
                let error =
                    Graph::describe(&table, None, &Key { convolution, alignments: [16; 3] });
                let error = error.map(drop).unwrap_err().to_string();
                assert!(error.starts_with("cuDNN: cudnnBackendFinalize failed with "), "{error}");
                assert!(error.contains(&format!("{pass:?} of [2, 8, 11, 9]")), "{error}");
            }
        }
    }
}
