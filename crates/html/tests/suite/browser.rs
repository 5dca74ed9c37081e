//! The page in a real Chromium: nothing from the file runs, nothing is loaded, everyone can read it.

use std::path::Path;

use crate::support::chromium::{Browser, browse};
use crate::support::{hostile, page, recording, row};
use serde_json::{Value, json};
use thirtyfour::prelude::*;
use tonnage_analysis::report::Ranks;

const CONTRAST: &str = include_str!("support/contrast.js");

/// Nothing in the console, and no request but the one for the page.
async fn is_quiet(browser: &Browser) {
    assert_eq!(browser.console().await, Vec::<String>::new());
    assert_eq!(browser.requests().await, std::slice::from_ref(&browser.address));
}

#[test]
fn a_page_loads_nothing_and_its_console_is_empty() {
    browse(&page(&recording("mlp_seed.default.stacks")), async |browser| {
        is_quiet(browser).await;
    });
}

#[test]
fn names_that_are_markup_or_script_stay_text() {
    let name = hostile::TEXTS.join("");
    let html = page(&row(&name, &hostile::recording()));
    assert!(html.len() < 8 << 20, "{} bytes", html.len());
    browse(&html, async |browser| {
        let title = browser.value("return document.title").await;
        assert!(title.as_str().unwrap().starts_with("<script>document.title='run'"), "{title}");
        let counted = "return ['script', 'style', 'img', 'iframe', 'link', 'a', '[style]', '[onload]', \
                       '[onerror]', '[onmouseover]'].map((it) => document.querySelectorAll(it).length)";
        let counted = browser.value(counted).await;
        assert_eq!(counted, json!([1, 1, 0, 0, 0, 0, 0, 0, 0, 0]));
        let text = browser.value("return document.body.textContent").await;
        let text = text.as_str().unwrap();
        for hidden in ['\u{202e}', '\u{2028}', '\u{200b}', '\0', '\u{1b}'] {
            assert!(!text.contains(hidden), "{hidden:?}");
        }
        assert!(text.contains("</title></style></script><script>document.title='run'</script>"));
        // Whoever points at a box reads its name.
        let frames = browser.driver.find_all(By::Css("#flame .frame")).await.unwrap();
        assert!(frames.len() > 50, "{}", frames.len());
        frames[2].click().await.unwrap();
        let said = "document.getElementById('flame-said').textContent";
        browser.wait(&format!("{said}.includes('document.title')")).await;
        assert_eq!(browser.value("return document.title").await, title);
        browser.set_width(390).await;
        let wide = browser.value(WIDER).await;
        assert_eq!(wide, json!([]), "the page scrolls sideways");
        is_quiet(browser).await;
    });
}

#[test]
fn what_gets_into_the_page_all_the_same_is_stopped_by_its_policy() {
    browse(&page(&recording("mlp_seed.default")), async |browser| {
        let added = "document.body.insertAdjacentHTML('beforeend', \
            '<img src=x onerror=\"document.title=1\"><p style=\"color:red\" id=added>x</p>'); \
            const script = document.createElement('script'); script.textContent = 'document.title = 2'; \
            document.body.append(script)";
        browser.driver.execute(added, []).await.unwrap();
        let title = browser.value("return document.title").await;
        assert_eq!(title, "mlp_seed.default · Tonnage memory report");
        let console = browser.console().await.join("\n");
        for directive in ["img-src", "style-src", "script-src"] {
            assert!(
                console.contains("Content Security Policy") && console.contains(directive),
                "{console}"
            );
        }
    });
}

/// What makes the page wider than the window; nothing if it is not.
const WIDER: &str = "const root = document.documentElement; \
    return root.scrollWidth <= root.clientWidth ? [] : \
    Array.from(document.querySelectorAll('body *')) \
        .filter((it) => it.getBoundingClientRect().right > root.clientWidth && !it.closest('svg svg')) \
        .map((it) => it.tagName + '.' + it.getAttribute('class'))";

#[test]
fn everything_contrasts_in_light_and_dark_and_fits_a_phone() {
    for name in ["gpt2_varlen.default.stacks", "resnet50.tight"] {
        browse(&page(&recording(name)), async |browser| {
            for details in browser.driver.find_all(By::Css("summary")).await.unwrap() {
                details.click().await.unwrap();
            }
            let mut backs = Vec::new();
            for scheme in ["light", "dark"] {
                browser.set_scheme(scheme).await;
                let found = browser.value(CONTRAST).await;
                assert!(found["seen"].as_u64().unwrap() > 100, "{found}");
                assert_eq!(found["weak"], json!([]), "{name}, {scheme}");
                let back = "return getComputedStyle(document.documentElement).backgroundColor";
                backs.push(browser.value(back).await);
            }
            assert_ne!(backs[0], backs[1]);
            for width in [320, 390, 768, 1280, 2560] {
                browser.set_width(width).await;
                let wide = browser.value(WIDER).await;
                assert_eq!(wide, json!([]), "{name} scrolls sideways at {width}");
            }
            is_quiet(browser).await;
        });
    }
}

