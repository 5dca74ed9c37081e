//! What the page shows first: the failure or the peak, and what a cause means.

use serde_json::json;

use crate::page::{Page, planted, trace, visit};

async fn answered(page: &Page<'_>) {
    page.wait("document.getElementById('opening').dataset.known === 'true'").await;
}

#[test]
fn the_page_opens_on_the_failure_with_a_sentence_three_figures_and_the_fix() {
    visit(vec![("tight", trace("mlp_seed.tight"))], async |page| {
        answered(page).await;
        let sentence = page.text("#opening h2").await;
        assert!(
            sentence.starts_with("The job ran out of memory: 16.00 MiB were asked for"),
            "{sentence}"
        );
        assert_eq!(page.value("document.querySelectorAll('#opening dl > div').length").await, 3);
        assert_eq!(page.value("document.querySelectorAll('#opening button').length").await, 1);
        // The moment is that of the failed request, entry 80.
        let moment = "document.querySelector('#segments input[type=range]').value";
        assert_eq!(page.value(moment).await, "81");
        assert!(page.text(".legend .marks").await.contains("out of memory"));
        let conf = page.text("#opening .fix").await;
        page.click("#opening button").await;
        page.wait("!document.querySelector('#what-if .result').hidden").await;
        let lead = page.text("#what-if .result .lead").await;
        // Under the limit that the job is known to have had, not without one.
        assert!(lead.starts_with(&format!("Under {conf} and a limit of")), "{lead}");
        page.is_quiet().await;
    });
}

#[test]
fn a_job_that_ran_through_opens_on_its_peak() {
    visit(vec![("default", trace("mlp_seed.default"))], async |page| {
        answered(page).await;
        let sentence = page.text("#opening h2").await;
        assert!(sentence.starts_with("At its peak the job reserved 208.00 MiB: "), "{sentence}");
        let figures = page.text("#segments-figures").await;
        assert!(figures.contains("208.00 MiB reserved"), "{figures}");
        page.is_quiet().await;
    });
}

/// The failed request has its name in the picture: without it, all else is the same but the name's pixels.
#[test]
fn the_failed_request_is_labelled_in_the_timeline() {
    visit(vec![("tight", trace("mlp_seed.tight"))], async |page| {
        page.drawn().await;
        let drawn = "window.said = []; const kept = CanvasRenderingContext2D.prototype.fillText; \
            CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) { window.said.push(text); kept.call(this, text, ...rest); }";
        page.browser.driver.execute(drawn, []).await.unwrap();
        page.keys("0").await;
        page.painted().await;
        let said = page.value("window.said").await;
        let has = |text: &str| said.as_array().unwrap().iter().any(|it| it == text);
        assert!(has("out of memory: 16.00 MiB asked for"), "{said}");
        assert!(has("Entries of the history"), "{said}");
    });
}

#[test]
fn a_cause_is_explained_above_the_timeline_and_its_free_pieces_are_marked() {
    visit(vec![("sequences", planted("fragmentation_sequences"))], async |page| {
        answered(page).await;
        let size = page.text("[data-cause=fragmentation] .size").await;
        page.click("[data-cause=fragmentation]").await;
        page.drawn().await;
        let said = page.text("#lit").await;
        // All that the report counts, to the byte in its own words, and nothing else.
        assert!(said.contains(&format!("pieces are marked, {size} in all")), "{said}");
        assert!(page.text("#lit h2").await == "Fragmentation", "{said}");
        let seen = "(() => { const box = document.getElementById('lit').getBoundingClientRect(); \
                    return box.top >= 0 && box.bottom <= innerHeight; })()";
        assert_eq!(page.value(seen).await, json!(true), "the explanation is not to be seen");
        assert!(page.text("#segments .states").await.contains("meant by the cause"));
        let map = "document.querySelector('.map canvas').toDataURL()";
        let marked = page.value(map).await;
        page.click("#lit button").await;
        assert_ne!(page.value(map).await, marked, "nothing is marked in the map");
        page.is_quiet().await;
    });
}
