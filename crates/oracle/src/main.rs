//! The program behind `cargo xtask oracle`.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use tonnage_engine::config::Nearest;
use tonnage_oracle::campaign::{self, Plan};
use tonnage_oracle::compare::Verdict;
use tonnage_oracle::generate::{self, Features};
use tonnage_oracle::{Stream, Subject, report, setup, vector};

const HELP: &str = "\
cargo xtask oracle [OPTIONS]

Random streams through the allocator of a released PyTorch and through the engine; what differs, made small.

  --release V    the version to ask, several times if need be (default: 2.11.0)
  --commands N   compare at least so many commands of each (default: 300000)
  --seed S       other streams (default: 1)
  --first N      begin with the stream of this number (default: 0)
  --stream N     this stream alone, made small: the smallest that differs, or is cut, in the same way
  --play FILE    the stream in this file alone, as streams are printed here
  --vector FILE  the same, with PyTorch's answers as the lines of a file under testdata/streams
  --light        2.11.0 and 2.15.0, 300000 commands of each: what CI does
  --workers N    drivers at once (default: one for each core)
  --shrink N     differences to make small (default: 3)
  --json         one JSON object a line for each version
";

/// What `--light` asks.
const LIGHT: [&str; 2] = ["2.11.0", "2.15.0"];

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("oracle: {error:#}");
            ExitCode::from(2)
        }
    }
}

struct Options {
    folder: PathBuf,
    versions: Vec<String>,
    plan: Plan,
    /// Only this stream.
    stream: Option<u64>,
    /// Only the stream in this file.
    play: Option<String>,
    /// Only the answers to the stream in this file.
    vector: Option<String>,
    json: bool,
}

/// Whether nothing differed.
fn run() -> anyhow::Result<bool> {
    let Some(options) = options(std::env::args().skip(1))? else {
        print!("{HELP}");
        return Ok(true);
    };
    let mut same = true;
    for version in &options.versions {
        let driver = setup::prepare(&options.folder, version)?;
        let release = version.parse::<Nearest>()?.release;
        if let Some(file) = options.vector.as_ref().or(options.play.as_ref()) {
            let text = std::fs::read_to_string(file).with_context(|| file.clone())?;
            let stream: Stream = text.parse().with_context(|| file.clone())?;
            let mut pair = campaign::pair(release, &driver)?;
            let comparison = pair.compare(&stream)?;
            if options.vector.is_some() {
                let answers = pair.theirs.play(&stream)?;
                let title = format!("PyTorch {version}, {}", stem(file));
                let masked = comparison.leeway.masked;
                print!("{}", vector::lines(version, &title, &stream, &answers, masked)?);
            } else {
                print!("{}", report::one(&stream, &comparison.verdict));
            }
            same &= !matches!(comparison.verdict, Verdict::Different(_));
            continue;
        }
        if let Some(number) = options.stream {
            let stream = generate::stream(options.plan.seed, number, Features::of(release));
            let (smallest, verdict) = campaign::pair(release, &driver)?.smallest(&stream)?;
            same &= !matches!(verdict, Verdict::Different(_));
            print!("{}", report::one(&smallest, &verdict));
            continue;
        }
        let plan = Plan { version: version.clone(), ..options.plan.clone() };
        let summary = campaign::run(&plan, &driver)?;
        same &= summary.different == 0;
        if options.json {
            println!("{}", report::to_json(&summary));
        } else {
            print!("{}", report::text(&summary));
        }
    }
    Ok(same)
}

fn options(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<Option<Options>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options = Options {
        folder: default_folder(),
        versions: Vec::new(),
        plan: Plan {
            version: String::new(),
            commands: 300_000,
            seed: 1,
            first: 0,
            workers: cores,
            shrink: 3,
        },
        stream: None,
        play: None,
        vector: None,
        json: false,
    };
    while let Some(option) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{option} needs a value"));
        match option.as_str() {
            "--release" => options.versions.push(value()?),
            "--commands" => options.plan.commands = number(&option, &value()?)?,
            "--seed" => options.plan.seed = number(&option, &value()?)?,
            "--first" => options.plan.first = number(&option, &value()?)?,
            "--stream" => options.stream = Some(number(&option, &value()?)?),
            "--play" => options.play = Some(value()?),
            "--vector" => options.vector = Some(value()?),
            "--workers" => options.plan.workers = number(&option, &value()?)? as usize,
            "--shrink" => options.plan.shrink = number(&option, &value()?)? as usize,
            "--light" => options.versions.extend(LIGHT.map(str::to_owned)),
            "--json" => options.json = true,
            "--help" | "help" => return Ok(None),
            _ => bail!("`{option}` is no option: `cargo xtask oracle --help` lists them"),
        }
    }
    if options.versions.is_empty() {
        options.versions.push("2.11.0".to_owned());
    }
    Ok(Some(options))
}

fn number(option: &str, text: &str) -> anyhow::Result<u64> {
    let digits = text.replace('_', "");
    digits.parse().with_context(|| format!("`{text}` is no number for {option}"))
}

/// The name of a file, without its folder and ending.
fn stem(file: &str) -> String {
    let stem = Path::new(file).file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// `target/oracle` of this repository.
fn default_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/oracle")
}
