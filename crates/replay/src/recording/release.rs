//! Which release of PyTorch made a recording.
//!
//! In:  the keys of a file and its settings string.
//! Out: [`Told`]: the releases that may have written it, newest last; of these, those whose rules differ, one of
//!      each; and, once one is chosen, the sentence that says so.
//!
//! Which release was the first to write a key is for [`Release`] to say. Most keys are written always, so that it
//! tells as much if one is not there. Where a file contradicts itself (someone has changed it), what is there
//! counts and what is missing does not.

use tonnage_engine::config::Tie;
use tonnage_engine::{Config, Release};
use tonnage_events::Action;
use tonnage_snapshot::{AllocatorSettings, SnapshotFile};

use super::settings::config_of;

/// A key that tells releases apart.
struct Key {
    /// Whether it is there; none if its absence tells nothing.
    here: Option<bool>,
    /// Which releases write it.
    written_by: fn(Release) -> bool,
}

/// The keys that tell releases apart, as they are in this file.
fn keys_of(file: &SnapshotFile) -> Vec<Key> {
    let entries = || file.traces.iter().flatten();
    let recorded = entries().next().is_some();
    // Whoever writes any setting writes all that it knows.
    let settings = file.settings.as_ref().filter(|it| it.max_split_size.is_some());
    let always = |there: bool, whole: bool| (there || whole).then_some(there);
    let seldom = |there: bool| there.then_some(true);
    let keys = file.keys;
    let capture_reuse =
        file.settings.as_ref().is_some_and(|it| it.graph_capture_record_stream_reuse.is_some());
    let pinned_bounds = file.settings.as_ref().is_some_and(|it| it.max_round_threshold.is_some());
    let internal = file.notes.iter().any(|note| note.internal_metadata.is_some());
    let key = |here, written_by| Key { here, written_by };
    vec![
        key(
            always(capture_reuse, settings.is_some()),
            Release::recorded_settings_have_capture_reuse,
        ),
        key(always(keys.user_metadata, recorded), Release::trace_has_user_metadata),
        key(seldom(keys.forward_frames), Release::trace_has_forward_frames),
        key(always(keys.pool_id, recorded), Release::trace_has_pool_ids),
        key(
            always(pinned_bounds, settings.is_some()),
            Release::recorded_settings_have_pinned_bounds,
        ),
        key(always(file.pinned.is_some(), settings.is_some()), Release::snapshot_has_host_memory),
        key(
            seldom(entries().any(|entry| entry.action == Action::Annotate)),
            Release::trace_has_annotations,
        ),
        key(seldom(internal), Release::trace_has_internal_metadata),
    ]
}

/// What is known of the release that made a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// The releases that may have, oldest first; never none.
    pub(super) candidates: Vec<Release>,
    /// The one that the user says it was.
    asked: Option<Release>,
    /// Of those candidates that serve this recording by the same rules the newest, newest first.
    unlike: Vec<Release>,
}

/// What replaying a recording by the rules of one release came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tried {
    pub(super) release: Release,
    /// Whether every entry came out.
    pub(super) exact: bool,
    /// Where it parted, if not.
    pub(super) reached: usize,
}

impl Told {
    /// What the file tells; the user's word for it, if given, decides.
    pub(super) fn of(file: &SnapshotFile, asked: Option<Release>) -> Self {
        let keys = keys_of(file);
        let conf = file.settings.as_ref().map_or("", |settings| &settings.conf);
        let mut candidates = Release::ALL.to_vec();
        keep(&mut candidates, |release| {
            keys.iter().all(|key| key.here != Some(true) || (key.written_by)(release))
        });
        for key in keys.iter().filter(|key| key.here == Some(false)) {
            keep(&mut candidates, |release| !(key.written_by)(release));
        }
        // A release that refuses the settings would not have started.
        keep(&mut candidates, |release| Config::parse(conf, release).is_ok());
        let mut unlike = Vec::<(Release, Rules)>::new();
        for &release in candidates.iter().rev() {
            let rules = Rules::of(file, release);
            if unlike.iter().all(|(_, newer)| *newer != rules) {
                unlike.push((release, rules));
            }
        }
        let unlike = unlike.into_iter().map(|(release, _)| release).collect();
        Self { candidates, asked, unlike }
    }

