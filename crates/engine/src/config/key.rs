//! The keys a settings string may contain: their names, which release knows them, and which of
//! PyTorch's two parsers reads them.
//!
//! The values are no business of this file: see [`bounds`](super::bounds) for what they may be.

use super::Release;

/// A setting, by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    LargeSegmentSizeMb,
    MaxSplitSizeMb,
    MaxNonSplitRoundingMb,
    GarbageCollectionThreshold,
    RoundupPower2Divisions,
    ExpandableSegments,
    PinnedUseBackgroundThreads,
    PinnedMaxRoundThresholdMb,
    PinnedMaxCachedSizeMb,
    Backend,
    PerProcessMemoryFraction,
    ReleaseLockOnCudamalloc,
    GraphCaptureRecordStreamReuse,
    PinnedUseCudaHostRegister,
    PinnedNumRegisterThreads,
    PinnedReserveSegmentSizeMb,
    PinnedFreeCatchAll,
    ThrowOnCudamallocOom,
    ExpandableSegmentsReserve,
    ExpandableSegmentsReserveByClass,
}

impl Key {
    /// Every key: first the ones common to all accelerators, then those of CUDA.
    pub(super) const ALL: [Self; 20] = [
        Self::LargeSegmentSizeMb,
        Self::MaxSplitSizeMb,
        Self::MaxNonSplitRoundingMb,
        Self::GarbageCollectionThreshold,
        Self::RoundupPower2Divisions,
        Self::ExpandableSegments,
        Self::PinnedUseBackgroundThreads,
        Self::PinnedMaxRoundThresholdMb,
        Self::PinnedMaxCachedSizeMb,
        Self::Backend,
        Self::PerProcessMemoryFraction,
        Self::ReleaseLockOnCudamalloc,
        Self::GraphCaptureRecordStreamReuse,
        Self::PinnedUseCudaHostRegister,
        Self::PinnedNumRegisterThreads,
        Self::PinnedReserveSegmentSizeMb,
        Self::PinnedFreeCatchAll,
        Self::ThrowOnCudamallocOom,
        Self::ExpandableSegmentsReserve,
        Self::ExpandableSegmentsReserveByClass,
    ];

    /// The key as PyTorch's documentation writes it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::LargeSegmentSizeMb => "large_segment_size_mb",
            Self::MaxSplitSizeMb => "max_split_size_mb",
            Self::MaxNonSplitRoundingMb => "max_non_split_rounding_mb",
            Self::GarbageCollectionThreshold => "garbage_collection_threshold",
            Self::RoundupPower2Divisions => "roundup_power2_divisions",
            Self::ExpandableSegments => "expandable_segments",
            Self::PinnedUseBackgroundThreads => "pinned_use_background_threads",
            Self::Backend => "backend",
            Self::PerProcessMemoryFraction => "per_process_memory_fraction",
            Self::ReleaseLockOnCudamalloc => "release_lock_on_cudamalloc",
            Self::GraphCaptureRecordStreamReuse => "graph_capture_record_stream_reuse",
            Self::PinnedUseCudaHostRegister => "pinned_use_cuda_host_register",
            Self::PinnedNumRegisterThreads => "pinned_num_register_threads",
            Self::PinnedReserveSegmentSizeMb => "pinned_reserve_segment_size_mb",
            Self::PinnedMaxRoundThresholdMb => "pinned_max_round_threshold_mb",
            Self::PinnedMaxCachedSizeMb => "pinned_max_cached_size_mb",
            Self::PinnedFreeCatchAll => "pinned_free_catch_all",
            Self::ThrowOnCudamallocOom => "throw_on_cudamalloc_oom",
            Self::ExpandableSegmentsReserve => "expandable_segments_reserve",
            Self::ExpandableSegmentsReserveByClass => "expandable_segments_reserve_by_class",
        }
    }

    /// ROCm's name for the same key, which CUDA builds accept as well.
    fn alias(self) -> Option<&'static str> {
        match self {
            Self::ReleaseLockOnCudamalloc => Some("release_lock_on_hipmalloc"),
            Self::PinnedUseCudaHostRegister => Some("pinned_use_hip_host_register"),
            _ => None,
        }
    }

    /// Whether `text` is this key. Case counts.
    pub(super) fn is_written(self, text: &str) -> bool {
        self.name() == text || self.alias() == Some(text)
    }

    /// The key of this name, if `release` has it.
    pub(super) fn find(text: &str, release: Release) -> Option<Self> {
        Self::known_to(release).find(|key| key.is_written(text))
    }

    /// The keys of a release.
    pub(super) fn known_to(release: Release) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |key| key.exists_in(release))
    }

    pub(super) fn exists_in(self, release: Release) -> bool {
        match self {
            Self::LargeSegmentSizeMb => release.large_segment_configurable(),
            Self::PerProcessMemoryFraction => release.memory_fraction_configurable(),
            Self::PinnedReserveSegmentSizeMb => release.pinned_reserve_configurable(),
            Self::GraphCaptureRecordStreamReuse => release.capture_reuse_configurable(),
            Self::PinnedFreeCatchAll => release.pinned_catch_all_configurable(),
            Self::ThrowOnCudamallocOom => release.rejection_configurable(),
            Self::PinnedMaxRoundThresholdMb | Self::PinnedMaxCachedSizeMb => {
                release.pinned_bounds_configurable()
            }
            Self::ExpandableSegmentsReserve | Self::ExpandableSegmentsReserveByClass => {
                release.reserve_configurable()
            }
            Self::MaxSplitSizeMb
            | Self::MaxNonSplitRoundingMb
            | Self::GarbageCollectionThreshold
            | Self::RoundupPower2Divisions
            | Self::ExpandableSegments
            | Self::PinnedUseBackgroundThreads
            | Self::Backend
            | Self::ReleaseLockOnCudamalloc
            | Self::PinnedUseCudaHostRegister
            | Self::PinnedNumRegisterThreads => true,
        }
    }

    /// Whether the parser shared by all accelerators reads it, and not the one of CUDA.
    ///
    /// The specification names no key of either group. This is the division of the 2.10 source,
    /// where `per_process_memory_fraction` belongs to CUDA.
    pub(super) fn is_common(self) -> bool {
        matches!(
            self,
            Self::LargeSegmentSizeMb
                | Self::MaxSplitSizeMb
                | Self::MaxNonSplitRoundingMb
                | Self::GarbageCollectionThreshold
                | Self::RoundupPower2Divisions
                | Self::ExpandableSegments
                | Self::PinnedUseBackgroundThreads
                | Self::PinnedMaxRoundThresholdMb
                | Self::PinnedMaxCachedSizeMb
        )
    }
}

