//! Recurrent layers. The installed library answers their sizes only with a device. The rules here are what cuDNN 9.19
//! answered on an H200: 100,266 configurations drawn at random (cells, types, algorithms, layers, directions, projections,
//! padded and packed sequences), each of the four sizes equal to the byte. Of other releases and other devices they are a
//! guess, which is noted.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_uint, c_void};

use tonnage_cuda_codes::Code;

use super::handle::start_work;
use super::{forward, release};
use crate::entry::library_entry as entry;
use crate::notes;
use crate::profile::attribute;
use crate::state::{State, driver_call, put};

/// Bytes of the random state that dropout keeps for each thread that a device has at once.
const STATE_PER_THREAD: usize = 24;

/// What is kept beside, whatever the layers.
const BESIDE: usize = 256;

/// What each layer of each direction has to multiply with.
const OF_A_STREAM: usize = 8 << 20;

/// Every part of a workspace begins at a multiple of this.
const ALIGNMENT: usize = 32;

/// Steps whose gates are there at once, one way through the sequences.
const STEPS_AT_ONCE: usize = 256;

/// Kinds of cells, in the library's numbers.
const LSTM: c_int = 2;
const GRU: c_int = 3;

/// No layer has biases.
const NO_BIAS: c_int = 0;

/// Both ways through the sequence.
const BIDIRECTIONAL: c_int = 1;

/// Algorithms: a kernel for each step, and one that is spread over the device for all steps.
const STANDARD: c_int = 0;
const PERSISTENT: c_int = 1;

/// The type that has a kernel for each step, whatever was asked for.
const BFLOAT16: c_int = 9;

/// Sequences one after the other, without padding.
const PACKED: c_int = 1;

/// Input and output have padding.
const PADDED: c_uint = 1;

/// A pass that keeps what the way back needs.
const TRAINING: c_int = 1;

/// Most that was measured of layers, of their width, of the length of sequences and of a batch of them.
const MOST_LAYERS: usize = 8;
const WIDEST: usize = 2048;
const LONGEST: usize = 1000;
const LARGEST_BATCH: usize = 512;

forward! {
    fn set_tensor / c"cudnnSetTensorNdDescriptor"(
        descriptor: usize, kind: c_int, count: c_int, extents: *const c_int, strides: *const c_int,
    );
}

/// What recurrent descriptors were told.
#[derive(Debug, Default)]
pub(crate) struct Recurrent {
    layers: BTreeMap<usize, Layers>,
    sequences: BTreeMap<usize, Sequences>,
    /// Descriptors of dropout that drop something.
    dropping: BTreeSet<usize>,
}

impl Recurrent {
    fn set_dropout(&mut self, descriptor: usize, rate: f32) {
        if rate > 0.0 {
            self.dropping.insert(descriptor);
        } else {
            self.dropping.remove(&descriptor);
        }
    }
}

/// A stack of recurrent layers.
#[derive(Clone, Copy, Debug)]
struct Layers {
    algorithm: c_int,
    cell: c_int,
    biases: bool,
    directions: usize,
    /// The library's number of the elements' type, and their bytes.
    kind: c_int,
    element: usize,
    input: usize,
    hidden: usize,
    /// Values of a layer's output: as many as are hidden, unless they are projected.
    output: usize,
    count: usize,
    dropout: bool,
    /// Input and output are padded, and brought in order by the library.
    padded: bool,
}

/// A batch of sequences.
#[derive(Clone, Copy, Debug)]
struct Sequences {
    length: usize,
    batch: usize,
    /// Steps of all sequences, with padding unless they are packed.
    steps: usize,
}

/// One matrix or bias: where it begins, in elements, and its extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    at: usize,
    rows: usize,
    columns: usize,
}

/// Bytes up to where the next part may begin.
fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

impl Sequences {
    fn padded(&self) -> usize {
        self.length * self.batch
    }
}

impl Layers {
    fn gates(&self) -> usize {
        match self.cell {
            LSTM => 4,
            GRU => 3,
            _ => 1,
        }
    }

    fn projects(&self) -> bool {
        self.output != self.hidden
    }

