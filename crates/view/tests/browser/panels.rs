//! The report, what-ifs, recordings side by side and the training step in a real Chromium, on the real server.

use std::path::Path;

use serde_json::{Value, json};
use thirtyfour::prelude::*;
use tonnage_snapshot::SnapshotFile;

use crate::hostile;
use crate::page::{Page, planted, trace, visit};

const CONTRAST: &str = include_str!("../../../html/tests/suite/support/contrast.js");

/// What makes the page wider than the window; nothing if it is not.
const WIDER: &str = "(() => { const root = document.documentElement; \
    return root.scrollWidth <= root.clientWidth ? [] : Array.from(document.querySelectorAll('body *')) \
        .filter((it) => it.getBoundingClientRect().right > root.clientWidth && !it.closest('.scrolls')) \
        .map((it) => it.tagName + '.' + it.getAttribute('class')); })()";

/// Opens one of the views.
async fn open(page: &Page<'_>, view: &str) {
    page.open(view).await;
}

async fn report(page: &Page<'_>) {
    page.wait("document.querySelector('#report .verdict')").await;
}

#[test]
fn a_cause_lights_up_the_blocks_that_it_blames() {
    visit(vec![("pinned", planted("pinned_segment_phases"))], async |page| {
        report(page).await;
        assert!(page.text(".verdict").await.contains("segments that a single live block kept"));
        page.click("[data-cause=pinned_segment]").await;
        let lit = page.text("#lit").await;
        // As many as the report counts.
        assert!(lit.contains("6 blocks are lit up"), "{lit}");
        assert_eq!(
            page.value("document.querySelector('[aria-pressed=true]').dataset.cause").await,
            "pinned_segment"
        );
        page.drawn().await;
        page.click("[data-cause=pinned_segment]").await;
        assert_eq!(page.value("document.querySelectorAll('[aria-pressed=true]').length").await, 0);
        assert_eq!(page.text("#lit").await, "");
        page.is_quiet().await;
    });
}

#[test]
fn free_memory_and_leaks_are_blamed_by_what_lay_there_and_what_stays() {
    let files = vec![("free", planted("fragmentation_sequences")), ("leak", planted("leak_view"))];
    visit(files, async |page| {
        report(page).await;
        page.click("[data-cause=fragmentation]").await;
        assert!(page.text("#lit").await.contains("3 blocks are lit up"));
        page.choose("#recordings", "1").await;
        page.wait("document.querySelector('[data-cause=leak]')").await;
        page.click("[data-cause=leak]").await;
        let lit = page.text("#lit").await;
        assert!(lit.contains("do not free") && !lit.contains("Nothing"), "{lit}");
        page.is_quiet().await;
    });
}

#[test]
fn a_line_of_the_peak_becomes_the_filter() {
    visit(vec![("free", planted("fragmentation_sequences"))], async |page| {
        report(page).await;
        page.click("#report [aria-label='By line'] button").await;
        page.wait("document.getElementById('query').value.startsWith('line:')").await;
        page.wait("/[0-9] allocations? match/.test(document.getElementById('filter').textContent)")
            .await;
        page.is_quiet().await;
    });
}

/// From a snapshot to the fix: the advice, what it does, the line to paste.
#[test]
fn advice_is_tried_at_a_click_and_both_timelines_are_drawn() {
    visit(vec![("free", planted("fragmentation_sequences"))], async |page| {
        report(page).await;
        let line = page.text(".advice .copy code").await;
        assert!(
            line.starts_with("export PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True"),
            "{line}"
        );
        page.value("Array.from(document.querySelectorAll('.advice li > button')).at(0).click()")
            .await;
        page.wait("document.querySelector('#what-if .result') && !document.querySelector('#what-if .result').hidden").await;
        let lead = page.text("#what-if .result .lead").await;
        assert!(lead.contains("instead of 1.19 GiB") && lead.contains("less"), "{lead}");
        assert!(page.colours("#what-if .overlay canvas").await > 5);
        // The ranking comes with it, and has the recorded settings.
        page.wait("document.querySelector('.candidate')").await;
        assert!(page.text(".bars").await.contains("as recorded"));
        let before = page.value("document.querySelectorAll('#recordings option').length").await;
        page.value("Array.from(document.querySelectorAll('.candidate')).at(-1).click()").await;
        page.wait(&format!("document.querySelectorAll('#recordings option').length > {before}"))
            .await;
        page.is_quiet().await;
    });
}

