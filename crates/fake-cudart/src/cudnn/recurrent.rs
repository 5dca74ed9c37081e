//! Recurrent layers. The installed library answers their sizes only with a device; the rules here are those that sizes
//! recorded on an H200 follow, and what was not recorded is noted as a guess.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};

use tonnage_cuda_codes::Code;

use super::forward;
use crate::entry::library_entry as entry;
use crate::notes;
use crate::profile::attribute;
use crate::state::{State, put};

/// Bytes of the random state that dropout keeps for each thread that a device has at once.
const STATE_PER_THREAD: usize = 24;

/// What is kept beside, whatever the layers: as recorded.
const BESIDE: usize = 256;

/// Kinds of cells, in the library's numbers.
const LSTM: c_int = 2;
const GRU: c_int = 3;

/// No layer has biases.
const NO_BIAS: c_int = 0;

/// Both ways through the sequence.
const BIDIRECTIONAL: c_int = 1;

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
}

/// A stack of recurrent layers.
#[derive(Clone, Copy, Debug)]
struct Layers {
    cell: c_int,
    biases: bool,
    directions: usize,
    /// The library's number of the elements' type, and their bytes.
    kind: c_int,
    element: usize,
    input: usize,
    hidden: usize,
    count: usize,
    dropout: bool,
}

/// A padded batch of sequences.
#[derive(Clone, Copy, Debug)]
struct Sequences {
    length: usize,
    batch: usize,
}

/// One matrix or bias: where it begins, in elements, and its extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    at: usize,
    rows: usize,
    columns: usize,
}

impl Layers {
    fn gates(&self) -> usize {
        match self.cell {
            LSTM => 4,
            GRU => 3,
            _ => 1,
        }
    }

    /// What a layer reads: the input, or both directions of the layer before.
    fn width(&self, layer: usize) -> usize {
        if layer < self.directions { self.input } else { self.hidden * self.directions }
    }

    /// Layers, each direction by itself.
    fn pseudo_layers(&self) -> usize {
        self.count * self.directions
    }

