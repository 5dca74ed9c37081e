//! Compiles recorded kernels for every architecture, without a GPU: `cargo xtask kernels` runs it.
//!
//! In:  a folder of kernels as files `NAME-HASH.cu`, whose first line is a comment with options of the compiler; a folder in
//!      which to remember what has compiled; and how many instances of each kernel to take, if not all.
//! Out: what does not compile, with the compiler's words, and then a failure.

use std::path::Path;
use std::process::ExitCode;

use tonnage_cuda_libs::cache::Cache;
use tonnage_cuda_libs::find::Search;
use tonnage_cuda_libs::{Architecture, Compiler, KernelSource, check};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let most = match arguments.get(2) {
        None => Some(usize::MAX),
        Some(most) => most.to_str().and_then(|most| most.parse().ok()),
    };
    let (Some(most), [kernels, known, ..]) = (most, arguments.as_slice()) else {
        eprintln!("compile_kernels FOLDER KNOWN [MOST]");
        return ExitCode::from(2);
    };
    match compile(kernels.as_ref(), known.as_ref(), most) {
        Ok(count) => {
            println!("{count} kernels compile for {} architectures", Architecture::TESTED.len());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn compile(folder: &Path, known: &Path, most: usize) -> Result<usize, String> {
    let sources =
        sources(folder, most).map_err(|error| format!("{}: {error}", folder.display()))?;
    if sources.is_empty() {
        return Err(format!("{} has no kernels: no test has recorded any", folder.display()));
    }
    let compiler = Compiler::load(&Search::here()).map_err(|error| error.to_string())?;
    // Nothing is kept but the fact, so there is no bound in bytes; as many as some states of the sources have.
    let cache = Cache::at(known).bounded(u64::MAX, 40_000);
    let failures = check::failures(&compiler, &cache, &sources, &Architecture::TESTED);
    if failures.is_empty() { Ok(sources.len()) } else { Err(failures.join("\n\n")) }
}

/// The kernels of a folder, of each name so many.
fn sources(folder: &Path, most: usize) -> std::io::Result<Vec<KernelSource>> {
    let mut paths = std::fs::read_dir(folder)?
        .map(|entry| entry.map(|it| it.path()))
        .collect::<Result<Vec<_>, _>>()?;
    paths.retain(|path| path.extension().is_some_and(|it| it == "cu"));
    paths.sort();
    let of_name = paths.chunk_by(|a, b| name(a) == name(b));
    of_name.flat_map(|instances| instances.iter().take(most)).map(|path| source(path)).collect()
}

/// The kernel that a file is an instance of.
fn name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    stem.rsplit_once('-').map_or(&*stem, |(name, _)| name).to_owned()
}

fn source(path: &Path) -> std::io::Result<KernelSource> {
    let whole = std::fs::read_to_string(path)?;
    let (options, text) = whole.split_once('\n').unwrap_or((whole.as_str(), ""));
    let options = options.trim_start_matches('/').split_whitespace().map(str::to_owned);
    // They stay for the life of a program that ends soon.
    let options: Vec<&'static str> = options.map(|it| &*it.leak()).collect();
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(KernelSource::made(name, text.to_owned()).with_options(options.leak()))
}