#[test]
fn settings_that_the_engine_refuses_are_said_to_be_wrong() {
    visit(vec![("free", planted("fragmentation_sequences"))], async |page| {
        open(page, "what-if").await;
        page.type_into("#what-if-conf", "max_split_size_mb:few").await;
        page.click("#what-if button.main").await;
        page.wait("document.getElementById('said').classList.contains('wrong')").await;
        let said = page.text("#said").await;
        assert!(said.contains("max_split_size_mb"), "{said}");
        // Knobs and string are one thing.
        page.value("document.getElementById('what-if-conf').value = ''").await;
        page.choose("#knob-expandable_segments", "True").await;
        let set = "const knob = document.getElementById('knob-expandable_segments'); \
                   knob.dispatchEvent(new Event('input')); return document.getElementById('what-if-conf').value";
        assert_eq!(page.browser.value(set).await, "expandable_segments:True");
    });
}

#[test]
fn recordings_stand_side_by_side_and_two_of_them_are_compared() {
    let files =
        vec![("rank 0", trace("resnet50.default")), ("rank 1", trace("resnet50.expandable"))];
    visit(files, async |page| {
        open(page, "compare").await;
        page.wait("document.querySelectorAll('.multiples figure').length === 2").await;
        assert_eq!(page.value("document.querySelectorAll('#compare tbody tr').length").await, 2);
        assert!(page.text("#compare > [role=status]").await.contains("reserves most"));
        page.wait(
            "document.querySelector('#compare .two .lead').textContent.includes('at the peak')",
        )
        .await;
        for clock in ["time", "allocations", "entries"] {
            page.choose("#compare-clock", clock).await;
            page.wait("document.querySelectorAll('.multiples canvas').length === 2").await;
        }
        page.click("#compare tbody tr:nth-child(2) button").await;
        page.wait("document.title.startsWith('rank 1')").await;
        page.is_quiet().await;
    });
}

async fn figures(page: &Page<'_>) -> Value {
    page.value("Array.from(document.querySelectorAll('#training tbody tr:first-child .exact'), (it) => it.textContent)").await
}

#[test]
fn each_move_of_a_slider_predicts_anew_and_the_figures_are_exact() {
    visit(vec![("free", planted("fragmentation_sequences"))], async |page| {
        open(page, "training").await;
        page.wait("document.getElementById('training').dataset.took").await;
        let before = figures(page).await;
        // What `tonnage predict deepnet` says.
        assert_eq!(before[0], "169,148,928", "{before}");
        assert!(page.text("#training .lead").await.contains("backward sets it"));
        page.type_into("#size-batch", Key::Right + "").await;
        page.wait(&format!(
            "document.querySelector('#training tbody .exact').textContent !== {}",
            before[0]
        ))
        .await;
        let command = page.text("#training .copy code").await;
        assert!(
            command.starts_with("tonnage predict deepnet") && command.contains("--batch 144"),
            "{command}"
        );
        // With a batch this large, checkpoints more than halve the peak.
        let typed = "const field = document.querySelector('#size-batch').parentElement.querySelector('[type=number]'); \
                     field.value = 16384; field.dispatchEvent(new Event('change'))";
        page.browser.value(typed).await;
        page.wait(
            "document.querySelector('#training .copy code').textContent.includes('--batch 16384')",
        )
        .await;
        let lead = page.text("#training .lead").await;
        assert!(lead.contains("√n checkpoints need") && lead.ends_with("less."), "{lead}");
        assert!(page.colours("#training .step canvas").await > 5);
        page.is_quiet().await;
    });
}

#[test]
fn every_recipe_and_technique_is_predicted() {
    visit(vec![("free", planted("fragmentation_sequences"))], async |page| {
        open(page, "training").await;
        page.wait("document.getElementById('training').dataset.took").await;
        let names = page
            .value("Array.from(document.querySelectorAll('#recipe option'), (it) => it.value)")
            .await;
        for name in names.as_array().unwrap() {
            let name = name.as_str().unwrap();
            page.choose("#recipe", name).await;
            page.wait(&format!("document.querySelector('#training .copy code').textContent.includes('predict {name}')")).await;
            // The larger ones of a family have the techniques of the smallest.
            if name.starts_with("gpt2") && name != "gpt2-tiny" {
                continue;
            }
            for list in ["amp", "checkpoint", "optimizer", "accumulate"] {
                // What does not train has none.
                let there = format!("Boolean(document.getElementById('choice-{list}'))");
                if page.value(&there).await != json!(true) {
                    continue;
                }
                // The first of each list is the default, which the command leaves out.
                // Two parts are what the smallest batch splits into.
                let which = if list == "accumulate" { "nth-child(2)" } else { "last-child" };
                let last = format!("document.querySelector('#choice-{list} option:{which}').value");
                let last = page.value(&last).await;
                let value = last.as_str().unwrap();
                page.choose(&format!("#choice-{list}"), value).await;
                page.wait(&format!(
                    "document.querySelector('#training .copy code').textContent.includes('--{list} {value}')"
                ))
                .await;
            }
        }
        page.is_quiet().await;
    });
}

