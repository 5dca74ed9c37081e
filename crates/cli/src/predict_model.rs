//! `tonnage predict --model config.json`: the memory of a Hugging Face model without a script.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;
use clap::builder::PossibleValuesParser;
use owo_colors::OwoColorize;
use serde_json::{Value, json};
use tonnage::Bytes;
use tonnage::plan::Checkpoint;
use tonnage_scripts::Axis;
use tonnage_scripts::model::{FILE, Facts, SCRIPT};

use crate::ask::Answered;
use crate::output::{grouped, plain};
use crate::recipe::Flags;

/// What only models have. Batch, sequence, steps, optimizer and techniques are those of recipes.
#[derive(Args)]
pub(crate) struct Model {
    /// A Hugging Face model instead of a script: its config.json, or the folder that has one. A script of ours trains it, or
    /// generates with it, on random weights: --batch, --seq, --steps, --optimizer, --amp, --checkpoint and --accumulate are its
    /// options too, and --search takes their names
    #[arg(
        long,
        value_name = "CONFIG",
        group = "subject",
        help_heading = "Models",
        conflicts_with_all = [
            "recipe", "layers", "width", "vocab", "image", "antennas", "users", "subcarriers", "snr", "tf32", "offload",
            "graph", "memory_profile", "seed", "fit", "context", "command"
        ]
    )]
    model: Option<PathBuf>,

    /// The type of the weights [default: the config's own]
    #[arg(
        long,
        value_name = "TYPE",
        requires = "model",
        help_heading = "Models",
        value_parser = PossibleValuesParser::new(["bf16", "f16", "f32"])
    )]
    dtype: Option<String>,

    /// Train adapters of this rank on every linear layer but the head, and nothing else
    #[arg(
        long,
        value_name = "RANK",
        requires = "model",
        help_heading = "Models",
        conflicts_with = "generate"
    )]
    lora: Option<u64>,

    /// Generate so many tokens, with a cache, instead of training
    #[arg(
        long,
        value_name = "TOKENS",
        requires = "model",
        help_heading = "Models",
        conflicts_with_all = ["optimizer", "checkpoint", "accumulate", "steps", "batch"]
    )]
    generate: Option<u64>,

    /// Prompts of --seq tokens that are generated for at once [default: 1]
    #[arg(long, value_name = "N", requires = "model", help_heading = "Models")]
    requests: Option<u64>,

    /// The Python with PyTorch and transformers [default: the one on the path]
    #[arg(long, value_name = "PATH", requires = "model", help_heading = "Models")]
    python: Option<String>,

    /// Print the script that would run, and run nothing
    #[arg(long, requires = "model", help_heading = "Models")]
    show_script: bool,
}