/// What may help someone who wrote `text`, which is no key of `release`.
pub(super) fn hint(text: &str, release: Release) -> Option<String> {
    if let Some(since) = Release::ALL.into_iter().find(|&later| Key::find(text, later).is_some()) {
        return Some(format!("it came with PyTorch {since}"));
    }
    let lower = text.to_lowercase();
    // Shorter beginnings are shared by too many keys to be a hint.
    let near = |key: &Key| {
        let name = key.name();
        name == lower || (lower.len() >= 8 && (name.starts_with(&lower) || lower.starts_with(name)))
    };
    Key::known_to(release).find(near).map(|key| format!("did you mean `{}`?", key.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_keys_share_a_name() {
        for key in Key::ALL {
            assert_eq!(Key::find(key.name(), Release::NEWEST), Some(key));
            if let Some(alias) = key.alias() {
                assert_eq!(Key::find(alias, Release::OLDEST), Some(key));
            }
        }
    }

    #[test]
    fn keys_are_unknown_before_their_release() {
        let unknown = |release: Release| -> Vec<&str> {
            Key::ALL.iter().filter(|k| !k.exists_in(release)).map(|k| k.name()).collect()
        };
        let came_with = [
            (Release::V2_9, &["graph_capture_record_stream_reuse"][..]),
            (Release::V2_10, &["per_process_memory_fraction", "pinned_reserve_segment_size_mb"]),
            (Release::V2_11, &["large_segment_size_mb"]),
            (Release::V2_12, &["pinned_free_catch_all", "throw_on_cudamalloc_oom"]),
            (Release::V2_13, &["pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"]),
            (
                Release::V2_15,
                &["expandable_segments_reserve", "expandable_segments_reserve_by_class"],
            ),
        ];
        for release in Release::ALL {
            let mut later: Vec<&str> = came_with
                .iter()
                .filter(|(since, _)| *since > release)
                .flat_map(|(_, names)| names.iter().copied())
                .collect();
            let mut found = unknown(release);
            later.sort_unstable();
            found.sort_unstable();
            assert_eq!(found, later, "{release}");
        }
        let never = "expandable_segments_handle_type";
        assert!(Release::ALL.into_iter().all(|release| Key::find(never, release).is_none()));
    }

    #[test]
    fn hints_name_the_release_or_the_nearest_key() {
        let check = |text, release, wanted: Option<&str>| {
            assert_eq!(hint(text, release).as_deref(), wanted, "{text}");
        };
        check("throw_on_cudamalloc_oom", Release::V2_11, Some("it came with PyTorch 2.12"));
        check("expandable_segments_reserve", Release::V2_14, Some("it came with PyTorch 2.15"));
        check("large_segment_size_mb", Release::V2_10, Some("it came with PyTorch 2.11"));
        check("per_process_memory_fraction", Release::V2_9, Some("it came with PyTorch 2.10"));
        check("max_split_size", Release::V2_11, Some("did you mean `max_split_size_mb`?"));
        check("Expandable_Segments", Release::V2_11, Some("did you mean `expandable_segments`?"));
        check("max", Release::V2_11, None);
        check("", Release::V2_11, None);
    }
}