#[test]
fn a_step_has_an_axis_and_a_gpu_to_fit_into() {
    visit(vec![("free", planted("fragmentation_sequences"))], async |page| {
        page.open("training").await;
        page.wait("document.getElementById('training').dataset.took").await;
        let picture = "document.querySelector('#training .step canvas').toDataURL()";
        let mut pictures = vec![page.value(picture).await];
        for along in ["arithmetic", "kernels"] {
            page.choose("#training-along", along).await;
            let title = page.text("#training .axis").await.to_lowercase();
            assert!(title.starts_with(along), "{title}");
            pictures.push(page.value(picture).await);
        }
        assert!(pictures[0] != pictures[1] && pictures[1] != pictures[2]);
        let limit = async |text: &str, said: &str| {
            page.choose("#training-limit", text).await;
            page.wait(&format!(
                "document.querySelector('#training .fits').textContent.startsWith('{said}')"
            ))
            .await;
        };
        // It reserves 166 MiB.
        limit("1GiB", "It fits").await;
        limit("64MiB", "It does not fit").await;
        page.choose("#recipe", "mlp").await;
        page.click("#training .gpu button").await;
        page.wait("document.querySelector('#training .fits').textContent.includes('Each was run')")
            .await;
        let said = page.text("#training .fits").await;
        assert!(said.contains("64.00 MiB"), "{said}");
        for (recipe, size) in [("resnet50", "image"), ("mimo", "antennas")] {
            page.choose("#recipe", recipe).await;
            page.wait(&format!("document.getElementById('size-{size}') && \
                document.querySelector('#training .copy code').textContent.includes('predict {recipe}')")).await;
        }
        assert_eq!(
            page.value("document.querySelectorAll('#training .techniques select').length").await,
            0
        );
        page.is_quiet().await;
    });
}

/// A replay that does not end stands for one that takes long.
#[test]
fn a_long_history_is_reported_at_once_and_the_replay_can_be_done_without() {
    visit(vec![("long", crate::large::recording(210_000))], async |page| {
        let endless = "const real = window.fetch; window.fetch = (path, init) => String(path).endsWith('/report') \
            ? new Promise((_, fail) => init?.signal?.addEventListener('abort', () => fail(new DOMException('', 'AbortError')))) \
            : real(path, init);";
        let source = json!({ "source": endless });
        page.browser
            .driver
            .cdp()
            .send_raw("Page.addScriptToEvaluateOnNewDocument", source)
            .await
            .unwrap();
        let address = page.address().await;
        page.follow(&address).await;
        page.wait("document.querySelector('#report .waits button')").await;
        // What needs no replay is there meanwhile.
        assert!(page.text("#report .verdict").await.contains("Reserved memory peaked"));
        page.click("#report .waits button").await;
        page.wait("!document.querySelector('#report .waits')").await;
        assert!(page.text("#report .verdict").await.contains("Reserved memory peaked"));
    });
}

#[test]
fn names_that_are_markup_or_script_stay_text_in_every_panel() {
    visit(
        vec![("hostile", hostile::recording()), ("free", planted("fragmentation_sequences"))],
        async |page| {
            report(page).await;
            page.click("#report .cause").await;
            for view in ["what-if", "compare"] {
                open(page, view).await;
            }
            page.wait("document.querySelector('.multiples figure')").await;
            page.wait("document.querySelector('#what-if .ask .muted').textContent !== ''").await;
            let counted = "['script', 'img', 'iframe', 'svg'].map((it) => document.querySelectorAll(it).length)";
            assert_eq!(page.value(counted).await, json!([1, 0, 0, 0]));
            let text = page.value("document.querySelector('main').textContent").await;
            let text = text.as_str().unwrap();
            for hidden in ['\u{202e}', '\u{2028}', '\u{200b}', '\0', '\u{1b}'] {
                assert!(!text.contains(hidden), "{hidden:?}");
            }
            assert!(text.contains("<script>document.title='run'</script>"));
            assert!(text.len() < 1 << 20, "{} bytes", text.len());
            page.browser.set_width(390).await;
            assert_eq!(page.value(WIDER).await, json!([]));
            page.is_quiet().await;
        },
    );
}

/// Fills every panel, and leaves the page at the first view.
async fn everything(page: &Page<'_>) {
    report(page).await;
    page.click("[data-cause=fragmentation]").await;
    open(page, "training").await;
    page.wait("document.getElementById('training').dataset.took").await;
    open(page, "what-if").await;
    page.wait("document.querySelector('.candidate')").await;
    page.click(".candidate").await;
    page.wait("!document.querySelector('#what-if .result').hidden").await;
    open(page, "compare").await;
    page.wait("document.querySelectorAll('.multiples figure').length >= 3").await;
    open(page, "memory").await;
}

