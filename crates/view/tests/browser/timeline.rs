//! The timeline, the segment map, the filter and the details in a real Chromium, on the real server.

use std::path::Path;

use serde_json::json;
use thirtyfour::prelude::*;
use tonnage_snapshot::SnapshotFile;

use crate::page::{Page, testdata, trace, visit};
use crate::{hostile, large};

const CONTRAST: &str = include_str!("../../../html/tests/suite/support/contrast.js");

/// What makes the page wider than the window; nothing if it is not.
const WIDER: &str = "(() => { const root = document.documentElement; \
    return root.scrollWidth <= root.clientWidth ? [] : Array.from(document.querySelectorAll('body *')) \
        .filter((it) => it.getBoundingClientRect().right > root.clientWidth) \
        .map((it) => it.tagName + '.' + it.getAttribute('class')); })()";

fn stacks() -> Vec<(&'static str, SnapshotFile)> {
    vec![("mlp_seed", trace("mlp_seed.default.stacks"))]
}

#[test]
fn every_kind_of_file_is_drawn() {
    let mut files: Vec<(&str, SnapshotFile)> = [
        "mlp_seed.default.stacks",
        "resnet50.tight",
        "gpt2_varlen.expandable",
        "multistream.default",
        "cudagraph.default",
    ]
    .map(|name| (name, trace(name)))
    .into();
    for name in [
        "release_2_6.p4.pickle",
        "before_2_0.p2.pickle",
        "packed.pickle.xz",
        "state_only.p5.pickle",
    ] {
        files.push((
            name,
            tonnage_snapshot::open(&testdata().join("snapshots").join(name)).unwrap(),
        ));
    }
    visit(files, async |page| {
        let ids = page
            .value("Array.from(document.querySelectorAll('#recordings option'), (it) => it.value)")
            .await;
        let ids = ids.as_array().unwrap().clone();
        assert!(ids.len() >= 9, "{ids:?}");
        for id in ids {
            let name = format!(
                "document.querySelector('#recordings option[value=\"{}\"]').textContent",
                id.as_str().unwrap()
            );
            let name = page.value(&name).await;
            page.choose("#recordings", id.as_str().unwrap()).await;
            page.wait(&format!("document.title.startsWith({}.split(' · ')[0])", name)).await;
            page.drawn().await;
            assert!(page.colours("canvas.chart").await > 5, "{name}");
            let figures = page.text("#segments-figures").await;
            assert!(figures.contains("reserved") && !figures.contains("NaN"), "{name}: {figures}");
            for axis in ["time", "entries"] {
                page.choose("#timeline .toolbar select", axis).await;
                page.drawn().await;
            }
        }
        page.is_quiet().await;
    });
}

#[test]
fn figures_are_those_of_the_recording() {
    visit(stacks(), async |page| {
        page.keys("p").await;
        let legend = page.text(".legend p").await;
        let figures = page.text("#segments-figures").await;
        let allocated =
            legend.split(": ").nth(1).unwrap().split(" allocated").next().unwrap().to_owned();
        assert!(figures.contains(&format!("{allocated} allocated")), "{legend}, but {figures}");
        let reserved = legend.split(", ").last().unwrap().to_owned();
        assert!(figures.contains(&reserved), "{legend}, but {figures}");
    });
}

