//! What the browser tests share: a server with recordings, and a browser on its page.
//!
//! The browser itself, and the file that means harm, are those of the report's page.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thirtyfour::error::WebDriverErrorInner::{ElementClickIntercepted, StaleElementReference};
use thirtyfour::prelude::*;
use tonnage_snapshot::SnapshotFile;
use tonnage_view::{Recordings, Server, ViewOptions};

use crate::chromium::{Browser, browse};

pub(crate) fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata")
}

pub(crate) fn trace(name: &str) -> SnapshotFile {
    tonnage_snapshot::open(&testdata().join("traces").join(format!("{name}.pickle.zst"))).unwrap()
}

pub(crate) fn planted(name: &str) -> SnapshotFile {
    tonnage_snapshot::open(&testdata().join("planted").join(format!("{name}.pickle.gz"))).unwrap()
}

/// Opens a page on these files, and checks something about it once it is drawn.
pub(crate) fn visit(files: Vec<(&str, SnapshotFile)>, check: impl AsyncFnOnce(&Page<'_>)) {
    let recordings = Recordings::new(ViewOptions::default());
    for (name, file) in files {
        recordings.open(name, file);
    }
    let server = Server::bind(recordings, Some(0)).unwrap();
    let address = server.url();
    let _running = server.start().unwrap();
    browse("", async |blank| {
        blank.driver.goto(&address).await.unwrap();
        let browser = Browser { driver: blank.driver.clone(), address };
        let page = Page { browser: &browser };
        page.wait("document.documentElement.dataset.ready === 'true'").await;
        page.drawn().await;
        // The answer above everything has its size once the report is there. That of a long history takes a while.
        page.wait(
            "document.getElementById('opening').dataset.known === 'true' || \
             Number(document.querySelector('#segments input[type=range]').max) > 100000",
        )
        .await;
        check(&page).await;
    });
}

/// The page, in the words of someone who uses it.
pub(crate) struct Page<'a> {
    pub(crate) browser: &'a Browser,
}

