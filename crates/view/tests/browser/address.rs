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

/// Keeps back what the server answers to addresses with this in them, until `window.release()`.
async fn hold(page: &Page<'_>, part: &str) {
    let script = format!(
        "const held = new Promise((resolve) => {{ window.release = resolve; }}); const asked = window.fetch; \
         window.fetch = async (address, ...rest) => {{ \
           const answer = await asked(address, ...rest); if (String(address).includes('{part}')) await held; return answer; }}"
    );
    page.value(&format!("(() => {{ {script} }})()")).await;
}

#[test]
fn what_is_asked_for_last_is_shown_however_late_the_others_come() {
    let files = vec![
        ("first", trace("mlp_seed.default")),
        ("second", trace("mlp_seed.tight")),
        ("third", planted("fragmentation_sequences")),
    ];
    visit(files, async |page| {
        hold(page, "recordings/1/timeline").await;
        page.choose("#recordings", "1").await;
        page.choose("#recordings", "2").await;
        page.wait("document.title.startsWith('third')").await;
        page.value("window.release()").await;
        page.painted().await;
        let front =
            "[document.title.startsWith('third'), document.getElementById('recordings').value]";
        assert_eq!(page.value(front).await, json!([true, "2"]));

        // The answer to a question of another recording is not shown.
        page.open("what-if").await;
        hold(page, "/what-if").await;
        page.type_into("#what-if-conf", "expandable_segments:True").await;
        page.click("#what-if button.main").await;
        page.choose("#recordings", "0").await;
        page.wait("document.title.startsWith('first')").await;
        page.value("window.release()").await;
        page.wait("document.querySelectorAll('#recordings option').length === 4").await;
        page.painted().await;
        assert_eq!(page.value("document.querySelector('#what-if .result').hidden").await, true);
        page.is_quiet().await;
    });
}

#[test]
fn an_address_whose_values_are_refused_shows_the_rest() {
    visit(vec![("free", planted("fragmentation_sequences"))], async |page| {
        let address = page.browser.address.clone();
        page.follow(&format!(
            "{address}#memory?recording=0&if=nonsense%3A1&at=5&c.along=allocations"
        ))
        .await;
        page.wait("document.getElementById('said').textContent.includes('nonsense')").await;
        page.wait("document.title.startsWith('free')").await;
        let shown = "[document.querySelector('#segments input[type=range]').value, document.getElementById('compare-clock').value]";
        assert_eq!(page.value(shown).await, json!(["5", "allocations"]));
        // Half a limit that was typed after an answer is no question.
        page.follow(&format!("{address}#what-if?recording=0&w.conf=&w.limit=24&w.asked=1")).await;
        page.wait("document.getElementById('said').textContent.includes('24')").await;
        assert_eq!(page.value("document.getElementById('what-if-limit').value").await, "24");
    });
}