    /// The newest of those that may have made it, or the one that was asked for.
    pub(super) fn newest(&self) -> Release {
        self.asked.or(self.candidates.last().copied()).unwrap_or_default()
    }

    /// The releases to try, newest first: of those that serve recordings by the same rules, the newest.
    pub(super) fn to_try(&self) -> Vec<Release> {
        self.asked.map_or_else(|| self.unlike.clone(), |asked| vec![asked])
    }

    /// Of those that were tried, in this order, the place of the one to follow: the first that is exact, else
    /// the first of those that came furthest.
    pub(super) fn choose(tried: &[Tried]) -> usize {
        let best = |it: &Tried| (it.exact, it.reached);
        let most = tried.iter().map(best).max();
        tried.iter().position(|it| Some(best(it)) == most).unwrap_or(0)
    }

    /// What the choice rests on, and what to say if it is wrong. Nothing where the user said it and the file does
    /// not speak against it.
    pub(super) fn describe(&self, followed: Release, tried: &[Tried]) -> Option<String> {
        match self.asked {
            Some(asked) if self.candidates.contains(&asked) => None,
            Some(asked) => Some(format!(
                "release: {asked}, as asked for; by its keys the file is of {}",
                self.by_keys()
            )),
            None => Some(self.describe_choice(followed, tried)),
        }
    }

    fn describe_choice(&self, followed: Release, tried: &[Tried]) -> String {
        let by_keys = self.by_keys();
        if self.candidates.len() == 1 {
            let nearest = match followed {
                Release::OLDEST => format!("; followed as {followed}"),
                _ => String::new(),
            };
            return format!("release: {by_keys}, by its keys{nearest}");
        }
        let others = |exact: bool| {
            let others = tried.iter().filter(|it| it.release != followed && it.exact == exact);
            others.map(|it| it.release).collect::<Vec<_>>()
        };
        let (also, not) = (others(true), others(false));
        if tried.len() <= 1 {
            return format!(
                "release: {by_keys}, by its keys; they do the same here: followed as {followed}"
            );
        }
        let say = |others: &[Release]| {
            let flags: Vec<_> = others.iter().map(|it| format!("--pytorch {it}")).collect();
            format!("say {} if it was that", flags.join(" or "))
        };
        let exact = tried.iter().any(|it| it.release == followed && it.exact);
        match (exact, also.is_empty()) {
            (true, true) => format!(
                "release: {followed}, by its keys and its entries: {} would have done otherwise",
                listed(&not)
            ),
            (true, false) => format!(
                "release: {by_keys}, by its keys; {} reproduces the entries too: followed as {followed}, {}",
                listed(&also),
                say(&also)
            ),
            (false, _) => format!(
                "release: {by_keys}, by its keys; none of them reproduces the entries: followed as {followed}, which \
                 comes furthest; {}",
                say(&not)
            ),
        }
    }

    /// The candidates in words: `2.12`, `2.10 or 2.11`, `2.14 or later`.
    fn by_keys(&self) -> String {
        let (Some(&first), Some(&last)) = (self.candidates.first(), self.candidates.last()) else {
            return Release::default().to_string();
        };
        match (first, last) {
            (Release::OLDEST, Release::NEWEST) => "any release".to_owned(),
            (Release::OLDEST, last) => format!("{last} or earlier"),
            (first, Release::NEWEST) => format!("{first} or later"),
            (first, last) if first == last => first.to_string(),
            (first, last) if self.candidates.len() == 2 => format!("{first} or {last}"),
            (first, last) => format!("{first} to {last}"),
        }
    }
}

/// Keeps those that `fits`, unless none would be left: then it says nothing.
fn keep(candidates: &mut Vec<Release>, fits: impl Fn(Release) -> bool) {
    if candidates.iter().any(|&release| fits(release)) {
        candidates.retain(|&release| fits(release));
    }
}

/// The rules by which a release serves a recording, as far as a replay of this one can tell them apart. A replay marks no
/// pool and opens one scope at a time, so what concerns these does not count.
struct Rules {
    tie: Tie,
    pool_scope_is_capture: bool,
    /// None where it makes no difference: every request that is too large for a new range fails.
    gives_back_small_ranges: Option<bool>,
    /// What it makes of the file's settings.
    config: Config,
}

