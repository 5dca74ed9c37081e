//! `tonnage view`: recordings as a local web page.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;
use clap::Args;
use owo_colors::OwoColorize;
use tonnage::{Bytes, Release};
use tonnage_view::{Recordings, Running, Server, Stopper, ViewOptions};

use crate::Answer;
use crate::input::ReadOptions;
use crate::output::{is_the_command, warning, with_causes};
use crate::recording::{Recording, read_file};
use crate::release;
use crate::size::memory_size;

/// Show recordings as a local web page
///
/// Memory over time with every allocation in its place, the segments at any moment, the report, what other
/// settings would change, several files side by side, and a training step to predict with sliders. One
/// program serves it all, nothing is loaded from elsewhere, and it is reached from this machine only: by the
/// address that is printed, which has a token that no one can guess.
///
/// Ends with Ctrl-C. Exit status: 0, or 2 for bad input.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Snapshots (`.pickle`, also compressed); `-` reads standard input. Without one, a recording inside
    /// this program is shown
    files: Vec<PathBuf>,

    #[command(flatten)]
    serve: ServeOptions,

    /// The limit that was in force, which files do not tell, or one to ask about. Bytes, `24GiB`, `24GB`
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    limit: Option<Bytes>,

    /// The memory of the device
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    total: Option<Bytes>,

    /// The release whose rules to follow, from 2.8 to 2.15; later ones get those of 2.15. Else it is told from the
    /// file
    #[arg(long, value_name = "RELEASE", value_parser = release::nearest)]
    pytorch: Option<Release>,

    /// The device to show, if a file has several. Else all of them
    #[arg(long, value_name = "N")]
    ordinal: Option<usize>,

    #[command(flatten)]
    read: ReadOptions,
}

/// How the page is reached.
#[derive(Args)]
pub(crate) struct ServeOptions {
    /// The port of the page. Without it 7266, or any that is free
    #[arg(long, value_name = "N")]
    pub(crate) port: Option<u16>,

    /// Do not open a browser
    #[arg(long)]
    pub(crate) no_open: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Answer> {
    let recordings = Recordings::new(ViewOptions {
        limit: arguments.limit.map(|limit| limit.0),
        total: arguments.total.map(|total| total.0),
        release: arguments.pytorch,
        ordinal: arguments.ordinal,
    });
    if arguments.files.is_empty() {
        open(&recordings, None, arguments.read)?;
    }
    let mut refused = Vec::new();
    for path in &arguments.files {
        if let Err(error) = open(&recordings, Some(path), arguments.read) {
            let (name, text) = (path.display().to_string(), with_causes(&error));
            // The page says the name by itself.
            let why = text.strip_prefix(&format!("{name}: ")).unwrap_or(&text);
            recordings.refuse(&name, why);
            refused.push(text);
        }
    }
    if recordings.is_empty() {
        anyhow::bail!(match refused.is_empty() {
            true => "no file has anything to show".to_owned(),
            false => refused.join("\n"),
        });
    }
    for why in refused {
        warning(&why);
    }
    arguments.serve.serve(recordings, &mut anstream::stdout(), Stopper::stop)?.wait();
    Ok(Answer::Yes)
}

fn open(recordings: &Recordings, path: Option<&Path>, read: ReadOptions) -> anyhow::Result<()> {
    let (name, recording) = read_file(path, read)?;
    match recording {
        Recording::Snapshot(file) => recordings.open(&name, *file),
        Recording::Stream(_) => anyhow::bail!(
            "{name}: a command stream has no history to show: `tonnage replay` runs it, this needs a snapshot"
        ),
    }
    Ok(())
}

impl ServeOptions {
    /// Serves the page, and says where. Ctrl-C calls back, where it is the command's.
    pub(crate) fn serve(
        &self,
        recordings: Recordings,
        out: &mut dyn std::io::Write,
        on_ctrl_c: impl Fn(&Stopper) + Send + 'static,
    ) -> anyhow::Result<Running> {
        self.begin(recordings, out, |stopper| {
            if is_the_command() {
                ctrlc::set_handler(move || on_ctrl_c(&stopper))
                    .context("cannot be told of Ctrl-C")?;
            }
            Ok(())
        })
    }

    /// The same, where Ctrl-C has its handler already: `begun` is told of the server before anyone else is.
    pub(crate) fn begin(
        &self,
        recordings: Recordings,
        out: &mut dyn std::io::Write,
        begun: impl FnOnce(Stopper) -> anyhow::Result<()>,
    ) -> anyhow::Result<Running> {
        let server = Server::bind(recordings, self.port)?;
        let (url, port) = (server.url(), server.port());
        let running = server.start()?;
        begun(running.stopper())?;
        // Whoever reads the address may have gone away since: the page is there all the same.
        let until = if is_the_command() { "Ctrl-C ends it." } else { "It ends with the run." };
        let _ = writeln!(
            out,
            "{}\n\nFrom another machine: ssh -L {port}:127.0.0.1:{port} THIS-MACHINE, then open the same address there.\n{until}",
            url.bold()
        );
        let _ = out.flush();
        if !self.no_open && has_display() {
            open_browser(&url);
        }
        Ok(running)
    }
}

/// Whether there is a screen that a browser could open on.
fn has_display() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    cfg!(target_os = "macos") || is_set("DISPLAY") || is_set("WAYLAND_DISPLAY")
}

fn open_browser(url: &str) {
    let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(opener);
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // The address is printed, so one that does not open is opened by hand.
    if command.spawn().is_err() {
        warning(&format!("cannot run {opener}: open the address yourself"));
    }
}
