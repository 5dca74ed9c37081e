//! All ranks as a heat map in a real Chromium, on the real server.

use std::path::Path;

use serde_json::{Value, json};
use thirtyfour::prelude::*;
use tonnage_events::Bytes;
use tonnage_fleet::Facts;
use tonnage_view::{FleetPage, Recordings, Server, ViewOptions};

use crate::chromium::{Browser, browse};
use crate::fleets::{ODD, facts, folder, many, of, planted, row, seen};
use crate::hostile;
use crate::maker::Plant;
use crate::page::Page;

const CONTRAST: &str = include_str!("../../../html/tests/suite/support/contrast.js");

/// The map.
const MAP: &str = "canvas.ranks";

/// Opens the page of a fleet, and checks something about it once it is drawn.
fn visit(fleet: &FleetPage, check: impl AsyncFnOnce(&Page<'_>)) {
    let recordings = Recordings::new(ViewOptions::default());
    recordings.show_fleet(fleet.clone());
    let server = Server::bind(recordings, Some(0)).unwrap();
    let address = server.url();
    let _running = server.start().unwrap();
    browse("", async |blank| {
        blank.driver.goto(&address).await.unwrap();
        let browser = Browser { driver: blank.driver.clone(), address };
        let page = Page { browser: &browser };
        drawn(&page).await;
        check(&page).await;
    });
}

async fn drawn(page: &Page<'_>) {
    page.wait("document.documentElement.dataset.ready === 'true'").await;
    page.wait("document.getElementById('fleet').dataset.ready === 'true'").await;
    page.wait("Number(document.querySelector('canvas.ranks').dataset.drawn) > 0").await;
    page.painted().await;
}

/// Presses keys while the map has the focus.
async fn keys(page: &Page<'_>, keys: impl Into<TypingData>) {
    page.type_into(MAP, keys).await;
}

/// What is said of the cell at the cursor.
async fn said(page: &Page<'_>) -> String {
    page.text("#fleet-said").await
}

/// Figures as they are said.
fn figures(live: u64, reserved: u64) -> [String; 3] {
    let waste = format!("waste {:.2}", reserved as f64 / live as f64);
    [format!("{} reserved", Bytes(reserved)), format!("{} live requested", Bytes(live)), waste]
}

/// The names that the map has from its first place to its last.
async fn places(page: &Page<'_>, count: usize) -> Vec<String> {
    keys(page, Key::Control + Key::Home).await;
    let mut names = Vec::new();
    for _ in 0..count {
        let text = said(page).await;
        names.push(text.split([',', ';']).next().unwrap().split(" (").next().unwrap().to_owned());
        keys(page, Key::Down + "").await;
    }
    names
}

/// The colour that the map has in the middle of a cell, and those of the ramp's ends.
const COLOURS: &str = "const at = (x, y) => { const canvas = document.querySelector('canvas.ranks'); \
    const ratio = canvas.width / canvas.clientWidth; \
    const copy = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true }); \
    copy.drawImage(canvas, -Math.floor(x * ratio), -Math.floor(y * ratio)); \
    const [r, g, b] = copy.getImageData(0, 0, 1, 1).data; \
    return '#' + [r, g, b].map((it) => it.toString(16).padStart(2, '0')).join(''); }; \
    const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();";

/// Where ranks and steps lie on the map with twelve or thirteen ranks, none grouped, in CSS pixels.
const ROW: i64 = 22;
const TOP: i64 = 18;
const PEAK: i64 = 72 + 17;

#[test]
fn cells_have_the_figures_and_colours_of_their_ranks() {
    let folder = planted();
    let fleet = seen(folder.path());
    visit(&fleet, async |page| {
        let lead = page.text("#fleet .lead").await;
        assert!(lead.starts_with("13 files: 1 could not be read"), "{lead}");
        let columns = facts(&fleet, 0).iterations.len();
        assert!(columns > 3, "{columns}");
        // What keys and the pointer tell of a cell is what the rows have.
        for rank in [0, 3, 7, 11] {
            keys(page, Key::Control + Key::Home).await;
            for _ in 0..rank {
                keys(page, Key::Down + "").await;
            }
            let Facts { live, reserved, iterations, .. } = facts(&fleet, rank);
            let text = said(page).await;
            assert!(text.starts_with(&format!("rank {rank} (pp {}), peak", rank / 6)), "{text}");
            assert!(figures(*live, *reserved).iter().all(|it| text.contains(it)), "{text}");
            keys(page, Key::Right + Key::Right).await;
            let (text, it) = (said(page).await, &iterations[1]);
            assert!(text.contains(&format!("iteration {}", it.number)), "{text}");
            assert!(figures(it.live, it.reserved).iter().all(|it| text.contains(it)), "{text}");
        }
        let rank_at = |rank: i64| TOP + ROW * rank + ROW / 2;
        let at = async |rank: i64| {
            let script = format!("{COLOURS} return at({PEAK}, {})", rank_at(rank));
            page.browser.value(&script).await
        };
        let ends = format!("{COLOURS} return [css('--size-0'), css('--size-6'), css('--free')]");
        let ends = page.browser.value(&ends).await;
        // The most is darkest, and a file that could not be read has no colour.
        let most = (0..12).max_by_key(|&rank| facts(&fleet, rank).reserved).unwrap();
        assert_eq!((at(most as i64).await, at(12).await), (ends[1].clone(), ends[2].clone()));
        assert_ne!(at(0).await, at(6).await);
        for (figure, name) in [("live", "Live requested"), ("waste", "Waste")] {
            page.choose("#fleet-figure", figure).await;
            assert!(page.text(".legend-ranks").await.starts_with(name));
            let value = |rank: u64| {
                let it = facts(&fleet, rank);
                if figure == "live" { it.live as f64 } else { it.reserved as f64 / it.live as f64 }
            };
            // By this figure ranks are in the order of their colours.
            let mut ranks: Vec<u64> = (0..12).collect();
            ranks.sort_by(|a, b| value(*a).total_cmp(&value(*b)));
            let (least, most) = (at(ranks[0] as i64).await, at(ranks[11] as i64).await);
            let sum = |colour: &Value| {
                let colour = u32::from_str_radix(&colour.as_str().unwrap()[1..], 16).unwrap();
                (colour >> 16) + (colour >> 8 & 255) + (colour & 255)
            };
            assert!(sum(&least) > sum(&most), "{figure}: {least} {most}");
        }
        page.is_quiet().await;
    });
}

#[test]
fn near_the_limit_is_a_share_of_the_limit_and_a_warning_close_to_it() {
    let folder = planted();
    let fleet = seen(folder.path());
    let near = fleet.answer.near.clone().unwrap();
    visit(&fleet, async |page| {
        page.choose("#fleet-figure", "limit").await;
        let legend = page.text(".legend-ranks").await;
        assert!(legend.contains(&Bytes(near.limit).to_string()), "{legend}");
        assert!(legend.contains("which is concluded"), "{legend}");
        keys(page, Key::Control + Key::Home).await;
        let share = facts(&fleet, 0).reserved as f64 / near.limit as f64;
        let text = said(page).await;
        assert!(text.contains(&format!("{:.1} % of the limit", share * 100.0)), "{text}");
        // The one that set the limit is beyond the threshold.
        let most = (0..12).max_by_key(|&rank| facts(&fleet, rank).reserved).unwrap() as i64;
        let y = TOP + ROW * most + ROW / 2;
        let colours = format!("{COLOURS} return [at({PEAK}, {y}), css('--failed')]");
        let colours = page.browser.value(&colours).await;
        assert_eq!(colours[0], colours[1]);
        assert!(legend.contains("95.0 % and more"), "{legend}");
        page.is_quiet().await;
    });
    // Where none is known, it is said, and cannot be chosen.
    let rows: Vec<_> = (0..3).map(|rank| row(&fleet, rank).1.clone()).collect();
    visit(&of(rows, fleet), async |page| {
        let option = "document.querySelector('#fleet-figure [value=limit]')";
        assert_eq!(page.value(&format!("{option}.disabled")).await, true);
        assert!(
            page.value(&format!("{option}.textContent"))
                .await
                .as_str()
                .unwrap()
                .contains("--limit")
        );
    });
}

#[test]
fn ranks_are_sorted_and_grouped() {
    let folder = planted();
    let fleet = seen(folder.path());
    let ranks = |numbers: Vec<u64>| -> Vec<String> {
        numbers.into_iter().map(|it| format!("rank {it}")).collect()
    };
    visit(&fleet, async |page| {
        assert_eq!(places(page, 13).await, ranks((0..13).collect()));
        page.choose("#fleet-sort", "most").await;
        let mut by_peak: Vec<u64> = (0..12).collect();
        by_peak.sort_by_key(|&rank| (u64::MAX - facts(&fleet, rank).reserved, rank));
        let unread = 12;
        assert_eq!(places(page, 13).await, ranks([&by_peak[..], &[unread]].concat()));
        page.choose("#fleet-group", "pp").await;
        let stage = |pp: u64| by_peak.iter().copied().filter(move |it| it / 6 == pp);
        let grouped: Vec<u64> = stage(0).chain(stage(1)).chain([unread]).collect();
        assert_eq!(places(page, 13).await, ranks(grouped));
        page.choose("#fleet-group", "alike").await;
        page.choose("#fleet-sort", "rank").await;
        let group = |rank: u64| {
            let address = &row(&fleet, rank).1.address;
            let member = fleet.answer.members.iter().find(|it| it.whose.file == *address).unwrap();
            member.group.map_or(u64::MAX, |it| it as u64)
        };
        let mut alike: Vec<u64> = (0..13).collect();
        alike.sort_by_key(|&rank| (group(rank), rank));
        assert_eq!(places(page, 13).await, ranks(alike));
        // There are only parts that names have.
        let options =
            "Array.from(document.querySelectorAll('#fleet-group option'), (it) => it.value)";
        assert_eq!(page.value(options).await, json!(["none", "pp", "alike"]));
        page.is_quiet().await;
    });
}

#[test]
fn a_click_opens_the_page_of_a_rank_and_the_way_back_leads_to_the_map() {
    let folder = planted();
    let fleet = seen(folder.path());
    visit(&fleet, async |page| {
        page.choose("#fleet-sort", "most").await;
        keys(page, Key::Control + Key::Home).await;
        let first = said(page).await;
        let rank: u64 = first["rank ".len()..].split(' ').next().unwrap().parse().unwrap();
        let (x, y) = (PEAK as f64, (TOP + ROW / 2) as f64);
        let size = page.value("[document.querySelector('canvas.ranks').clientWidth, document.querySelector('canvas.ranks').clientHeight]").await;
        let (across, down) = (x / size[0].as_f64().unwrap(), y / size[1].as_f64().unwrap());
        page.point(MAP, across, down).await;
        let tooltip = page.text("#fleet .tooltip").await;
        assert!(tooltip.starts_with(&format!("rank {rank} ")), "{tooltip}");
        assert!(tooltip.contains(&Bytes(facts(&fleet, rank).reserved).to_string()), "{tooltip}");
        page.click_at(MAP, across, down).await;
        page.wait("!document.getElementById('memory').hidden").await;
        page.drawn().await;
        page.wait("document.getElementById('opening').dataset.known === 'true'").await;
        let title = page.value("document.title").await;
        assert_eq!(title, format!("{} · Tonnage", row(&fleet, rank).1.address));
        let opening = page.text("#opening").await;
        assert!(opening.contains(&Bytes(facts(&fleet, rank).reserved).to_string()), "{opening}");
        // The address names the rank: it opens it again.
        let address = page.address().await;
        assert!(address.contains(&format!("rank={}", row(&fleet, rank).0)), "{address}");
        page.browser.driver.back().await.unwrap();
        page.wait("!document.getElementById('fleet').hidden").await;
        assert_eq!(said(page).await, first);
        page.follow(&address).await;
        page.wait(&format!("document.title === {title}")).await;
        page.is_quiet().await;
    });
}

#[test]
fn two_ranks_are_compared_with_the_pointer_and_with_keys() {
    let folder = planted();
    let fleet = seen(folder.path());
    visit(&fleet, async |page| {
        let height = page.value("document.querySelector('canvas.ranks').clientHeight").await;
        let width = page.value("document.querySelector('canvas.ranks').clientWidth").await;
        for rank in [3, 4] {
            let y = (TOP + ROW * rank + ROW / 2) as f64 / height.as_f64().unwrap();
            let x = PEAK as f64 / width.as_f64().unwrap();
            let chain = page.browser.driver.action_chain().key_down(Key::Shift);
            chain.perform().await.unwrap();
            page.click_at(MAP, x, y).await;
            page.browser.driver.action_chain().key_up(Key::Shift).perform().await.unwrap();
        }
        assert_eq!(page.value("location.hash.startsWith('#fleet')").await, true);
        page.click("#fleet .chosen button.main").await;
        compared(page, &fleet, [3, 4]).await;
        page.open("fleet").await;
        keys(page, Key::Control + Key::Home).await;
        // Of three the first goes.
        keys(page, "x").await;
        let chosen = "Array.from(document.querySelectorAll('#fleet .chosen [aria-label]'), (it) => it.getAttribute('aria-label'))";
        assert_eq!(
            page.value(chosen).await,
            json!(["Do not compare rank 4", "Do not compare rank 0"])
        );
        keys(page, "c").await;
        compared(page, &fleet, [4, 0]).await;
        page.is_quiet().await;
    });
}

async fn compared(page: &Page<'_>, fleet: &FleetPage, ranks: [u64; 2]) {
    page.wait("!document.getElementById('compare').hidden").await;
    let [a, b] = ranks.map(|rank| {
        let address = &row(fleet, rank).1.address;
        address[address.rfind('/').unwrap() + 1..].to_owned()
    });
    let apart = "document.querySelector('#compare .two .lead').textContent";
    page.wait(&format!("{apart}.includes({}) && {apart}.includes({})", json!(a), json!(b))).await;
    let chosen =
        |id: &str| format!("document.getElementById('{id}').selectedOptions[0].textContent");
    let (first, second) = (chosen("compare-first"), chosen("compare-second"));
    page.wait(&format!("{first}.includes({}) && {second}.includes({})", json!(a), json!(b))).await;
    let told = page.value(apart).await;
    for rank in ranks {
        let reserved = Bytes(facts(fleet, rank).reserved).to_string();
        assert!(told.as_str().unwrap().contains(&reserved), "{told}");
    }
}

#[test]
fn snapshots_at_several_steps_are_columns_and_each_opens_its_own_file() {
    let files = folder(&[
        ("rank_0_step_10.pickle.zst", 0, Plant::Nothing),
        ("rank_0_step_20.pickle.zst", 1, Plant::Buffer(40 << 20)),
        ("rank_1_step_20.pickle.zst", 2, Plant::Nothing),
    ]);
    let fleet = seen(files.path());
    visit(&fleet, async |page| {
        keys(page, Key::Control + Key::Home).await;
        let [first, second] = [0, 1].map(|it| fleet.rows[it].facts().unwrap());
        let text = said(page).await;
        assert!(text.starts_with("rank 0, most of all snapshots"), "{text}");
        let most = first.reserved.max(second.reserved);
        assert!(text.contains(&format!("{} reserved", Bytes(most))), "{text}");
        for (step, facts) in [(10, first), (20, second)] {
            keys(page, Key::Right + "").await;
            let text = said(page).await;
            assert!(text.starts_with(&format!("rank 0, step {step}")), "{text}");
            assert!(
                figures(facts.live, facts.reserved).iter().all(|it| text.contains(it)),
                "{text}"
            );
        }
        keys(page, Key::Down + Key::Left).await;
        assert!(said(page).await.contains("nothing is kept of this"));
        keys(page, Key::Up + Key::Enter).await;
        page.wait("document.title.includes('rank_0_step_10')").await;
        page.is_quiet().await;
    });
}

#[test]
fn ranks_without_iterations_are_one_column() {
    let folder = planted();
    let mut fleet = seen(folder.path());
    let clear = |row: &mut tonnage_fleet::Row| {
        if let tonnage_fleet::Seen::Facts(facts) = &mut row.seen {
            facts.iterations.clear();
        }
    };
    clear(&mut fleet.rows[1]);
    visit(&of(fleet.rows.clone(), fleet.clone()), async |page| {
        keys(page, Key::Control + Key::Home).await;
        keys(page, Key::Down + Key::Right).await;
        assert!(said(page).await.contains("nothing is kept of this"), "{}", said(page).await);
        keys(page, Key::Left + "").await;
        assert!(said(page).await.contains(&Bytes(facts(&fleet, 1).reserved).to_string()));
    });
    fleet.rows.iter_mut().for_each(clear);
    visit(&of(fleet.rows.clone(), fleet.clone()), async |page| {
        keys(page, Key::Control + Key::End).await;
        keys(page, Key::Up + Key::Right).await;
        let text = said(page).await;
        assert!(text.starts_with("rank 11 (pp 1), peak; "), "{text}");
        assert!(page.colours(MAP).await > 5);
        page.is_quiet().await;
    });
}

#[test]
fn what_the_fleet_says_leads_to_its_ranks() {
    let folder = planted();
    let fleet = seen(folder.path());
    visit(&fleet, async |page| {
        for (kind, name) in
            [("failed", "rank 7"), ("outliers", "rank 3"), ("unreadable", "rank 12")]
        {
            page.value(&format!(
                "document.querySelector('#fleet details[data-kind={kind}]').open = true"
            ))
            .await;
            let button = format!(
                "Array.from(document.querySelectorAll('#fleet details[data-kind={kind}] button')).find((it) => it.textContent === '{name}')"
            );
            page.value(&format!("{button}.click()")).await;
            page.painted().await;
            assert!(said(page).await.starts_with(&format!("{name} (")), "{}", said(page).await);
            assert_eq!(page.text("#fleet .detail h2").await, name);
        }
        // What could not be read cannot be opened, and says why.
        let detail = page.text("#fleet .detail").await;
        assert!(detail.contains(row(&fleet, 12).1.why().unwrap()), "{detail}");
        assert_eq!(
            page.value("document.querySelector('#fleet .detail button.main').disabled").await,
            true
        );
        let failed = page.text("#fleet details[data-kind=failed]").await;
        assert!(failed.contains("300.00 MiB were asked for at /job/train/eval.py:5"), "{failed}");
        page.is_quiet().await;
    });
}

#[test]
fn a_file_that_is_gone_is_said_and_the_map_stays() {
    let folder = planted();
    let fleet = seen(folder.path());
    std::fs::remove_file(&row(&fleet, 0).1.address).unwrap();
    visit(&fleet, async |page| {
        keys(page, Key::Control + Key::Home).await;
        keys(page, Key::Enter + "").await;
        page.wait("document.getElementById('said').classList.contains('wrong')").await;
        let why = page.text("#said").await;
        assert!(why.contains("rank_000") && why.contains("cannot open it"), "{why}");
        assert_eq!(page.value("document.getElementById('fleet').hidden").await, false);
        keys(page, Key::Down + "").await;
        keys(page, Key::Enter + "").await;
        page.wait("document.title.includes('rank_001')").await;
    });
}

#[test]
fn a_rank_that_shares_a_run_says_so_and_shows_that_run() {
    let folder = planted();
    let mut fleet = seen(folder.path());
    let (shared, other) = (row(&fleet, 2).1.address.clone(), row(&fleet, 4).0);
    fleet.rows[other].same_as = Some(shared.clone());
    let fleet = of(fleet.rows.clone(), fleet);
    visit(&fleet, async |page| {
        keys(page, Key::Control + Key::Home).await;
        for _ in 0..4 {
            keys(page, Key::Down + "").await;
        }
        assert!(said(page).await.ends_with("shares the run of rank 2"), "{}", said(page).await);
        assert!(page.text("#fleet .detail").await.contains("It shares the run of rank 2"));
        // There are no two of them.
        keys(page, "x").await;
        keys(page, Key::Up + (Key::Up + "x")).await;
        keys(page, "c").await;
        page.wait("document.getElementById('said').textContent.includes('nothing to compare')")
            .await;
        keys(page, Key::Down + (Key::Down + Key::Enter)).await;
        page.wait(&format!("document.title.includes({})", json!(shared))).await;
        page.wait("document.getElementById('said').textContent === 'rank 4 shares the run of rank 2: this is its file.'").await;
    });
}

#[test]
fn names_that_mean_harm_are_text() {
    let texts: Vec<String> = hostile::TEXTS
        .iter()
        .map(|it| it.replace(['/', '\0'], "_"))
        .enumerate()
        .map(|(number, text)| format!("{text}_rank{number}.pickle.zst"))
        .collect();
    let ranks: Vec<_> = texts
        .iter()
        .enumerate()
        .map(|(number, name)| {
            let plant = if number == 1 { Plant::Buffer(40 << 20) } else { Plant::Nothing };
            (&**name, number as u64, plant)
        })
        .collect();
    let files = folder(&ranks);
    // One whose name tells no rank, and that cannot be read.
    std::fs::write(files.path().join("<img src=x onerror=document.title='run'>.pickle"), b"no")
        .unwrap();
    let fleet = seen(files.path());
    visit(&fleet, async |page| {
        for _ in 0..ranks.len() + 1 {
            keys(page, Key::Down + "").await;
            let detail = page.text("#fleet .detail").await;
            assert!(!detail.contains('\u{202e}') && !detail.contains('\u{1b}'), "{detail:?}");
        }
        page.choose("#fleet-group", "alike").await;
        assert!(page.text("#fleet .detail").await.contains("<img src=x onerror="));
        assert!(page.text("#fleet").await.contains("<img src=x onerror="));
        assert_eq!(
            page.value("document.querySelectorAll('#fleet img, #fleet script').length").await,
            0
        );
        keys(page, Key::Control + Key::Home).await;
        keys(page, Key::Enter + "").await;
        page.wait("!document.getElementById('memory').hidden").await;
        page.drawn().await;
        let title = page.value("document.title").await;
        // The name of whichever rank comes first in its group.
        assert!(title.as_str().unwrap().contains("document.title='run'"), "{title}");
        page.is_quiet().await;
    });
}

#[test]
fn four_thousand_ranks_are_shown_and_the_one_that_stands_out_is_seen_and_found() {
    let fleet = many(4_096, 200);
    visit(&fleet, async |page| {
        let lead = page.text("#fleet .lead").await;
        assert!(lead.starts_with("4,096 files"), "{lead}");
        // Many ranks share a pixel: it has the colour of the one that stands out, and that is pointed at.
        let (rank, step) = ODD;
        let find = format!(
            "{COLOURS} const canvas = document.querySelector('canvas.ranks'); \
             const inner = canvas.clientHeight - 52; const x = 112 + (canvas.clientWidth - 116) * ({step}.5 / 200); \
             const y = 18 + inner * ({rank}.5 / 4096); \
             return [at(x, y), css('--size-6'), x / canvas.clientWidth, y / canvas.clientHeight]"
        );
        let found = page.browser.value(&find).await;
        assert_eq!(found[0], found[1], "{found}");
        page.point(MAP, found[2].as_f64().unwrap(), found[3].as_f64().unwrap()).await;
        let tooltip = page.text("#fleet .tooltip").await;
        assert!(tooltip.starts_with(&format!("rank {rank} (")), "{tooltip}");
        assert!(tooltip.contains(&format!("iteration {step}")), "{tooltip}");
        page.choose("#fleet-sort", "most").await;
        keys(page, Key::Control + Key::Home).await;
        assert!(said(page).await.starts_with(&format!("rank {rank} (")), "{}", said(page).await);
        for by in ["node", "tp", "dp", "alike", "pp"] {
            page.choose("#fleet-group", by).await;
        }
        // Closer, to the last.
        keys(page, "++++++++").await;
        keys(page, Key::Control + Key::End).await;
        assert!(said(page).await.contains("pp 3"), "{}", said(page).await);
        let scrolled = page.value("document.querySelector('.ranks-scroll').scrollTop").await;
        assert!(scrolled.as_f64().unwrap() > 40_000.0, "{scrolled}");
        assert!(page.colours(MAP).await > 20);
        keys(page, "0").await;
        assert_eq!(page.value("document.querySelector('.ranks-scroll').scrollTop").await, 0);
        page.is_quiet().await;
    });
}

#[test]
fn a_link_restores_figure_order_cursor_and_choice() {
    let folder = planted();
    visit(&seen(folder.path()), async |page| {
        page.choose("#fleet-figure", "waste").await;
        page.choose("#fleet-sort", "most").await;
        page.choose("#fleet-group", "alike").await;
        keys(page, Key::Control + Key::Home).await;
        keys(page, "x").await;
        keys(page, Key::Down + (Key::Right + "x")).await;
        let shown = "[document.getElementById('fleet-figure').value, document.getElementById('fleet-sort').value, \
            document.getElementById('fleet-group').value, document.getElementById('fleet-said').textContent, \
            document.querySelector('#fleet .chosen').textContent, document.querySelector('canvas.ranks').toDataURL()]";
        let (address, before) = (page.address().await, page.value(shown).await);
        page.follow(&address).await;
        drawn(page).await;
        assert_eq!(page.value(shown).await, before, "{address}");
        assert_eq!(page.address().await, address);
        // What the fleet does not have is not shown.
        let nonsense = "#fleet?f.figure=limits&f.sort=x&f.group=node&f.at=99999.7&f.pair=1.x.77777";
        page.follow(&format!("{}{nonsense}", page.browser.address)).await;
        drawn(page).await;
        assert_eq!(page.value("document.getElementById('fleet-group').value").await, "none");
        assert!(said(page).await.starts_with("rank 0 ("));
        page.is_quiet().await;
    });
}

/// What makes the page wider than the window; nothing if it is not.
const WIDER: &str = "(() => { const root = document.documentElement; \
    return root.scrollWidth <= root.clientWidth ? [] : Array.from(document.querySelectorAll('body *')) \
        .filter((it) => it.getBoundingClientRect().right > root.clientWidth) \
        .map((it) => it.tagName + '.' + it.getAttribute('class')); })()";

#[test]
fn the_map_fits_every_window_and_can_be_read_in_both_schemes() {
    let folder = planted();
    visit(&seen(folder.path()), async |page| {
        page.choose("#fleet-group", "alike").await;
        keys(page, Key::Control + Key::Home).await;
        keys(page, "x").await;
        for scheme in ["light", "dark"] {
            page.browser.set_scheme(scheme).await;
            page.painted().await;
            let found = page.browser.value(CONTRAST).await;
            assert_eq!(found["weak"], json!([]), "{scheme}");
            assert!(page.colours(MAP).await > 5, "{scheme}");
        }
        for width in [390, 768, 1280, 2560] {
            page.browser.set_width(width).await;
            page.painted().await;
            assert_eq!(page.value(WIDER).await, json!([]), "{width}");
        }
        let nameless = "Array.from(document.querySelectorAll('#fleet button, #fleet select, #fleet [role=img], #fleet [role=application]')) \
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
    let out = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/pictures");
    std::fs::create_dir_all(&out).unwrap();
    let folder = planted();
    for (name, fleet) in
        [("few", seen(folder.path())), ("sixteen", many(16, 48)), ("thousands", many(4_096, 200))]
    {
        visit(&fleet, async |page| {
            page.choose("#fleet-group", if name == "few" { "alike" } else { "pp" }).await;
            keys(page, Key::Down + (Key::Right + "x")).await;
            for (scheme, width) in [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]
            {
                page.browser.set_scheme(scheme).await;
                page.browser.set_width(width).await;
                page.painted().await;
                page.browser.picture(&out.join(format!("fleet-{name}.{scheme}.{width}.png"))).await;
            }
        });
    }
}

/// For whoever changes how the map is drawn: how long it takes.
#[test]
#[ignore = "measures, checks nothing"]
fn frames() {
    visit(&many(4_096, 200), async |page| {
        page.choose("#fleet-group", "pp").await;
        for (what, closer, act) in [
            (
                "hover, all ranks",
                "0",
                "canvas.dispatchEvent(new PointerEvent('pointermove', { clientX: box.left + 150 + (frame * 7) % (box.width - 160), clientY: box.top + 20 + (frame * 3) % (box.height - 60), bubbles: true }))",
            ),
            (
                "hover, closer",
                "0++++",
                "canvas.dispatchEvent(new PointerEvent('pointermove', { clientX: box.left + 150 + (frame * 7) % (box.width - 160), clientY: box.top + 20 + (frame * 3) % (box.height - 60), bubbles: true }))",
            ),
            (
                "scroll, a pixel a rank",
                "0+++",
                "scroll.scrollTop = (frame * 40) % (scroll.scrollHeight - scroll.clientHeight)",
            ),
            (
                "scroll, 22 pixels a rank",
                "0++++++++",
                "scroll.scrollTop = (frame * 400) % (scroll.scrollHeight - scroll.clientHeight)",
            ),
            (
                "cursor, closer",
                "0++++",
                "canvas.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowDown', bubbles: true }))",
            ),
            (
                "sort",
                "0",
                "{ const list = document.getElementById('fleet-sort'); list.value = frame % 2 ? 'rank' : 'most'; list.dispatchEvent(new Event('change')); }",
            ),
            (
                "group",
                "0",
                "{ const list = document.getElementById('fleet-group'); list.value = ['node', 'pp', 'tp', 'dp', 'alike'][frame % 5]; list.dispatchEvent(new Event('change')); }",
            ),
            (
                "figure",
                "0",
                "{ const list = document.getElementById('fleet-figure'); list.value = ['live', 'reserved', 'waste'][frame % 3]; list.dispatchEvent(new Event('change')); }",
            ),
        ] {
            keys(page, closer).await;
            let script = format!(
                "window.measured = null; (async () => {{ \
                   const canvas = document.querySelector('canvas.ranks'), scroll = document.querySelector('.ranks-scroll'); \
                   const box = canvas.getBoundingClientRect(); const own = window.tonnage.frames; own.length = 0; const between = [], work = []; let last = await new Promise(requestAnimationFrame); \
                   for (let frame = 0; frame < 120; frame++) {{ const began = performance.now(); {act}; work.push(performance.now() - began); \
                     const now = await new Promise(requestAnimationFrame); between.push(now - last); last = now; }} \
                   const told = (all) => {{ const sorted = [...all].sort((a, b) => a - b); return [sorted[sorted.length >> 1], sorted[Math.floor(sorted.length * 0.95)], sorted.at(-1)].map((it) => Number((it ?? 0).toFixed(1))); }}; \
                   window.measured = {{ between: told(between), handler: told(work), drawing: told(own) }}; }})()"
            );
            page.browser.driver.execute(script, []).await.unwrap();
            page.wait("window.measured").await;
            println!("{what}: {}", page.value("window.measured").await);
        }
        let loading = "(() => { const it = performance.getEntriesByType('resource').find((it) => it.name.endsWith('api/fleet')); return [Math.round(it.duration), it.transferSize]; })()";
        println!("api/fleet, ms and bytes: {}", page.value(loading).await);
    });
}
