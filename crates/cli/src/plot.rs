//! `tonnage plot`: memory over time as a picture, for papers and pull requests.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use tonnage::Bytes;
use tonnage::analysis::{DeviceView, GroupBy, Strata, devices};
use tonnage::html::{LARGEST_PLOT, PlotOptions, SMALLEST_PLOT, plot_svg};
use tonnage::snapshot::SnapshotFile;

use crate::Answer;
use crate::input::ReadOptions;
use crate::output::{Destination, Existing, plain, print, warning, write_file};
use crate::size::memory_size;

/// Draw memory over time as a picture: SVG or PNG
///
/// What is allocated, by what it is for or by module, the reserved memory above it, the limit, iterations, failed
/// requests, and below it what the program was doing: forward, backward, the optimizer's step. `tonnage plot snapshot.pickle -o peak.svg`.
///
/// Exit status: 0, or 2 for bad input.
#[derive(Args)]
pub(crate) struct Arguments {
    /// A snapshot (`.pickle`, also compressed); `-` reads standard input
    file: PathBuf,

    /// The file to write: `.svg` or `.png`. One that is there is replaced; `-` is standard output, as SVG
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,

    #[command(flatten)]
    look: Look,

    #[command(flatten)]
    read: ReadOptions,
}

/// What is drawn, and how.
#[derive(Args)]
pub(crate) struct Look {
    /// By what memory is told apart
    #[arg(long, value_enum, default_value = "purpose")]
    by: By,

    /// A limit to draw. Bytes, `24GiB`, `24GB`
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    limit: Option<Bytes>,

    /// What stands above it. Without it the file's name
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,

    /// The device to take, if the file has several. Else the one with most entries
    #[arg(long, value_name = "N")]
    ordinal: Option<usize>,

    /// Dots across
    #[arg(long, value_name = "N", default_value_t = 960)]
    width: u32,

    /// Dots down
    #[arg(long, value_name = "N", default_value_t = 440)]
    height: u32,

    /// Light on dark
    #[arg(long)]
    dark: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum By {
    /// What it is for
    Purpose,
    /// The module whose forward asked
    Module,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Answer> {
    let Arguments { file, output, read, .. } = arguments;
    let is_png = match output.extension().and_then(|ending| ending.to_str()) {
        Some("png") => true,
        Some("svg") => false,
        _ if output == Path::new("-") => false,
        _ => bail!("--output {}: pictures are `.svg` or `.png`", output.display()),
    };
    let destination = Destination::at(output, Existing::Replace, std::slice::from_ref(file))?;
    if matches!(destination, Destination::Standard) && is_png && std::io::stdout().is_terminal() {
        bail!("PNG is not for terminals: name a file with --output");
    }
    let input = read.read_snapshot(file)?;
    let Picture { svg, .. } = picture(arguments, &input.name, &input.file)?;
    let Destination::File(place) = destination else {
        print(&svg)?;
        return Ok(Answer::Yes);
    };
    let picture = if is_png { png(&svg)? } else { svg.into_bytes() };
    write_file(&place, |out| {
        out.write_all(&picture).with_context(|| format!("cannot write {}", output.display()))
    })?;
    print(&format!("wrote {}\n", plain(&output.display().to_string())))?;
    Ok(Answer::Yes)
}

/// Memory over time, drawn.
pub struct Picture {
    /// As SVG.
    pub svg: String,
    /// What is drawn.
    pub strata: Strata,
}

/// The picture of a file that is read already, and goes by this name.
pub(crate) fn picture(
    arguments: &Arguments,
    name: &str,
    file: &SnapshotFile,
) -> anyhow::Result<Picture> {
    arguments.look.picture(name, file).with_context(|| name.to_owned())
}

impl Look {
    fn picture(&self, name: &str, file: &SnapshotFile) -> anyhow::Result<Picture> {
        let all = devices(file);
        let device = self.device(&all)?;
        let inside = |value: u32, least: u32, most: u32| (least..=most).contains(&value);
        if !inside(self.width, SMALLEST_PLOT.0, LARGEST_PLOT.0)
            || !inside(self.height, SMALLEST_PLOT.1, LARGEST_PLOT.1)
        {
            bail!(
                "{} × {} dots: a picture has from {} × {} to {} × {}",
                self.width,
                self.height,
                SMALLEST_PLOT.0,
                SMALLEST_PLOT.1,
                LARGEST_PLOT.0,
                LARGEST_PLOT.1
            );
        }
        let by = match self.by {
            By::Purpose => GroupBy::Purpose,
            By::Module => GroupBy::Module,
        };
        let title = self.title.clone().unwrap_or_else(|| {
            let name = Path::new(name).file_name().map_or(name.into(), |it| it.to_string_lossy());
            format!("{name}, device {}", device.device.0)
        });
        let strata = Strata::of(device, by, self.width as usize);
        let options = PlotOptions {
            title,
            limit: self.limit.map(|limit| limit.0),
            size: (self.width, self.height),
            dark: self.dark,
        };
        Ok(Picture { svg: plot_svg(&strata, &options), strata })
    }

    fn device<'a, 'b>(&self, all: &'b [DeviceView<'a>]) -> anyhow::Result<&'b DeviceView<'a>> {
        let found = match self.ordinal {
            Some(ordinal) => all.iter().find(|it| it.device.0 as usize == ordinal),
            None => all.iter().max_by_key(|it| it.entries.len()),
        };
        match found {
            Some(device) if !device.entries.is_empty() => Ok(device),
            Some(_) => bail!(
                "there is no memory history to draw: call torch.cuda.memory._record_memory_history() before the work"
            ),
            None => bail!("there is no such device in the file"),
        }
    }
}

/// A picture as dots. Words need a font of this machine.
///
/// # Errors
///
/// If it is no picture.
pub fn png(svg: &str) -> anyhow::Result<Vec<u8>> {
    use resvg::{tiny_skia, usvg};

    let mut options = usvg::Options::default();
    options.fontdb_mut().load_system_fonts();
    if options.fontdb.is_empty() {
        warning("this machine has no fonts: the picture has no words; an SVG has them everywhere");
    }
    let tree = usvg::Tree::from_str(svg, &options).context("cannot draw")?;
    let size = tree.size().to_int_size();
    let mut dots = tiny_skia::Pixmap::new(size.width(), size.height()).context("cannot draw")?;
    resvg::render(&tree, tiny_skia::Transform::identity(), &mut dots.as_mut());
    dots.encode_png().context("cannot draw")
}