#[test]
fn a_click_makes_a_box_of_the_flame_graph_as_wide_as_the_page_and_escape_goes_back() {
    browse(&page(&recording("gpt2_varlen.default.stacks")), async |browser| {
        let widths = "return Array.from(document.querySelectorAll('#flame .frame'), \
                      (it) => it.getAttribute('visibility') === 'hidden' ? 0 : it.getBoundingClientRect().width)";
        let numbers = |value: Value| -> Vec<f64> {
            value.as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect()
        };
        let before = numbers(browser.value(widths).await);
        let whole = before[0];
        let place = before.iter().position(|&it| it < whole * 0.5 && it > 40.0).unwrap();
        // Its rectangle: how large its letters are depends on the machine's fonts, and its middle with them.
        let boxes = browser.driver.find_all(By::Css("#flame .frame rect")).await.unwrap();
        boxes[place].click().await.unwrap();
        let zoomed = numbers(browser.value(widths).await);
        assert!((zoomed[place] - whole).abs() < 1.0, "{} of {whole}", zoomed[place]);
        assert!((zoomed[0] - whole).abs() < 1.0, "callers stay");
        assert!(zoomed.contains(&0.0), "what is beside it goes");
        let focused = browser.driver.active_element().await.unwrap();
        focused.send_keys(Key::Escape).await.unwrap();
        let after = numbers(browser.value(widths).await);
        assert!(before.iter().zip(&after).all(|(one, other)| (one - other).abs() < 1.0));

        let find = browser.driver.find(By::Id("flame-find")).await.unwrap();
        find.send_keys("workloads.py").await.unwrap();
        let (hits, said) = (
            "document.querySelectorAll('.frame.hit').length",
            "document.getElementById('flame-said').textContent",
        );
        browser.wait(&format!("{hits} > 0 && {said}.startsWith({hits} + ' boxes, ')")).await;
        is_quiet(browser).await;
    });
}

#[test]
fn the_flame_graph_is_walked_with_the_keyboard_and_every_drawing_has_a_name() {
    browse(&page(&recording("mlp_seed.default.stacks")), async |browser| {
        let root = browser.driver.find(By::Css("#flame .frame")).await.unwrap();
        root.send_keys(Key::Down).await.unwrap();
        let focused = "return document.activeElement.getAttribute('y')";
        assert_eq!(browser.value(focused).await, "20");
        let below = browser.driver.active_element().await.unwrap();
        below.send_keys(Key::Up).await.unwrap();
        assert_eq!(browser.value(focused).await, "0");
        let tab_stops = "return document.querySelectorAll('#flame [tabindex=\"0\"]').length";
        assert_eq!(browser.value(tab_stops).await, 1);
        let nameless = "return Array.from(document.querySelectorAll('[role=img], [role=group], section, .frame, input')) \
            .filter((it) => !(it.getAttribute('aria-label') || it.querySelector('title') || it.closest('label') || \
            document.getElementById(it.getAttribute('aria-labelledby'))?.textContent)).length";
        assert_eq!(browser.value(nameless).await, 0);
        let twice = "const ids = Array.from(document.querySelectorAll('[id]'), (it) => it.id); \
                     return ids.length - new Set(ids).size";
        assert_eq!(browser.value(twice).await, 0);
    });
}

#[test]
fn pointing_at_a_moment_says_how_much_there_was() {
    browse(&page(&recording("resnet50.tight")), async |browser| {
        let plot = browser.driver.find(By::Id("time")).await.unwrap();
        browser.driver.action_chain().move_to_element_center(&plot).perform().await.unwrap();
        let said = "document.getElementById('time-said').textContent";
        browser.wait(&format!("/GiB allocated.*GiB reserved/s.test({said})")).await;
        is_quiet(browser).await;
    });
}

#[test]
fn several_files_are_side_by_side_and_the_limit_is_reported() {
    let names = ["mlp_seed.default", "mlp_seed.tight", "multistream.default"];
    let ranks = Ranks::of(names.map(recording).into()).unwrap();
    browse(&tonnage_html::ranks_html(&ranks), async |browser| {
        let rows = browser.driver.find_all(By::Css(".ranks tbody tr")).await.unwrap();
        assert_eq!(rows.len(), 3);
        let limit = browser.driver.find(By::Css(".ranks tr.limit th")).await.unwrap();
        let heading = browser.driver.find(By::Css("header + section + header h1")).await.unwrap();
        let name = heading.text().await.unwrap();
        assert_eq!(limit.text().await.unwrap(), format!("{name} the limit"));
        browser.set_width(390).await;
        assert_eq!(browser.value(WIDER).await, json!([]));
        is_quiet(browser).await;
    });
}

/// For whoever changes how the page looks: pictures of it under `target/pictures`.
#[test]
#[ignore = "makes pictures to look at, checks nothing"]
fn pictures() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/pictures");
    std::fs::create_dir_all(&folder).unwrap();
    let mut pages = vec![("hostile".to_owned(), page(&row("hostile", &hostile::recording())))];
    for name in [
        "gpt2_varlen.default.stacks",
        "mlp_seed.default.stacks",
        "resnet50.tight",
        "cudagraph.default",
        "multistream.default",
    ] {
        pages.push((name.to_owned(), page(&recording(name))));
    }
    let ranks = ["mlp_seed.default", "mlp_seed.tight", "multistream.default"].map(recording);
    pages.push(("ranks".to_owned(), tonnage_html::ranks_html(&Ranks::of(ranks.into()).unwrap())));
    for (name, html) in pages {
        std::fs::write(folder.join(format!("{name}.html")), &html).unwrap();
        browse(&html, async |browser| {
            for (scheme, width) in [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]
            {
                browser.set_scheme(scheme).await;
                browser.set_width(width).await;
                browser.picture(&folder.join(format!("{name}.{scheme}.{width}.png"))).await;
            }
        });
    }
}
