//! How the page behaves: keys, fingers, paper, what stays where it is.

use base64::Engine;
use serde_json::{Value, json};
use thirtyfour::prelude::*;

use crate::page::{Page, planted, testdata, trace, visit};

async fn command(page: &Page<'_>, name: &str, parameters: Value) {
    page.browser.driver.cdp().send_raw(name, parameters).await.unwrap();
}

#[test]
fn after_keys_tooltip_and_legend_follow() {
    visit(vec![("mlp", trace("mlp_seed.default"))], async |page| {
        let told = async || (page.text(".plot .tooltip").await, page.text(".legend p").await);
        page.keys("p").await;
        let (tooltip, legend) = told().await;
        let allocated = tooltip.lines().next().unwrap().to_owned();
        assert!(
            allocated.ends_with(" allocated") && legend.contains(&allocated),
            "{tooltip}, {legend}"
        );
        for key in [",,,", "<", "."] {
            page.keys(key).await;
            let (tooltip, legend) = told().await;
            let allocated = tooltip.lines().next().unwrap();
            assert!(legend.contains(allocated), "after {key}: {tooltip}, {legend}");
        }
        // The slider moves the moment too, and then no one points any more.
        page.value("(() => { const slider = document.querySelector('#segments input[type=range]'); slider.value = 3; slider.dispatchEvent(new Event('input')); })()").await;
        page.painted().await;
        assert!(page.text(".legend p").await.to_lowercase().contains("after entry 2 "));
        page.is_quiet().await;
    });
}

#[test]
fn the_skip_link_leads_to_the_content_and_the_view_stays() {
    visit(vec![("mlp", trace("mlp_seed.default"))], async |page| {
        page.open("compare").await;
        page.value("document.querySelector('.skip').click()").await;
        page.painted().await;
        assert_eq!(page.value("document.activeElement.id").await, "main");
        assert_eq!(page.value("document.getElementById('compare').hidden").await, false);
        let current = "Array.from(document.querySelectorAll('nav [aria-current]'), (it) => [it.textContent, it.getAttribute('aria-current')])";
        assert_eq!(page.value(current).await, json!([["Compare", "page"]]));
    });
}

#[test]
fn a_phase_has_its_whole_name_where_the_pointer_rests() {
    visit(vec![("annotated", planted("leak_outputs_annotated"))], async |page| {
        let height = page.value("document.querySelector('canvas.chart').clientHeight").await;
        let down = 25.0 / height.as_f64().unwrap();
        let mut told = String::new();
        // Optimizers leave marks here and there.
        for place in 10..95 {
            page.point("canvas.chart", f64::from(place) / 100.0, down).await;
            told = page.text(".plot .tooltip").await;
            if !told.is_empty() {
                break;
            }
        }
        assert!(told.starts_with("Optimizer.") && told.contains("entries "), "{told}");
        assert!(page.text(".legend .marks").await.contains("phase"));
    });
}

#[test]
fn nothing_moves_while_the_moment_does() {
    visit(vec![("streams", trace("multistream.default"))], async |page| {
        page.keys("p]").await;
        page.keys(Key::Enter + "").await;
        page.wait("document.querySelector('#report [data-cause]') && document.querySelector('#details dl')").await;
        let places = "['#timeline .overview', '#segments .map', '#events', '#flame', '#details', '#report'] \
            .map((it) => [it, Math.round(document.querySelector(it).getBoundingClientRect().top + scrollY)])";
        let before = page.value(places).await;
        let most = page
            .value("Number(document.querySelector('#segments input[type=range]').max)")
            .await
            .as_f64()
            .unwrap();
        for part in [0.0, 0.1, 0.3, 0.5, 0.8, 1.0] {
            let moment = (most * part).round();
            page.value(&format!("(() => {{ const slider = document.querySelector('#segments input[type=range]'); slider.value = {moment}; slider.dispatchEvent(new Event('input')); }})()")).await;
            page.painted().await;
            assert_eq!(page.value(places).await, before, "at moment {moment}");
        }
    });
}

#[test]
fn two_fingers_come_closer() {
    visit(vec![("mlp", trace("mlp_seed.default"))], async |page| {
        let shown = async || {
            let address = page.address().await;
            let value = |name: &str| {
                address
                    .split(['?', '&'])
                    .find_map(|it| it.strip_prefix(name))
                    .map(|it| it.parse::<f64>().unwrap())
            };
            (value("from="), value("to="))
        };
        assert_eq!(shown().await, (None, None));
        let place = "(() => { const box = document.querySelector('canvas.chart').getBoundingClientRect(); return [box.left + box.width / 2, box.top + box.height / 2]; })()";
        let middle = page.value(place).await;
        let (x, y) = (middle[0].as_f64().unwrap(), middle[1].as_f64().unwrap());
        let fingers = |apart: f64| json!([{ "x": x - apart, "y": y, "id": 1 }, { "x": x + apart, "y": y, "id": 2 }]);
        command(
            page,
            "Input.dispatchTouchEvent",
            json!({ "type": "touchStart", "touchPoints": fingers(50.0) }),
        )
        .await;
        for apart in [80.0, 120.0, 200.0] {
            command(
                page,
                "Input.dispatchTouchEvent",
                json!({ "type": "touchMove", "touchPoints": fingers(apart) }),
            )
            .await;
        }
        command(page, "Input.dispatchTouchEvent", json!({ "type": "touchEnd", "touchPoints": [] }))
            .await;
        let (from, to) = shown().await;
        assert!(from.unwrap() > 0.0 && to.unwrap() > from.unwrap(), "{from:?} {to:?}");
        page.is_quiet().await;
    });
}

