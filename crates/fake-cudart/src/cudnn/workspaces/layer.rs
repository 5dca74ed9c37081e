//! A convolution and how an engine was set up for it, out of a plan in the library's own JSON.

use serde_json::Value;

/// Which of its tensors a convolution computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    BackwardData,
    BackwardFilter,
}

/// What the tensors hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Float,
    Half,
    Bfloat16,
}

/// How an engine works, as far as its workspace depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// It goes through tiles of the result.
    Tiles,
    /// It has cuBLASLt multiply matrices: filters of one element.
    Matmul,
}

/// Engines that ask the device, in the library's numbers.
const ASKING: [(&str, Pass, Engine, &[i64]); 6] = [
    (
        "CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR",
        Pass::Forward,
        Engine::Matmul,
        &[58],
    ),
    (
        "CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR",
        Pass::Forward,
        Engine::Tiles,
        &[62, 67],
    ),
    (
        "CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR",
        Pass::BackwardData,
        Engine::Matmul,
        &[63],
    ),
    (
        "CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR",
        Pass::BackwardData,
        Engine::Tiles,
        &[67, 71],
    ),
    (
        "CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR",
        Pass::BackwardFilter,
        Engine::Matmul,
        &[62],
    ),
    (
        "CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR",
        Pass::BackwardFilter,
        Engine::Tiles,
        &[65, 68],
    ),
];

/// A convolution of one or more spatial dimensions, which are counted together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) pass: Pass,
    pub(super) kind: Kind,
    pub(super) images: u64,
    /// Of an image.
    pub(super) channels: u64,
    /// Of a result.
    pub(super) filters: u64,
    pub(super) groups: u64,
    /// Elements of a filter in one channel.
    pub(super) taps: u64,
    /// Pixels of an image, and of a result.
    pub(super) pixels: u64,
    pub(super) pixels_after: u64,
    pub(super) strided: bool,
    pub(super) channels_last: bool,
}

/// What an engine was set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) number: i64,
    pub(super) workspace: i64,
    pub(super) tile: i64,
    pub(super) depth: i64,
    /// Blocks that work together: along the rows and the columns of the result.
    pub(super) cluster: (u64, u64),
}

/// Where a plan is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) version: i64,
    pub(super) architecture: i64,
    pub(super) multiprocessors: u64,
}

/// What is asked of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) pass: Pass,
    pub(super) engine: Engine,
    /// Nothing if it is unlike any that was seen.
    pub(super) layer: Option<(Layer, Settings)>,
    pub(super) place: Place,
}

impl Place {
    /// Where a plan is to run, if it tells.
    pub(super) fn of(plan: &Value) -> Option<Self> {
        Some(Self {
            version: plan.get("cudnnVersion")?.as_i64()?,
            architecture: plan.get("engine")?.get("smVersion")?.as_i64()?,
            multiprocessors: plan.get("GPUProfile")?.get("multiProcessorCount")?.as_u64()?,
        })
    }
}

impl Plan {
    /// The plan, if its engine asks the device.
    pub(super) fn of(plan: &Value) -> Option<Self> {
        let (graph, engine) = (plan.get("operationGraph")?, plan.get("engine")?);
        let node = graph.get("nodes")?.get(0)?;
        let operation = node.get("operation")?.as_str()?;
        let number = engine.get("engineId")?.as_i64()?;
        let (_, pass, works, _) = ASKING
            .iter()
            .find(|(name, _, _, numbers)| *name == operation && numbers.contains(&number))?;
        let place = Place::of(plan)?;
        let layer = layer(*pass, graph, node).zip(settings(number, engine));
        Some(Self { pass: *pass, engine: *works, layer, place })
    }
}

fn layer(pass: Pass, graph: &Value, node: &Value) -> Option<Layer> {
    let tensor = |plain: &str, gradient: &str| {
        let name = node.get(plain).or_else(|| node.get(gradient))?;
        graph.get("tensors")?.as_array()?.iter().find(|it| it.get("name") == Some(name))
    };
    let (image, filter, result) = (tensor("X", "dX")?, tensor("W", "dW")?, tensor("Y", "dY")?);
    let kind = match image.get("dataType")?.as_str()? {
        "CUDNN_DATA_FLOAT" => Kind::Float,
        "CUDNN_DATA_HALF" => Kind::Half,
        "CUDNN_DATA_BFLOAT16" => Kind::Bfloat16,
        _ => return None,
    };
    let (image_dims, filter_dims) = (numbers(image.get("dim")?)?, numbers(filter.get("dim")?)?);
    let result_dims = numbers(result.get("dim")?)?;
    let spatial =
        |dims: &[u64]| dims.iter().skip(2).try_fold(1_u64, |all, dim| all.checked_mul(*dim));
    let channels = *image_dims.get(1)?;
    let channels_each = *filter_dims.get(1)?;
    let layer = Layer {
        pass,
        kind,
        images: *image_dims.first()?,
        channels,
        filters: *filter_dims.first()?,
        groups: channels.checked_div(channels_each)?,
        taps: spatial(&filter_dims)?,
        pixels: spatial(&image_dims)?,
        pixels_after: spatial(&result_dims)?,
        strided: numbers(node.get("stride")?)?.iter().any(|stride| *stride != 1),
        channels_last: numbers(image.get("stride")?)?.get(1) == Some(&1) && channels > 1,
    };
    let whole = layer.images > 0 && layer.groups > 0 && layer.taps > 0 && layer.filters > 0;
    // So small that nothing that is computed of them overflows.
    let sane = [image_dims, filter_dims, result_dims].iter().flatten().all(|dim| *dim < 1 << 31)
        && layer
            .images
            .checked_mul(layer.pixels.max(layer.pixels_after))
            .is_some_and(|it| it < 1 << 40)
        && layer
            .taps
            .checked_mul(layer.filters)
            .and_then(|it| it.checked_mul(layer.channels))
            .is_some_and(|it| it < 1 << 40);
    (whole && sane).then_some(layer)
}

fn settings(number: i64, engine: &Value) -> Option<Settings> {
    let knobs = engine.get("knobChoices")?;
    let knob = |name: &str| knobs.get(format!("CUDNN_KNOB_TYPE_{name}"));
    let choice = |name: &str, otherwise: i64| knob(name).map_or(Some(otherwise), Value::as_i64);
    let blocks =
        |name: &str| u64::try_from(choice(name, 1)?).ok().filter(|it| (1..=16).contains(it));
    Some(Settings {
        number,
        workspace: choice("WORKSPACE", 0)?,
        tile: choice("TILE_SIZE", -1)?,
        depth: choice("TILEK", 0)?,
        cluster: (blocks("TILE_CGA_M")?, blocks("TILE_CGA_N")?),
    })
}

fn numbers(value: &Value) -> Option<Vec<u64>> {
    value.as_array()?.iter().map(Value::as_u64).collect()
}