    /// What a layer reads: the input, or both directions of the layer before.
    fn width(&self, layer: usize) -> usize {
        if layer < self.directions { self.input } else { self.output * self.directions }
    }

    /// Layers, each direction by itself.
    fn pseudo_layers(&self) -> usize {
        self.count * self.directions
    }

    fn matrices(&self, layer: usize) -> usize {
        let projection = if self.projects() { self.output * self.hidden } else { 0 };
        self.gates() * self.hidden * (self.width(layer) + self.output) + projection
    }

    fn all_matrices(&self) -> usize {
        (0..self.pseudo_layers()).map(|layer| self.matrices(layer)).sum()
    }

    fn biases_of_a_layer(&self) -> usize {
        if self.biases { 2 * self.gates() * self.hidden } else { 0 }
    }

    /// Bytes of all weights: matrices of all layers, then biases.
    fn weights(&self) -> usize {
        (self.all_matrices() + self.pseudo_layers() * self.biases_of_a_layer()) * self.element
    }

    /// A matrix and its bias: those of the input come before those of the hidden state, and the projection, which has no
    /// bias, after them.
    fn parts(&self, layer: usize, number: usize) -> Option<(Part, Option<Part>)> {
        let gates = self.gates();
        let last = 2 * gates - usize::from(!self.projects());
        if layer >= self.pseudo_layers() || number > last {
            return None;
        }
        let before: usize = (0..layer).map(|layer| self.matrices(layer)).sum();
        let (width, of_input) = (self.width(layer), self.hidden * self.width(layer));
        let of_hidden = self.hidden * self.output;
        let at = before + number.min(gates) * of_input + number.saturating_sub(gates) * of_hidden;
        if number == 2 * gates {
            return Some((Part { at, rows: self.output, columns: self.hidden }, None));
        }
        let columns = if number < gates { width } else { self.output };
        let bias = self.biases.then(|| Part {
            at: self.all_matrices() + layer * self.biases_of_a_layer() + number * self.hidden,
            rows: self.hidden,
            columns: 1,
        });
        Some((Part { at, rows: self.hidden, columns }, bias))
    }

    /// Bytes kept from the forward to the backward: gates and cells of each layer, what goes from one to the next, and a
    /// bit for each value that dropout may drop.
    fn reserve(&self, sequences: Sequences) -> usize {
        let Sequences { steps, .. } = sequences;
        let all = self.pseudo_layers();
        let of = |values: usize| aligned(values * steps * self.element);
        let kept = match self.cell {
            LSTM => of(all * 4 * self.hidden) + of(all * self.hidden),
            GRU => of(all * 6 * self.hidden),
            _ => of(all * self.hidden),
        };
        let projected =
            if self.projects() { of(all * self.hidden) + of(all * self.output) } else { 0 };
        let between = (self.count - 1) * self.directions;
        let bits = sequences.padded() * self.output * self.directions;
        let masks = if self.dropout { between * aligned(bits.div_ceil(8)) } else { 0 };
        kept + projected + of(between * self.hidden) + masks + BESIDE
    }

    /// Bytes of work of a pass: what both ways need, and what each needs alone, of which the larger counts if there is a
    /// way back.
    fn workspace(&self, sequences: Sequences, training: bool) -> usize {
        let forward = self.forward(sequences) + self.in_order(sequences, 1);
        if !training {
            return self.both_ways(sequences) + forward;
        }
        let backward = self.backward(sequences) + self.in_order(sequences, 2);
        self.both_ways(sequences) + forward.max(backward)
    }

    /// Weights in the library's order, and what each layer multiplies with.
    fn both_ways(&self, sequences: Sequences) -> usize {
        let projected = if self.projects() {
            aligned(self.directions * sequences.steps * self.hidden * self.element)
        } else {
            0
        };
        self.pseudo_layers() * OF_A_STREAM
            + BESIDE
            + aligned(self.all_matrices() * self.element)
            + projected
    }

    /// Whether steps follow each other in one kernel.
    fn persistent(&self) -> bool {
        self.algorithm != STANDARD && self.kind != BFLOAT16
    }