#[test]
fn pointing_tells_and_a_click_chooses_what_details_and_map_then_show() {
    visit(stacks(), async |page| {
        page.keys("f").await;
        page.drawn().await;
        page.point("canvas.chart", 0.5, 0.85).await;
        page.wait("!document.querySelector('.plot .tooltip').hidden").await;
        let told = page.text(".plot .tooltip").await;
        assert!(told.contains("iB") && told.contains("live for"), "{told}");
        page.click_at("canvas.chart", 0.5, 0.85).await;
        page.wait("document.querySelector('#details dl')").await;
        let size = told.lines().next().unwrap();
        assert_eq!(page.text("#details h2").await, size);
        page.wait("document.querySelector('#details .frames li')").await;
        let said = page.text("#details").await;
        for part in ["Requested", "Live for", "Pool", "Address", "Beside it in its segment"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let status = page.value("document.getElementById('timeline-said').textContent").await;
        assert!(status.as_str().unwrap().starts_with("Chosen: "), "{status}");

        // A neighbour is a click away.
        if page.value("Boolean(document.querySelector('.beside-it button'))").await == json!(true) {
            let address = "Array.from(document.querySelectorAll('#details dd'), (it) => it.textContent).find((it) => it.startsWith('0x'))";
            let before = page.value(address).await;
            page.click(".beside-it button").await;
            page.wait(&format!("{address} !== {before}")).await;
        }
        page.click("#details .line button").await;
        let query = page.value("document.getElementById('query').value").await;
        assert!(query.as_str().unwrap().starts_with("line:"), "{query}");
        page.wait(
            "/[0-9] allocations? match/.test(document.getElementById('query-said').textContent)",
        )
        .await;
        page.is_quiet().await;
    });
}

#[test]
fn everything_can_be_done_with_the_keyboard() {
    visit(stacks(), async |page| {
        let axis = "document.querySelector('canvas.chart').toDataURL().length";
        let whole = page.value(axis).await;
        for key in ["+", "+", "+"] {
            page.keys(key).await;
        }
        page.drawn().await;
        assert_ne!(page.value(axis).await, whole, "plus comes closer");
        page.keys(Key::Right + Key::Left).await;
        page.keys("0").await;
        page.drawn().await;
        page.keys("p]]").await;
        let pointed = page.value("document.getElementById('timeline-said').textContent").await;
        assert!(pointed.as_str().unwrap().contains("live for"), "{pointed}");
        page.keys(Key::Enter + "").await;
        page.wait("document.querySelector('#details dl')").await;
        page.keys(Key::Escape + "").await;
        page.wait("!document.querySelector('#details dl')").await;
        let moment =
            page.value("document.querySelector('#segments input[type=range]').value").await;
        page.keys(",").await;
        page.wait(&format!(
            "document.querySelector('#segments input[type=range]').value !== {moment}"
        ))
        .await;
        page.keys("?").await;
        page.wait("document.querySelector('dialog.help').open").await;
        page.click("dialog.help button").await;
        page.keys("/").await;
        assert_eq!(page.value("document.activeElement.id").await, "query");

        // Each stop of the tab key has a name, and no id is there twice.
        let nameless = "Array.from(document.querySelectorAll('#memory :is(button, select, input, canvas, summary)')) \
            .filter((it) => !(it.getAttribute('aria-label') || it.textContent.trim() || it.closest('label') || \
                document.querySelector('label[for=\"' + it.id + '\"]'))).map((it) => it.outerHTML.slice(0, 90))";
        assert_eq!(page.value(nameless).await, json!([]));
        let twice = "(() => { const ids = Array.from(document.querySelectorAll('[id]'), (it) => it.id); \
                     return ids.filter((it, place) => ids.indexOf(it) !== place); })()";
        assert_eq!(page.value(twice).await, json!([]));
        page.is_quiet().await;
    });
}

#[test]
fn a_filter_counts_lists_and_greys_and_says_what_is_wrong() {
    visit(stacks(), async |page| {
        let before = page.colours("canvas.chart").await;
        page.filter("size:>1MiB life:>10").await;
        let said = page.text("#query-said").await;
        assert!(said.contains("match") && said.contains("iB in all"), "{said}");
        assert_ne!(page.colours("canvas.chart").await, before, "what does not match is grey");
        page.click(".matches summary").await;
        page.click(".largest button").await;
        page.wait("document.querySelector('#details dl')").await;
        page.filter("size:>1XiB stream:nowhere").await;
        let said = page.text("#query-said").await;
        assert!(
            said.contains("“XiB” is no unit of bytes")
                && said.contains("no stream is called “nowhere”"),
            "{said}"
        );
        assert_eq!(
            page.value("document.querySelector('#query-said mark').textContent").await,
            "size:>1XiB"
        );
        page.filter("").await;
        assert_eq!(page.text("#query-said").await, "");

        page.click(".builder summary").await;
        page.choose(".choices select", &first_option(page).await).await;
        page.drawn().await;
        let query = page.value("document.getElementById('query').value").await;
        assert!(query.as_str().unwrap().starts_with("line:"), "{query}");
        page.is_quiet().await;
    });
}

async fn first_option(page: &Page<'_>) -> String {
    let value = page.value("document.querySelectorAll('.choices select option')[1].value").await;
    value.as_str().unwrap().to_owned()
}

#[test]
fn the_moment_is_moved_by_slider_by_drag_and_by_playing() {
    visit(stacks(), async |page| {
        let figures = "document.getElementById('segments-figures').textContent";
        let before = page.value(figures).await;
        let slide = "const slider = document.querySelector('#segments input[type=range]'); slider.value = 0; \
                     slider.dispatchEvent(new Event('input'))";
        page.browser.driver.execute(slide, []).await.unwrap();
        page.wait(&format!("{figures} !== {before}")).await;
        let before = page.value(figures).await;
        page.click("#timeline .toolbar button:nth-of-type(2)").await;
        page.drag("canvas.chart", (0.3, 0.5), (0.6, 0.5)).await;
        page.wait(&format!("{figures} !== {before}")).await;
        let value = "document.querySelector('#segments input[type=range]').value";
        let before = page.value(value).await;
        page.click(".scrub button").await;
        page.wait(&format!("{value} !== {before}")).await;
        page.click(".scrub button").await;
        page.click_at(".map canvas", 0.02, 0.9).await;
        for by in ["purpose", "site", "state"] {
            page.choose("#segments .toolbar select", by).await;
            assert!(page.colours(".map canvas").await > 2, "{by}");
        }
        page.is_quiet().await;
    });
}

#[test]
fn names_that_are_markup_or_script_stay_text() {
    let files = vec![(hostile::TEXTS[0], hostile::recording())];
    visit(files, async |page| {
        let title = page.value("document.title").await;
        assert!(title.as_str().unwrap().starts_with("<script>document.title='run'"), "{title}");
        page.keys("fp]").await;
        page.keys(Key::Enter + "").await;
        page.wait("document.querySelector('#details .frames li')").await;
        page.choose("#timeline .toolbar label:nth-of-type(2) select", "site").await;
        page.filter("script").await;
        page.click(".matches summary").await;
        page.click(".builder summary").await;
        let counted = "['script', 'style', 'img', 'iframe', 'svg', '[style*=url]', '[onload]', '[onerror]', '[onmouseover]'] \
                       .map((it) => document.querySelectorAll(it).length)";
        assert_eq!(page.value(counted).await, json!([1, 0, 0, 0, 0, 0, 0, 0, 0]));
        let text = page.value("document.body.textContent").await;
        let text = text.as_str().unwrap();
        assert!(text.contains("<script>document.title='run'</script>"), "{text}");
        for hidden in ['\u{202e}', '\u{2028}', '\u{200b}', '\0', '\u{1b}'] {
            assert!(!text.contains(hidden), "{hidden:?}");
        }
        assert_eq!(page.value("document.title").await, title);
        page.browser.set_width(390).await;
        assert_eq!(page.value(WIDER).await, json!([]), "the page scrolls sideways");
        page.is_quiet().await;
    });
}

#[test]
fn everything_contrasts_in_light_and_dark_and_fits_a_phone() {
    visit(stacks(), async |page| {
        page.keys("p]").await;
        page.keys(Key::Enter + "").await;
        page.filter("size:>1MiB size:>1XiB").await;
        page.wait("document.querySelector('#details .frames li')").await;
        page.value("document.querySelectorAll('#memory summary').forEach((it) => it.checkVisibility() && it.click())").await;
        page.painted().await;
        for scheme in ["light", "dark"] {
            page.browser.set_scheme(scheme).await;
            page.painted().await;
            let found = page.browser.value(CONTRAST).await;
            assert!(found["seen"].as_u64().unwrap() > 60, "{found}");
            assert_eq!(found["weak"], json!([]), "{scheme}");
        }
        for width in [320, 390, 768, 1280, 2560] {
            page.browser.set_width(width).await;
            page.painted().await;
            page.drawn().await;
            assert_eq!(page.value(WIDER).await, json!([]), "the page scrolls sideways at {width}");
        }
        page.is_quiet().await;
    });
}

/// What is measured is printed: how fast this machine is decides no test.
#[test]
fn a_million_entries_are_moved_through_in_short_frames() {
    visit(vec![("a million", large::recording(1_000_000))], async |page| {
        let entries = page.value("document.querySelector('#segments input[type=range]').max").await;
        assert!(entries.as_str().unwrap().parse::<u64>().unwrap() >= 1_000_000, "{entries}");
        let watch = "window.gaps = []; let last = performance.now(); \
            const frame = (now) => { window.gaps.push(now - last); last = now; requestAnimationFrame(frame); }; \
            requestAnimationFrame(frame); tonnage.frames.length = 0; tonnage.pictures.length = 0";
        page.browser.driver.execute(watch, []).await.unwrap();
        for _ in 0..12 {
            page.keys("+").await;
        }
        for _ in 0..12 {
            page.keys(Key::Right + "").await;
            page.drag("canvas.chart", (0.7, 0.5), (0.4, 0.5)).await;
        }
        for _ in 0..12 {
            page.keys("-").await;
        }
        page.drawn().await;
        // The moment moves with every frame, as under a hand that does not rest.
        let scrub = "window.scrubbed = []; const slider = document.querySelector('#segments input[type=range]'); \
            let before = performance.now(); let step = 0; const move = (now) => { if (step > 0) window.scrubbed.push(now - before); \
            before = now; step += 1; if (step > 200) { window.done = true; return; } \
            slider.value = String(Math.round(Number(slider.max) * step / 201)); slider.dispatchEvent(new Event('input')); \
            requestAnimationFrame(move); }; requestAnimationFrame(move);";
        page.browser.driver.execute(scrub, []).await.unwrap();
        page.wait("window.done").await;
        for name in ["tonnage.frames", "tonnage.pictures", "window.gaps", "window.scrubbed"] {
            let figures = page.value(&format!("(() => {{ const all = {name}.slice().sort((a, b) => a - b); \
                return [all.length, all[all.length >> 1], all[Math.floor(all.length * 0.95)]]; }})()")).await;
            println!(
                "{name}: {} of them, median {} ms, 95 % within {} ms",
                figures[0], figures[1], figures[2]
            );
            assert!(figures[0].as_u64().unwrap() > 0, "{name}: {figures}");
        }
        page.is_quiet().await;
    });
}

/// For whoever changes how the page looks: pictures under `target/pictures`; with `TONNAGE_UPDATE=1` the guide's too.
#[test]
#[ignore = "makes pictures to look at, checks nothing"]
fn pictures() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = root.join("target/pictures");
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["gpt2_varlen.default.stacks", "resnet50.tight", "multistream.default"] {
        visit(vec![(name, trace(name))], async |page| {
            page.keys("p]").await;
            page.keys(Key::Enter + "").await;
            page.wait("document.querySelector('#details dl')").await;
            page.wait("document.querySelector('#report [data-cause]')").await;
            for (scheme, width) in [("dark", 390), ("light", 390), ("dark", 1280), ("light", 1280)]
            {
                page.browser.set_scheme(scheme).await;
                page.browser.set_width(width).await;
                page.painted().await;
                page.drawn().await;
                let file = format!("view.{name}.{scheme}.{width}.png");
                page.browser.picture(&folder.join(file)).await;
            }
            if name == "resnet50.tight" && std::env::var_os("TONNAGE_UPDATE").is_some() {
                let guide = root.join("docs/pictures");
                std::fs::create_dir_all(&guide).unwrap();
                page.browser.driver.screenshot(&guide.join("view-timeline.png")).await.unwrap();
            }
        });
    }
}
