//! `cargo xtask fleet`: the snapshots of thousands of ranks, made and reported on, from folders, from other people's storage
//! servers and over Ray.
//!
//! In:  how many ranks (4096 if no one says). Out: what was measured, and an error if a planted difference is not named, a
//!      figure is not reached, or something else is said of the same files. It takes ten minutes beside its builds, and 3.5 GB on the disk under
//!      `target/fleet`: 1 for the ranks, 2.5 for what it installs there from PyPI and npm.
//!
//! | figure | wanted |
//! | --- | --- |
//! | files per second and core, of what `tonnage report --json` has alone | 0.8 |
//! | time for which all cores are busy with 256 files | 0.8 |
//! | files per second with `--tune`, beside `tonnage tune` alone | printed |
//! | memory, at 256 files and at all | 1 GiB |
//! | planted differences that are named, each with what was planted | all |
//! | a run that is killed in the middle and gone on with | the same bytes |
//! | files per second over Ray with a worker for each core, of what is had without | 0.75 |
//! | memory of the program that goes over Ray | printed |
//!
//! Figures are shares of two rates of one run: before and after what is compared, the other is measured. What is to be the
//! same whoever reads it, and wherever it lies, is in `crates/python/tests/fleet`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::install;
use crate::shell::{root, run, run_with};

/// Files that a single `report` is measured on, before and after.
const ALONE: usize = 12;

/// Files that are few.
const FEW: usize = 256;

/// Files that are tried under other settings.
const TUNED: usize = 24;

/// Files that are looked at over Ray, and without.
const OVER_RAY: usize = 512;

/// Ranks of the fleet that is put into storage.
const SMALL: usize = 48;

/// Bytes that a run may take.
const MEMORY: u64 = 1 << 30;

/// Where everything lies.
const FOLDER: &str = "target/fleet";

/// What ranks are made by: whoever changes it has others.
const MAKER: &str = "crates/fleet/examples/make_fleet";

/// The recording that the fleet is made of.
const LONG: &str = "testdata/traces/gpt2_varlen.default.stacks.pickle.zst";

/// One with a short history, of which the small fleet is made.
const SHORT: &str = "testdata/traces/mlp_seed.default.stacks.pickle.zst";

pub(crate) fn fleet(ranks: &str) -> anyhow::Result<()> {
    let ranks: usize = ranks.parse().context("how many ranks?")?;
    let python = format!("{FOLDER}/python");
    install::python(&python, &["crates/python/tests/requirements-fleet.txt"])?;
    install::node()?;
    install::java()?;
    run(&format!("npm install --silent --no-fund --no-audit --prefix {FOLDER}/npm azurite@3"))?;
    run("cargo build --quiet --locked --profile fast --package tonnage-cli --bin tonnage")?;
    run("cargo build --quiet --locked --profile fast --package tonnage-python --lib")?;
    run("cargo build --quiet --locked --profile fast --package tonnage-fake-cudart --lib")?;
    run(
        "cargo build --quiet --locked --profile fast --package tonnage-fleet --example make_fleet",
    )?;
    let folder = made(ranks, LONG)?;
    let small = made_small()?;
    figures(&folder)?;
    let tests = "crates/python/tests/fleet";
    let paths = [package()?, root().join(tests)];
    let paths = paths.iter().map(|it| text(it)).collect::<anyhow::Result<Vec<_>>>()?.join(":");
    let environment = [
        ("PYTHONPATH", paths.as_str()),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("TONNAGE_FLEET_SMALL", text(&small)?),
        ("TONNAGE_FLEET_LARGE", text(&folder)?),
    ];
    over_ray(&python, tests, &folder, &environment)?;
    run_with(
        &format!(
            "{python}/bin/python -m pytest --quiet --noconftest -p servers -p no:cacheprovider {tests}/storage.py {tests}/cluster.py {tests}/ranks.py"
        ),
        &environment,
    )
}

fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("the repository's path is not UTF-8")
}

/// What is measured without Ray.
fn figures(folder: &Path) -> anyhow::Result<()> {
    let files = files(folder)?;
    let cores = std::thread::available_parallelism()?.get();
    let busy = busy(&files[..FEW.min(files.len())], cores)?;
    let before = alone("report", &files, ALONE)?;
    let (whole, seconds, memory) = measured(&[folder.display().to_string()])?;
    let after = alone("report", &files, ALONE)?;
    println!("tonnage report --json: {before:.2} files a second before, {after:.2} after");
    let rate = files.len() as f64 / seconds;
    let share = rate / cores as f64 / f64::midpoint(before, after);
    println!(
        "{} files: {seconds:.0} s, {rate:.2} files a second on {cores} cores, {share:.2} of the single rate for each core, {} MiB",
        files.len(),
        memory >> 20
    );
    ensure!(memory <= MEMORY, "more than 1 GiB");
    named(folder, &whole)?;
    killed(folder, &whole)?;
    tuned(&files, cores)?;
    ensure!(share >= 0.8, "less than 0.8 of the single rate");
    ensure!(busy >= 0.8, "cores are busy for less than 0.8 of the time");
    Ok(())
}