    /// States of all layers: of the `first` kind, of the cell, and of the other direction.
    fn states(&self, sequences: Sequences, first: usize, other_direction: usize) -> usize {
        let of = |values: usize| {
            aligned(values * self.pseudo_layers() * sequences.batch * self.hidden * self.element)
        };
        let cell = if self.cell == LSTM { of(2) } else { 0 };
        let other = if self.directions == 2 { of(other_direction) } else { 0 };
        of(first) + cell + other
    }

    fn forward(&self, sequences: Sequences) -> usize {
        let Sequences { steps, batch, .. } = sequences;
        let bytes = |steps: usize| aligned(steps * self.hidden * self.element);
        let gates = self.gates();
        let dropped = if self.dropout { bytes(steps) } else { 0 };
        let both = bytes(2 * gates * steps) + bytes(4 * steps);
        if self.persistent() {
            let each = if self.directions == 2 { both } else { bytes(gates * steps) + dropped };
            return self.states(sequences, 2, 1) + each + bytes(4 * gates * steps);
        }
        let at_once = steps.min(STEPS_AT_ONCE * batch);
        let each = if self.directions == 2 { both } else { bytes(gates * at_once) + dropped };
        self.states(sequences, gates, 2) + each
    }

    fn backward(&self, sequences: Sequences) -> usize {
        let Sequences { steps, batch, .. } = sequences;
        let bytes = |steps: usize| aligned(steps * self.hidden * self.element);
        let widest = steps * self.input.max(self.hidden) * self.element;
        let deep = self.count > 1;
        let both = aligned(4 * widest) + bytes(if deep { 4 * steps } else { 2 * steps });
        if self.persistent() {
            let each = if self.directions == 2 {
                both
            } else {
                aligned(widest) + bytes(if deep { 2 * steps } else { steps })
            };
            let gates = match self.cell {
                LSTM => 4,
                GRU => 6,
                _ => 1,
            };
            // Sums of blocks, of the kind of kernel that is spread over the device.
            let sums =
                if self.algorithm == PERSISTENT { (4864 + 2 * batch) * self.hidden } else { 0 };
            return self.states(sequences, 2, 1)
                + each
                + bytes(gates * steps)
                + bytes(8 * steps).max(aligned(sums));
        }
        let each = if self.directions == 2 {
            both
        } else {
            let at_once = if deep { steps.min(self.pipelined(sequences) * batch) } else { steps };
            aligned(widest) + bytes(at_once)
        };
        self.states(sequences, 1, 2) + each
    }

    /// Whether layers of such sizes were among those that were measured.
    fn is_measured(&self, Sequences { length, batch, .. }: Sequences) -> bool {
        // Where the number of steps that are on their way at once is not the one it was from here or from there.
        let between = (97..100).contains(&batch) || (batch > 16 && (101..128).contains(&length));
        let pipelined = self.count > 1 && self.directions == 1 && !self.persistent();
        self.count <= MOST_LAYERS
            && self.input.max(self.hidden) <= WIDEST
            && length <= LONGEST
            && batch <= LARGEST_BATCH
            && !(between && pipelined)
    }

    /// Steps that are on their way at once, where layers work one after the other.
    fn pipelined(&self, Sequences { length, batch, .. }: Sequences) -> usize {
        let each = match batch {
            1 => 32,
            2..=8 => 16,
            9..=16 => 8,
            _ if length >= 128 => 8,
            // Nothing was measured from 97 to 99, and of lengths from 101 to 127: `is_measured`.
            17..100 => 4,
            _ => 2,
        };
        each.max(8) + each * self.count
    }

    /// Padded input and output, and states, in the order of lengths.
    fn in_order(&self, sequences: Sequences, times: usize) -> usize {
        if !self.padded {
            return 0;
        }
        let bytes = |values: usize| aligned(values * self.element);
        let padded = sequences.padded();
        let state = |values: usize| 2 * bytes(self.pseudo_layers() * sequences.batch * values);
        let cell = if self.cell == LSTM { state(self.hidden) } else { 0 };
        let data = bytes(self.directions * padded * self.output) + bytes(padded * self.input);
        times * (data + state(self.output) + cell)
            + aligned(2 * sequences.batch * size_of::<c_int>())
    }
}

