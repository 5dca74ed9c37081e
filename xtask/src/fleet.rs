//! `cargo xtask fleet`: the snapshots of thousands of ranks, made and reported on.
//!
//! In:  how many ranks (4096 if no one says). Out: what was measured, and an error if a planted difference is not named or a
//!      figure is not reached. It takes an hour and 1 GB on the disk, under `target/fleet`.
//!
//! | figure | wanted |
//! | --- | --- |
//! | files per second and core, of what `tonnage report --json` has alone | 0.8 |
//! | memory, at 256 files and at all | 1 GiB |
//! | planted differences that are named | all |
//! | a run that is killed in the middle and gone on with | the same bytes |

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::shell::{root, run};

/// Files that a single `report` is measured on.
const ALONE: usize = 8;

/// Bytes that a run may take.
const MEMORY: u64 = 1 << 30;

pub(crate) fn fleet(ranks: &str) -> anyhow::Result<()> {
    let ranks: usize = ranks.parse().context("how many ranks?")?;
    run("cargo build --quiet --locked --profile fast --package tonnage-cli --bin tonnage")?;
    run(
        "cargo build --quiet --locked --profile fast --package tonnage-fleet --example make_fleet",
    )?;
    let folder = root().join("target/fleet").join(ranks.to_string());
    if !folder.exists() {
        println!("making {ranks} ranks");
        make(&folder, ranks)?;
    }
    let files = files(&folder)?;
    let cores = std::thread::available_parallelism()?.get();
    let alone = alone(&files)?;
    println!("tonnage report --json: {alone:.2} files a second");
    let few = folder.with_extension("few.txt");
    let names: Vec<_> = files.iter().take(256).map(|it| it.display().to_string()).collect();
    std::fs::write(&few, names.join("\n"))?;
    let (_, memory) = measured(&[format!("@{}", few.display())])?;
    println!("{} files: {} MiB", names.len(), memory >> 20);
    ensure!(memory <= MEMORY, "more than 1 GiB at {} files", names.len());
    let (whole, seconds, memory) = {
        let began = Instant::now();
        let (output, memory) = measured(&[folder.display().to_string()])?;
        (output, began.elapsed().as_secs_f64(), memory)
    };
    let share = files.len() as f64 / seconds / cores as f64 / alone;
    println!(
        "{} files: {seconds:.0} s, {:.2} files a second on {cores} cores, {share:.2} of the single rate for each core, {} MiB",
        files.len(),
        files.len() as f64 / seconds,
        memory >> 20
    );
    ensure!(memory <= MEMORY, "more than 1 GiB");
    named(&folder, &whole)?;
    killed(&folder, &whole)?;
    ensure!(share >= 0.8, "less than 0.8 of the single rate");
    Ok(())
}

fn program(name: &str) -> PathBuf {
    root().join("target/fast").join(name)
}

fn make(folder: &Path, ranks: usize) -> anyhow::Result<()> {
    // Under another name until it is whole.
    let making = folder.with_extension("making");
    if making.exists() {
        std::fs::remove_dir_all(&making)?;
    }
    let status = Command::new(program("examples/make_fleet"))
        .arg(&making)
        .arg(ranks.to_string())
        .status()?;
    ensure!(status.success(), "make_fleet: {status}");
    std::fs::rename(making.with_extension("planted.txt"), folder.with_extension("planted.txt"))?;
    Ok(std::fs::rename(making, folder)?)
}

fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files: Vec<_> =
        std::fs::read_dir(folder)?.map(|it| it.map(|it| it.path())).collect::<Result<_, _>>()?;
    files.sort();
    Ok(files)
}

/// Files a second that one `report` after the other has.
fn alone(files: &[PathBuf]) -> anyhow::Result<f64> {
    let few = files.iter().step_by((files.len() / ALONE).max(1)).take(ALONE);
    let began = Instant::now();
    let mut done = 0.0;
    for file in few {
        let output =
            Command::new(program("tonnage")).args(["report", "--json"]).arg(file).output()?;
        ensure!(output.status.success(), "{}", file.display());
        done += 1.0;
    }
    Ok(done / began.elapsed().as_secs_f64())
}

/// What `fleet report --json` prints, and the most memory that it took.
fn measured(sources: &[String]) -> anyhow::Result<(Vec<u8>, u64)> {
    let out = root().join("target/fleet/printed.json");
    let mut child = Command::new(program("tonnage"))
        .args(["fleet", "report", "--json"])
        .args(sources)
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
    ensure!(status.code() == Some(0), "fleet report: {status}");
    Ok((std::fs::read(out)?, most))
}

/// Every planted difference is named.
fn named(folder: &Path, printed: &[u8]) -> anyhow::Result<()> {
    let told: Value = serde_json::from_slice(printed)?;
    let ranks = |list: &str| -> BTreeSet<u64> {
        let list = told[list].as_array().into_iter().flatten();
        list.filter_map(|it| it["rank"].as_u64()).collect()
    };
    let (outliers, failed) = (ranks("outliers"), ranks("failed"));
    let planted = std::fs::read_to_string(folder.with_extension("planted.txt"))?;
    let mut count = 0;
    for line in planted.lines() {
        let (rank, what) = line.split_once(' ').context("a line of planted.txt")?;
        let rank: u64 = rank.parse()?;
        let found = if what.starts_with("Fails") { &failed } else { &outliers };
        ensure!(found.contains(&rank), "rank {rank} is not named: {what}");
        count += 1;
    }
    println!(
        "{count} of {count} planted differences are named, among {} ranks that differ",
        outliers.len()
    );
    Ok(())
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
    child.wait()?;
    let output = Command::new(program("tonnage")).args(&words).output()?;
    ensure!(output.stdout == whole, "a run that was killed and gone on with says something else");
    println!("killed in the middle and gone on with: the same bytes");
    Ok(())
}
