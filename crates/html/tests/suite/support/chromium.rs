//! A page in a real Chromium.
//!
//! In:  HTML. Out: a browser that shows it, with its console, its requests and its sizes.
//!
//! Chromium's headless shell where it is installed: the same engine in half the processor time.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use thirtyfour::prelude::*;
use thirtyfour::{ChromiumLikeCapabilities, LoggingPrefsLogLevel};

const MISSING: &str = "the page is tested in a real browser: `cargo xtask test` installs it, or install \
                       chromium-headless-shell (or chromium) and chromium-driver (Debian), so that they are on the path";

/// The longest wait for anything: how busy the machine is decides no test.
const PATIENCE: Duration = Duration::from_secs(600);

/// The driver's process; ends with the test.
struct Driver {
    process: Child,
    /// Open as long as it runs: it may go on talking.
    said: BufReader<ChildStdout>,
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Driver {
    /// Starts it, at a port of its choice, which it names once it is ready.
    ///
    /// It takes a free port for one kind of address and then wants the same for the other: if that is taken meanwhile, it
    /// ends, and another may have more luck.
    fn start(folder: &Path) -> (Self, u16) {
        for _ in 0..20 {
            let mut driver = Self::spawn(folder);
            if let Some(port) = driver.port() {
                return (driver, port);
            }
        }
        panic!("chromedriver names no port: {MISSING}");
    }

    /// What it and its browsers write goes into the folder: their profiles too, which it names itself (the headless shell
    /// never says where it listens if it is told another place).
    fn spawn(folder: &Path) -> Self {
        let started = Command::new("chromedriver")
            .arg("--port=0")
            .env("TMPDIR", folder)
            .stdout(Stdio::piped())
            .spawn();
        let mut process =
            started.unwrap_or_else(|error| panic!("chromedriver: {error}: {MISSING}"));
        let said = BufReader::new(process.stdout.take().unwrap());
        Self { process, said }
    }

    /// None if it ends before it names one.
    fn port(&mut self) -> Option<u16> {
        let mut line = String::new();
        while self.said.read_line(&mut line).unwrap() > 0 {
            let port =
                line.trim_end().strip_prefix("ChromeDriver was started successfully on port ");
            if let Some(port) = port.and_then(|it| it.trim_end_matches('.').parse().ok()) {
                return Some(port);
            }
            line.clear();
        }
        None
    }
}

/// A browser that shows one page.
pub(crate) struct Browser {
    pub(crate) driver: WebDriver,
    /// The page's own address.
    pub(crate) address: String,
}

/// Opens a page and checks something about it.
pub(crate) fn browse(html: &str, check: impl AsyncFnOnce(&Browser)) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("report.html");
    std::fs::write(&path, html).unwrap();
    let (_process, port) = Driver::start(folder.path());
    // On more than one thread: a test that fails ends its session from another.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let driver = connect(port).await;
        let address = format!("file://{}", path.display());
        driver.goto(&address).await.unwrap();
        let browser = Browser { driver, address };
        check(&browser).await;
        browser.driver.quit().await.unwrap();
    });
}

/// The headless shell, if it is installed. What Debian has on the path is a script that starts it and is all that the driver
/// then ends; so the program itself comes first.
fn headless_shell() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::iter::once(PathBuf::from("/usr/lib/chromium"))
        .chain(std::env::split_paths(&folders))
        .map(|folder| folder.join("chromium-headless-shell"))
        .find(|it| it.is_file())
}

async fn connect(port: u16) -> WebDriver {
    // Nothing is encrypted between here and the driver. But built with the workspace, where another crate asks for TLS without naming
    // who does it, the client that asks the driver refuses to begin unless someone is named. Whoever was named first stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut wanted = DesiredCapabilities::chrome();
    if let Some(path) = headless_shell() {
        wanted.set_binary(path.to_str().unwrap()).unwrap();
    }
    for argument in [
        "--headless",
        // Root, as in containers, has no sandbox.
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-quic",
        "--no-first-run",
        // A click finds its place where nothing is under way.
        "--force-prefers-reduced-motion",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=1280,900",
    ] {
        wanted.add_arg(argument).unwrap();
    }
    wanted.set_logging_prefs("browser", LoggingPrefsLogLevel::All).unwrap();
    wanted.set_logging_prefs("performance", LoggingPrefsLogLevel::All).unwrap();
    let address = format!("http://127.0.0.1:{port}");
    let begun = Instant::now();
    let driver = loop {
        // The driver gives a browser a minute to start, which a busy machine may need.
        let builder = WebDriver::builder(&address, wanted.clone()).request_timeout(PATIENCE);
        match builder.connect().await {
            Ok(driver) => break driver,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}: {MISSING}"),
        }
    };
    driver.set_script_timeout(PATIENCE).await.unwrap();
    driver.set_page_load_timeout(PATIENCE).await.unwrap();
    driver
}

impl Browser {
    /// The value of a script that returns one.
    pub(crate) async fn value(&self, script: &str) -> Value {
        self.driver.execute(script, []).await.unwrap().json().clone()
    }

    /// Waits until an expression is true.
    pub(crate) async fn wait(&self, expression: &str) {
        let begun = Instant::now();
        while self.value(&format!("return Boolean({expression})")).await != json!(true) {
            if begun.elapsed() > PATIENCE {
                let said = self.value("return document.body.innerText").await;
                let console = self.console().await;
                panic!("not within {PATIENCE:?}: {expression}\n{console:?}\n{said}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn command(&self, name: &str, parameters: Value) -> Value {
        self.driver.cdp().send_raw(name, parameters).await.unwrap()
    }

    pub(crate) async fn set_scheme(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        let media = json!({ "media": "", "features": features });
        self.command("Emulation.setEmulatedMedia", media).await;
    }

    /// Shows the page as it is printed.
    #[allow(dead_code, reason = "each test program uses some of it")]
    pub(crate) async fn set_print(&self) {
        self.command("Emulation.setEmulatedMedia", json!({ "media": "print", "features": [] }))
            .await;
        self.value("dispatchEvent(new Event('beforeprint'))").await;
    }

    pub(crate) async fn set_width(&self, width: u32) {
        let size =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.command("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// What the console says: errors, violations of the policy, output.
    pub(crate) async fn console(&self) -> Vec<String> {
        let said = self.driver.browser_log().await.unwrap();
        said.into_iter().map(|it| it.message).collect()
    }

    /// Addresses that the page asked for, its own included.
    pub(crate) async fn requests(&self) -> Vec<String> {
        let events = self.driver.get_log("performance").await.unwrap();
        let events = events.iter().map(|it| serde_json::from_str::<Value>(&it.message).unwrap());
        let sent = events.filter(|it| {
            it["message"]["method"] == "Network.requestWillBeSent"
                && it["message"]["params"]["documentURL"] == self.address.as_str()
        });
        sent.map(|it| it["message"]["params"]["request"]["url"].as_str().unwrap().to_owned())
            .collect()
    }

    /// A picture of the whole page.
    pub(crate) async fn picture(&self, path: &Path) {
        let height = self.value("return document.documentElement.scrollHeight").await;
        let width = self.value("return document.documentElement.clientWidth").await;
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
        let wanted = json!({ "captureBeyondViewport": true, "clip": clip });
        let picture = self.command("Page.captureScreenshot", wanted).await;
        use base64::Engine;
        let bytes = base64::prelude::BASE64_STANDARD.decode(picture["data"].as_str().unwrap());
        std::fs::write(path, bytes.unwrap()).unwrap();
    }
}
