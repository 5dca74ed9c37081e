//! The run of one rank, as it is kept: what is said of it, and what it was run with.
//!
//! In:  a script that has run as a rank ([`Seen`]), or what was kept of one.
//! Out: a [`Run`], its row in the dataset, and whether another rank asks for the same.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tonnage::replay::Until;
use tonnage_fleet::{Found, LookOptions, Row, hash, look};
use tonnage_scripts::{Ending, Environment, Options, Outcome};

use super::Asked;
use crate::output::{plain, with_causes};
use crate::predict_script::{Seen, Verdict};

/// Variables of a session, which say nothing to a script; with `*`, beginnings of names.
const OF_A_SESSION: [&str; 26] = [
    "COLORTERM",
    "COLUMNS",
    "DBUS_*",
    "DISPLAY",
    "HOSTNAME",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LINES",
    "LS_COLORS",
    "OLDPWD",
    "PS1",
    "PWD",
    "RAY_*",
    "SHLVL",
    "SLURM*",
    "SSH_*",
    "STY",
    "TEMP",
    "TERM*",
    "TMP",
    "TMPDIR",
    "TMUX*",
    "VSCODE_*",
    "WINDOWID",
    "XDG_*",
    "_",
];

fn is_of_a_session(name: &str) -> bool {
    OF_A_SESSION.iter().any(|it| match it.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == *it,
    })
}

/// What a rank was run with: runs with another key are of no use to this question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    /// Of all but files.
    hash: String,
    /// Paths that the command may name, each with what told its file from others when the command was given; none of what
    /// was no file.
    named: Vec<(String, Option<String>)>,
}

/// As it is told to other steps.
impl FromStr for Key {
    type Err = serde_json::Error;

    fn from_str(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }
}

impl Key {
    /// Of everything that decides what a rank of the job does, as far as it can be told from here: program and command, files
    /// that are named in it, Python, PyTorch and CUDA's libraries, the card, limits and settings, ranks of the job and of a
    /// host, variables.
    pub(crate) fn of(options: &Options, environment: &Environment, asked: &Asked) -> Self {
        let mut texts = vec![
            env!("CARGO_PKG_VERSION").to_owned(),
            std::env::current_dir().unwrap_or_default().to_string_lossy().into_owned(),
            environment.python.to_string_lossy().into_owned(),
            environment.torch.clone(),
            format!("{:?}", environment.releases),
            format!("{:?}", options.gpu),
            format!("{:?} {:?}", options.limit, options.settings),
            format!("{} {}", asked.size, asked.per_host),
        ];
        texts.extend(options.command.iter().cloned());
        let mut variables: Vec<_> = std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value))
            .filter(|(name, _)| !is_of_a_session(name))
            .map(|(name, value)| format!("{name}={}", value.to_string_lossy()))
            .collect();
        variables.sort();
        texts.extend(variables);
        let named = named(&options.command).into_iter().map(|path| {
            let version = version(&path);
            (path, version)
        });
        Self { hash: format!("{:016x}", hash(texts)), named: named.collect() }
    }

    /// Whether it is the same but for files.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.hash == other.hash
    }

    /// Whether what was run with the other key would be run in the same way with this one: no file that is named has changed,
    /// but for those that such runs have written.
    pub(crate) fn is_as_good_as(&self, other: &Self, written: &BTreeSet<PathBuf>) -> bool {
        let is_written = |path: &str| whole(path).is_some_and(|path| written.contains(&path));
        self.is_like(other)
            && self.named.len() == other.named.len()
            && self
                .named
                .iter()
                .zip(&other.named)
                .all(|(now, then)| now == then || (now.0 == then.0 && is_written(&now.0)))
    }
}

/// Paths that a command may name, whether there is a file or not: each word, what stands behind `=` in it, and where a module
/// behind `-m` lies below this folder.
fn named(command: &[String]) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    let mut before = "";
    for word in command {
        paths.insert(word.clone());
        paths.extend(word.split_once('=').map(|it| it.1.to_owned()));
        if ["-m", "--module"].contains(&before) {
            let module = word.replace('.', "/");
            paths.extend([format!("{module}.py"), format!("{module}/__main__.py")]);
        }
        before = word;
    }
    paths
}

/// The path without links and steps back, as what a script wrote is told; the file may be gone.
fn whole(path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    path.canonicalize().ok().or_else(|| {
        let folder = std::env::current_dir().ok()?.join(path.parent()?).canonicalize().ok()?;
        Some(folder.join(path.file_name()?))
    })
}

