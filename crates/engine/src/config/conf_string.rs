//! A [`Config`] back into a settings string.
//!
//! In:  any `Config` that parsing or building made.
//! Out: the shortest string of fixed order that makes the same one when parsed afresh.
//!
//! Two sorts of `Config` may have no such string: one left behind by a parse that failed, and one
//! with recorded fields that no string could have set.

use super::key::Key;
use super::{Config, DIVISION_SLOTS, MIB};

impl Config {
    /// The settings that differ from the release's defaults, as `key:value,key:value`.
    ///
    /// Parsing the result with the same release gives an equal `Config`, apart from
    /// `last_settings`, which is then the result.
    #[must_use]
    pub fn to_conf_string(&self) -> String {
        let settings: Vec<_> = Key::ALL
            .into_iter()
            .filter_map(|key| self.written(key).map(|value| format!("{}:{value}", key.name())))
            .collect();
        settings.join(",")
    }

    /// The value of `key` as a string writes it; none for the default.
    fn written(&self, key: Key) -> Option<String> {
        let default = Self::for_release(self.release);
        let flag = |on: bool| on.then(|| "True".to_owned());
        let fraction = |value: f64, default: f64| (value != default).then(|| value.to_string());
        match key {
            Key::LargeSegmentSizeMb => (self.large_segment_size != default.large_segment_size)
                .then(|| self.mb(self.large_segment_size)),
            Key::MaxSplitSizeMb => self.max_split_size.map(|bytes| self.mb(bytes)),
            // Not given, it is the large segment size.
            Key::MaxNonSplitRoundingMb => (self.max_non_split_rounding != self.large_segment_size)
                .then(|| self.mb(self.max_non_split_rounding)),
            Key::GarbageCollectionThreshold => {
                fraction(self.garbage_collection_threshold, default.garbage_collection_threshold)
            }
            Key::RoundupPower2Divisions => self.written_divisions(),
            Key::ExpandableSegments => flag(self.expandable_segments),
            Key::PinnedUseBackgroundThreads => flag(self.pinned_use_background_threads),
            Key::Backend => (self.backend != default.backend).then(|| self.backend.to_string()),
            Key::PerProcessMemoryFraction => {
                fraction(self.per_process_memory_fraction, default.per_process_memory_fraction)
            }
            Key::ReleaseLockOnCudamalloc => flag(self.release_lock_on_cudamalloc),
            Key::GraphCaptureRecordStreamReuse => flag(self.graph_capture_record_stream_reuse),
            Key::PinnedUseCudaHostRegister => flag(self.pinned_use_cuda_host_register),
            Key::PinnedNumRegisterThreads => (self.pinned_num_register_threads
                != default.pinned_num_register_threads)
                .then(|| self.pinned_num_register_threads.to_string()),
            Key::PinnedMaxRoundThresholdMb => {
                self.pinned_max_round_threshold.map(|bytes| self.mb(bytes))
            }
            Key::PinnedMaxCachedSizeMb => self.pinned_max_cached_size.map(|bytes| self.mb(bytes)),
            Key::PinnedFreeCatchAll => flag(self.pinned_free_catch_all),
            Key::ThrowOnCudamallocOom => flag(self.throw_on_cudamalloc_oom),
            Key::ExpandableSegmentsReserve => {
                self.expandable_segments_reserve.map(|reserve| reserve.to_string())
            }
            Key::ExpandableSegmentsReserveByClass => {
                let classes = &self.expandable_segments_reserve_by_class;
                let entries: Vec<_> =
                    classes.iter().map(|(class, reserve)| format!("{class}:{reserve}")).collect();
                (!entries.is_empty()).then(|| format!("[{}]", entries.join(",")))
            }
            Key::PinnedReserveSegmentSizeMb => (self.pinned_reserve_segment_size
                != default.pinned_reserve_segment_size)
                .then(|| self.mb(self.pinned_reserve_segment_size)),
        }
    }

