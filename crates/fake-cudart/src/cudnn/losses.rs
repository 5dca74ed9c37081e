//! Normalising a batch, and the loss of sequences without alignment (CTC): sizes by the rules that cuDNN 9.19 followed on an
//! H200, to the byte, in 5,792 and 1,500 configurations drawn at random. Of other releases and other devices they are a guess,
//! which is noted.

use std::ffi::c_int;

use tonnage_cuda_codes::Code;

use super::{forward, release};
use crate::entry::library_entry as entry;
use crate::state::{State, put};

/// Channels that one block normalises, and few channels, for which more rows are taken at once.
const CHANNELS: usize = 64;
const FEW_CHANNELS: usize = 4;

/// Single precision, in the library's numbers.
const SINGLE: c_int = 0;

/// Statistics of each channel, kept on the device's cores: the one way that needs anything beside.
const PERSISTENT: c_int = 2;

/// Extents that a tensor has at most.
const EXTENTS: usize = 8;

/// What guesses call the loss.
const CTC: &str = "CTC losses";

/// Says that bytes beside are a guess, where there may be any and they were not measured.
fn note_normalising(state: &State, release: Option<usize>, mode: c_int) {
    if mode == PERSISTENT {
        super::note_elsewhere(state, release, "batch norms");
    }
}

forward! {
    fn tensor / c"cudnnGetTensorNdDescriptor"(
        descriptor: usize, asked: c_int, kind: *mut c_int, count: *mut c_int, extents: *mut c_int, strides: *mut c_int,
    );
    fn loss / c"cudnnGetCTCLossDescriptor_v8"(
        descriptor: usize, kind: *mut c_int, normalised: *mut c_int, gradient: *mut c_int, longest: *mut c_int,
    );
}

/// What a descriptor was told of a tensor.
struct Tensor {
    kind: c_int,
    extents: Vec<usize>,
    strides: Vec<usize>,
}

impl Tensor {
    /// What the installed library knows of a descriptor.
    fn of(descriptor: usize) -> Result<Self, Code> {
        let (mut kind, mut count) = (0, 0);
        let (mut extents, mut strides) = ([0; EXTENTS], [0; EXTENTS]);
        // SAFETY: the descriptor is one of the library's, and there is room for as many extents as are asked for.
        let status = unsafe {
            tensor(
                descriptor,
                EXTENTS as c_int,
                &raw mut kind,
                &raw mut count,
                extents.as_mut_ptr(),
                strides.as_mut_ptr(),
            )
        };
        if status != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let sizes = |of: [c_int; EXTENTS]| {
            let all = of.into_iter().take(usize::try_from(count).unwrap_or(0));
            all.map(|it| usize::try_from(it).map_err(|_| Code::INVALID_VALUE))
                .collect::<Result<Vec<_>, _>>()
        };
        Ok(Self { kind, extents: sizes(extents)?, strides: sizes(strides)? })
    }

    /// Bytes beside of normalising: partial sums of blocks, if channels lie side by side.
    fn normalising(&self, mode: c_int, backward: bool) -> usize {
        let (Some(&channels), Some(&stride)) = (self.extents.get(1), self.strides.get(1)) else {
            return 0;
        };
        let rows = self.extents.iter().product::<usize>() / channels.max(1);
        let images = self.extents[0].max(1);
        let side_by_side = stride == 1 || channels == 1 || rows == images;
        if mode != PERSISTENT || !side_by_side {
            return 0;
        }
        let groups = channels.div_ceil(CHANNELS);
        let few = channels <= FEW_CHANNELS;
        let at_once = match self.kind {
            _ if backward => 96,
            SINGLE => 64,
            _ => 160,
        };
        let blocks = rows.div_ceil(if few { 4 * at_once } else { at_once });
        let sums = if few { 32 } else { 512 };
        let (beside, each) = if backward { (1056, sums) } else { (1072, sums + 4) };
        beside + 4 * groups + blocks * groups * each
    }

    /// Bytes beside of the loss of sequences whose longest label is so long, and of each label's own.
    fn aligning(&self, longest: usize, of_a_label: usize) -> Result<usize, Code> {
        let &[steps, batch, alphabet] = &self.extents[..] else {
            return Err(Code::INVALID_VALUE);
        };
        let each = 4 * steps * alphabet + 8 * steps * (2 * longest + 1) + 8 * longest + 12;
        Ok(batch * (each + of_a_label))
    }
}

/// The longest label that the installed library knows of a descriptor.
fn longest_label(descriptor: usize) -> Result<usize, Code> {
    let (mut kind, mut normalised, mut gradient, mut longest) = (0, 0, 0, 0);
    // SAFETY: the descriptor is one of the library's; all places live here.
    let status = unsafe {
        loss(descriptor, &raw mut kind, &raw mut normalised, &raw mut gradient, &raw mut longest)
    };
    if status != 0 {
        return Err(Code::INVALID_VALUE);
    }
    usize::try_from(longest).map_err(|_| Code::INVALID_VALUE)
}

