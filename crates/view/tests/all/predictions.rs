//! Training steps: the page's figures are those of `tonnage predict`.

use std::time::Instant;

use tonnage_plan::{Amp, Checkpoint, Options, Recipe, Size, predict};
use tonnage_view::ViewOptions;

use crate::support::Page;

#[test]
fn a_prediction_has_the_figures_of_predict() {
    let page = Page::with(ViewOptions::default());
    let mut gpt2 = Options::new(Recipe::EMBEDDED).with(Size::Layers, 6).unwrap();
    gpt2.amp = Some(Amp::Bf16);
    gpt2.checkpoint = Checkpoint::Every(2);
    let asked = [
        (r#"{"recipe":"mlp"}"#, Options::new(Recipe::Mlp)),
        (r#"{"recipe":"deepnet"}"#, Options::new(Recipe::DeepNet)),
        (r#"{"recipe":"resnet50"}"#, Options::new(Recipe::ResNet50)),
        (r#"{"recipe":"gpt2-tiny","layers":6,"amp":"bf16","checkpoint":"every:2"}"#, gpt2),
    ];
    for (body, options) in asked {
        let answer = page.post("api/predict", body).json();
        for (which, checkpoint) in
            [("step", options.checkpoint), ("none", Checkpoint::None), ("sqrt", Checkpoint::Sqrt)]
        {
            let mut options = options.clone();
            options.checkpoint = checkpoint;
            let expected = predict(&options).unwrap();
            let step = &answer[which];
            assert_eq!(step["peak"]["allocated"], expected.allocated_peak, "{body} {which}");
            assert_eq!(step["peak"]["reserved"], expected.reserved_peak, "{body} {which}");
            let phase = expected.peak_phase.unwrap();
            assert_eq!(step["peak"]["phase"], phase.name(), "{body} {which}");
            assert_eq!(step["checkpoint"], checkpoint.to_string());
            assert_eq!(step["parameters"], expected.parameters);
            check(step, body);
        }
        let command = answer["command"].as_str().unwrap();
        assert!(command.starts_with(&format!("tonnage predict {}", options.recipe())), "{command}");
    }
}

/// What is held adds up, the peak is among the points, phases cover them in order.
fn check(step: &serde_json::Value, which: &str) {
    let numbers = |it: &serde_json::Value| -> Vec<u64> {
        it.as_array().unwrap().iter().map(|it| it.as_u64().unwrap()).collect()
    };
    let allocated = numbers(&step["allocated"]);
    assert!((2..=2_000).contains(&allocated.len()), "{which}: {} points", allocated.len());
    let held: Vec<_> = step["held"].as_array().unwrap().iter().map(numbers).collect();
    assert_eq!(held.len(), step["purposes"].as_array().unwrap().len());
    for (point, &sum) in allocated.iter().enumerate() {
        assert_eq!(held.iter().map(|it| it[point]).sum::<u64>(), sum, "{which} at {point}");
    }
    let point = step["peak"]["point"].as_u64().unwrap() as usize;
    assert_eq!(allocated[point], step["peak"]["allocated"], "{which}");
    let mut end = 0;
    for phase in step["phases"].as_array().unwrap() {
        assert_eq!(phase["begin"], end, "{which}: {phase}");
        end = phase["end"].as_u64().unwrap();
        let of_peak = (phase["begin"].as_u64().unwrap()..end).contains(&(point as u64));
        assert!(!of_peak || phase["name"] == step["peak"]["phase"], "{which}: {phase}");
    }
    assert_eq!(end as usize, allocated.len(), "{which}");
}

#[test]
fn sliders_stay_within_what_the_server_takes() {
    let page = Page::with(ViewOptions::default());
    let recipes = page.get("api/recipes").json();
    let names: Vec<_> = recipes.as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert!(names.into_iter().eq(Recipe::ALL.into_iter().map(Recipe::name)), "{recipes}");
    for recipe in recipes.as_array().unwrap() {
        for size in recipe["sizes"].as_array().unwrap() {
            let value = |key: &str| size[key].as_u64().unwrap();
            let on_grid = (value("value") - value("least")).is_multiple_of(value("step"));
            assert!(on_grid && value("value") <= value("most"), "{size}");
            for end in ["least", "most"] {
                // Debug builds look at every block after every request.
                if cfg!(debug_assertions) && size["name"] == "layers" && end == "most" {
                    continue;
                }
                let asked = serde_json::json!({
                    "recipe": recipe["name"],
                    size["name"].as_str().unwrap(): size[end],
                });
                page.post("api/predict", &asked.to_string()).json();
            }
        }
    }
}

#[test]
fn every_place_of_a_slider_is_answered() {
    let page = Page::with(ViewOptions::default());
    for body in [
        r#"{"recipe":"mlp"}"#,
        r#"{"recipe":"deepnet"}"#,
        r#"{"recipe":"gpt2"}"#,
        r#"{"recipe":"resnet50"}"#,
        r#"{"recipe":"mlp","layers":64}"#,
        r#"{"recipe":"deepnet","layers":64}"#,
        r#"{"recipe":"gpt2","layers":12,"width":768,"seq":1024}"#,
        r#"{"recipe":"gpt2","layers":48,"width":1600,"seq":1024,"amp":"bf16"}"#,
    ] {
        if cfg!(debug_assertions) && body.contains("layers") {
            continue;
        }
        let took = (0..5).map(|_| {
            let began = Instant::now();
            page.post("api/predict", body).json();
            began.elapsed()
        });
        // A tenth of a second in a release build by itself. Printed: how fast this machine is decides no test.
        eprintln!("{body}: {:.1?}", took.min().unwrap());
    }
}

#[test]
fn accumulation_image_size_and_a_recipe_that_does_not_train_are_predicted() {
    let page = Page::with(ViewOptions::default());
    let mut parts = Options::new(Recipe::DeepNet);
    parts.accumulate = 4;
    let images = Options::new(Recipe::ResNet50).with(Size::Image, 64).unwrap();
    let cell = Options::new(Recipe::Mimo).with(Size::Users, 8).unwrap();
    for (body, options) in [
        (r#"{"recipe":"deepnet","accumulate":4}"#, parts),
        (r#"{"recipe":"resnet50","image":64}"#, images),
        (r#"{"recipe":"mimo","users":8}"#, cell),
    ] {
        let answer = page.post("api/predict", body).json();
        let expected = predict(&options).unwrap();
        let step = &answer["step"];
        assert_eq!(step["peak"]["allocated"], expected.allocated_peak, "{body}");
        assert_eq!(step["peak"]["reserved"], expected.reserved_peak, "{body}");
        let sum: f64 = step["phases"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["operations"].as_f64().unwrap())
            .sum();
        assert!(sum > 0.0, "{body}");
        let phases = step["phases"].as_array().unwrap();
        let seconds = |of: &str| -> f64 {
            let phases = phases.iter().filter(|it| it["name"] == of);
            phases.map(|it| it["seconds"]["H200"].as_f64().unwrap()).sum()
        };
        let all: f64 = phases.iter().map(|it| it["seconds"]["H200"].as_f64().unwrap()).sum();
        assert!(all > 0.0, "{body}");
        if options.recipe().trains() {
            // An optimizer does little arithmetic and moves every parameter, gradient and state.
            assert!(seconds("step") / all > 0.001, "{body}: {} of {all}", seconds("step"));
        }
        check(step, body);
    }
}

#[test]
fn a_gpu_is_asked_about_as_fit_does() {
    let page = Page::with(ViewOptions::default());
    let options = Options::new(Recipe::Mlp);
    let need = predict(&options).unwrap().reserved_peak;
    let fits = |limit: u64| {
        let asked = serde_json::json!({ "recipe": "mlp", "limit": limit });
        page.post("api/predict", &asked.to_string()).json()["fits"].clone()
    };
    assert_eq!(fits(need), true);
    assert_eq!(fits(need / 4), false);
    assert!(page.post("api/predict", r#"{"recipe":"mlp"}"#).json()["fits"].is_null());
    let asked = serde_json::json!({ "recipe": "mlp", "limit": need / 2 });
    let found = page.post("api/fit", &asked.to_string()).json();
    let expected = tonnage_plan::fit(&options, need / 2).unwrap();
    assert_eq!(found["batch"], expected.batch);
    let ways = expected.gains.len() + usize::from(expected.together.is_some());
    assert_eq!(found["techniques"].as_array().unwrap().len(), ways);
    assert_eq!(page.post("api/fit", r#"{"recipe":"mlp"}"#).status, 400);
}

#[test]
fn what_no_slider_says_is_refused_in_words() {
    let page = Page::with(ViewOptions::default());
    for (body, words) in [
        (r#"{"recipe":"gpt2","layers":9999}"#, "the page goes from 1 to 48"),
        (r#"{"recipe":"nonsense"}"#, "nonsense"),
        (r#"{"recipe":"mimo","accumulate":2,"batch":2}"#, "does not train"),
        (r#"{"recipe":"mlp","accumulate":3}"#, "does not split"),
        (r#"{"recipe":"resnet50","seq":64}"#, "resnet50 has no --seq"),
        (r#"{"recipe":"gpt2","amp":"f8"}"#, "f8"),
        (r#"{"recipe":"gpt2","checkpoint":"every:0"}"#, "every:0"),
        (r#"{"recipe":"gpt2","optimizer":"magic"}"#, "magic"),
    ] {
        let answer = page.post("api/predict", body);
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.text().contains(words), "{body}: {}", answer.text());
    }
}
