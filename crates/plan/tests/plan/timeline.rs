//! The memory of one step, event by event, agrees with what the whole run takes.

use tonnage_plan::{Amp, Checkpoint, Options, Phase, Recipe, Size, Span, predict, trace};
use tonnage_tensor::Role;

#[test]
fn the_last_step_of_every_recipe_reaches_the_peak_of_the_run_in_its_phase() {
    for recipe in Recipe::ALL {
        let mut options = Options::new(recipe);
        // The layers of the larger ones are alike.
        if matches!(recipe, Recipe::Gpt2(_)) {
            options = options.with(Size::Layers, 4).unwrap();
        }
        let timeline = trace(&options, 1 << 20).unwrap();
        assert_eq!(timeline.outcome, predict(&options).unwrap(), "{recipe}");
        let highest = timeline.highest().unwrap();
        assert_eq!(highest.allocated(), timeline.outcome.allocated_peak, "{recipe}");
        assert_eq!(timeline.phase_of(highest), timeline.outcome.peak_phase, "{recipe}");
        for role in Role::ALL {
            assert_eq!(highest.of(role), timeline.outcome.bytes_of(role), "{recipe} {role:?}");
        }
        // Each event is a point, and each step begins where the next one does.
        assert_eq!(timeline.points.len() as u64, timeline.events + 1, "{recipe}");
        let [first, last] = [timeline.points.first(), timeline.points.last()].map(Option::unwrap);
        assert_eq!(first.reserved, last.reserved, "{recipe}");
        assert_eq!(first.allocated(), last.allocated(), "{recipe}");
    }
}

#[test]
fn spans_follow_one_another_from_the_first_event_to_the_last() {
    let mut options = Options::new(Recipe::EMBEDDED);
    options.accumulate = 2;
    let timeline = trace(&options, 100).unwrap();
    let phases: Vec<_> = timeline.spans.iter().map(|it| it.phase).collect();
    let part = [Phase::Data, Phase::Forward, Phase::Backward];
    assert_eq!(phases, [&part[..], &part, &[Phase::Step, Phase::ZeroGrad]].concat());
    assert_eq!(timeline.spans[0].from, 0);
    assert!(timeline.spans.windows(2).all(|it| it[0].to == it[1].from), "{:?}", timeline.spans);
    let Span { to, .. } = timeline.spans[7];
    assert_eq!(to, timeline.events);
}

#[test]
fn of_a_graph_the_step_is_shown_that_is_captured() {
    let mut options = Options::new(Recipe::EMBEDDED);
    let without = trace(&options, usize::MAX / 2).unwrap();
    options.graph = true;
    let timeline = trace(&options, usize::MAX / 2).unwrap();
    assert_eq!(timeline.step, 2);
    let spans = |it: &tonnage_plan::Timeline| -> Vec<_> {
        it.spans.iter().map(|it| (it.phase, it.work.kernels)).collect()
    };
    assert_eq!(spans(&timeline), spans(&without), "its phases compute what they do");
    let predicted = tonnage_plan::predict(&options).unwrap();
    assert_eq!(timeline.outcome, predicted, "the whole run is told");
    let highest = timeline.highest().unwrap().allocated();
    assert_eq!(highest, predicted.allocated_peak, "which the captured step reaches");
}

#[test]
fn few_points_show_the_same_peaks_as_all() {
    let mut options = Options::new(Recipe::EMBEDDED).with(Size::Layers, 8).unwrap();
    options.checkpoint = Checkpoint::Sqrt;
    options.amp = Some(Amp::Bf16);
    let whole = trace(&options, usize::MAX / 2).unwrap();
    assert!(whole.events > 1_000, "{}", whole.events);
    for points in [0, 2, 50, 300] {
        let few = trace(&options, points).unwrap();
        assert!(few.points.len() <= points.max(2), "{points}");
        assert_eq!((few.events, &few.spans), (whole.events, &whole.spans), "{points}");
        let [few_peak, peak] = [&few, &whole].map(|it| it.highest().unwrap());
        let moment = |it: &tonnage_tensor::LevelPoint| (it.event, it.allocated());
        assert_eq!(moment(few_peak), moment(peak), "{points}");
        let reserved = |it: &tonnage_plan::Timeline| it.points.iter().map(|it| it.reserved).max();
        assert_eq!(reserved(&few), reserved(&whole), "{points}");
    }
}

#[test]
fn the_json_has_a_column_for_every_purpose() {
    let timeline = trace(&Options::new(Recipe::Mlp), 64).unwrap();
    let json: serde_json::Value = serde_json::from_str(&timeline.to_json()).unwrap();
    let points = timeline.points.len();
    let column = |it: &serde_json::Value| it.as_array().unwrap().len();
    for name in ["event", "allocated", "reserved"] {
        assert_eq!(column(&json[name]), points, "{name}");
    }
    let roles = json["roles"].as_object().unwrap();
    assert_eq!(roles.len(), Role::ALL.len());
    assert!(roles.values().all(|it| column(it) == points));
    assert_eq!(json["peak"]["allocated"], timeline.outcome.allocated_peak);
    assert_eq!(json["spans"][1]["phase"], "forward");
}

/// The optimizer of a step asks for no memory once it has its state, and works all the same.
#[test]
fn every_phase_says_what_it_queues_and_all_together_are_the_steps_work() {
    let timeline = trace(&Options::new(Recipe::DeepNet), 500).unwrap();
    let step = timeline.spans.iter().find(|it| it.phase == Phase::Step).unwrap();
    assert_eq!(step.from, step.to);
    assert!(step.work.operations > 0.0 && step.work.kernels > 0, "{step:?}");
    let sum: f64 = timeline.spans.iter().map(|it| it.work.operations).sum();
    let whole = timeline.outcome.work.operations;
    assert!((sum - whole).abs() <= whole * 1e-9, "{sum} of {whole}");
}