impl Model {
    /// Whether there is a model.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.model.is_some()
    }

    /// Whether its script is only to be shown.
    pub(crate) fn is_shown(&self) -> bool {
        self.show_script
    }

    fn python(&self) -> String {
        self.python.clone().unwrap_or_else(|| "python3".to_owned())
    }

    /// Why a number changes nothing, or not what it says, where it does as it is asked: trains, or generates.
    fn why_without(&self, name: &str, axes: &[Axis]) -> Option<&'static str> {
        let generates = self.generate.is_some() || axes.iter().any(|it| it.name() == "generate");
        match (name, generates) {
            ("batch", true) => Some("with --generate it is `requests` that are computed at once"),
            ("steps" | "accumulate" | "lora" | "optimizer" | "checkpoint", true) => {
                Some("with --generate nothing is trained")
            }
            ("requests", false) => {
                Some("without --generate it is `batch` that is computed at once")
            }
            _ => None,
        }
    }

    /// The command that runs it, with places for the names that are searched for.
    pub(crate) fn command(
        &self,
        script: &Path,
        flags: &Flags,
        axes: &[Axis],
    ) -> anyhow::Result<Vec<String>> {
        let config = self.model.as_deref().unwrap_or(Path::new("config.json"));
        let mut words = vec![self.python()];
        words.extend([script, config].map(|path| path.to_string_lossy().into_owned()));
        let given = |size: Option<usize>| size.map(|it| it as u64);
        let accumulate = Some(flags.accumulate as u64).filter(|it| *it != 1);
        let numbers = [
            ("batch", given(flags.batch)),
            ("seq", given(flags.seq)),
            ("steps", given(flags.steps)),
            ("accumulate", accumulate),
            ("lora", self.lora),
            ("generate", self.generate),
            ("requests", self.requests),
        ];
        for axis in axes {
            let Some((name, value)) = numbers.iter().find(|it| it.0 == axis.name()) else {
                let known: Vec<_> = numbers.iter().map(|it| it.0).collect();
                bail!("--search {}: of a model there are {}", axis.name(), known.join(", "));
            };
            if value.is_some() {
                bail!("--{name} is given, and searched for: take one of them away");
            }
            if let Some(why) = self.why_without(name, axes) {
                bail!("--search {name}: {why}");
            }
        }
        for (name, value) in numbers {
            if let (Some(_), Some(why)) = (value, self.why_without(name, axes)) {
                bail!("--{name}: {why}");
            }
            let axis = axes.iter().find(|axis| axis.name() == name);
            let value = axis.map(Axis::place).or_else(|| value.map(|value| value.to_string()));
            words.extend(value.into_iter().flat_map(|value| [format!("--{name}"), value]));
        }
        let amp = flags.amp.map(|amp| amp.to_string());
        let optimizer = flags.optimizer.map(|optimizer| optimizer.to_string());
        for (name, value) in [("dtype", self.dtype.clone()), ("amp", amp), ("optimizer", optimizer)]
        {
            if let (Some(_), Some(why)) = (&value, self.why_without(name, axes)) {
                bail!("--{name}: {why}");
            }
            words.extend(value.into_iter().flat_map(|value| [format!("--{name}"), value]));
        }
        if let (true, Some(why)) =
            (flags.checkpoint != Checkpoint::None, self.why_without("checkpoint", axes))
        {
            bail!("--checkpoint: {why}");
        }
        match flags.checkpoint {
            Checkpoint::None => {}
            Checkpoint::Every(1) => words.push("--checkpoint".to_owned()),
            other => bail!(
                "--checkpoint {other}: of a model every layer is recomputed or none: write --checkpoint alone"
            ),
        }
        Ok(words)
    }

    /// The script as it would run, with the command above it.
    pub(crate) fn shown(&self, flags: &Flags, axes: &[Axis]) -> anyhow::Result<Answered> {
        let command = self.command(Path::new(FILE), flags, axes)?;
        let text = format!("# {}\n\n{SCRIPT}", plain(&command.join(" ")));
        let json = json!({ "schema": 1, "command": command, "script": SCRIPT }).to_string();
        Ok(Answered { text, json, negative: false })
    }
}

/// What is said of a model's run, with what its script told of the model.
pub(crate) fn with_facts(mut answered: Answered, output: &str) -> Answered {
    let Some(facts) = Facts::of(output) else { return answered };
    let mut text = format!(
        "{}: {} parameters, {} of weights",
        plain(&facts.model).bold(),
        grouped(facts.parameters),
        Bytes(facts.weights)
    );
    // Writing to a string cannot fail.
    let _ = match (facts.cache, facts.trained) {
        (Some(cache), _) => writeln!(text, "; {} of cache at the end", Bytes(cache)),
        (None, trained) if trained == facts.parameters => writeln!(text, ", all trained"),
        (None, trained) => writeln!(text, "; {} are trained", grouped(trained)),
    };
    answered.text.insert_str(0, &text);
    if let Ok(Value::Object(mut object)) = serde_json::from_str(&answered.json) {
        let facts = json!({
            "class": facts.model,
            "parameters": facts.parameters,
            "trained": facts.trained,
            "weights": facts.weights,
            "cache": facts.cache,
        });
        object.insert("model".to_owned(), facts);
        answered.json = Value::Object(object).to_string();
    }
    answered
}
