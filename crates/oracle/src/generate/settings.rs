//! Settings strings: those that work, and anything.

use super::Features;
use crate::random::Random;

/// A string that the release takes, with settings that change what the allocator does.
pub(super) fn working_settings(random: &mut Random, features: Features) -> String {
    let count = random.below(4);
    let settings: Vec<_> = (0..count).map(|_| working_setting(random, features)).collect();
    settings.join(",")
}

fn working_setting(random: &mut Random, features: Features) -> String {
    match random.below(23) {
        0..=3 => format!("max_split_size_mb:{}", random.between(20, 120)),
        4 => format!("max_non_split_rounding_mb:{}", random.between(20, 80)),
        5..=7 => format!("garbage_collection_threshold:0.{}", random.between(1, 99)),
        8 | 9 => format!("roundup_power2_divisions:{}", 1 << random.between(0, 6)),
        10 => format!("roundup_power2_divisions:{}", divisions(random)),
        11..=15 => format!("expandable_segments:{}", boolean(random)),
        // Pages are whole granules of 2 MiB.
        16 if features.large_segments => {
            format!("large_segment_size_mb:{}", 2 * random.between(6, 40))
        }
        17 if features.fraction_setting => {
            format!("per_process_memory_fraction:0.{}", random.between(1, 99))
        }
        18 if features.rejections => {
            format!("throw_on_cudamalloc_oom:{}", boolean(random))
        }
        19 if features.reserves => format!("expandable_segments_reserve:{}", reserve(random)),
        20 if features.reserves => {
            let count = random.between(1, 3) as usize;
            let entries = ["a", "b", "c"][..count].iter();
            let entries: Vec<_> =
                entries.map(|name| format!("{name}:{}", reserve(random))).collect();
            format!("expandable_segments_reserve_by_class:[{}]", entries.join(","))
        }
        21 => format!("release_lock_on_cudamalloc:{}", boolean(random)),
        _ => format!("pinned_use_background_threads:{}", boolean(random)),
    }
}

/// A share of the device, or GiB; now and then what is passed over with a warning.
fn reserve(random: &mut Random) -> String {
    match random.below(8) {
        0 => format!("{}G", random.between(1, 12)),
        1 | 2 => format!("0.{:02}G", random.between(1, 99)),
        3 => format!("1.{}", random.below(10)),
        4 => format!("{}M", random.between(1, 900)),
        _ => format!("0.{:03}", random.between(1, 999)),
    }
}

fn boolean(random: &mut Random) -> &'static str {
    if random.percent(50) { "True" } else { "False" }
}

/// A list with ascending keys.
fn divisions(random: &mut Random) -> String {
    let mut entries = Vec::new();
    let mut key = 1 << random.below(6);
    for _ in 0..random.between(1, 4) {
        let value = if random.percent(15) { 0 } else { 1 << random.below(6) };
        entries.push(format!("{key}:{value}"));
        key <<= random.between(1, 3);
    }
    if random.percent(60) {
        entries.push(format!(">:{}", 1 << random.below(5)));
    }
    format!("[{}]", entries.join(","))
}

const KEYS: [&str; 23] = [
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "garbage_collection_threshold",
    "roundup_power2_divisions",
    "expandable_segments",
    "large_segment_size_mb",
    "per_process_memory_fraction",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "graph_capture_record_stream_reuse",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
    "throw_on_cudamalloc_oom",
    "pinned_free_catch_all",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
    "expandable_segments_handle_type",
    "no_such_key",
];

const VALUES: [&str; 38] = [
    "True",
    "False",
    "true",
    "1",
    "0",
    "2",
    "3",
    "16",
    "19",
    "20",
    "21",
    "32",
    "64",
    "100",
    "128",
    "256",
    "-1",
    "0.5",
    "0.0",
    "1.0",
    "0.999",
    ".3",
    "1e-3",
    "40x",
    "x40",
    "",
    " 20",
    "4294967296",
    "99999999999999999999",
    "nan",
    "inf",
    "0x20",
    "native",
    "[1:2,>:4]",
    "[a:0.25,b:2G]",
    "512M",
    "2g",
    "1.5",
];

/// A string that may be anything: settings with odd values, or a right one with a mistake made in it.
pub(super) fn any_settings(random: &mut Random, features: Features) -> String {
    match random.below(4) {
        0 => working_settings(random, features),
        1 => damaged(working_settings(random, features), random),
        _ => {
            let count = random.between(1, 3);
            let settings: Vec<_> = (0..count).map(|_| odd_setting(random)).collect();
            let text = settings.join(",");
            if random.percent(25) { damaged(text, random) } else { text }
        }
    }
}

fn odd_setting(random: &mut Random) -> String {
    if random.percent(12) {
        return format!("roundup_power2_divisions:{}", odd_divisions(random));
    }
    if random.percent(3) {
        return "backend:native".to_owned();
    }
    let key = *random.pick(&KEYS);
    format!("{key}:{}", random.pick(&VALUES))
}

fn odd_divisions(random: &mut Random) -> String {
    let entry = |random: &mut Random| {
        let key = *random.pick(&["1", "2", "3", "4", "64", "256", "1024", "65536", ">", "0", "x"]);
        format!("{key}:{}", random.pick(&["0", "1", "2", "3", "4", "8", "x"]))
    };
    let entries: Vec<_> = (0..random.between(0, 4)).map(|_| entry(random)).collect();
    format!("[{}]", entries.join(","))
}

/// One character dropped, doubled or replaced, a few times. Strings are ASCII.
fn damaged(text: String, random: &mut Random) -> String {
    let mut bytes = text.into_bytes();
    for _ in 0..random.between(1, 3) {
        if bytes.is_empty() {
            break;
        }
        let place = random.below(bytes.len() as u64) as usize;
        match random.below(4) {
            0 => drop(bytes.remove(place)),
            1 => bytes.insert(place, bytes[place]),
            2 => bytes[place] = *random.pick(b",:[] \tx0_"),
            _ => bytes.insert(place, *random.pick(b",:[] \t0")),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use tonnage_engine::{Config, Release};

    use super::*;

    #[test]
    fn working_settings_work_in_the_release_that_has_them_all() {
        let mut random = Random::new(2);
        for _ in 0..2000 {
            let settings = working_settings(&mut random, Features::of(Release::NEWEST));
            // A split size below the large segment's is refused: it depends on what came before.
            if let Err(error) = Config::parse(&settings, Release::NEWEST) {
                assert!(settings.contains("large_segment_size_mb"), "{settings}: {error}");
            }
        }
    }

    #[test]
    fn any_settings_are_right_and_wrong_and_on_one_line() {
        let mut random = Random::new(2);
        let features = Features::of(Release::NEWEST);
        let all: Vec<_> = (0..2000).map(|_| any_settings(&mut random, features)).collect();
        let right = all.iter().filter(|text| Config::parse(text, Release::NEWEST).is_ok()).count();
        assert!((200..1800).contains(&right), "{right} of 2000 are right");
        assert!(all.iter().all(|text| !text.contains('\n')));
    }
}
