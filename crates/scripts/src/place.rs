//! A folder in which scripts run: libraries, hook and GPU's data beside each other; and a run there.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{StatVfsMountFlags, statvfs};
use tonnage_fake_cudart::notes::NOTES_VARIABLE;
use tonnage_fake_cudart::profile::PROFILE_VARIABLE;
use tonnage_fake_cudart::reads::{BIRTH_VARIABLE, READS_IN_VARIABLE, READS_OUT_VARIABLE};

use crate::files::{Change, Journal, Written};
use crate::libraries::Libraries;
use crate::process::{Ended, RUN_VARIABLE, end_all, run};
use crate::{Environment, Error, Gpu, Options, World};

/// What runs inside the script.
const HOOK: [(&str, &str); 7] = [
    ("sitecustomize.py", include_str!("hook/sitecustomize.py")),
    ("tonnage_after_import.py", include_str!("hook/tonnage_after_import.py")),
    ("tonnage_births.py", include_str!("hook/tonnage_births.py")),
    ("tonnage_collectives.py", include_str!("hook/tonnage_collectives.py")),
    ("tonnage_files.py", include_str!("hook/tonnage_files.py")),
    ("tonnage_values.py", include_str!("hook/tonnage_values.py")),
    ("tonnage_world.py", include_str!("hook/tonnage_world.py")),
];

/// What tells of the GPU, to scripts that ask a program.
const SMI: (&str, &str) = ("nvidia-smi", include_str!("nvidia-smi.sh"));

/// Where PyTorch takes its allocator's settings from.
const SETTINGS_VARIABLE: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// Where later releases look first.
const NEWER_SETTINGS_VARIABLE: &str = "PYTORCH_ALLOC_CONF";

/// What is said where there is no folder for them.
const NO_PLACE: &str = "no library can be loaded from here nor from other folders of temporary files, as they are mounted with `noexec` or have a space, \
                        a colon or a semicolon in their path: name another one in TMPDIR";