/// How busy all cores are with few files, as a share: one worker is no measure of that, since it reads and looks at once. Also the memory
/// that these take.
fn busy(files: &[PathBuf], cores: usize) -> anyhow::Result<f64> {
    let list = listed("few", files.iter())?;
    let before = seconds_of_processes()?;
    let (_, seconds, memory) = measured(&[list])?;
    let share = (seconds_of_processes()? - before) / (seconds * cores as f64);
    let rate = files.len() as f64 / seconds;
    println!(
        "{} files: {rate:.2} files a second on {cores} cores, busy for {share:.2} of the time, {} MiB",
        files.len(),
        memory >> 20
    );
    ensure!(memory <= MEMORY, "more than 1 GiB at {} files", files.len());
    Ok(share)
}

/// Seconds of processors that processes took which this one began and which have ended, as Linux counts them.
fn seconds_of_processes() -> anyhow::Result<f64> {
    const TICKS_A_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // Behind the program's name, which may have spaces: the 14th and 15th are those of its children.
    let rest = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: Vec<u64> = rest.skip(13).take(2).filter_map(|it| it.parse().ok()).collect();
    ensure!(ticks.len() == 2, "/proc/self/stat has no times");
    Ok(ticks.iter().sum::<u64>() as f64 / TICKS_A_SECOND)
}

/// What the setting that is best for all takes, beside one file after the other.
fn tuned(files: &[PathBuf], cores: usize) -> anyhow::Result<()> {
    let list = listed("tuned", some(files, TUNED))?;
    let (_, seconds, _) = measured(&[list, "--tune".to_owned()])?;
    let rate = some(files, TUNED).count() as f64 / seconds;
    let one = alone("tune", files, TUNED)?;
    println!(
        "--tune: {rate:.2} files a second on {cores} cores; tonnage tune --json, which tries more settings: {one:.2}"
    );
    Ok(())
}

/// So many files from everywhere in the fleet.
fn some(files: &[PathBuf], count: usize) -> impl Iterator<Item = &PathBuf> {
    files.iter().step_by((files.len() / count).max(1)).take(count)
}

/// A list of files, as a source.
fn listed<'a>(name: &str, files: impl Iterator<Item = &'a PathBuf>) -> anyhow::Result<String> {
    let list = root().join(FOLDER).join(name).with_extension("txt");
    let names: Vec<_> = files.map(|it| it.display().to_string()).collect();
    std::fs::write(&list, names.join("\n"))?;
    Ok(format!("@{}", list.display()))
}

/// The rate over Ray beside that without, on the same files.
fn over_ray(
    python: &str,
    tests: &str,
    folder: &Path,
    environment: &[(&str, &str)],
) -> anyhow::Result<()> {
    let output = Command::new(root().join(python).join("bin/python"))
        .arg(root().join(tests).join("rate.py"))
        .arg(folder)
        .arg(OVER_RAY.to_string())
        .envs(environment.iter().copied())
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "rate.py: {}", output.status);
    let told = String::from_utf8(output.stdout)?;
    let last = told.lines().last().context("rate.py said nothing")?;
    let told: Value = serde_json::from_str(last)?;
    let figure = |name: &str| told[name].as_f64().with_context(|| format!("no `{name}`"));
    let share = figure("share")?;
    println!(
        "{} files: {:.1} s here, {:.1} s over Ray with a worker for each core: {share:.2} of the rate",
        told["files"],
        figure("local")?,
        figure("ray")?
    );
    println!(
        "the program that goes over Ray: {:.0} MiB, {:.0} before the first of these files",
        figure("memory")? / f64::from(1 << 20),
        figure("memory_before")? / f64::from(1 << 20)
    );
    ensure!(share >= 0.75, "less than 0.75 of the rate without Ray");
    Ok(())
}

fn program(name: &str) -> PathBuf {
    root().join("target/fast").join(name)
}