fn bytes_of(kind: c_int) -> usize {
    // Single, double, half, and the shorter single.
    match kind {
        1 => 8,
        2 | 9 => 2,
        _ => 4,
    }
}

fn layers(state: &State, descriptor: usize) -> Result<Layers, Code> {
    state.recurrent.layers.get(&descriptor).copied().ok_or(Code::INVALID_VALUE)
}

fn size(value: c_int) -> Result<usize, Code> {
    usize::try_from(value).map_err(|_| Code::INVALID_VALUE)
}

entry! {
    /// Remembers. The descriptor itself is never looked at.
    fn cudnnSetRNNDescriptor_v8(
        descriptor: usize,
        algorithm: c_int,
        cell: c_int,
        bias: c_int,
        direction: c_int,
        _input_mode: c_int,
        kind: c_int,
        _precision: c_int,
        _math: c_int,
        input: c_int,
        hidden: c_int,
        projection: c_int,
        count: c_int,
        dropout: usize,
        flags: c_uint,
    ) |state| {
        let hidden = size(hidden)?;
        let layers = Layers {
            algorithm,
            cell,
            biases: bias != NO_BIAS,
            directions: 1 + usize::from(direction == BIDIRECTIONAL),
            kind,
            element: bytes_of(kind),
            input: size(input)?,
            hidden,
            output: match size(projection)? {
                0 => hidden,
                projection => projection,
            },
            count: size(count)?.max(1),
            dropout: state.recurrent.dropping.contains(&dropout),
            padded: flags & PADDED != 0,
        };
        state.recurrent.layers.insert(descriptor, layers);
        Ok(())
    }

    /// Remembers.
    fn cudnnSetRNNDataDescriptor(
        descriptor: usize,
        _kind: c_int,
        layout: c_int,
        length: c_int,
        batch: c_int,
        _vector: c_int,
        lengths: *const c_int,
        _padding: *const c_void,
    ) |state| {
        let (length, batch) = (size(length)?, size(batch)?);
        let steps = if layout == PACKED && !lengths.is_null() {
            // SAFETY: the caller's promise: a length for each sequence.
            let lengths = unsafe { std::slice::from_raw_parts(lengths, batch) };
            lengths.iter().map(|&length| size(length)).sum::<Result<_, _>>()?
        } else {
            length * batch
        };
        let sequences = Sequences { length, batch, steps };
        state.recurrent.sequences.insert(descriptor, sequences);
        Ok(())
    }

    /// All weights together.
    fn cudnnGetRNNWeightSpaceSize(_handle: u64, descriptor: usize, place: *mut usize) |state| {
        let bytes = layers(state, descriptor)?.weights();
        // SAFETY: the caller's promise.
        unsafe { put(place, bytes) }
    }

    /// What a pass needs beside, and what it keeps.
    fn cudnnGetRNNTempSpaceSizes(
        _handle: u64,
        descriptor: usize,
        mode: c_int,
        data: usize,
        workspace: *mut usize,
        reserve: *mut usize,
    ) first release = release(), |state| {
        let layers = layers(state, descriptor)?;
        let sequences = *state.recurrent.sequences.get(&data).ok_or(Code::INVALID_VALUE)?;
        super::note_elsewhere(state, release, "recurrent layers");
        if !layers.is_measured(sequences) {
            notes::note(
                notes::GUESSES_FILE,
                "workspaces of recurrent layers follow those of others: such sizes were not measured",
            );
        }
        let training = mode == TRAINING;
        if !workspace.is_null() {
            // SAFETY: the caller's promise.
            unsafe { put(workspace, layers.workspace(sequences, training)) }?;
        }
        if reserve.is_null() {
            return Ok(());
        }
        let kept = if training { layers.reserve(sequences) } else { 0 };
        // SAFETY: the caller's promise.
        unsafe { put(reserve, kept) }
    }

    /// Random states, for every thread that the device has at once.
    fn cudnnDropoutGetStatesSize(_handle: u64, place: *mut usize) |state| {
        let threads = state.profile.attribute(attribute::MULTIPROCESSORS)
            * state.profile.attribute(attribute::MAX_THREADS_PER_MULTIPROCESSOR);
        // SAFETY: the caller's promise.
        unsafe { put(place, size(threads)? * STATE_PER_THREAD) }
    }

    /// Random states hold nothing here; whether anything is dropped decides about sizes.
    fn cudnnSetDropoutDescriptor(
        descriptor: usize, handle: u64, rate: f32, _states: usize, _size: usize, _seed: u64,
    ) |state| {
        start_work(state, handle);
        state.recurrent.set_dropout(descriptor, rate);
        Ok(())
    }

    /// The same, of random states that are there.
    fn cudnnRestoreDropoutDescriptor(
        descriptor: usize, _handle: u64, rate: f32, _states: usize, _size: usize, _seed: u64,
    ) |state| {
        state.recurrent.set_dropout(descriptor, rate);
        Ok(())
    }
}