/// Whether the system runs no program that lies there, and loads no library: it would go on without ours.
fn is_without_programs(folder: &Path) -> bool {
    statvfs(folder).is_ok_and(|it| it.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

/// How often a folder is removed that somebody may still write into.
const REMOVALS: usize = 20;

/// Folders in which scripts run.
static FOLDERS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn folders() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends scripts that run and removes their folders, for a program that is about to end without coming back here: when
/// someone presses Ctrl-C.
pub fn abandon() {
    end_all();
    for folder in &*folders() {
        // Whoever prepares a run may write into it meanwhile. What cannot be removed stays where temporary files are.
        for _ in 0..REMOVALS {
            let _ = fs::remove_dir_all(folder);
            if !folder.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A folder that goes with this value.
#[derive(Debug)]
pub(crate) struct Folder(Option<tempfile::TempDir>);

impl Folder {
    /// Where temporary files go, or else where no path has what a list of libraries is parted by and libraries can be loaded from.
    pub(crate) fn new() -> Result<Self, Error> {
        let parts = |path: &Path| path.to_string_lossy().contains([' ', '\t', '\n', ':', ';']);
        let serves = |path: &PathBuf| !parts(path) && !is_without_programs(path);
        let usual = std::env::temp_dir();
        let others = ["/tmp", "/var/tmp", "/dev/shm"].map(PathBuf::from);
        let mut places = [usual.clone()].into_iter().chain(others).filter(serves);
        let make = |place: PathBuf| tempfile::Builder::new().prefix("tonnage-").tempdir_in(place);
        let none = || Err(io::Error::new(io::ErrorKind::PermissionDenied, NO_PLACE));
        let first = places.next().map_or_else(none, make);
        let folder =
            places.fold(first, |made, place| made.or_else(|error| make(place).or(Err(error))));
        let folder = folder.map_err(Error::of(&usual))?;
        folders().insert(folder.path().to_owned());
        Ok(Self(Some(folder)))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.as_ref().map_or(Path::new(""), tempfile::TempDir::path)
    }

    /// It stays.
    pub(crate) fn keep(mut self) -> PathBuf {
        folders().remove(self.path());
        self.0.take().map_or(PathBuf::new(), tempfile::TempDir::keep)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        folders().remove(self.path());
    }
}

/// Whether [`abandon`] would remove a path.
#[cfg(test)]
pub(crate) fn is_given_up(path: &Path) -> bool {
    folders().iter().any(|folder| path.starts_with(folder))
}

/// What a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Values are computed beside, and what the script reads is written down.
    Values,
    /// The script is given what it read, and its figures count.
    Figures,
}

impl Pass {
    fn name(self) -> &'static str {
        match self {
            Self::Values => "values",
            Self::Figures => "figures",
        }
    }
}

/// How a script is tried: with which device, and which guesses.
#[derive(Clone, Debug)]
pub(crate) struct Trial<'a> {
    /// A word for its folder.
    pub(crate) name: &'a str,
    pub(crate) gpu: &'a Gpu,
    pub(crate) limit: Option<u64>,
    /// The share of unknown masks that is taken to be true, if not the usual one.
    pub(crate) density: Option<f64>,
}

/// A folder with what scripts need to run.
pub(crate) struct Place<'a> {
    folder: &'a Path,
    libraries: Libraries,
    /// CUDA's release, in its own way of writing it.
    version: i32,
    /// Releases of its libraries, by their names.
    releases: BTreeMap<String, String>,
    /// PyTorch's, as it is installed.
    torch: String,
    /// What runs here wrote so far.
    written: RefCell<Vec<Written>>,
}

/// A run that is over.
pub(crate) struct Done {
    pub(crate) ended: Ended,
    /// Where its processes left their answers.
    pub(crate) out: PathBuf,
    /// Where the libraries left their notes.
    pub(crate) notes: PathBuf,
    /// What it wrote.
    pub(crate) files: Vec<Written>,
    /// What it noted about files.
    pub(crate) journal: Journal,
}

impl<'a> Place<'a> {
    pub(crate) fn prepare(folder: &'a Path, environment: &Environment) -> Result<Self, Error> {
        let hook = make(&folder.join("hook"))?;
        for (name, text) in HOOK {
            write(&hook.join(name), text)?;
        }
        let smi = make(&folder.join("bin"))?.join(SMI.0);
        write(&smi, SMI.1)?;
        fs::set_permissions(&smi, fs::Permissions::from_mode(0o755)).map_err(Error::of(&smi))?;
        let libraries = Libraries::write(&make(&folder.join("lib"))?, &environment.libraries)?;
        let version = i32::try_from(environment.cuda).unwrap_or(13) * 1000;
        let (releases, torch) = (environment.releases.clone(), environment.torch.clone());
        Ok(Self { folder, libraries, version, releases, torch, written: RefCell::default() })
    }

    /// PyTorch's release, as it is installed where the libraries' names are from.
    pub(crate) fn torch(&self) -> &str {
        &self.torch
    }

    /// The lines of a trial's guesses.
    pub(crate) fn guess_lines(&self, trial: &Trial<'_>) -> PathBuf {
        self.folder.join(trial.name).join("guesses")
    }

    /// Tells the next run what those before it wrote.
    fn tell_written(&self, earlier: &[Written]) -> Result<PathBuf, Error> {
        let here = self.written.borrow();
        let files = earlier.iter().chain(&*here);
        let files = files.filter(|it| it.what != Change::Removed && it.path.is_file());
        let paths: BTreeSet<_> = files.map(|it| it.path.to_string_lossy()).collect();
        let list = self.folder.join("written");
        write(&list, &serde_json::json!(paths).to_string())?;
        Ok(list)
    }

    /// Runs the script.
    pub(crate) fn run(
        &self,
        options: &Options,
        trial: &Trial<'_>,
        pass: Pass,
    ) -> Result<Done, Error> {
        let of_trial = make(&self.folder.join(trial.name))?;
        let of_pass = make(&of_trial.join(pass.name()))?;
        let (out, notes) = (make(&of_pass.join("out"))?, make(&of_pass.join("notes"))?);
        let profile = of_trial.join("profile");
        let devices = options.world.map_or(options.gpus, |world| world.per_host);
        let mut told = trial.gpu.profile(trial.limit, self.version, devices)?;
        told.releases.clone_from(&self.releases);
        write(&profile, &told.to_lines())?;
        let journal = Journal::new(&of_pass);
        let mut command = self.command(options, &of_pass, &journal);
        command.env(PROFILE_VARIABLE, profile);
        command.env(NOTES_VARIABLE, &notes);
        command.env(RUN_VARIABLE, &out).env(BIRTH_VARIABLE, "0");
        command.env("TONNAGE_STACKS", if pass == Pass::Figures { "1" } else { "0" });
        let reads = of_trial.join("reads");
        match pass {
            Pass::Values => {
                command.env("TONNAGE_VALUES", "1").env("TONNAGE_GUESSES", self.guess_lines(trial));
                command.env(READS_OUT_VARIABLE, reads);
            }
            Pass::Figures => {
                command.env("TONNAGE_VALUES", "0").env(READS_IN_VARIABLE, reads);
            }
        }
        if let Some(density) = trial.density {
            command.env("TONNAGE_DENSITY", density.to_string());
        }
        command.env("TONNAGE_WROTE_BEFORE", self.tell_written(&options.written)?);
        let ended = run(&mut command, options.time)?;
        let files = journal.written();
        self.written.borrow_mut().extend(files.iter().cloned());
        Ok(Done { ended, out, notes, files, journal })
    }

    /// The command with everything that is the same in all its runs.
    fn command(&self, options: &Options, of_pass: &Path, journal: &Journal) -> Command {
        let mut words = options.command.iter();
        let mut command = Command::new(words.next().map_or("python3", String::as_str));
        command.args(words);
        let join = |variable: &str, first: String| match std::env::var(variable) {
            Ok(rest) if !rest.is_empty() => format!("{first}:{rest}"),
            _ => first,
        };
        let preload: Vec<_> =
            self.libraries.preload.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        command.env("LD_PRELOAD", join("LD_PRELOAD", preload.join(":")));
        let of_folder = |name: &str| self.folder.join(name).to_string_lossy().into_owned();
        command.env("LD_LIBRARY_PATH", join("LD_LIBRARY_PATH", of_folder("lib")));
        command.env("PYTHONPATH", join("PYTHONPATH", of_folder("hook")));
        command.env("PATH", join("PATH", of_folder("bin")));
        command.env("TONNAGE_CORE", &self.libraries.core);
        command.env("TONNAGE_FOLDER", self.folder);
        command.env("TONNAGE_JOURNAL", &journal.file);
        // What is compiled for a device that computes nothing, and chosen by times that are none, stays here.
        command.env("TORCHINDUCTOR_CACHE_DIR", of_pass.join("inductor"));
        command.env("TRITON_CACHE_DIR", of_pass.join("triton"));
        if let Some(world) = options.world {
            be_rank(&mut command, world);
        }
        if let Some(settings) = &options.settings {
            command.env(SETTINGS_VARIABLE, settings).env_remove(NEWER_SETTINGS_VARIABLE);
        }
        command
    }
}

/// Tells a script which rank it is, in the words of `torchrun`.
fn be_rank(command: &mut Command, world: World) {
    let World { size, rank, per_host } = world;
    let (host, hosts) = (rank / per_host, size.div_ceil(per_host));
    // The last host may have fewer.
    let beside = per_host.min(size.saturating_sub(host * per_host));
    for (name, value) in [
        ("RANK", rank),
        ("WORLD_SIZE", size),
        ("LOCAL_RANK", rank % per_host),
        ("LOCAL_WORLD_SIZE", beside),
        ("GROUP_RANK", host),
        ("GROUP_WORLD_SIZE", hosts),
        ("NODE_RANK", host),
        ("ROLE_RANK", rank),
        ("ROLE_WORLD_SIZE", size),
        ("MASTER_PORT", 29500),
        ("TORCHELASTIC_RESTART_COUNT", 0),
        ("TORCHELASTIC_MAX_RESTARTS", 0),
        ("TONNAGE_WORLD", 1),
        // Threads that ask the store whether other ranks are alive, and whether one gave up: they are not there.
        ("TORCH_NCCL_ENABLE_MONITORING", 0),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", 0),
    ] {
        command.env(name, value.to_string());
    }
    command.env("MASTER_ADDR", "localhost").env("TORCHELASTIC_RUN_ID", "tonnage");
}

/// A folder that is there afterwards.
fn make(path: &Path) -> Result<PathBuf, Error> {
    fs::create_dir_all(path).map_err(Error::of(path)).map(|()| path.to_owned())
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(Error::of(path))
}

/// Lines of a file; none if it is not there.
pub(crate) fn lines(path: &Path) -> Result<Vec<String>, Error> {
    match fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::of(path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_where_libraries_can_be_loaded_from() {
        // Of two mounts at one place the later one is seen.
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let options = |path: &str| {
            let mut lines = mounts.lines().rev().map(|it| it.split(' ').collect::<Vec<_>>());
            lines.find_map(|it| (it[1] == path).then(|| it[3].to_owned()))
        };
        for path in ["/", "/proc", "/sys", "/dev", "/dev/shm", "/run"] {
            let Some(options) = options(path) else { continue };
            let told = options.split(',').any(|it| it == "noexec");
            assert_eq!(is_without_programs(Path::new(path)), told, "{path}: {options}");
        }
        assert!(
            !is_without_programs(Path::new("/nowhere")),
            "why nothing is made there is said then"
        );
        assert!(!is_without_programs(Folder::new().unwrap().path()));
    }
}
