//! What `run` and `predict` share: the flags of a recipe, what it took in words, and what to say when
//! it does not fit.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use owo_colors::OwoColorize;
use serde_json::json;
use tonnage::plan::{
    Amp, Checkpoint, DeviceKind, Error, OptimizerKind, Options, Outcome, Recipe, Size, suggest,
};
use tonnage::snapshot::check_save;
use tonnage::tensor::MemoryProfile;
use tonnage::{Bytes, Policy};

use crate::ask::Answered;
use crate::output::grouped;
use crate::size::memory_size;

/// Which recipe, how large, and with what.
#[derive(Args)]
pub(crate) struct Flags {
    /// `mlp`, `deepnet`, `gpt2`, `gpt2-medium`, `gpt2-large`, `gpt2-xl`, `resnet50` or `mimo`. Without it `gpt2-tiny`, a
    /// small GPT-2 over the bytes of this project's documents
    pub(crate) recipe: Option<Recipe>,

    /// Layers or blocks
    #[arg(long, value_name = "N", help_heading = "Sizes")]
    layers: Option<usize>,

    /// Numbers for each token or row; of resnet50, channels of the first stage
    #[arg(long, value_name = "N", help_heading = "Sizes")]
    width: Option<usize>,

    /// Examples in a step
    #[arg(long, value_name = "N", help_heading = "Sizes")]
    pub(crate) batch: Option<usize>,

    /// Tokens in an example, of gpt2
    #[arg(long, value_name = "N", help_heading = "Sizes")]
    pub(crate) seq: Option<usize>,

    /// Kinds of tokens, of gpt2
    #[arg(long, value_name = "N", help_heading = "Sizes")]
    vocab: Option<usize>,

    /// Pixels along each side of an image, of resnet50
    #[arg(long, value_name = "N", help_heading = "Sizes")]
    image: Option<usize>,

    /// Antennas of the base station, of mimo
    #[arg(long, value_name = "N", help_heading = "Sizes")]
    antennas: Option<usize>,

    /// Users, of mimo
    #[arg(long, value_name = "N", help_heading = "Sizes")]
    users: Option<usize>,

    /// Subcarriers, of mimo
    #[arg(long, value_name = "N", help_heading = "Sizes")]
    subcarriers: Option<usize>,

    /// Power of one user at one antenna over that of the noise, in decibels, of mimo
    #[arg(long, value_name = "DB", allow_negative_numbers = true)]
    snr: Option<f64>,

    /// Steps
    #[arg(long, value_name = "N")]
    pub(crate) steps: Option<usize>,

    /// `sgd` (with momentum), `adam` or `adamw`
    #[arg(long, value_name = "NAME")]
    pub(crate) optimizer: Option<OptimizerKind>,

    /// Compute products in 16 bits: `bf16`, or `f16` with a scaled loss
    #[arg(long, value_name = "TYPE", help_heading = "Techniques")]
    pub(crate) amp: Option<Amp>,

    /// On a GPU, let tensor cores compute products in 32 bits, which rounds them to TF32
    #[arg(long, help_heading = "Techniques")]
    tf32: bool,

    /// Recompute instead of keeping: `none`, `sqrt`, or `every:K` for segments of K blocks; alone, every block by itself
    #[arg(
        long,
        value_name = "HOW",
        default_value = "none",
        default_missing_value = "every:1",
        num_args = 0..=1,
        help_heading = "Techniques"
    )]
    pub(crate) checkpoint: Checkpoint,

    /// Split each batch into N parts and add up their gradients
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Techniques")]
    pub(crate) accumulate: usize,

    /// Keep what the forward saves in host memory
    #[arg(long, help_heading = "Techniques")]
    offload: bool,

    /// Capture the step into a graph, and replay it: its memory comes from a pool of its own. The first step runs as it is
    #[arg(long, help_heading = "Techniques")]
    graph: bool,

    /// The memory of the device. Bytes, `24GiB`, `24GB`
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    pub(crate) limit: Option<Bytes>,

    /// Settings as in PYTORCH_CUDA_ALLOC_CONF, such as `expandable_segments:True`
    #[arg(long, value_name = "SETTINGS", default_value = "", hide_default_value = true)]
    pub(crate) conf: String,

    /// The allocator's placement rules: `pytorch`; or `pages`, where physical pages go where they are needed, perhaps with how
    /// much may lie free before they do: `pages,slack:0.02`. Without it, those that TONNAGE_CONF names, or PyTorch's
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Option<Policy>,

    /// Whose memory is counted: `bare` is tensors alone, `tonnage` this runtime on a GPU, with its scratch memory and lean
    /// losses, `pytorch` what PyTorch takes there
    #[arg(long, value_name = "WHOSE", value_parser = memory_profile, default_value_t = MemoryProfile::Bare)]
    memory_profile: MemoryProfile,

    /// Where random numbers begin
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Write a snapshot with the whole history when it has ended, also where memory did not suffice, for
    /// `tonnage report` and `tonnage replay`
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

