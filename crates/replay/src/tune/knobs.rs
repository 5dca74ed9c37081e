//! The settings that are tried, as values that can be changed by a step.
//!
//! The table of the module above says which, and why.

use std::fmt::Write;

/// One value per setting; none is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Knobs {
    expandable: bool,
    max_split_mb: Option<u64>,
    divisions: Option<u64>,
    large_segment_mb: Option<u64>,
    /// In percent.
    threshold: Option<u64>,
}

const MAX_SPLITS_MB: [u64; 6] = [32, 64, 128, 256, 512, 1024];
const DIVISIONS: [u64; 5] = [2, 4, 8, 16, 32];
const LARGE_SEGMENTS_MB: [u64; 3] = [12, 32, 64];
const THRESHOLDS: [u64; 3] = [50, 70, 90];

/// What is tried first.
pub(super) fn grid(limited: bool) -> Vec<Knobs> {
    let default = Knobs::default();
    let mut grid = vec![default, Knobs { expandable: true, ..default }];
    grid.extend(MAX_SPLITS_MB.map(|mb| Knobs { max_split_mb: Some(mb), ..default }));
    grid.extend(DIVISIONS.map(|divisions| Knobs { divisions: Some(divisions), ..default }));
    grid.extend(LARGE_SEGMENTS_MB.map(|mb| Knobs { large_segment_mb: Some(mb), ..default }));
    if limited {
        grid.extend(THRESHOLDS.map(|percent| Knobs { threshold: Some(percent), ..default }));
    }
    grid
}

impl Knobs {
    /// As a settings string.
    pub(super) fn conf(&self) -> String {
        let mut conf = String::new();
        let mut add = |key: &str, value: &dyn std::fmt::Display| {
            let comma = if conf.is_empty() { "" } else { "," };
            // Writing to a string cannot fail.
            let _ = write!(conf, "{comma}{key}:{value}");
        };
        if self.expandable {
            add("expandable_segments", &"True");
        }
        if let Some(mb) = self.max_split_mb {
            add("max_split_size_mb", &mb);
        }
        if let Some(divisions) = self.divisions {
            add("roundup_power2_divisions", &divisions);
        }
        if let Some(mb) = self.large_segment_mb {
            add("large_segment_size_mb", &mb);
        }
        if let Some(percent) = self.threshold {
            add("garbage_collection_threshold", &(percent as f64 / 100.0));
        }
        conf
    }

    /// The settings of a string that [`conf`](Self::conf) wrote.
    pub(super) fn read(conf: &str) -> Option<Self> {
        let mut knobs = Self::default();
        for pair in conf.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once(':')?;
            match key {
                "expandable_segments" => knobs.expandable = value == "True",
                "max_split_size_mb" => knobs.max_split_mb = Some(value.parse().ok()?),
                "roundup_power2_divisions" => knobs.divisions = Some(value.parse().ok()?),
                "large_segment_size_mb" => knobs.large_segment_mb = Some(value.parse().ok()?),
                "garbage_collection_threshold" => {
                    let share: f64 = value.parse().ok()?;
                    knobs.threshold = Some((share * 100.0).round() as u64);
                }
                _ => return None,
            }
        }
        (knobs.conf() == conf).then_some(knobs)
    }

    /// Those with one setting changed by a step, added or left out. Some may be none that a release
    /// accepts.
    pub(super) fn around(self) -> Vec<Self> {
        let sizes = |mb: Option<u64>, first: u64| match mb {
            // Even numbers of MB: pages are whole multiples of 2 MiB.
            Some(mb) => vec![None, Some(mb / 8 * 6), Some((mb / 4).saturating_mul(6))],
            None => vec![Some(first)],
        };
        let powers = match self.divisions {
            Some(divisions) => vec![None, Some(divisions / 2), Some(divisions.saturating_mul(2))],
            None => vec![Some(8)],
        };
        let mut around = vec![Self { expandable: !self.expandable, ..self }];
        let max_splits = sizes(self.max_split_mb, 256);
        around.extend(max_splits.into_iter().map(|mb| Self { max_split_mb: mb, ..self }));
        around.extend(powers.into_iter().map(|divisions| Self { divisions, ..self }));
        let large_segments = sizes(self.large_segment_mb, 12);
        around.extend(large_segments.into_iter().map(|mb| Self { large_segment_mb: mb, ..self }));
        if let Some(percent) = self.threshold {
            let thresholds =
                [None, Some(percent.saturating_sub(10)), Some(percent.saturating_add(5))];
            around.extend(thresholds.map(|threshold| Self { threshold, ..self }));
        }
        around
    }
}

#[cfg(test)]
mod tests {
    use tonnage_engine::{Config, Release};

    use super::*;

    #[test]
    fn every_setting_of_the_grid_can_be_read_back_and_is_accepted() {
        for knobs in grid(true) {
            let conf = knobs.conf();
            assert_eq!(Knobs::read(&conf), Some(knobs), "{conf}");
            assert!(Config::parse(&conf, Release::V2_11).is_ok(), "{conf}");
        }
        assert_eq!(Knobs::read("backend:cudaMallocAsync"), None);
        assert_eq!(Knobs::read("max_split_size_mb:0128"), None, "not as it would be written");
    }

    #[test]
    fn around_a_setting_lie_smaller_larger_and_combined_ones() {
        let knobs = Knobs { max_split_mb: Some(128), ..Knobs::default() };
        let around: Vec<_> = knobs.around().iter().map(Knobs::conf).collect();
        for conf in [
            "",
            "max_split_size_mb:96",
            "max_split_size_mb:192",
            "expandable_segments:True,max_split_size_mb:128",
            "max_split_size_mb:128,roundup_power2_divisions:8",
        ] {
            assert!(around.iter().any(|it| it == conf), "{conf}: {around:?}");
        }
    }
}
