//! Everything is in the address: a reload and a shared link show the same.

use serde_json::{Value, json};

use crate::page::{Page, planted, trace, visit};

/// What someone sees who looks at the memory view.
async fn seen(page: &Page<'_>) -> Value {
    page.wait("document.getElementById('opening').dataset.known === 'true'").await;
    page.drawn().await;
    page.value(
        "({ recording: document.getElementById('recordings').value, \
            moment: document.querySelector('#segments input[type=range]').value, \
            query: document.getElementById('query').value, \
            colour: document.querySelectorAll('#timeline .toolbar select')[1].value, \
            axis: document.querySelector('#timeline .toolbar select').value, \
            fit: document.querySelector('#timeline .toolbar button').getAttribute('aria-pressed'), \
            details: document.querySelector('#details h2').textContent, \
            lit: document.querySelector('#lit h2')?.textContent ?? '', \
            picture: document.querySelector('canvas.chart').toDataURL() })",
    )
    .await
}

#[test]
fn a_link_restores_recording_zoom_filter_moment_and_choice() {
    let files =
        vec![("default", trace("mlp_seed.default")), ("stacks", trace("mlp_seed.default.stacks"))];
    visit(files, async |page| {
        page.choose("#recordings", "1").await;
        page.wait("document.title.startsWith('stacks')").await;
        page.keys("+++f").await;
        page.choose("#timeline .toolbar select", "time").await;
        page.choose("#timeline .toolbar label:nth-of-type(2) select", "size").await;
        page.filter("size:>1MiB").await;
        page.keys(",,]").await;
        page.keys(thirtyfour::Key::Enter + "").await;
        page.wait("document.querySelector('#details dl')").await;
        page.point(".legend", 0.5, 0.5).await;
        let address = page.address().await;
        let before = seen(page).await;
        page.follow(&address).await;
        page.wait("document.querySelector('#details dl')").await;
        assert_eq!(seen(page).await, before, "{address}");
        assert_eq!(page.address().await, address);
        // What the recording does not have, it does not show.
        page.follow(&address.replace("recording=1", "recording=77")).await;
        assert!(page.text("#said").await.contains("not open here"));
        page.is_quiet().await;
    });
}

#[test]
fn a_link_restores_the_cause_and_a_what_if_that_the_server_has_let_go() {
    visit(vec![("sequences", planted("fragmentation_sequences"))], async |page| {
        page.wait("document.querySelector('[data-cause=fragmentation]')").await;
        page.click("[data-cause=fragmentation]").await;
        let address = page.address().await;
        let before = seen(page).await;
        page.follow(&address).await;
        page.wait("document.querySelector('#lit h2')").await;
        assert_eq!(seen(page).await, before, "{address}");

        page.open("what-if").await;
        let ask = async |conf: &str| {
            let typed = format!(
                "const field = document.getElementById('what-if-conf'); field.value = '{conf}'; \
                field.dispatchEvent(new Event('input', {{ bubbles: true }})); field.form.requestSubmit()"
            );
            page.value(&format!("(() => {{ {typed} }})()")).await;
            page.wait(&format!("document.querySelector('#what-if .result h2')?.textContent === '{conf}' && !document.querySelector('#what-if button.main').disabled")).await;
        };
        ask("expandable_segments:True").await;
        let asked = page.address().await;
        page.click("#what-if .result .head button").await;
        page.wait("document.title.startsWith('what if')").await;
        let made = page.address().await;
        // It names what it was made from.
        let listed =
            "Array.from(document.querySelectorAll('#recordings option'), (it) => it.textContent)";
        let names = page.value(listed).await;
        assert_eq!(
            names[1], "what if: expandable_segments:True of sequences · device 0",
            "{names}"
        );
        page.open("what-if").await;
        for size in 21..30 {
            ask(&format!("max_split_size_mb:{size}")).await;
        }
        // Of what-ifs the last eight are kept: those that went are offered no more.
        let names = page.value(listed).await;
        assert_eq!(names.as_array().unwrap().len(), 9, "{names}");
        assert!(!names.to_string().contains("expandable_segments"), "{names}");
        page.follow(&made).await;
        page.wait("document.title.startsWith('what if: expandable_segments:True')").await;
        page.follow(&asked).await;
        page.wait("document.querySelector('#what-if .result h2')?.textContent === 'expandable_segments:True'").await;
        page.is_quiet().await;
    });
}

#[test]
fn a_link_restores_sliders_and_the_table_of_recordings() {
    let files = vec![
        ("rank 0", trace("mlp_seed.default")),
        ("rank 1", trace("mlp_seed.expandable")),
        ("rank 2", trace("mlp_seed.split128")),
    ];
    visit(files, async |page| {
        page.open("training").await;
        page.wait("document.getElementById('training').dataset.took").await;
        page.choose("#recipe", "gpt2-tiny").await;
        page.choose("#choice-amp", "bf16").await;
        page.type_into("#size-batch", thirtyfour::Key::Right + "").await;
        let command = "document.querySelector('#training .copy code').textContent";
        page.wait(&format!("{command}.includes('--batch') && {command}.includes('bf16')")).await;
        let (address, before) = (page.address().await, page.value(command).await);
        page.follow(&address).await;
        page.wait(&format!(
            "document.querySelector('#training .copy code') && {command} === {before}"
        ))
        .await;

        page.open("compare").await;
        page.wait("document.querySelectorAll('.multiples figure').length === 3").await;
        page.click("#compare [data-by=reserved]").await;
        page.choose("#compare-clock", "allocations").await;
        page.value("(() => { const field = document.getElementById('compare-find'); field.value = 'rank'; field.dispatchEvent(new Event('input')); })()").await;
        page.choose("#compare-first", "2").await;
        let rows =
            "Array.from(document.querySelectorAll('#compare tbody th'), (it) => it.textContent)";
        let (address, before) = (page.address().await, page.value(rows).await);
        page.follow(&address).await;
        page.wait("document.querySelectorAll('.multiples figure').length === 3").await;
        assert_eq!(page.value(rows).await, before);
        assert_eq!(page.value("[document.getElementById('compare-clock').value, document.getElementById('compare-first').value, document.getElementById('compare-find').value]").await, json!(["allocations", "2", "rank"]));
        page.is_quiet().await;
    });
}

#[test]
fn the_back_button_goes_back_to_what_was_shown() {
    visit(vec![("default", trace("mlp_seed.default"))], async |page| {
        page.keys("++").await;
        page.address().await;
        let before = seen(page).await;
        page.click("nav a[href='#compare']").await;
        page.wait("!document.getElementById('compare').hidden").await;
        assert_eq!(
            page.value("document.querySelector('nav [aria-current=page]').textContent").await,
            "Compare"
        );
        page.browser.driver.back().await.unwrap();
        page.wait("!document.getElementById('memory').hidden").await;
        page.address().await;
        assert_eq!(seen(page).await, before);
        page.is_quiet().await;
    });
}