    /// A size in MB. Before 2.10, where it must fit into an `int`, a larger one can only have come from
    /// a negative number, and all of these make the same size.
    fn mb(&self, bytes: u64) -> String {
        let mb = bytes / MIB;
        if self.release.reads_numbers_as_int() && mb > i32::MAX as u64 {
            return "-1".into();
        }
        mb.to_string()
    }

    /// One number if all slots are equal, otherwise a list.
    ///
    /// The list's first key fills all slots up to its own, so it stands for the run of equal slots
    /// at the beginning. Then comes each slot that is not 0, and `>` for a run at the end. The
    /// key before `>` has the value of `>`: where `>` begins differs between releases, and so it
    /// does not matter.
    fn written_divisions(&self) -> Option<String> {
        let slots = &self.roundup_power2_divisions;
        let head = slots.iter().take_while(|&divisions| divisions == &slots[0]).count();
        if head == DIVISION_SLOTS {
            return (slots[0] != 0).then(|| slots[0].to_string());
        }
        let last = slots[DIVISION_SLOTS - 1];
        let tail = slots.iter().rev().take_while(|&&divisions| divisions == last).count();
        let tail_start = DIVISION_SLOTS - tail;

        let entry = |slot: usize| format!("{}:{}", 1_u64 << slot, slots[slot]);
        let mut entries = vec![entry(head - 1)];
        entries.extend((head..=tail_start).filter(|&slot| slots[slot] != 0).map(entry));
        if last != 0 && tail > 1 {
            entries.push(format!(">:{last}"));
        }
        Some(format!("[{}]", entries.join(",")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Backend, Release, Reserve};
    use proptest::prelude::*;

    fn canonical(conf: &str, release: Release) -> String {
        Config::parse(conf, release).unwrap().to_conf_string()
    }

    #[test]
    fn defaults_are_not_written() {
        for release in Release::ALL {
            assert_eq!(Config::for_release(release).to_conf_string(), "");
            let conf = "expandable_segments:False,pinned_num_register_threads:1,backend:native";
            assert_eq!(canonical(conf, release), "");
        }
    }

    #[test]
    fn the_order_is_fixed_and_spaces_are_gone() {
        assert_eq!(
            canonical(
                " backend : native, expandable_segments:True, garbage_collection_threshold:0.60,\
                 max_split_size_mb:40x, large_segment_size_mb:32,",
                Release::V2_11
            ),
            "large_segment_size_mb:32,max_split_size_mb:40,garbage_collection_threshold:0.6,\
             expandable_segments:True"
        );
    }

    #[test]
    fn lists_of_divisions_are_written_short() {
        for (list, before, later) in [
            ("8", "8", "8"),
            ("[1:2,4:8,16:4,64:1,>:2]", "[1:2,4:8,16:4,64:2,>:2]", "[1:2,4:8,16:4,64:1,128:2,>:2]"),
            ("[64:8,256:4]", "[64:8,256:4]", "[64:8,256:4]"),
            ("[>:8]", "8", "[1:0,2:8,>:8]"),
            ("[32768:4]", "4", "4"),
            ("[1:4]", "[1:4]", "[1:4]"),
            ("[16384:0,32768:4]", "[16384:0,32768:4]", "[16384:0,32768:4]"),
        ] {
            let conf = format!("roundup_power2_divisions:{list}");
            for release in Release::ALL {
                let wanted = if release < Release::V2_10 { before } else { later };
                let wanted = format!("roundup_power2_divisions:{wanted}");
                assert_eq!(canonical(&conf, release), wanted, "{release}: {list}");
            }
        }
    }

    #[test]
    fn the_largest_sizes_round_trip_in_every_release() {
        let conf = "max_split_size_mb:-1,max_non_split_rounding_mb:-7";
        for release in Release::ALL {
            let config = Config::parse(conf, release).unwrap();
            assert_eq!(config.max_split_size(), 0xffff_ffff_fff0_0000);
            let again = Config::parse(&config.to_conf_string(), release).unwrap();
            assert_eq!(again.to_conf_string(), config.to_conf_string(), "{release}");
            assert_eq!(again.max_non_split_rounding(), config.max_non_split_rounding());
        }
    }

    fn divisions() -> impl Strategy<Value = [u64; DIVISION_SLOTS]> {
        let division = prop_oneof![3 => Just(0), 2 => (0_u32..4).prop_map(|p| 1 << p),
            1 => (0_u32..31).prop_map(|p| 1 << p)];
        proptest::collection::vec((division, 1_usize..8), DIVISION_SLOTS).prop_map(|runs| {
            let mut slots = runs.into_iter().flat_map(|(d, count)| vec![d; count]);
            std::array::from_fn(|_| slots.next().unwrap_or(0))
        })
    }

    fn configs() -> impl Strategy<Value = Config> {
        let mb = || prop_oneof![11_u64..200, 200_u64..1 << 31].prop_map(|mb| mb * MIB);
        let sizes = (mb(), proptest::option::of(mb()), proptest::option::of(mb()), mb());
        let numbers = (0.0_f64..1.0, 0.0_f64..=1.0, divisions(), 0_u32..8);
        let release = proptest::sample::select(&Release::ALL[..]);
        let flags = any::<[bool; 17]>();
        (release, sizes, numbers, flags).prop_filter_map(
            "within bounds",
            |(release, (large, split, rounding, reserve), (gc, fraction, slots, threads), on)| {
                let mut builder = Config::builder()
                    .release(release)
                    .max_split_size(split)
                    .garbage_collection_threshold(if on[0] { gc } else { 0.0 })
                    .roundup_power2_divisions(slots)
                    .expandable_segments(on[1])
                    .release_lock_on_cudamalloc(on[2])
                    .graph_capture_record_stream_reuse(
                        on[3] && release.capture_reuse_configurable(),
                    )
                    .pinned_use_cuda_host_register(on[4])
                    .pinned_use_background_threads(on[5])
                    .pinned_num_register_threads(1 << threads)
                    .backend(Backend::ALL[usize::from(on[6])]);
                if let Some(bytes) = rounding {
                    builder = builder.max_non_split_rounding(bytes);
                }
                if on[7] && release.large_segment_configurable() {
                    builder = builder.large_segment_size(large);
                }
                if on[8] && release.memory_fraction_configurable() {
                    builder = builder.per_process_memory_fraction(fraction);
                }
                if on[9] && release.pinned_reserve_configurable() {
                    builder = builder.pinned_reserve_segment_size(reserve);
                }
                if release.rejection_configurable() {
                    builder = builder.throw_on_cudamalloc_oom(on[10]).pinned_free_catch_all(on[11]);
                }
                if release.pinned_bounds_configurable() {
                    builder = builder
                        .pinned_max_round_threshold(on[12].then_some(large))
                        .pinned_max_cached_size(on[13].then_some(reserve));
                }
                if release.reserve_configurable() {
                    builder = builder.expandable_segments_reserve(
                        on[14].then_some(Reserve::Fraction(fraction + 0.1)),
                    );
                    for (class, on) in [("a", on[15]), ("b.c", on[16])] {
                        if on {
                            let size = Reserve::Gib(gc + 0.5);
                            builder = builder.expandable_segments_reserve_of_class(class, size);
                        }
                    }
                }
                builder.build().ok()
            },
        )
    }

    proptest! {
        #[test]
        fn a_written_config_parses_to_itself(config in configs()) {
            let conf = config.to_conf_string();
            prop_assert_eq!(Config::parse(&conf, config.release()), Ok(config));
        }

        #[test]
        fn a_parsed_string_and_its_canonical_form_mean_the_same(
            conf in crate::config::parse::tests::settings(),
            release in proptest::sample::select(&Release::ALL[..]),
        ) {
            if let Ok(config) = Config::parse(&conf, release) {
                let canonical = config.to_conf_string();
                let again = Config::parse(&canonical, release).unwrap();
                prop_assert_eq!(again.to_conf_string(), canonical.clone());
                let mut expected = config;
                expected.last_settings = canonical;
                prop_assert_eq!(again, expected);
            }
        }
    }
}