fn memory_profile(text: &str) -> Result<MemoryProfile, String> {
    let found = MemoryProfile::ALL.into_iter().find(|it| it.name() == text);
    found.ok_or_else(|| "profiles are `bare`, `tonnage` and `pytorch`".to_owned())
}

impl Flags {
    /// What they mean, or the first thing that does not fit.
    pub(crate) fn options(&self) -> anyhow::Result<Options> {
        let mut options = Options::new(self.recipe.unwrap_or(Recipe::EMBEDDED));
        for (size, value) in [
            (Size::Layers, self.layers),
            (Size::Width, self.width),
            (Size::Batch, self.batch),
            (Size::Seq, self.seq),
            (Size::Vocab, self.vocab),
            (Size::Image, self.image),
            (Size::Antennas, self.antennas),
            (Size::Users, self.users),
            (Size::Subcarriers, self.subcarriers),
        ] {
            if let Some(value) = value {
                options = options.with(size, value)?;
            }
        }
        let recipe = options.recipe();
        if self.snr.is_some() && recipe.trains() {
            anyhow::bail!("{recipe} has no --snr: only mimo has noise");
        }
        if self.optimizer.is_some() && !recipe.trains() {
            anyhow::bail!("{recipe} has no --optimizer: it does not train");
        }
        options.snr_db = self.snr.unwrap_or(options.snr_db);
        options.steps = self.steps.unwrap_or(options.steps);
        options.optimizer = self.optimizer.unwrap_or(options.optimizer);
        options.amp = self.amp;
        options.tf32 = self.tf32;
        options.checkpoint = self.checkpoint;
        options.accumulate = self.accumulate;
        options.offload = self.offload;
        options.graph = self.graph;
        options.limit = self.limit.map(|limit| limit.0);
        options.conf = self.conf.clone();
        options.policy = self.policy.map_or_else(policy_from_env, |policy| Ok(Some(policy)))?;
        options.memory_profile = self.memory_profile;
        options.seed = self.seed;
        options.save = self.save.clone();
        options.check()?;
        self.check_save()?;
        Ok(options)
    }
}

/// The placement rules that the environment names, if it does.
fn policy_from_env() -> anyhow::Result<Option<Policy>> {
    let conf = std::env::var_os("TONNAGE_CONF").unwrap_or_default();
    if conf.is_empty() {
        return Ok(None);
    }
    let policy = Policy::from_conf(&conf.to_string_lossy());
    policy.map(Some).map_err(|reason| anyhow::anyhow!("TONNAGE_CONF: {reason}"))
}

impl Flags {
    /// If no recipe was named, which one that is: people may take it for GPT-2 itself.
    pub(crate) fn say_which(&self, text: &mut String, verb: &str) {
        if self.recipe.is_none() {
            let _ = writeln!(
                text,
                "no recipe named: the small one that is built in; GPT-2 itself is `tonnage {verb} gpt2`"
            );
        }
    }

    /// Refuses a file that cannot be written: what is to be saved there may take hours. What is there already stays
    /// until then.
    pub(crate) fn check_save(&self) -> anyhow::Result<()> {
        let Some(path) = &self.save else { return Ok(()) };
        if path == Path::new("-") {
            anyhow::bail!(
                "--save -: standard output has what is said about the run: name a file, `./-` if it is to be called so"
            );
        }
        Ok(check_save(path)?)
    }
}

/// The command line that has these options.
pub(crate) fn command(verb: &str, options: &Options) -> String {
    let (recipe, flags) = (options.recipe(), options.flags());
    let space = if flags.is_empty() { "" } else { " " };
    format!("tonnage {verb} {recipe}{space}{flags}")
}

/// What ran, in a line: its sizes and techniques.
pub(crate) fn title(options: &Options, device: impl std::fmt::Display) -> String {
    let recipe = options.recipe();
    let mut text = format!("{} on {device}:", recipe.name().bold());
    for size in recipe.sizes() {
        let _ = write!(text, " {} {},", size.name(), options.size(size));
    }
    let _ = match recipe.trains() {
        true => write!(text, " {}", options.optimizer),
        false => write!(text, " {} dB", options.snr_db),
    };
    if let Some(amp) = options.amp {
        let _ = write!(text, ", {amp}");
    }
    if options.checkpoint != Checkpoint::None {
        let _ = write!(text, ", checkpoints {}", options.checkpoint);
    }
    if options.accumulate > 1 {
        let _ = write!(text, ", batches in {} parts", options.accumulate);
    }
    if options.offload {
        text.push_str(", offload");
    }
    if options.graph {
        text.push_str(", graph");
    }
    if let Some(limit) = options.limit {
        let _ = write!(text, ", at most {}", Bytes(limit));
    }
    if !options.conf.is_empty() {
        let _ = write!(text, ", {}", options.conf);
    }
    if let Some(policy) = options.policy {
        let _ = write!(text, ", policy {policy}");
    }
    text
}