/// What tells a file from what it was before; none of what is no file.
fn version(path: &str) -> Option<String> {
    let about = Path::new(path).metadata().ok().filter(std::fs::Metadata::is_file)?;
    Some(format!("{} {}.{}", about.len(), about.mtime(), about.mtime_nsec()))
}

/// What comes of a rank, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Word {
    Fits,
    MayNotFit,
    DoesNotFit,
    /// By itself: nothing can be said of its memory.
    Failed,
}

impl Word {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::MayNotFit => "may not fit",
            Self::DoesNotFit => "does not fit",
            Self::Failed => "failed",
        }
    }
}

/// Why a script failed; where it did not live to tell, with what it said last.
fn why(error: &anyhow::Error, outcome: &Outcome) -> String {
    let last = outcome.output.lines().rev().find(|line| !line.trim().is_empty());
    match last.filter(|_| outcome.failure.is_none() && outcome.ending != Ending::Exit(0)) {
        Some(last) => format!("{}: {}", with_causes(error), last.trim()),
        None => with_causes(error),
    }
}

/// A rank that has run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) key: Key,
    pub(crate) verdict: Word,
    /// Why it failed by itself.
    pub(crate) why: Option<String>,
    /// Whether it left a history, which is kept beside it.
    pub(crate) history: bool,
    /// What is said of it, for programs; null if whoever ran it died.
    pub(crate) prediction: Value,
    /// The same for people.
    pub(crate) text: String,
}

impl Run {
    pub(crate) fn of(seen: &Seen, key: &Key) -> Self {
        let (verdict, why) = match &seen.verdict {
            Verdict::Fits => (Word::Fits, None),
            Verdict::MayNotFit => (Word::MayNotFit, None),
            Verdict::DoesNotFit => (Word::DoesNotFit, None),
            Verdict::Failed(error) => (Word::Failed, Some(why(error, &seen.outcome))),
        };
        let answered = seen.answered(None);
        let prediction = serde_json::from_str(&answered.json).unwrap_or_default();
        let history = why.is_none() && seen.has_history();
        Self { key: key.clone(), verdict, why, history, prediction, text: answered.text }
    }

    /// What was kept: whoever wrote it, nothing in it commands a terminal.
    pub(crate) fn read(text: &str) -> serde_json::Result<Self> {
        let mut run: Self = serde_json::from_str(text)?;
        let lines: Vec<_> = run.text.lines().map(|line| plain(line).into_owned()).collect();
        run.text = lines.join("\n") + "\n";
        Ok(run)
    }

    /// What is kept: without the colours of a terminal.
    pub(crate) fn to_json(&self) -> String {
        let text = anstream::adapter::strip_str(&self.text).to_string();
        serde_json::to_string(&Self { text, ..self.clone() }).unwrap_or_default()
    }

    /// Files that the script wrote.
    pub(crate) fn written(&self) -> impl Iterator<Item = PathBuf> {
        let files = self.prediction["files"].as_array().into_iter().flatten();
        files.filter_map(|file| Some(PathBuf::from(file["path"].as_str()?)))
    }

    /// Bytes of one of its peaks, the most they may be; none without figures.
    pub(crate) fn most(&self, peak: &str) -> Option<u64> {
        self.prediction[peak]["high"].as_u64()
    }

    /// Whether another rank asks for the same: all peaks, as many blocks, the same verdict; or fails for the same reason.
    pub(crate) fn asks_what(&self, other: &Self) -> bool {
        let figures = |run: &Self| {
            ["requested", "allocated", "reserved", "allocations"]
                .map(|it| run.prediction[it].clone())
        };
        (self.verdict, &self.why) == (other.verdict, &other.why) && figures(self) == figures(other)
    }

    /// Its row, of the file that it left.
    pub(crate) fn row(&self, address: &str, file: Option<&Found>, options: &LookOptions) -> Row {
        let row = file.filter(|_| self.history);
        let row = row.and_then(|file| look(file, options, &Until::default()));
        row.unwrap_or_else(|| self.row_without_file(address, options))
    }

    pub(crate) fn row_without_file(&self, address: &str, options: &LookOptions) -> Row {
        let why = self.why.as_deref().unwrap_or("the script left no history");
        Row::without_file(address, options, why)
    }
}
