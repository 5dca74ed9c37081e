//! Engines that have cuBLASLt multiply matrices. How it chooses is not known: the nearest layer that was measured answers.
//!
//! In:  a layer with filters of one element.
//! Out: the bytes that the nearest measured one needs on top of what the library tells without a device.

use std::collections::BTreeMap;

use super::layer::{Kind, Layer, Settings};

/// Records of a family, its settings, and bytes; `data/README.md` says how they were made.
static TABLE: &[u8] = include_bytes!("../../../data/matmuls.bin");

const RECORD: usize = 16;

/// How much an unlike alignment counts against a dimension twice as large.
const ALIGNMENT: f64 = 4.0;

/// How much numbers of pixels count against numbers of channels; how much more those of images do.
const PIXELS: f64 = 0.5;
const IMAGES: f64 = 0.25;

/// How much another kind counts.
const KIND: f64 = 0.25;

/// The bit of a family whose channels come last.
const LAST: u8 = 4;

/// A layer as it is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Matmul {
    /// Pass, whether 32 bits, layout and setting: only the same are compared.
    family: u8,
    /// Of two kinds with 16 bits.
    kind: u8,
    images: u16,
    channels: u16,
    filters: u16,
    pixels: u32,
}

/// What the nearest layer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Near {
    pub(super) bytes: u64,
    /// It is this very layer.
    pub(super) same: bool,
}

impl Matmul {
    /// Nothing if such an engine never has a layer like this, or always without a workspace of its own.
    pub(super) fn of(layer: &Layer, settings: &Settings) -> Option<Self> {
        let setting = u8::try_from(settings.workspace).ok().filter(|it| (1..=2).contains(it))?;
        let float = u8::from(layer.kind == Kind::Float);
        let last = u8::from(layer.channels_last);
        Some(Self {
            family: layer.pass as u8 * 16 + float * 8 + last * LAST + setting,
            kind: u8::from(layer.kind == Kind::Bfloat16),
            images: layer.images.try_into().ok()?,
            channels: layer.channels.try_into().ok()?,
            filters: layer.filters.try_into().ok()?,
            pixels: layer.pixels.try_into().ok()?,
        })
    }

    /// What the nearest measured layer needs; nothing if none is like it at all.
    pub(super) fn nearest(&self) -> Option<Near> {
        self.nearest_of(TABLE.as_chunks::<RECORD>().0.iter().map(read))
    }

    fn nearest_of(&self, all: impl Iterator<Item = (Self, u32)>) -> Option<Near> {
        let near = all
            .filter(|(it, _)| it.family == self.family)
            .map(|(it, bytes)| (self.distance(&it), bytes))
            .min_by(|one, next| one.0.total_cmp(&next.0));
        near.map(|(distance, bytes)| Near { bytes: u64::from(bytes), same: distance == 0.0 })
    }

    fn distance(&self, other: &Self) -> f64 {
        let apart = |one: u64, next: u64| (one as f64).log2() - (next as f64).log2();
        let all = |it: &Self| u64::from(it.images) * u64::from(it.pixels);
        let alignment = |number: u32| number.trailing_zeros().min(3);
        let pixels = if self.family & LAST == 0 {
            f64::from(alignment(self.pixels)) - f64::from(alignment(other.pixels))
        } else {
            0.0
        };
        let unlike = |one: u16, next: u16| {
            f64::from(u8::from(one.is_multiple_of(8) != next.is_multiple_of(8)))
        };
        [
            apart(self.channels.into(), other.channels.into()),
            apart(self.filters.into(), other.filters.into()),
            apart(all(self), all(other)) * PIXELS,
            apart(self.images.into(), other.images.into()) * IMAGES,
            f64::from(self.kind.abs_diff(other.kind)) * KIND,
            pixels * ALIGNMENT,
            unlike(self.channels, other.channels) * ALIGNMENT,
            unlike(self.filters, other.filters) * ALIGNMENT,
        ]
        .iter()
        .map(|difference| difference * difference)
        .sum()
    }
}

/// The records of layers.
pub(super) fn to_table(layers: &BTreeMap<Matmul, u32>) -> Vec<u8> {
    layers.iter().flat_map(|(layer, bytes)| write(layer, *bytes)).collect()
}

fn write(layer: &Matmul, bytes: u32) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[..2].copy_from_slice(&[layer.family, layer.kind]);
    record[2..4].copy_from_slice(&layer.images.to_le_bytes());
    record[4..6].copy_from_slice(&layer.channels.to_le_bytes());
    record[6..8].copy_from_slice(&layer.filters.to_le_bytes());
    record[8..12].copy_from_slice(&layer.pixels.to_le_bytes());
    record[12..].copy_from_slice(&bytes.to_le_bytes());
    record
}

fn read(record: &[u8; RECORD]) -> (Matmul, u32) {
    let short = |at: usize| u16::from_le_bytes([record[at], record[at + 1]]);
    let long = |at: usize| u32::from(short(at)) | u32::from(short(at + 2)) << 16;
    let layer = Matmul {
        family: record[0],
        kind: record[1],
        images: short(2),
        channels: short(4),
        filters: short(6),
        pixels: long(8),
    };
    (layer, long(12))
}