/// How many numbers are learnt, with thousands apart.
pub(crate) fn parameters(outcome: &Outcome) -> String {
    grouped(outcome.parameters)
}

/// The peaks, what the bytes were for, and the phases.
pub(crate) fn describe(text: &mut String, outcome: &Outcome) {
    let exact = |bytes: u64| format!("{:>12}{:>20}", Bytes(bytes).to_string(), grouped(bytes));
    let _ = writeln!(text, "{:<11}{:>12}{:>20}", "peak", "", "bytes");
    for (name, bytes) in [
        ("requested", outcome.requested_peak),
        ("allocated", outcome.allocated_peak),
        ("reserved", outcome.reserved_peak),
    ] {
        let _ = writeln!(text, "{name:<11}{}", exact(bytes));
    }
    let waste = outcome.waste();
    let _ = writeln!(text, "waste      {waste:>12.2}  (peak reserved ÷ peak requested)");
    if let (Some(phase), Some(line)) = (outcome.peak_phase, &outcome.peak_line) {
        let _ = writeln!(text, "\nallocated at the peak, in {},", phase.name().bold());
        let _ = writeln!(text, "by {line}:");
    }
    for (role, bytes) in outcome.breakdown.iter().filter(|it| it.1 > 0) {
        let share = *bytes as f64 / outcome.allocated_peak.max(1) as f64 * 100.0;
        let _ = writeln!(text, "  {:<12}{} {share:>5.1} %", role.name(), exact(*bytes));
    }
    let _ = writeln!(text, "\n{:<11}{:>12}{:>14}", "phase", "peak", "at its end");
    for phase in &outcome.phases {
        let [peak, end] =
            [phase.allocated_peak, phase.allocated_end].map(|it| Bytes(it).to_string());
        let _ = writeln!(text, "{:<11}{peak:>12}{end:>14}", phase.phase.name());
    }
}

/// Commands longer than this have what they are for below them: chosen, both fit into 120 columns.
const WIDE: usize = 80;

/// The last lines: commands, and what each is for.
pub(crate) fn try_next(text: &mut String, lines: &[(String, &str)]) {
    let _ = writeln!(text, "\n{}", "try next:".bold());
    let width = lines.iter().map(|it| it.0.len()).max().unwrap_or(0);
    for (command, why) in lines {
        let _ = if width <= WIDE {
            writeln!(text, "  {command:<width$}  {why}")
        } else {
            writeln!(text, "  {command}\n      {why}")
        };
    }
}

/// Says that memory does not suffice, and what to do instead. Other errors go on.
pub(crate) fn does_not_fit(
    verb: &str,
    options: &Options,
    device: DeviceKind,
    error: Error,
) -> anyhow::Result<Answered> {
    if !matches!(error, Error::OutOfMemory { .. }) {
        return Err(error.into());
    }
    let suggestion = suggest(options)?;
    let with = suggestion.as_ref().map(|it| command(verb, &it.options));
    let object = json!({
        "schema": 1,
        "recipe": options.recipe().name(),
        "device": device.to_string(),
        "limit": options.limit,
        "error": "out_of_memory",
        "message": error.to_string(),
        "suggestion": with,
    });
    let mut text = format!("{}\n\n", title(options, device));
    let _ = writeln!(text, "{}: {error}\n", "does not fit".red().bold());
    match (suggestion, with) {
        (Some(suggestion), Some(command)) => {
            let peak = Bytes(suggestion.outcome.reserved_peak);
            let _ = writeln!(text, "{} with {peak} reserved, by a dry run:", "fits".green().bold());
            let _ = writeln!(text, "  {command}");
        }
        _ => {
            let what = if options.recipe().trains() { "model" } else { "simulation" };
            let than = match options.limit {
                Some(_) => String::new(),
                None => format!(" for any device: more than {}", Bytes(DeviceKind::UNLIMITED)),
            };
            let _ = writeln!(
                text,
                "no technique and no smaller batch fits: the {what} itself is too large{than}"
            );
        }
    }
    Ok(Answered { text, json: object.to_string(), negative: true })
}
