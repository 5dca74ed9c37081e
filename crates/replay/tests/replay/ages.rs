//! Histories without their beginning, of releases where the age of equal blocks decides which one serves.

use tonnage_engine::Release;
use tonnage_events::Action;
use tonnage_replay::recording::{RecordingOptions, replay_recording};
use tonnage_replay::{HistoryKind, Outcome};

use crate::synthetic::{Program, without_head};

/// Programs of each release, and cuts of each.
const PROGRAMS: u64 = 24;
const CUTS: usize = 5;

fn replay_cuts(release: Release, mut check: impl FnMut(&str, Outcome)) {
    for seed in 0..PROGRAMS {
        let conf = ["", "expandable_segments:True", "max_split_size_mb:25"][(seed % 3) as usize];
        let mut program = Program::new(release, seed, conf);
        program.run_with_ties(600);
        let file = program.file();
        let length = file.traces[0].len();
        for cut in 1..=CUTS {
            // Not inside a call.
            let ends = |at: &usize| {
                let before = file.traces[0][at - 1].action;
                matches!(before, Action::Alloc | Action::FreeCompleted)
                    && file.traces[0][*at].action != Action::FreeCompleted
            };
            let at = (length * cut / (CUTS + 1)..length).find(ends).unwrap();
            let file = without_head(&file, at);
            let outcome = replay_recording(&file, &RecordingOptions::default()).unwrap();
            check(&format!("{release}, seed {seed}, cut {cut}, {conf}"), outcome);
        }
    }
}

fn tells_of_ages(outcome: &Outcome) -> bool {
    outcome.inferred.iter().any(|line| line.starts_with("ages: "))
}

#[test]
fn what_came_first_is_learnt_from_which_of_equal_blocks_served() {
    for release in [Release::V2_12, Release::V2_13, Release::V2_15] {
        let (mut learnt, mut cuts, mut misread) = (0, 0, Vec::new());
        replay_cuts(release, |what, outcome| {
            cuts += usize::from(outcome.history == HistoryKind::Partial);
            learnt += usize::from(tells_of_ages(&outcome));
            if let Some(difference) = &outcome.difference {
                misread.push(format!("{what}: {difference:?} {:#?}", outcome.inferred));
            }
        });
        assert!(
            misread.is_empty(),
            "{release}: {} of {cuts}: {}",
            misread.len(),
            misread.join("\n")
        );
        // Else nothing was learnt, and the test tells nothing.
        assert!(learnt > 10, "{release}: ties told something in {learnt} of {cuts}");
    }
}

#[test]
fn where_addresses_decide_nothing_is_said_of_ages() {
    replay_cuts(Release::V2_11, |what, outcome| {
        assert_eq!(outcome.difference, None, "{what}: {:?}", outcome.inferred);
        assert!(!tells_of_ages(&outcome), "{what}");
    });
}
