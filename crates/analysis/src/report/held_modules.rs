//! What modules held, and which of their layers.
//!
//! In:  bytes by the path of modules.
//! Out: [`HeldModule`]s, layers taken together, each with its layers where these are known.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::peak::{SITES, Sum};
use crate::layers::ModulePaths;
use crate::module_path::{ModuleCall, show, show_module_path};

/// How many layers of a module are listed, and how many ranges of indices are written out.
const LAYERS: usize = 64;
const RANGES: usize = 4;

/// Bytes that a module held.
#[derive(Clone, Debug, Serialize)]
pub struct HeldModule {
    /// The path of modules, such as `gpt2:608 > nn.linear`; none for what no `forward` of a module asked for.
    pub module: Option<String>,
    /// The same with the indices of its layers, such as `gpt2:608[0-11] > nn.linear`; none if none is known.
    pub indexed: Option<String>,
    /// Requested bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: usize,
    /// Its layers, largest first, as far as they can be told apart.
    pub layers: Vec<HeldLayer>,
}

/// Bytes that one layer's module held.
#[derive(Clone, Debug, Serialize)]
pub struct HeldLayer {
    /// The path of modules with indices, such as `gpt2:608[7] > nn.linear`.
    pub module: String,
    /// Requested bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: usize,
}

impl HeldModule {
    /// The layer that holds most, if that is much more than the others.
    #[must_use]
    pub fn largest_layer(&self) -> Option<&HeldLayer> {
        let (largest, middle) = (self.layers.first()?, self.layers.get(self.layers.len() / 2)?);
        (largest.bytes / 2 > middle.bytes).then_some(largest)
    }
}

/// Paths that are the same but for indices.
#[derive(Default)]
struct Alike {
    sum: Sum,
    paths: Vec<(u32, Sum)>,
}

pub(super) fn held_modules(
    by_path: &BTreeMap<u32, Sum>,
    paths: &ModulePaths<'_>,
) -> Vec<HeldModule> {
    let mut by_module = BTreeMap::<Option<String>, Alike>::new();
    for (&number, &(bytes, blocks)) in by_path {
        let alike = by_module.entry(show(paths.path(number), |_, _| None)).or_default();
        alike.sum = (alike.sum.0.saturating_add(bytes), alike.sum.1 + blocks);
        alike.paths.push((number, (bytes, blocks)));
    }
    if by_module.keys().all(Option::is_none) {
        return Vec::new();
    }
    let mut held: Vec<_> = by_module.into_iter().collect();
    held.sort_by_key(|(_, it)| u64::MAX - it.sum.0);
    held.truncate(SITES);
    let held = held.into_iter().map(|(module, Alike { sum: (bytes, blocks), paths: alike })| {
        let calls: Vec<_> = alike.iter().map(|&(number, _)| paths.path(number)).collect();
        HeldModule {
            module,
            indexed: indexed(&calls),
            bytes,
            blocks,
            layers: layers(&alike, paths),
        }
    });
    held.collect()
}

/// The layers that are known.
fn layers(alike: &[(u32, Sum)], paths: &ModulePaths<'_>) -> Vec<HeldLayer> {
    let mut by_layer = BTreeMap::<String, Sum>::new();
    for &(number, (bytes, blocks)) in alike {
        let path = paths.path(number);
        if path.iter().all(|it| it.index.is_none()) {
            continue;
        }
        let sum = by_layer.entry(show_module_path(path).unwrap_or_default()).or_default();
        *sum = (sum.0.saturating_add(bytes), sum.1 + blocks);
    }
    let layers =
        by_layer.into_iter().map(|(module, (bytes, blocks))| HeldLayer { module, bytes, blocks });
    let mut layers: Vec<_> = layers.collect();
    layers.sort_by_key(|it| u64::MAX - it.bytes);
    layers.truncate(LAYERS);
    layers
}

/// Paths that are the same but for indices, with all indices; none if there are none.
fn indexed(paths: &[&[ModuleCall<'_>]]) -> Option<String> {
    let indices = |place: usize| -> BTreeSet<u32> {
        paths.iter().filter_map(|path| path.get(place)?.index).collect()
    };
    let one = paths.first()?;
    if (0..one.len()).all(|place| indices(place).is_empty()) {
        return None;
    }
    show(one, |place, _| {
        let indices = indices(place);
        (!indices.is_empty()).then(|| ranges(&indices))
    })
}

/// Numbers as `0-3,7`.
fn ranges(numbers: &BTreeSet<u32>) -> String {
    let mut found = Vec::<(u32, u32)>::new();
    for &number in numbers {
        match found.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => found.push((number, number)),
        }
    }
    let rest = if found.len() > RANGES { ",…" } else { "" };
    let shown = found.iter().take(RANGES).map(|&(first, last)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    });
    shown.collect::<Vec<_>>().join(",") + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_in_a_row_are_a_range() {
        for (numbers, text) in [
            (&[0, 1, 2, 3][..], "0-3"),
            (&[0, 1, 7], "0-1,7"),
            (&[5], "5"),
            (&[0, 2, 4, 6, 8, 10], "0,2,4,6,…"),
        ] {
            assert_eq!(ranges(&numbers.iter().copied().collect()), text);
        }
    }
}