impl PartialEq for Rules {
    fn eq(&self, other: &Self) -> bool {
        let like = |it: &Self| (it.tie, it.pool_scope_is_capture, it.gives_back_small_ranges);
        like(self) == like(other) && self.config.decides_like(&other.config)
    }
}

impl Rules {
    fn of(file: &SnapshotFile, release: Release) -> Self {
        let default = AllocatorSettings::default();
        let settings = file.settings.as_ref().unwrap_or(&default);
        let (config, _) = config_of(settings, release, &mut Vec::new());
        let fails = || file.traces.iter().flatten().any(|entry| entry.action == Action::Oom);
        let ranges = config.expandable_segments() && fails();
        Self {
            tie: release.tie(),
            pool_scope_is_capture: release.pool_scope_is_capture(),
            gives_back_small_ranges: ranges.then(|| release.gives_back_small_ranges()),
            config,
        }
    }
}

/// Names, with `and` before the last.
fn listed(releases: &[Release]) -> String {
    let names: Vec<_> = releases.iter().map(ToString::to_string).collect();
    match names.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(name: &str) -> SnapshotFile {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/snapshots");
        tonnage_snapshot::open(format!("{folder}/{name}.pickle").as_ref()).unwrap()
    }

    fn told(file: &SnapshotFile) -> String {
        Told::of(file, None).by_keys()
    }

    #[test]
    fn each_release_is_told_by_its_keys_as_far_as_they_tell() {
        for (name, by_keys) in [
            ("release_2_8.p4", "2.8 or earlier"),
            ("release_2_9.p4", "2.9"),
            ("release_2_10.p4", "2.10 or 2.11"),
            ("release_2_11.p4", "2.10 or 2.11"),
            ("release_2_12.p4", "2.12"),
            ("release_2_13.p4", "2.13"),
            ("release_2_14.p4", "2.14 or later"),
            ("pytorch_2.11.0", "2.10 or 2.11"),
            ("pytorch_2.12.0", "2.12"),
            ("pytorch_2.12.1", "2.12"),
            ("pytorch_2.13.0", "2.13"),
            ("pytorch_2.14.1", "2.14 or later"),
            ("pytorch_2.15.0", "2.14 or later"),
        ] {
            assert_eq!(told(&form(name)), by_keys, "{name}");
        }
        let tagged = Told::of(&form("release_2_15.p4"), None);
        assert_eq!(tagged.candidates, [Release::V2_15]);
    }

    #[test]
    fn what_is_written_now_and_then_tells_where_it_is_there() {
        let mut file = form("release_2_11.p4");
        file.keys.forward_frames = true;
        assert_eq!(told(&file), "2.11");
    }

    #[test]
    fn settings_tell_that_only_some_releases_take() {
        let mut file = form("release_2_10.p4");
        file.settings.as_mut().unwrap().conf = "large_segment_size_mb:40".to_owned();
        assert_eq!(told(&file), "2.11");
        let mut file = form("release_2_14.p4");
        file.settings.as_mut().unwrap().conf = "expandable_segments_reserve:0.5".to_owned();
        assert_eq!(Told::of(&file, None).candidates, [Release::V2_15]);
        // What none of them takes tells nothing.
        file.settings.as_mut().unwrap().conf = "no_such_key:1".to_owned();
        assert_eq!(told(&file), "2.14 or later");
    }

    #[test]
    fn a_file_without_keys_may_be_of_any_release_and_is_followed_as_the_newest() {
        let any = Told::of(&SnapshotFile::default(), None);
        assert_eq!(any.candidates, Release::ALL);
        assert_eq!(any.newest(), Release::NEWEST);
        assert_eq!(any.to_try().len(), 3);
    }

    #[test]
    fn what_is_there_counts_against_what_is_missing() {
        let mut file = form("release_2_14.p4");
        file.keys.pool_id = false;
        assert_eq!(told(&file), "2.14 or later");
        let mut file = form("release_2_12.p4");
        file.settings.as_mut().unwrap().graph_capture_record_stream_reuse = None;
        assert_eq!(told(&file), "2.12");
    }

    #[test]
    fn candidates_with_the_same_rules_are_tried_once() {
        assert_eq!(Told::of(&form("release_2_10.p4"), None).to_try(), [Release::V2_11]);
        assert_eq!(Told::of(&form("release_2_14.p4"), None).to_try(), [Release::V2_15]);
        let mut file = form("release_2_13.p4");
        file.settings = None;
        let told = Told::of(&file, None);
        assert_eq!(told.to_try(), [Release::V2_15, Release::V2_12]);
        assert_eq!(Told::of(&file, Some(Release::V2_9)).to_try(), [Release::V2_9]);
    }

    #[test]
    fn every_rule_that_tells_candidates_apart_here_counts() {
        let tried = |file: &SnapshotFile| Told::of(file, None).to_try();
        // Requests too large for a range: the range stays, or goes back.
        let mut file = form("release_2_14.p4");
        file.settings.as_mut().unwrap().expandable_segments = Some(true);
        assert_eq!(tried(&file), [Release::V2_15]);
        file.traces[0][0].action = Action::Oom;
        assert_eq!(tried(&file), [Release::V2_15, Release::V2_14]);
        // Strings that both releases take and read otherwise: the tail of a list.
        let mut file = form("release_2_9.p4");
        let settings = file.settings.as_mut().unwrap();
        settings.graph_capture_record_stream_reuse = None;
        (settings.max_split_size, settings.roundup_power2_divisions) = (None, None);
        file.keys = tonnage_snapshot::Keys::default();
        file.traces.clear();
        let conf = |file: &mut SnapshotFile, conf: &str| {
            file.settings.as_mut().unwrap().conf = conf.to_owned();
        };
        let all = Told::of(&file, None).to_try();
        assert_eq!(all, [Release::V2_15, Release::V2_12, Release::V2_11]);
        conf(&mut file, "roundup_power2_divisions:[256:1,>:8]");
        assert_eq!(tried(&file), [&all[..], &[Release::V2_9]].concat());
    }

    #[test]
    fn the_choice_is_the_newest_exact_one_or_the_one_that_comes_furthest() {
        let tried = |release, exact, reached| Tried { release, exact, reached };
        let (new, old) = (Release::V2_13, Release::V2_12);
        for (list, chosen) in [
            ([tried(new, true, 9), tried(old, true, 9)], 0),
            ([tried(new, false, 3), tried(old, true, 9)], 1),
            ([tried(new, false, 3), tried(old, false, 5)], 1),
            ([tried(new, false, 5), tried(old, false, 5)], 0),
        ] {
            assert_eq!(Told::choose(&list), chosen, "{list:?}");
        }
    }

    #[test]
    fn the_sentence_says_what_the_release_rests_on_and_what_to_say_if_it_is_wrong() {
        let tried = |release, exact| Tried { release, exact, reached: 0 };
        let (new, old) = (Release::V2_13, Release::V2_12);
        let of = |candidates, asked| Told { candidates, asked, unlike: Vec::new() };
        let told = of(vec![old, new], None);
        let only = of(vec![old], None);
        let asked = of(vec![old], Some(new));
        let agreed = of(vec![old], Some(old));
        assert_eq!(agreed.describe(old, &[tried(old, true)]), None);
        for (told, followed, list, sentence) in [
            (&only, old, vec![tried(old, true)], "release: 2.12, by its keys"),
            (
                &told,
                new,
                vec![tried(new, true)],
                "release: 2.12 or 2.13, by its keys; they do the same here: followed as 2.13",
            ),
            (
                &told,
                old,
                vec![tried(new, false), tried(old, true)],
                "release: 2.12, by its keys and its entries: 2.13 would have done otherwise",
            ),
            (
                &told,
                new,
                vec![tried(new, true), tried(old, true)],
                "release: 2.12 or 2.13, by its keys; 2.12 reproduces the entries too: followed as 2.13, say --pytorch \
                 2.12 if it was that",
            ),
            (
                &told,
                new,
                vec![tried(new, false), tried(old, false)],
                "release: 2.12 or 2.13, by its keys; none of them reproduces the entries: followed as 2.13, which comes \
                 furthest; say --pytorch 2.12 if it was that",
            ),
            (
                &asked,
                new,
                vec![tried(new, true)],
                "release: 2.13, as asked for; by its keys the file is of 2.12",
            ),
        ] {
            assert_eq!(told.describe(followed, &list).as_deref(), Some(sentence));
        }
    }
}