/// Where a matrix and its bias lie among the weights. The installed library is told without the state.
///
/// # Safety
///
/// As for the library's function of this name.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
unsafe extern "C" fn cudnnGetRNNWeightParams(
    _handle: u64,
    descriptor: usize,
    layer: c_int,
    _size: usize,
    weights: *const c_void,
    number: c_int,
    matrix: usize,
    matrix_place: *mut usize,
    bias: usize,
    bias_place: *mut usize,
) -> c_int {
    let mut found = None;
    let code = driver_call(|state| {
        let layers = layers(state, descriptor)?;
        let parts = layers.parts(size(layer)?, size(number)?).ok_or(Code::INVALID_VALUE)?;
        found = Some((layers, parts));
        Ok(())
    });
    let Some((layers, (of_matrix, of_bias))) = found else { return code };
    // SAFETY: the caller's promise.
    let told = unsafe { tell(layers, weights.addr(), Some(of_matrix), matrix, matrix_place) };
    // SAFETY: the caller's promise.
    match told.and_then(|()| unsafe { tell(layers, weights.addr(), of_bias, bias, bias_place) }) {
        Ok(()) => code,
        Err(failed) => failed.0,
    }
}

/// Describes a part and writes where it lies, each if it is asked for; nothing where there is none. Whoever wants a matrix
/// alone gives neither a descriptor nor a place for its bias.
///
/// # Safety
///
/// `descriptor` is zero or one of the installed library's; `place` is null or can be written.
unsafe fn tell(
    layers: Layers,
    weights: usize,
    part: Option<Part>,
    descriptor: usize,
    place: *mut usize,
) -> Result<(), Code> {
    let at = part.map_or(0, |part| weights + part.at * layers.element);
    if !place.is_null() {
        // SAFETY: the caller's promise.
        unsafe { put(place, at) }?;
    }
    let Some(part) = part.filter(|_| descriptor != 0) else { return Ok(()) };
    let extents = [1, part.rows, part.columns].map(|it| it as c_int);
    let strides = [part.rows * part.columns, part.columns, 1].map(|it| it as c_int);
    let (extents, strides) = (extents.as_ptr(), strides.as_ptr());
    // SAFETY: both have three numbers.
    match unsafe { set_tensor(descriptor, layers.kind, 3, extents, strides) } {
        0 => Ok(()),
        _ => Err(Code::INVALID_VALUE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers() -> Layers {
        Layers {
            algorithm: STANDARD,
            cell: LSTM,
            biases: true,
            directions: 1,
            kind: 0,
            element: 4,
            input: 1024,
            hidden: 1024,
            output: 1024,
            count: 3,
            dropout: true,
            padded: true,
        }
    }

    /// Algorithm, cell, biases, directions but one, type, input, hidden, projection, layers, dropout, padded; longest, batch,
    /// steps. Then weights, workspace without and with a way back, and what is kept for it.
    #[rustfmt::skip]
    const RECORDED: &[([usize; 14], [usize; 4])] = &[
        ([0, 0, 0, 0, 2, 1500, 384, 384, 5, 1, 0, 16, 2, 32], [3_806_208, 45_806_336, 45_877_760, 227_584]),
        ([0, 0, 2, 0, 1, 200, 96, 96, 1, 0, 0, 50, 200, 5405], [228_864, 12_920_832, 21_568_832, 4_151_296]),
        ([0, 0, 2, 1, 1, 7, 100, 100, 5, 1, 1, 70, 8, 560], [2_107_200, 89_912_960, 91_864_320, 8_176_384]),
        ([0, 0, 0, 1, 2, 80, 2048, 2048, 3, 0, 1, 70, 16, 1120], [118_095_872, 207_273_344, 226_589_056, 45_875_456]),
        ([0, 1, 2, 0, 0, 1000, 7, 7, 2, 1, 0, 64, 512, 16635], [28_700, 17_766_336, 83_546_784, 1_426_304]),
        ([0, 1, 2, 1, 0, 256, 1, 1, 8, 0, 0, 70, 8, 560], [2_352, 134_235_200, 136_524_480, 67_456]),
        ([0, 2, 2, 0, 1, 300, 13, 13, 8, 1, 1, 50, 10, 500], [212_576, 68_910_336, 71_162_656, 2_450_080]),
        ([0, 2, 2, 0, 9, 128, 24, 24, 2, 0, 1, 512, 48, 13282], [39_168, 26_692_736, 35_264_640, 7_013_152]),
        ([0, 2, 0, 0, 9, 100, 16, 8, 4, 1, 0, 300, 100, 30000], [20_992, 38_849_280, 40_702_080, 27_930_304]),
        ([0, 2, 2, 0, 0, 300, 16, 8, 8, 0, 0, 200, 256, 51200], [115_712, 84_391_168, 133_510_400, 193_331_456]),
        ([0, 2, 0, 1, 0, 640, 650, 650, 2, 1, 1, 70, 32, 1199], [67_392_000, 159_731_744, 164_977_344, 69_311_072]),
        ([0, 2, 0, 1, 1, 1, 48, 48, 4, 0, 1, 2, 12, 24], [1_477_632, 69_158_432, 69_177_056, 424_192]),
        ([0, 2, 2, 1, 2, 32, 5, 2, 1, 1, 0, 10, 128, 1280], [2_920, 16_979_936, 17_171_936, 164_096]),
        ([0, 2, 2, 1, 9, 200, 96, 48, 8, 0, 0, 300, 20, 3362], [2_101_248, 145_823_232, 145_854_080, 76_169_728]),
        ([0, 3, 2, 0, 2, 768, 200, 200, 2, 1, 1, 5, 256, 1280], [1_646_400, 23_971_200, 26_879_360, 6_688_256]),
        ([0, 3, 2, 0, 1, 7, 1, 1, 8, 0, 1, 256, 96, 24576], [912, 69_303_840, 71_718_432, 10_813_696]),
        ([0, 3, 2, 1, 9, 384, 80, 80, 8, 1, 0, 8, 4, 19], [2_073_600, 136_357_824, 136_377_472, 343_616]),
        ([0, 3, 2, 1, 9, 2048, 512, 512, 4, 0, 0, 3, 12, 36], [44_089_344, 112_009_472, 112_181_504, 1_990_912]),
        ([1, 0, 2, 0, 0, 2, 128, 128, 4, 1, 1, 1, 5, 5], [463_872, 34_073_472, 34_715_328, 18_464]),
        ([1, 0, 2, 1, 0, 64, 40, 40, 1, 0, 1, 256, 64, 7655], [33_920, 38_598_848, 57_140_512, 2_449_856]),
        ([1, 2, 2, 0, 0, 600, 8, 8, 1, 1, 0, 35, 16, 560], [78_080, 8_845_056, 10_045_696, 89_856]),
        ([1, 2, 2, 1, 0, 384, 256, 256, 2, 0, 0, 3, 24, 72], [11_567_104, 47_644_928, 47_870_208, 1_622_272]),
        ([1, 3, 2, 0, 0, 161, 1024, 1024, 5, 1, 1, 8, 2, 12], [115_347_456, 158_194_016, 162_992_544, 1_679_616]),
        ([1, 3, 2, 1, 9, 3, 8, 8, 8, 0, 1, 100, 1, 100], [18_720, 134_256_800, 134_257_408, 176_256]),
        ([3, 0, 2, 0, 0, 768, 3, 3, 3, 1, 0, 1, 512, 512], [9_468, 25_249_216, 26_852_800, 31_360]),
        ([3, 0, 2, 1, 0, 20, 8, 8, 1, 0, 0, 1000, 48, 23971], [1_920, 24_459_200, 32_896_992, 1_534_400]),
        ([2, 2, 2, 0, 9, 512, 64, 64, 6, 1, 1, 32, 16, 512], [628_736, 51_995_008, 52_859_264, 2_314_496]),
        ([3, 2, 2, 1, 9, 512, 10, 10, 3, 0, 1, 35, 1, 35], [94_080, 50_472_224, 50_647_392, 24_096]),
        ([2, 3, 2, 0, 1, 640, 1, 1, 5, 1, 0, 2, 3, 5], [15_816, 41_959_808, 41_985_408, 1_760]),
        ([2, 3, 2, 1, 0, 768, 40, 40, 1, 0, 0, 100, 5, 500], [777_600, 19_317_952, 24_981_952, 960_256]),
    ];

    #[test]
    fn sizes_are_those_that_were_recorded() {
        for &(told, recorded) in RECORDED {
            let [algorithm, cell, biases, directions, kind, rest @ ..] = told;
            let [input, hidden, output, count, dropout, padded, length, batch, steps] = rest;
            let layers = Layers {
                algorithm: algorithm as c_int,
                cell: cell as c_int,
                biases: biases != 0,
                directions: 1 + directions,
                kind: kind as c_int,
                element: bytes_of(kind as c_int),
                input,
                hidden,
                output,
                count,
                dropout: dropout != 0,
                padded: padded != 0,
            };
            let sequences = Sequences { length, batch, steps };
            let [inference, training] =
                [false, true].map(|training| layers.workspace(sequences, training));
            let ours = [layers.weights(), inference, training, layers.reserve(sequences)];
            assert_eq!(ours, recorded, "{told:?}");
        }
    }

    #[test]
    fn sizes_beyond_those_that_were_measured_are_told_from_others() {
        let of = |length, batch| Sequences { length, batch, steps: length * batch };
        assert!(layers().is_measured(of(100, 96)) && layers().is_measured(of(1000, 512)));
        for (length, batch) in [(1001, 4), (10, 513), (20, 98), (120, 32)] {
            assert!(!layers().is_measured(of(length, batch)), "{length} {batch}");
        }
        let one = Layers { count: 1, ..layers() };
        assert!(one.is_measured(of(120, 98)), "a layer alone waits for none");
        for wide in [Layers { hidden: 2049, ..one }, Layers { input: 4096, ..one }] {
            assert!(!wide.is_measured(of(10, 10)));
        }
        assert!(!Layers { count: 9, ..layers() }.is_measured(of(10, 10)));
    }

    #[test]
    fn parts_lie_side_by_side_and_fill_the_weights() {
        for layers in [
            layers(),
            Layers { directions: 2, input: 7, hidden: 5, output: 5, ..layers() },
            Layers { directions: 2, input: 7, hidden: 6, output: 2, ..layers() },
            Layers {
                cell: GRU,
                biases: false,
                directions: 2,
                input: 3,
                hidden: 4,
                output: 4,
                count: 2,
                ..layers()
            },
        ] {
            let mut end_of_matrices = 0;
            let mut end_of_biases = layers.all_matrices();
            for layer in 0..layers.pseudo_layers() {
                let numbers = 2 * layers.gates() + usize::from(layers.projects());
                for number in 0..numbers {
                    let (matrix, bias) = layers.parts(layer, number).unwrap();
                    assert_eq!(matrix.at, end_of_matrices, "{layers:?} {layer} {number}");
                    end_of_matrices += matrix.rows * matrix.columns;
                    if let Some(bias) = bias {
                        assert_eq!(bias.at, end_of_biases, "{layers:?} {layer} {number}");
                        end_of_biases += bias.rows;
                    }
                }
            }
            assert_eq!(end_of_matrices, layers.all_matrices());
            assert_eq!(end_of_biases * layers.element, layers.weights());
            assert_eq!(layers.parts(layers.pseudo_layers(), 0), None);
            assert_eq!(layers.parts(0, 2 * layers.gates() + 1), None);
        }
    }
}