/// The package as it is installed, with the extension that was built.
fn package() -> anyhow::Result<PathBuf> {
    let folder = root().join(FOLDER).join("package");
    let package = folder.join("tonnage");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    let sources = root().join("crates/python/tonnage");
    run(&format!("cp -r {} {}", text(&sources)?, text(&package)?))?;
    std::fs::copy(program("libtonnage_python.so"), package.join("_tonnage.abi3.so"))?;
    // What scripts of simulated ranks run on.
    let library = "libtonnage_fake_cudart.so";
    std::fs::create_dir_all(package.join("libraries"))?;
    std::fs::copy(program(library), package.join("libraries").join(library))?;
    Ok(folder)
}

/// The folder of a fleet, made if it is not there yet, by this maker and of this recording.
fn made(ranks: usize, recording: &str) -> anyhow::Result<PathBuf> {
    let sources = files(&root().join(MAKER))?;
    let from = hash_of(sources.into_iter().chain([root().join(recording)]))?;
    let folder = root().join(FOLDER).join(format!("{ranks}-{from:016x}"));
    if folder.exists() {
        return Ok(folder);
    }
    println!("making {ranks} ranks");
    // Under another name until it is whole.
    let making = folder.with_extension("making");
    if making.exists() {
        std::fs::remove_dir_all(&making)?;
    }
    let status = Command::new(program("examples/make_fleet"))
        .current_dir(root())
        .arg(&making)
        .arg(ranks.to_string())
        .arg(recording)
        .status()?;
    ensure!(status.success(), "make_fleet: {status}");
    std::fs::rename(making.with_extension("planted.txt"), folder.with_extension("planted.txt"))?;
    std::fs::rename(making, &folder)?;
    Ok(folder)
}

/// A number that the contents of files decide.
fn hash_of(files: impl Iterator<Item = PathBuf>) -> anyhow::Result<u64> {
    let mut hasher = DefaultHasher::new();
    for path in files {
        let bytes =
            std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        bytes.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// The small fleet, with a file that is none.
fn made_small() -> anyhow::Result<PathBuf> {
    let folder = made(SMALL, SHORT)?;
    std::fs::write(folder.join("rank_99999.pickle"), b"cos\nsystem\n.")?;
    Ok(folder)
}

fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files: Vec<_> =
        std::fs::read_dir(folder)?.map(|it| it.map(|it| it.path())).collect::<Result<_, _>>()?;
    files.sort();
    Ok(files)
}

/// Files a second that one command after the other has.
fn alone(command: &str, files: &[PathBuf], count: usize) -> anyhow::Result<f64> {
    let began = Instant::now();
    let mut done = 0.0;
    for file in some(files, count) {
        let output =
            Command::new(program("tonnage")).args([command, "--json"]).arg(file).output()?;
        // 1 says that a job does not fit.
        let is_done = matches!(output.status.code(), Some(0 | 1));
        ensure!(is_done, "{command} {}: {}", file.display(), output.status);
        done += 1.0;
    }
    Ok(done / began.elapsed().as_secs_f64())
}

/// What `fleet report --json` prints with these words, how long it took, and the most memory.
fn measured(words: &[String]) -> anyhow::Result<(Vec<u8>, f64, u64)> {
    let out = root().join(FOLDER).join("printed.json");
    let began = Instant::now();
    let mut child = Command::new(program("tonnage"))
        .args(["fleet", "report", "--json"])
        .args(words)
        .stdout(std::fs::File::create(&out)?)
        .spawn()?;
    let mut most = 0;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let text =
            std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        most = most.max(kib.unwrap_or(0) << 10);
        std::thread::sleep(Duration::from_millis(20));
    };
    let seconds = began.elapsed().as_secs_f64();
    ensure!(status.code() == Some(0), "fleet report: {status}");
    Ok((std::fs::read(out)?, seconds, most))
}

/// Every planted difference is named, with what was planted.
fn named(folder: &Path, printed: &[u8]) -> anyhow::Result<()> {
    let told: Value = serde_json::from_slice(printed)?;
    let list = |list: &str| told[list].as_array().cloned().unwrap_or_default();
    let (outliers, failed, growing) = (list("outliers"), list("failed"), list("growing"));
    let planted = std::fs::read_to_string(folder.with_extension("planted.txt"))?;
    let mut count = 0;
    for line in planted.lines() {
        let (rank, what) = line.split_once(' ').context("a line of planted.txt")?;
        let rank: u64 = rank.parse()?;
        let (kind, rest) = what.split_once('(').context("a kind of plant")?;
        let found = match kind {
            "Buffer" => differs(&outliers, rank, "site", "plugins/cache.py:7"),
            "Leak" => differs(&outliers, rank, "site", "train/log.py:31") && leaks(&growing, rank),
            "Settings" => is_set(&outliers, rank, rest.trim_matches([')', '"'])),
            "Fails" => {
                of_rank(&failed, rank).is_some_and(|it| ends(&it["line"], "train/eval.py:5"))
            }
            _ => bail!("what is {kind}?"),
        };
        ensure!(found, "rank {rank} is not named with what is special about it: {what}");
        count += 1;
    }
    // Whoever names all ranks names those that are planted.
    let others = outliers.len();
    ensure!(others <= 2 * count, "{others} ranks are said to differ, and {count} do");
    println!("{count} of {count} planted differences are named, among {others} ranks that differ");
    Ok(())
}

