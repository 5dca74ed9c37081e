//! Stacks on the page: searched, coloured and summed up by any frame; what happened entry by entry.

use serde_json::json;
use thirtyfour::prelude::*;

use crate::page::{Page, planted, trace, visit};

fn stacks() -> Vec<(&'static str, tonnage_snapshot::SnapshotFile)> {
    vec![("mlp_seed", trace("mlp_seed.default.stacks"))]
}

async fn flame(page: &Page<'_>) {
    let drawn = "(({ boxes, drawn }) => boxes > 3 && drawn === 'true')(document.querySelector('canvas.flame').dataset)";
    page.wait(drawn).await;
}

#[test]
fn frames_of_libraries_are_searched_and_coloured() {
    visit(stacks(), async |page| {
        // No line of the program has it: without stacks nothing would be found.
        page.filter("line:linear.py").await;
        assert!(page.text("#query-said").await.contains("No allocation matches"));
        page.filter("frame:linear.py").await;
        let said = page.text("#query-said").await;
        assert!(said.contains("allocations match"), "{said}");
        page.filter("linear.py").await;
        assert_eq!(page.text("#query-said").await, said);
        page.filter("").await;
        let program = page.text(".legend > ul").await;
        page.choose("#timeline .toolbar label:nth-of-type(2) select", "frame").await;
        page.wait(&format!(
            "document.querySelector('.legend > ul').innerText !== {}",
            json!(program)
        ))
        .await;
        page.drawn().await;
        let inner = page.text(".legend > ul").await;
        let deeper = "const depth = document.querySelector('.toolbar .depth'); depth.value = 1; depth.dispatchEvent(new Event('input'))";
        page.browser.driver.execute(deeper, []).await.unwrap();
        page.painted().await;
        assert_ne!(page.text(".legend > ul").await, inner, "the outermost call is another");
        page.is_quiet().await;
    });
}

#[test]
fn details_are_exact_and_their_lines_can_be_copied() {
    visit(stacks(), async |page| {
        page.keys("p]").await;
        page.keys(Key::Enter + "").await;
        page.wait("document.querySelector('#details .frames li')").await;
        let said = page.text("#details").await;
        assert!(said.contains(" bytes)"), "{said}");
        let copies = page
            .value("document.querySelector('#details .frames .copies').getAttribute('aria-label')")
            .await;
        let place = copies.as_str().unwrap().strip_prefix("Copy ").unwrap();
        let (file, line) = place.rsplit_once(':').unwrap();
        assert!(file.ends_with(".py") && line.parse::<u32>().is_ok(), "{place}");
        page.click("#details .frames .link").await;
        page.wait(
            "/[0-9] allocations? match/.test(document.getElementById('query-said').textContent)",
        )
        .await;
        let query = page.value("document.getElementById('query').value").await;
        assert_eq!(query, format!("frame:{place}"));
        page.is_quiet().await;
    });
}

#[test]
fn entries_around_the_moment_are_listed_and_lead_there() {
    visit(stacks(), async |page| {
        page.click("#events summary").await;
        page.wait("document.querySelectorAll('#events tbody tr').length === 15").await;
        let moment = "document.querySelector('#segments input[type=range]').value";
        let current = "document.querySelector('#events tr[aria-current] button').textContent.replaceAll(',', '')";
        assert_eq!(page.value(&format!("Number({moment}) - Number({current})")).await, 1);
        page.click("#events tbody tr:first-child button").await;
        page.painted().await;
        assert_eq!(page.value(&format!("Number({moment}) - Number({current})")).await, 1);
        let text = page.text("#events tbody").await;
        assert!(text.contains("allocated") || text.contains("freed"), "{text}");
        page.is_quiet().await;
    });
}

/// Whoever comes from another view sees what is in front now.
#[test]
fn the_flame_graph_is_that_of_the_recording_in_front_after_another_view() {
    let files = vec![
        ("one", trace("mlp_seed.default.stacks")),
        ("two", planted("fragmentation_sequences")),
    ];
    visit(files, async |page| {
        let blocks = "document.querySelectorAll('.largest-blocks tbody tr').length";
        page.follow(&format!("{}#compare", page.browser.address)).await;
        page.open("memory").await;
        flame(page).await;
        page.wait(&format!("{blocks} === 10")).await;
        let first = page.text(".largest-blocks tbody").await;
        page.open("compare").await;
        page.choose("#recordings", "1").await;
        page.wait("document.title.startsWith('two')").await;
        page.open("memory").await;
        page.wait(&format!("{blocks} > 0")).await;
        assert_ne!(page.text(".largest-blocks tbody").await, first);
        page.is_quiet().await;
    });
}

#[test]
fn the_flame_graph_follows_the_moment_and_filters_at_a_click() {
    visit(stacks(), async |page| {
        flame(page).await;
        let picture = "document.querySelector('canvas.flame').toDataURL()";
        let before = page.value(picture).await;
        assert!(page.colours("canvas.flame").await > 3);
        // The second row is the outermost call.
        page.click_at("canvas.flame", 0.2, 0.0).await;
        page.click_at("canvas.flame", 0.1, 0.15).await;
        page.wait("document.getElementById('query').value.startsWith('frame:')").await;
        page.wait(
            "/[0-9] allocations? match/.test(document.getElementById('query-said').textContent)",
        )
        .await;
        page.click("#flame .toolbar button").await;
        page.wait("document.getElementById('query').value === ''").await;
        page.value("(() => { const slider = document.querySelector('#segments input[type=range]'); slider.value = 30; slider.dispatchEvent(new Event('input')); })()").await;
        page.wait(&format!("{picture} !== {before}")).await;
        page.wait("document.querySelector('canvas.flame').dataset.drawn === 'true'").await;
        // The largest blocks are a click away.
        page.click(".largest-blocks button").await;
        page.wait("document.querySelector('#details dl')").await;
        page.type_into("canvas.flame", Key::Down + Key::Down + Key::Enter).await;
        page.wait("document.getElementById('query').value.startsWith('frame:')").await;
        assert!(page.text("#flame-said").await.contains("of what is live"));
        page.is_quiet().await;
    });
}