entry! {
    /// What normalising needs beside.
    fn cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
        _handle: u64,
        mode: c_int,
        _operations: c_int,
        x: usize,
        _z: usize,
        _y: usize,
        _parameters: usize,
        _activation: usize,
        size: *mut usize,
    ) first (release, x) = (release(), Tensor::of(x)), |state| {
        note_normalising(state, release, mode);
        let bytes = x?.normalising(mode, false);
        // SAFETY: the caller's promise.
        unsafe { put(size, bytes) }
    }

    /// The same on the way back.
    fn cudnnGetBatchNormalizationBackwardExWorkspaceSize(
        _handle: u64,
        mode: c_int,
        _operations: c_int,
        x: usize,
        _y: usize,
        _dy: usize,
        _dz: usize,
        _dx: usize,
        _parameters: usize,
        _activation: usize,
        size: *mut usize,
    ) first (release, x) = (release(), Tensor::of(x)), |state| {
        note_normalising(state, release, mode);
        let bytes = x?.normalising(mode, true);
        // SAFETY: the caller's promise.
        unsafe { put(size, bytes) }
    }

    /// Nothing is kept from one to the other.
    fn cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
        _handle: u64,
        _mode: c_int,
        _operations: c_int,
        _activation: usize,
        _x: usize,
        size: *mut usize,
    ) |_| {
        // SAFETY: the caller's promise.
        unsafe { put(size, 0) }
    }

    /// What the loss needs beside, where labels lie on the host.
    fn cudnnGetCTCLossWorkspaceSize(
        _handle: u64,
        probabilities: usize,
        _gradients: usize,
        _labels: *const c_int,
        lengths: *const c_int,
        _input_lengths: *const c_int,
        _algorithm: c_int,
        _loss: usize,
        size: *mut usize,
    ) first (release, tensor) = (release(), Tensor::of(probabilities)), |state| {
        super::note_elsewhere(state, release, CTC);
        let tensor = tensor?;
        let batch = tensor.extents.get(1).copied().unwrap_or(0);
        if lengths.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's promise: a length for each label.
        let lengths = unsafe { std::slice::from_raw_parts(lengths, batch) };
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let longest = usize::try_from(longest).map_err(|_| Code::INVALID_VALUE)?;
        let bytes = tensor.aligning(longest, 4 * longest + 8)?;
        // SAFETY: the caller's promise.
        unsafe { put(size, bytes) }
    }

    /// The same, where they lie on the device.
    fn cudnnGetCTCLossWorkspaceSize_v8(
        _handle: u64,
        _algorithm: c_int,
        descriptor: usize,
        probabilities: usize,
        _gradients: usize,
        size: *mut usize,
    ) first (release, longest, tensor) = (release(), longest_label(descriptor), Tensor::of(probabilities)), |state| {
        super::note_elsewhere(state, release, CTC);
        let bytes = tensor?.aligning(longest?, 0)?;
        // SAFETY: the caller's promise.
        unsafe { put(size, bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image, channels side by side or not.
    fn image(kind: c_int, [images, channels, side]: [usize; 3], last: bool) -> Tensor {
        let stride = if last { 1 } else { side * side };
        let strides = vec![channels * side * side, stride, side, 1];
        Tensor { kind, extents: vec![images, channels, side, side], strides }
    }

    #[test]
    fn normalising_needs_what_was_measured() {
        for (kind, extents, last, recorded) in [
            (2, [4, 12, 28], true, [11396, 17956]),
            (0, [128, 1, 112], true, [226_868, 134_884]),
            (2, [50, 1, 128], false, [47156, 69348]),
            (0, [50, 2048, 1], false, [17712, 17568]),
            (0, [2, 768, 128], false, [0, 0]),
        ] {
            let tensor = image(kind, extents, last);
            let ours = [false, true].map(|back| tensor.normalising(PERSISTENT, back));
            assert_eq!(ours, recorded, "{kind} {extents:?}");
            assert_eq!(tensor.normalising(1, false), 0);
        }
    }

    #[test]
    fn aligning_needs_what_was_measured() {
        let tensor =
            |extents: &[usize]| Tensor { kind: 0, extents: extents.to_vec(), strides: vec![] };
        assert_eq!(tensor(&[50, 32, 20]).aligning(1, 0).unwrap(), 167_040);
        assert_eq!(tensor(&[200, 64, 20]).aligning(66, 4 * 66 + 8).unwrap(), 14_695_168);
        assert!(tensor(&[50, 32]).aligning(1, 0).is_err());
    }
}