fn of_rank(list: &[Value], rank: u64) -> Option<&Value> {
    list.iter().find(|it| it["rank"] == rank)
}

/// Whether a text ends so.
fn ends(text: &Value, end: &str) -> bool {
    text.as_str().is_some_and(|it| it.ends_with(end))
}

/// In what a rank differs from its group, of one kind.
fn differences<'a>(
    outliers: &'a [Value],
    rank: u64,
    kind: &'a str,
) -> impl Iterator<Item = &'a Value> {
    let all = of_rank(outliers, rank).and_then(|it| it["differs"].as_array());
    all.into_iter().flatten().filter(move |it| it["kind"] == kind)
}

fn differs(outliers: &[Value], rank: u64, kind: &str, name: &str) -> bool {
    differences(outliers, rank, kind).any(|it| ends(&it["name"], name))
}

fn is_set(outliers: &[Value], rank: u64, conf: &str) -> bool {
    differences(outliers, rank, "settings").any(|it| it["here_text"] == conf)
}

/// Whether this rank is said to grow by a leak, whatever line grows most; or at the planted line, where fragmentation grows more.
fn leaks(growing: &[Value], rank: u64) -> bool {
    let is_leak = |it: &&Value| it["kind"] == "leak" || ends(&it["line"], "train/log.py:31");
    let ranges = growing.iter().filter(is_leak).filter_map(|it| it["ranks"].as_str());
    ranges.flat_map(|it| it.split(", ")).any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |it: &str| it.parse::<u64>().ok();
        number(first).is_some_and(|it| it <= rank) && number(last).is_some_and(|it| rank <= it)
    })
}

/// A run that is killed and gone on with says the same.
fn killed(folder: &Path, whole: &[u8]) -> anyhow::Result<()> {
    let out = folder.with_extension("dataset");
    if out.exists() {
        std::fs::remove_dir_all(&out)?;
    }
    let words = [
        "fleet".to_owned(),
        "report".to_owned(),
        folder.display().to_string(),
        format!("--out={}", out.display()),
        "--json".to_owned(),
    ];
    let mut child = Command::new(program("tonnage")).args(&words).stdout(Stdio::null()).spawn()?;
    let began = Instant::now();
    let parts = || std::fs::read_dir(out.join("files")).map_or(0, Iterator::count);
    while parts() < 2 && child.try_wait()?.is_none() {
        if began.elapsed() > Duration::from_secs(600) {
            bail!("no part was written in ten minutes");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill()?;
    let status = child.wait()?;
    ensure!(status.code().is_none(), "it was done before it could be killed: {status}");
    let mut left = words.clone();
    left[1] = "files".to_owned();
    let left =
        Command::new(program("tonnage")).args(left.iter().filter(|it| *it != "--json")).output()?;
    let told: Value = serde_json::from_slice(&left.stdout)?;
    let left = told["left"].as_array().context("no `left`")?.len();
    let all = told["files"].as_u64().context("no `files`")?;
    ensure!(0 < left && (left as u64) < all, "{left} of {all} files are left to do");
    let output = Command::new(program("tonnage")).args(&words).output()?;
    ensure!(output.stdout == whole, "a run that was killed and gone on with says something else");
    println!("killed with {left} of {all} files left and gone on with: the same bytes");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_another_maker_or_recording_are_others() {
        let from = |files: &[&str]| hash_of(files.iter().map(|it| root().join(it))).unwrap();
        let maker = format!("{MAKER}/maker.rs");
        assert_eq!(from(&[&maker, SHORT]), from(&[&maker, SHORT]));
        assert_ne!(from(&[&maker, SHORT]), from(&[&maker, LONG]));
        assert_ne!(from(&[&maker, SHORT]), from(&[&format!("{MAKER}/main.rs"), SHORT]));
        assert!(hash_of([root().join("gone")].into_iter()).is_err());
    }
}