#[test]
fn paper_loses_nothing() {
    visit(vec![("stacks", trace("mlp_seed.default.stacks"))], async |page| {
        page.wait("document.querySelector('#report details')").await;
        page.browser.set_print().await;
        page.painted().await;
        let lost = "Array.from(document.querySelectorAll('#opening dd, .legend .label, .legend .marks li, .states li, #report .cause, #report .holder, #report summary, #report .inner li, .largest-blocks td')) \
            .filter((it) => !it.hidden && it.textContent.trim() !== '' && it.getClientRects().length === 0).map((it) => it.outerHTML.slice(0, 120))";
        assert_eq!(page.value(lost).await, json!([]));
        // What is only of use on a screen is not there.
        for tool in ["nav", ".query", "#timeline .toolbar button", "#opening .act"] {
            let there = format!("document.querySelector('{tool}').getClientRects().length");
            assert_eq!(page.value(&there).await, 0, "{tool}");
        }
        page.value("window.dispatchEvent(new Event('afterprint'))").await;
        assert_eq!(page.value("document.querySelector('#report details').open").await, false);
    });
}

#[test]
fn a_file_that_is_dropped_is_opened() {
    visit(vec![("mlp", trace("mlp_seed.default"))], async |page| {
        let file = std::fs::read(testdata().join("snapshots/release_2_6.p4.pickle")).unwrap();
        let file = base64::prelude::BASE64_STANDARD.encode(file);
        let drop = format!(
            "const bytes = Uint8Array.from(atob('{file}'), (it) => it.charCodeAt(0)); const moved = new DataTransfer(); \
             moved.items.add(new File([bytes], 'dropped.pickle')); \
             window.dispatchEvent(new DragEvent('drop', {{ dataTransfer: moved, cancelable: true, bubbles: true }}))"
        );
        page.browser.driver.execute(drop, []).await.unwrap();
        page.wait("document.title.startsWith('dropped.pickle')").await;
        assert_eq!(page.value("document.querySelectorAll('#recordings option').length").await, 2);
        let broken = "const moved = new DataTransfer(); moved.items.add(new File(['nonsense'], 'broken.pickle')); \
             window.dispatchEvent(new DragEvent('drop', { dataTransfer: moved, cancelable: true, bubbles: true }))";
        page.browser.driver.execute(broken, []).await.unwrap();
        page.wait("document.getElementById('said').textContent.startsWith('broken.pickle: ')")
            .await;
    });
}

#[test]
fn recordings_are_named_with_their_device_sorted_and_found() {
    let mut two = trace("mlp_seed.default");
    let second = two.traces[0][..200].to_vec();
    two.traces.push(second);
    let files = vec![
        ("/a/very/long/path/to/some/experiment/rank10.pickle", two),
        ("/a/very/long/path/to/some/experiment/rank2.pickle", trace("mlp_seed.expandable")),
    ];
    visit(files, async |page| {
        page.open("compare").await;
        page.wait("document.querySelectorAll('.multiples figure').length === 3").await;
        let names = "Array.from(document.querySelectorAll('#compare tbody th'), (it) => it.firstChild.textContent)";
        let opened = page.value(names).await;
        assert_eq!(opened[1], "…/path/to/some/experiment/rank10.pickle · device 1", "{opened}");
        page.click("#compare [data-by=name]").await;
        let sorted = page.value(names).await;
        assert_eq!(sorted[0], "…/path/to/some/experiment/rank2.pickle · device 0", "{sorted}");
        assert_eq!(page.value("document.querySelector('#compare th[aria-sort=ascending]').textContent.startsWith('Recording')").await, true);
        page.value("(() => { const field = document.getElementById('compare-find'); field.value = 'device 1'; field.dispatchEvent(new Event('input')); })()").await;
        page.painted().await;
        assert_eq!(page.value("document.querySelectorAll('#compare tbody tr').length").await, 1);
        let said = page.text("#compare > [role=status]").await;
        assert!(said.contains("device "), "{said}");
        // On a phone nothing has to be moved sideways.
        page.browser.set_width(360).await;
        page.painted().await;
        let wider = "document.querySelector('#compare .scrolls').scrollWidth > document.querySelector('#compare .scrolls').clientWidth";
        assert_eq!(page.value(wider).await, false);
        page.is_quiet().await;
    });
}
