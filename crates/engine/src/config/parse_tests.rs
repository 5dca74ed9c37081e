//! What strings mean in each release: check values, quirks, resets, and that nothing panics.

use proptest::prelude::*;

use super::super::ConfigErrorKind;
use super::super::MIB;
use super::*;

fn parse(conf: &str, release: Release) -> Config {
    Config::parse(conf, release).unwrap_or_else(|error| panic!("{release}: {conf:?}: {error}"))
}

/// Releases with two parsers, which mind less and reset more.
fn later() -> impl Iterator<Item = Release> {
    Release::ALL.into_iter().filter(|release| release.two_parsers())
}

fn slots(list: &str, release: Release) -> [u64; DIVISION_SLOTS] {
    *parse(&format!("roundup_power2_divisions:{list}"), release).roundup_power2_divisions()
}

#[test]
fn lists_of_divisions_give_the_check_values() {
    let rows: [(&str, [u64; 16], [u64; 16]); 8] = [
        (
            "[64:8,256:4,1024:4,>:1]",
            [8, 8, 8, 8, 8, 8, 8, 0, 4, 0, 1, 1, 1, 1, 1, 1],
            [8, 8, 8, 8, 8, 8, 8, 0, 4, 0, 4, 1, 1, 1, 1, 1],
        ),
        (
            "[256:1,512:2,1024:4,>:8]",
            [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 8, 8, 8, 8, 8, 8],
            [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8],
        ),
        ("[>:8]", [8; 16], [0, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8]),
        ("[1048576:2]", [2; 16], [2; 16]),
        ("[]", [0; 16], [0; 16]),
        ("4", [4; 16], [4; 16]),
        ("1", [1; 16], [1; 16]),
        (
            "[4:2,1:8,32768:1,>:4,]",
            [8, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4],
            [8, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        ),
    ];
    for (list, before, later) in rows {
        for release in Release::ALL {
            let wanted = if release < Release::V2_10 { before } else { later };
            assert_eq!(slots(list, release), wanted, "{release}: {list}");
        }
    }
}

#[test]
fn settings_of_the_recorded_streams_are_read() {
    let gc = parse("garbage_collection_threshold:0.3,max_split_size_mb:40", Release::V2_11);
    assert_eq!((gc.garbage_collection_threshold(), gc.max_split_size()), (0.3, 40 * MIB));
    let rounding = parse("max_split_size_mb:100,max_non_split_rounding_mb:64", Release::V2_11);
    assert_eq!(rounding.max_non_split_rounding(), 64 * MIB);
    let mixed = parse("roundup_power2_divisions:[1:2,4:8,16:4,64:1,>:2]", Release::V2_11);
    let wanted = [2, 0, 8, 0, 4, 0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2];
    assert_eq!(mixed.roundup_power2_divisions(), &wanted);
    assert!(parse("expandable_segments:True", Release::V2_11).expandable_segments());
}

#[test]
fn every_key_sets_its_own_setting() {
    let conf = "large_segment_size_mb:32,max_split_size_mb:40,max_non_split_rounding_mb:48,\
        garbage_collection_threshold:0.6,roundup_power2_divisions:8,expandable_segments:True,\
        pinned_use_background_threads:True,backend:cudaMallocAsync,\
        per_process_memory_fraction:0.25,release_lock_on_cudamalloc:True,\
        graph_capture_record_stream_reuse:True,pinned_use_cuda_host_register:True,\
        pinned_num_register_threads:8,pinned_reserve_segment_size_mb:512,\
        pinned_free_catch_all:True,throw_on_cudamalloc_oom:True,pinned_max_round_threshold_mb:5,\
        pinned_max_cached_size_mb:7,expandable_segments_reserve:0.5,\
        expandable_segments_reserve_by_class:[a:0.25,b:2G]";
    let config = parse(conf, Release::NEWEST);
    assert_eq!(config.large_segment_size(), 32 * MIB);
    assert_eq!(config.max_split_size(), 40 * MIB);
    assert_eq!(config.max_non_split_rounding(), 48 * MIB);
    assert_eq!(config.garbage_collection_threshold(), 0.6);
    assert_eq!(config.divisions_for(1), 8);
    assert_eq!(config.backend(), Backend::CudaMallocAsync);
    assert_eq!(config.per_process_memory_fraction(), 0.25);
    assert_eq!(config.pinned_num_register_threads(), 8);
    assert_eq!(config.pinned_reserve_segment_size(), 512 * MIB);
    assert!(config.expandable_segments() && config.pinned_use_background_threads());
    assert!(config.release_lock_on_cudamalloc() && config.pinned_use_cuda_host_register());
    assert!(config.graph_capture_record_stream_reuse());
    assert!(config.pinned_free_catch_all() && config.throw_on_cudamalloc_oom());
    assert_eq!(config.pinned_max_round_threshold(), Some(5 * MIB));
    assert_eq!(config.pinned_max_cached_size(), Some(7 * MIB));
    assert_eq!(config.expandable_segments_reserve(), Some(Reserve::Fraction(0.5)));
    assert_eq!(by_class(&config), "a:0.25 b:2G");
    assert_eq!(config.last_settings(), conf);
}

fn by_class(config: &Config) -> String {
    let classes = config.expandable_segments_reserve_by_class().iter();
    classes.map(|(class, reserve)| format!("{class}:{reserve}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn settings_of_2_12_and_later_survive_other_strings() {
    let conf = "pinned_free_catch_all:True,throw_on_cudamalloc_oom:True,\
        pinned_max_round_threshold_mb:0,pinned_max_cached_size_mb:-1,\
        expandable_segments_reserve:2g,expandable_segments_reserve_by_class:[a:.5]";
    let mut config = parse(conf, Release::V2_15);
    config.apply("").unwrap();
    assert!(config.pinned_free_catch_all() && config.throw_on_cudamalloc_oom());
    assert_eq!(config.pinned_max_round_threshold(), Some(0));
    assert_eq!(config.pinned_max_cached_size(), Some(0xffff_ffff_fff0_0000));
    assert_eq!(config.expandable_segments_reserve(), Some(Reserve::Gib(2.0)));
    assert_eq!(by_class(&config), "a:0.5");
}

#[test]
fn a_reserve_that_is_none_is_passed_over() {
    let mut config = parse("expandable_segments_reserve:0.5", Release::V2_15);
    for value in ["0", "-1", "x", "0.25x", "nan", "inf", "G", "2GG", "0x1p-2", "1e400"] {
        config.apply(&format!("expandable_segments_reserve:{value}")).unwrap();
        assert_eq!(config.expandable_segments_reserve(), Some(Reserve::Fraction(0.5)), "{value}");
    }
    for conf in ["expandable_segments_reserve", "expandable_segments_reserve:"] {
        assert_eq!(config.apply(conf).unwrap_err().kind(), ConfigErrorKind::RuntimeError);
    }
    // The bracket is a value like others, and what follows it is then no key.
    let error = config.apply("expandable_segments_reserve:[a:0.25]").unwrap_err();
    assert_eq!((error.key(), error.kind()), (":", ConfigErrorKind::ValueError));
}

/// What 2.15.0 makes of these lists, one after the other.
#[test]
fn a_list_of_reserves_replaces_the_one_before_it() {
    let mut config = Config::for_release(Release::V2_15);
    for (list, wanted) in [
        ("[a:0.25,b:2G]", Ok("a:0.25 b:2G")),
        ("[a:x,b:0.5]", Ok("b:0.5")),
        ("[b:1G]", Ok("b:1G")),
        ("[]", Ok("")),
        ("[a:0.1,]", Ok("a:0.1")),
        ("[a,0.2]", Ok("a:0.2")),
        ("[a:0.1,a:0.2]", Ok("a:0.2")),
        ("[a:[,b:0.3]", Ok("b:0.3")),
        ("[a:0.25", Err("b:0.3")),
        ("0.25", Err("b:0.3")),
        ("[a]", Err("b:0.3")),
        ("[:0.2]", Err("b:0.3")),
        ("[a:0.1:b:0.2]", Err("b:0.3")),
        ("[a:0.1,,b:0.3]", Err("b:0.3")),
        ("", Err("b:0.3")),
    ] {
        let result = config.apply(&format!("expandable_segments_reserve_by_class:{list}"));
        let (Ok(kept) | Err(kept)) = wanted;
        assert_eq!(by_class(&config), kept, "{list}");
        let kind = result.map_err(|error| error.kind());
        assert_eq!(kind, wanted.map(drop).map_err(|_| ConfigErrorKind::RuntimeError), "{list}");
    }
}

#[test]
fn rocm_names_are_accepted_too() {
    for release in Release::ALL {
        let conf = "release_lock_on_hipmalloc:True,pinned_use_hip_host_register:True";
        let config = parse(conf, release);
        assert!(config.release_lock_on_cudamalloc() && config.pinned_use_cuda_host_register());
    }
}

#[test]
fn a_trailing_comma_is_fine_and_a_leading_one_is_an_unknown_key() {
    for release in Release::ALL {
        assert_eq!(parse("max_split_size_mb:40,", release).max_split_size(), 40 * MIB);
        for conf in [",max_split_size_mb:40", "max_split_size_mb:40,,", ","] {
            let error = Config::parse(conf, release).unwrap_err();
            assert_eq!(error.key(), ",", "{conf}");
        }
    }
}

#[test]
fn separators_are_enforced_before_2_10_only() {
    let confs = [
        "expandable_segments,True",
        "expandable_segments[True",
        "expandable_segments:True:release_lock_on_cudamalloc:False",
        "expandable_segments:True]",
        "expandable_segments:True,roundup_power2_divisions:[64,8:256:4]",
    ];
    for conf in confs {
        let error = Config::parse(conf, Release::V2_9).unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::RuntimeError, "{conf}");
        assert!(error.to_string().contains("belongs here"), "{error}");
        for release in later() {
            assert!(parse(conf, release).expandable_segments(), "{conf}");
        }
    }
}

#[test]
fn a_tab_breaks_a_word_before_2_10_only() {
    let conf = "max_split_size_mb\t:40,\nexpandable_segments:True";
    assert!(Config::parse(conf, Release::V2_9).is_err());
    assert!(parse(conf, Release::V2_10).expandable_segments());
    assert!(Config::parse("expandable_segments:True\t", Release::V2_9).is_err());
    // C skips white space before a number, so there the tab does no harm.
    assert_eq!(parse("max_split_size_mb:\t40", Release::V2_9).max_split_size(), 40 * MIB);
    for release in Release::ALL {
        assert!(parse(" expandable_segments : Tr ue ", release).expandable_segments());
    }
}

#[test]
fn numbers_are_read_up_to_the_first_other_character() {
    for release in Release::ALL {
        assert_eq!(parse("max_split_size_mb:40x", release).max_split_size(), 40 * MIB);
        assert_eq!(parse("max_split_size_mb:40.9", release).max_split_size(), 40 * MIB);
        let gc = parse("garbage_collection_threshold:0.6%", release);
        assert_eq!(gc.garbage_collection_threshold(), 0.6);
    }
}

#[test]
fn huge_sizes_saturate_and_negative_ones_are_huge() {
    let largest = 0xffff_ffff_fff0_0000;
    for release in later() {
        for mb in ["17592186044415", "17592186044416", "18446744073709551615", "-1"] {
            assert_eq!(
                parse(&format!("max_split_size_mb:{mb}"), release).max_split_size(),
                largest
            );
        }
    }
    assert_eq!(parse("max_split_size_mb:-1", Release::V2_9).max_split_size(), largest);
    let wide = Config::parse("max_split_size_mb:2147483648", Release::V2_9).unwrap_err();
    assert_eq!(wide.kind(), ConfigErrorKind::IndexError);
    assert!(
        Config::parse("large_segment_size_mb:-1,max_split_size_mb:99", Release::V2_11).is_err()
    );
}

#[test]
fn a_split_size_of_20_is_too_small_before_2_10_only() {
    for key in ["max_split_size_mb", "max_non_split_rounding_mb"] {
        let message = Config::parse(&format!("{key}:20"), Release::V2_9).unwrap_err().to_string();
        assert!(message.contains("more than 20"), "{message}");
        assert!(Config::parse(&format!("{key}:21"), Release::V2_9).is_ok());
        for release in later() {
            assert!(Config::parse(&format!("{key}:20"), release).is_ok());
            assert!(Config::parse(&format!("{key}:19"), release).is_err());
        }
    }
}

#[test]
fn the_large_segment_size_is_read_before_the_keys_it_bounds() {
    let config = parse("max_split_size_mb:12,large_segment_size_mb:12", Release::V2_11);
    assert_eq!(config.max_split_size(), 12 * MIB);
    assert_eq!(config.max_non_split_rounding(), 12 * MIB);
    let error = Config::parse("max_split_size_mb:30,large_segment_size_mb:32", Release::V2_11);
    assert!(error.unwrap_err().allowed().contains("at least 32"));
}

#[test]
fn of_a_key_given_twice_the_last_one_wins() {
    for release in Release::ALL {
        let conf = "max_split_size_mb:40,max_split_size_mb:50";
        assert_eq!(parse(conf, release).max_split_size(), 50 * MIB);
    }
    let conf = "large_segment_size_mb:32,large_segment_size_mb:12";
    assert_eq!(parse(conf, Release::V2_11).large_segment_size(), 12 * MIB);
}

#[test]
fn parsing_again_resets_what_the_release_resets() {
    let conf = "max_split_size_mb:40,garbage_collection_threshold:0.5,roundup_power2_divisions:4,\
        max_non_split_rounding_mb:64,expandable_segments:True,release_lock_on_cudamalloc:True,\
        graph_capture_record_stream_reuse:True,pinned_use_cuda_host_register:True,\
        pinned_num_register_threads:8,pinned_use_background_threads:True";
    for release in Release::ALL.into_iter().filter(|release| release.capture_reuse_configurable()) {
        let mut config = parse(conf, release);
        config.apply("").unwrap();
        assert_eq!(config.max_split_size_limit(), None);
        assert_eq!(config.garbage_collection_threshold(), 0.0);
        assert_eq!(config.roundup_power2_divisions(), &[0; 16]);
        let kept = if release >= Release::V2_11 { 20 } else { 64 };
        assert_eq!(config.max_non_split_rounding(), kept * MIB, "{release}");
        assert!(config.expandable_segments() && config.release_lock_on_cudamalloc());
        assert!(config.graph_capture_record_stream_reuse());
        assert!(config.pinned_use_cuda_host_register() && config.pinned_use_background_threads());
        assert_eq!(config.pinned_num_register_threads(), 8);
        assert_eq!(config.last_settings(), "");
    }
}

#[test]
fn an_empty_string_keeps_the_large_segment_size() {
    let mut config =
        parse("large_segment_size_mb:32,per_process_memory_fraction:0.5", Release::V2_11);
    config.apply("").unwrap();
    assert_eq!(config.large_segment_size(), 32 * MIB);
    assert_eq!(config.max_non_split_rounding(), 32 * MIB);
    assert_eq!(config.per_process_memory_fraction(), 0.5);
    assert!(config.apply("max_split_size_mb:30").is_err(), "bounded by the kept segment size");
}

#[test]
fn after_an_error_what_came_before_it_stays() {
    for release in Release::ALL {
        let mut config = parse("max_split_size_mb:40", release);
        let conf = "expandable_segments:True,garbage_collection_threshold:2,max_split_size_mb:50";
        config.apply(conf).unwrap_err();
        assert!(config.expandable_segments());
        assert_eq!(config.max_split_size_limit(), None, "reset, and not reached again");
        assert_eq!(config.last_settings(), conf);
    }
}

#[test]
fn a_bad_common_key_keeps_earlier_cuda_keys_out_from_2_10_on() {
    let conf = "release_lock_on_cudamalloc:True,max_split_size_mb:1";
    for release in Release::ALL {
        let mut config = Config::for_release(release);
        config.apply(conf).unwrap_err();
        assert_eq!(config.release_lock_on_cudamalloc(), release < Release::V2_10);
        let mut config = Config::for_release(release);
        config.apply("backend:no,max_split_size_mb:50").unwrap_err();
        assert_eq!(config.max_split_size_limit().is_some(), release >= Release::V2_10);
    }
}

#[test]
fn a_list_that_breaks_off_leaves_its_beginning() {
    let mut config = Config::default();
    assert!(config.apply("roundup_power2_divisions:[2:4,").is_err());
    assert_eq!(config.roundup_power2_divisions()[..3], [4, 4, 0]);
    for list in ["[", "[2:4,"] {
        let conf = format!("roundup_power2_divisions:{list}");
        assert!(Config::parse(&conf, Release::V2_9).is_ok(), "2.9 does not ask for the bracket");
        assert!(Config::parse(&conf, Release::V2_10).is_err());
    }
    for list in ["[2", "[2:", "[2:4"] {
        let conf = format!("roundup_power2_divisions:{list}");
        for release in Release::ALL {
            let error = Config::parse(&conf, release).unwrap_err();
            assert_eq!(error.kind(), ConfigErrorKind::RuntimeError, "{release}: {conf}");
            assert_eq!(error.position(), Some(conf.len()));
        }
    }
}

#[test]
fn the_backend_cannot_change_at_run_time() {
    for release in Release::ALL {
        let mut config = parse("backend:cudaMallocAsync", release);
        config.apply("backend:cudaMallocAsync").unwrap();
        let error = config.apply("backend:native").unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::RuntimeError);
        assert!(error.to_string().contains("chosen at start"), "{error}");
        config.apply("").unwrap();
        assert_eq!(config.backend(), Backend::CudaMallocAsync);
    }
}

/// Strings that often have something to parse: keys, values and separators in any order.
pub(in super::super) fn settings() -> impl Strategy<Value = String> {
    let keys = Key::ALL.map(Key::name);
    let words = [
        "True",
        "False",
        "0",
        "1",
        "4",
        "32",
        "40x",
        "-1",
        "0.5",
        "1e-400",
        "nan",
        "native",
        "cudaMallocAsync",
        "[",
        "]",
        ">",
        ",",
        ":",
        " ",
        "\t",
        "é",
        "throw_on_cudamalloc_oom",
        "[64:8,256:4,>:1]",
        "[a:0.25,b:2G]",
        "2G",
        "18446744073709551616",
        "9223372036854775808",
    ];
    let pair = (
        proptest::sample::select(keys.to_vec()).prop_map(str::to_owned),
        proptest::sample::select(words.to_vec()),
    )
        .prop_map(|(key, value)| format!("{key}:{value},"));
    let piece = prop_oneof![
        6 => pair,
        1 => proptest::sample::select(words.to_vec()).prop_map(str::to_owned),
        1 => "\\PC{0,6}",
    ];
    proptest::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_string_panics_and_errors_point_into_it(
        conf in prop_oneof![settings(), any::<String>()],
        again in settings(),
    ) {
        for release in Release::ALL {
            let mut config = Config::for_release(release);
            for conf in [&conf, &again] {
                if let Err(error) = config.apply(conf) {
                    let at = error.position().unwrap();
                    prop_assert!(at <= conf.len() && conf.is_char_boundary(at));
                    prop_assert!(!error.to_string().is_empty());
                    let _ = error.kind();
                }
                prop_assert_eq!(config.last_settings(), conf);
                let _ = (config.to_conf_string(), format!("{config:?}"));
            }
        }
    }
}