impl Page<'_> {
    pub(crate) async fn value(&self, expression: &str) -> Value {
        self.browser.value(&format!("return {expression}")).await
    }

    /// Waits until an expression is true.
    pub(crate) async fn wait(&self, expression: &str) {
        self.browser.wait(expression).await;
    }

    /// Opens one of the views.
    pub(crate) async fn open(&self, view: &str) {
        self.value(&format!("location.hash = '{view}'")).await;
        self.wait(&format!("!document.getElementById('{view}').hidden")).await;
    }

    /// Goes to another address of the page, as someone does who follows a link.
    pub(crate) async fn follow(&self, address: &str) {
        self.browser.driver.goto("about:blank").await.unwrap();
        self.browser.driver.goto(address).await.unwrap();
        self.wait("document.documentElement.dataset.ready === 'true'").await;
    }

    /// The address once it says what is shown.
    pub(crate) async fn address(&self) -> String {
        // The page writes a moment after something has changed.
        self.painted().await;
        self.wait("document.documentElement.dataset.address === 'current'").await;
        self.value("location.href").await.as_str().unwrap().to_owned()
    }

    /// Waits until what was done is on the screen: two frames later everything that was to be painted is.
    pub(crate) async fn painted(&self) {
        let frames = "window.painted = false; \
                      requestAnimationFrame(() => requestAnimationFrame(() => { window.painted = true; }))";
        self.browser.driver.execute(frames, []).await.unwrap();
        self.wait("window.painted").await;
    }

    /// Waits until the timeline shows what was asked for, in full detail.
    pub(crate) async fn drawn(&self) {
        self.wait("document.querySelector('canvas.chart').dataset.drawn === 'true'").await;
    }

    pub(crate) async fn text(&self, css: &str) -> String {
        self.with(css, async |element| element.text().await).await
    }

    pub(crate) async fn element(&self, css: &str) -> WebElement {
        self.browser.driver.find(By::Css(css)).await.unwrap()
    }

    pub(crate) async fn click(&self, css: &str) {
        self.with(css, async |element| element.click().await).await;
        self.painted().await;
    }

    /// Types into an element.
    pub(crate) async fn type_into(&self, css: &str, keys: impl Into<TypingData>) {
        let keys: String = keys.into().as_vec().into_iter().collect();
        self.with(css, async |element| element.send_keys(&*keys).await).await;
        self.painted().await;
    }

    /// Does something with an element. Since it was found, the page may have put another in its place or moved it under
    /// something: then again.
    async fn with<T>(&self, css: &str, act: impl AsyncFn(WebElement) -> WebDriverResult<T>) -> T {
        loop {
            match act(self.element(css).await).await {
                Err(error)
                    if matches!(*error, StaleElementReference(_) | ElementClickIntercepted(_)) => {}
                done => return done.unwrap(),
            }
        }
    }

    /// Chooses an option of a list by its value.
    pub(crate) async fn choose(&self, css: &str, value: &str) {
        let script = format!(
            "const list = document.querySelector({}); list.value = {}; \
             list.dispatchEvent(new Event('change', {{ bubbles: true }}))",
            json!(css),
            json!(value)
        );
        self.browser.driver.execute(script, []).await.unwrap();
        self.painted().await;
    }

    /// Presses keys while the timeline has the focus.
    pub(crate) async fn keys(&self, keys: impl Into<TypingData>) {
        self.type_into("canvas.chart", keys).await;
    }

    /// Types a filter in place of the one that is there.
    pub(crate) async fn filter(&self, query: &str) {
        let script = format!(
            "const field = document.getElementById('query'); field.value = {}; \
             field.dispatchEvent(new Event('input'))",
            json!(query)
        );
        self.browser.driver.execute(script, []).await.unwrap();
        // The page waits for the end of typing, and then says which query it shows.
        let applied =
            format!("document.getElementById('query').dataset.applied === {}", json!(query));
        self.wait(&applied).await;
        self.drawn().await;
    }

    /// Moves the pointer to a place on a canvas, given as parts of its width and height.
    pub(crate) async fn point(&self, css: &str, across: f64, down: f64) {
        let (x, y) = self.place(css, across, down).await;
        self.browser.driver.action_chain().move_to(x, y).perform().await.unwrap();
        self.painted().await;
    }

    pub(crate) async fn click_at(&self, css: &str, across: f64, down: f64) {
        let (x, y) = self.place(css, across, down).await;
        self.browser.driver.action_chain().move_to(x, y).click().perform().await.unwrap();
        self.painted().await;
    }

    /// Drags from one place to another.
    pub(crate) async fn drag(&self, css: &str, from: (f64, f64), to: (f64, f64)) {
        let begin = self.place(css, from.0, from.1).await;
        let end = self.place(css, to.0, to.1).await;
        let chain = self.browser.driver.action_chain().move_to(begin.0, begin.1).click_and_hold();
        chain.move_to(end.0, end.1).release().perform().await.unwrap();
        self.painted().await;
    }

    async fn place(&self, css: &str, across: f64, down: f64) -> (i64, i64) {
        let script = format!(
            "const element = document.querySelector({}); element.scrollIntoView({{ block: 'nearest' }}); \
             const box = element.getBoundingClientRect(); \
             return [box.left + box.width * {across}, box.top + box.height * {down}]",
            json!(css)
        );
        let found = self.browser.value(&script).await;
        (found[0].as_f64().unwrap() as i64, found[1].as_f64().unwrap() as i64)
    }

    /// Nothing in the console, and no request but to the server.
    pub(crate) async fn is_quiet(&self) {
        assert_eq!(self.browser.console().await, Vec::<String>::new());
        for request in self.browser.requests().await {
            let own = request.starts_with(&self.browser.address) || request.starts_with("data:");
            assert!(own, "{request}");
        }
    }

    /// How many colours a canvas has: a blank one has a single one.
    pub(crate) async fn colours(&self, css: &str) -> u64 {
        let script = format!(
            "const canvas = document.querySelector({}); \
             const copy = new OffscreenCanvas(canvas.width, canvas.height); \
             const context = copy.getContext('2d', {{ willReadFrequently: true }}); \
             context.drawImage(canvas, 0, 0); \
             const data = context.getImageData(0, 0, canvas.width, canvas.height).data; \
             return new Set(new Uint32Array(data.buffer)).size",
            json!(css)
        );
        self.browser.value(&script).await.as_u64().unwrap()
    }
}