fn both() -> Vec<(&'static str, SnapshotFile)> {
    vec![("sequences", planted("fragmentation_sequences")), ("leak", planted("leak_view"))]
}

#[test]
fn every_panel_contrasts_in_light_and_dark_and_fits_a_phone() {
    visit(both(), async |page| {
        everything(page).await;
        for view in ["memory", "what-if", "compare", "training"] {
            open(page, view).await;
            for scheme in ["light", "dark"] {
                page.browser.set_scheme(scheme).await;
                page.painted().await;
                let found = page.browser.value(CONTRAST).await;
                assert_eq!(found["weak"], json!([]), "{view}, {scheme}");
            }
            for width in [390, 768, 1280, 2560] {
                page.browser.set_width(width).await;
                page.painted().await;
                assert_eq!(page.value(WIDER).await, json!([]), "{view} at {width}");
            }
        }
        let nameless = "Array.from(document.querySelectorAll('main button, main input, main select, main [role=img]')) \
            .filter((it) => !(it.getAttribute('aria-label') || it.textContent.trim() || it.labels?.length)) \
            .map((it) => it.outerHTML.slice(0, 200))";
        assert_eq!(page.value(nameless).await, json!([]));
        page.is_quiet().await;
    });
}

/// For whoever changes how the page looks: pictures of it under `target/pictures`.
#[test]
#[ignore = "makes pictures to look at, checks nothing"]
fn pictures() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/pictures");
    std::fs::create_dir_all(&folder).unwrap();
    let ranks =
        ["resnet50.default", "resnet50.expandable", "resnet50.gc60"].map(|it| (it, trace(it)));
    let opened: [(&str, Vec<(&str, SnapshotFile)>); 4] = [
        ("oom", vec![("mlp_seed.tight.pickle", trace("mlp_seed.tight"))]),
        ("leak", vec![("leak_view.pickle", planted("leak_view"))]),
        ("healthy", vec![("gpt2_varlen", trace("gpt2_varlen.default.stacks"))]),
        ("ranks", ranks.into()),
    ];
    for (name, files) in opened {
        visit(files, async |page| {
            page.wait("document.getElementById('opening').dataset.known === 'true'").await;
            let views: &[&str] =
                if name == "ranks" { &["compare", "training"] } else { &["memory"] };
            if name == "oom" {
                page.click("#report .cause").await;
            }
            for &view in views {
                open(page, view).await;
                let there = "document.getElementById('training').dataset.took || document.querySelectorAll('.multiples figure').length > 2 || !document.getElementById('memory').hidden";
                page.wait(there).await;
                for (scheme, width) in [("light", 1280), ("dark", 1280), ("light", 390)] {
                    page.browser.set_scheme(scheme).await;
                    page.browser.set_width(width).await;
                    page.drawn().await;
                    page.painted().await;
                    page.browser
                        .picture(&folder.join(format!("{name}.{view}.{scheme}.{width}.png")))
                        .await;
                }
                page.browser.set_width(1000).await;
                page.browser.set_print().await;
                page.painted().await;
                page.browser.picture(&folder.join(format!("{name}.{view}.paper.png"))).await;
                page.browser.set_scheme("light").await;
            }
        });
    }
}

/// The pictures of the guide, as someone sees them who follows it.
#[test]
#[ignore = "makes pictures, checks nothing"]
fn pictures_of_the_guide() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures");
    let name = "fragmentation_sequences.pickle.gz";
    visit(vec![(name, planted("fragmentation_sequences"))], async |page| {
        let keep = async |name: &str| {
            page.painted().await;
            let picture = page.browser.driver.screenshot_as_png().await.unwrap();
            std::fs::write(folder.join(name), picture).unwrap();
        };
        report(page).await;
        page.click("[data-cause=fragmentation]").await;
        page.drawn().await;
        page.value("scrollTo(0, 0)").await;
        keep("view-cause.png").await;
        page.value("document.querySelector('.advice li > button').click()").await;
        page.wait("document.querySelector('#what-if .result') && !document.querySelector('#what-if .result').hidden").await;
        page.wait("document.querySelector('.candidate')").await;
        page.value("document.querySelector('#what-if .result').scrollIntoView()").await;
        keep("view-what-if.png").await;
        open(page, "training").await;
        page.wait("document.getElementById('training').dataset.took").await;
        let typed = "const field = document.querySelector('#size-batch').parentElement.querySelector('[type=number]'); \
                     field.value = 8192; field.dispatchEvent(new Event('change'))";
        page.browser.value(typed).await;
        page.wait(
            "document.querySelector('#training .copy code').textContent.includes('--batch 8192')",
        )
        .await;
        keep("view-training.png").await;
    });
}