    fn matrices(&self, layer: usize) -> usize {
        self.gates() * self.hidden * (self.width(layer) + self.hidden)
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

    /// A matrix and its bias: those of the input come before those of the hidden state.
    fn parts(&self, layer: usize, number: usize) -> Option<(Part, Option<Part>)> {
        let gates = self.gates();
        if layer >= self.pseudo_layers() || number >= 2 * gates {
            return None;
        }
        let before: usize = (0..layer).map(|layer| self.matrices(layer)).sum();
        let (width, of_input) = (self.width(layer), self.hidden * self.width(layer));
        let matrix = match number.checked_sub(gates) {
            None => Part { at: before + number * of_input, rows: self.hidden, columns: width },
            Some(number) => Part {
                at: before + gates * of_input + number * self.hidden * self.hidden,
                rows: self.hidden,
                columns: self.hidden,
            },
        };
        let bias = self.biases.then(|| Part {
            at: self.all_matrices() + layer * self.biases_of_a_layer() + number * self.hidden,
            rows: self.hidden,
            columns: 1,
        });
        Some((matrix, bias))
    }

    /// Bytes of one value for each step, sequence and unit of one layer.
    fn unit(&self, sequences: Sequences) -> usize {
        sequences.length * sequences.batch * self.hidden * self.element
    }

    /// Bytes kept from the forward to the backward: gates and cell of each layer, what goes from one to the next, and
    /// a bit for each value that dropout may drop.
    fn reserve(&self, sequences: Sequences) -> usize {
        let unit = self.unit(sequences);
        let cells = self.pseudo_layers() * (self.gates() + usize::from(self.cell == LSTM)) * unit;
        let between = (self.count - 1) * self.directions;
        let masks = if self.dropout { between * unit / self.element / 8 } else { 0 };
        cells + between * unit + masks + BESIDE
    }

    /// Bytes of work: gates of all layers and two values beside, which is what little was recorded comes near to.
    fn workspace(&self, sequences: Sequences) -> usize {
        (self.pseudo_layers() * self.gates() + 2) * self.unit(sequences)
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
        _algorithm: c_int,
        cell: c_int,
        bias: c_int,
        direction: c_int,
        _input_mode: c_int,
        kind: c_int,
        _precision: c_int,
        _math: c_int,
        input: c_int,
        hidden: c_int,
        _projection: c_int,
        count: c_int,
        dropout: usize,
        _flags: c_uint,
    ) |state| {
        let layers = Layers {
            cell,
            biases: bias != NO_BIAS,
            directions: 1 + usize::from(direction == BIDIRECTIONAL),
            kind,
            element: bytes_of(kind),
            input: size(input)?,
            hidden: size(hidden)?,
            count: size(count)?.max(1),
            dropout: dropout != 0,
        };
        state.recurrent.layers.insert(descriptor, layers);
        Ok(())
    }

    /// Remembers.
    fn cudnnSetRNNDataDescriptor(
        descriptor: usize,
        _kind: c_int,
        _layout: c_int,
        length: c_int,
        batch: c_int,
        _vector: c_int,
        _lengths: *const c_int,
        _padding: *const c_void,
    ) |state| {
        let sequences = Sequences { length: size(length)?, batch: size(batch)? };
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
        _mode: c_int,
        data: usize,
        workspace: *mut usize,
        reserve: *mut usize,
    ) |state| {
        let layers = layers(state, descriptor)?;
        let sequences = *state.recurrent.sequences.get(&data).ok_or(Code::INVALID_VALUE)?;
        notes::note(notes::GUESSES_FILE, "workspaces of recurrent layers (cuDNN) follow few recordings");
        if !workspace.is_null() {
            // SAFETY: the caller's promise.
            unsafe { put(workspace, layers.workspace(sequences)) }?;
        }
        if reserve.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { put(reserve, layers.reserve(sequences)) }
    }

    /// Where a matrix and its bias lie among the weights.
    fn cudnnGetRNNWeightParams(
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
    ) |state| {
        let layers = layers(state, descriptor)?;
        let (of_matrix, of_bias) =
            layers.parts(size(layer)?, size(number)?).ok_or(Code::INVALID_VALUE)?;
        // SAFETY: the caller's promise.
        unsafe { tell(layers, weights.addr(), Some(of_matrix), matrix, matrix_place) }?;
        // SAFETY: the caller's promise.
        unsafe { tell(layers, weights.addr(), of_bias, bias, bias_place) }
    }

    /// Random states, for every thread that the device has at once.
    fn cudnnDropoutGetStatesSize(_handle: u64, place: *mut usize) |state| {
        let threads = state.profile.attribute(attribute::MULTIPROCESSORS)
            * state.profile.attribute(attribute::MAX_THREADS_PER_MULTIPROCESSOR);
        // SAFETY: the caller's promise.
        unsafe { put(place, size(threads)? * STATE_PER_THREAD) }
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

/// Random states hold nothing here.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
extern "C" fn cudnnSetDropoutDescriptor() -> c_int {
    0
}

/// Random states hold nothing here.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the library's name")]
extern "C" fn cudnnRestoreDropoutDescriptor() -> c_int {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers() -> Layers {
        Layers {
            cell: LSTM,
            biases: true,
            directions: 1,
            kind: 0,
            element: 4,
            input: 1024,
            hidden: 1024,
            count: 3,
            dropout: true,
        }
    }

    /// Three layers of 1,024 on 32 sequences of 128, as an H200 was seen to answer.
    #[test]
    fn sizes_are_those_that_were_recorded() {
        let sequences = Sequences { length: 128, batch: 32 };
        assert_eq!(layers().weights(), 100_761_600);
        assert_eq!(layers().reserve(sequences), 286_261_504);
    }

    #[test]
    fn parts_lie_side_by_side_and_fill_the_weights() {
        for layers in [
            layers(),
            Layers { directions: 2, input: 7, hidden: 5, ..layers() },
            Layers {
                cell: GRU,
                biases: false,
                directions: 2,
                input: 3,
                hidden: 4,
                count: 2,
                ..layers()
            },
        ] {
            let mut end_of_matrices = 0;
            let mut end_of_biases = layers.all_matrices();
            for layer in 0..layers.pseudo_layers() {
                for number in 0..2 * layers.gates() {
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
            assert_eq!(layers.parts(0, 2 * layers.gates()), None);
        }
    }
}
