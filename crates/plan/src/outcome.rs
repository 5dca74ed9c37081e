//! What a run took: peaks, what the bytes were for, which phase and line reached them.
//!
//! In:  what the meter counted.
//! Out: [`Outcome`], and the JSON object that both verbs print.

use std::panic::Location;

use serde_json::{Map, Value, json};
use tonnage_events::source_name;
use tonnage_tensor::{Device, Peak, QueuedWork, Role};

use crate::fit::{Fit, Gain, Together};
use crate::formula::Formula;
use crate::meter::{Meter, Phase, PhaseMemory};
use crate::options::Options;
use crate::recipe::Recipe;

/// The version of the JSON object.
const SCHEMA: u32 = 1;

/// What a run took.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// What ran.
    pub options: Options,
    /// `host` or `dry`.
    pub device: &'static str,
    /// Numbers that are learnt.
    pub parameters: u64,
    /// The most bytes of blocks handed out.
    pub allocated_peak: u64,
    /// The most bytes obtained from the device.
    pub reserved_peak: u64,
    /// The most bytes that were asked for and live.
    pub requested_peak: u64,
    /// What the allocated bytes were for at their peak; they add up to it.
    pub breakdown: Vec<(Role, u64)>,
    /// The most bytes that were for each purpose at any time.
    pub most: Vec<(Role, u64)>,
    /// The memory of each phase, in order.
    pub phases: Vec<PhaseMemory>,
    /// The phase of the allocated peak.
    pub peak_phase: Option<Phase>,
    /// The operation that reached it, the model's line that called it, and the program's, if that is another.
    pub peak_line: Option<String>,
    /// How often the last step asked for memory.
    pub requests: u64,
    /// How much the last step computed; on a device that does, the copies of its batch included.
    pub work: QueuedWork,
    /// The loss of each step; none on a device that does not compute.
    pub losses: Vec<f32>,
    /// Steps that changed nothing, since a gradient of `f16` was not finite.
    pub skipped_steps: usize,
    /// What `mimo` detected.
    pub symbols: Option<Symbols>,
}

/// Symbols that were sent, and how many of them were detected wrongly.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Symbols {
    /// How many were sent.
    pub sent: u64,
    /// How many were detected wrongly; none on a device that does not compute, as all that follow from
    /// it.
    pub wrong: Option<u64>,
    /// The symbol error rate.
    pub rate: Option<f64>,
    /// The lowest and highest rate that fit what was counted, with a confidence of 99 %.
    pub interval: Option<(f64, f64)>,
    /// The rate that theory says.
    pub theory: f64,
}

impl Outcome {
    /// What the meter counted; the rest is nothing yet.
    pub(crate) fn new(options: &Options, device: &Device, meter: &Meter<'_>) -> Self {
        let (peak_phase, peak) = meter.peak.clone().unzip();
        let breakdown = ORDER.map(|role| (role, peak.as_ref().map_or(0, |peak| peak.of(role))));
        let end = device.peak();
        let most = ORDER.map(|role| (role, end.as_ref().map_or(0, |peak| peak.most_of(role))));
        Self {
            options: options.clone(),
            device: device.kind(),
            parameters: 0,
            allocated_peak: meter.allocated_peak,
            reserved_peak: meter.reserved_peak,
            requested_peak: meter.requested_peak,
            breakdown: breakdown.to_vec(),
            most: most.to_vec(),
            phases: meter.phases.clone(),
            peak_phase,
            peak_line: peak.as_ref().map(line),
            requests: 0,
            work: QueuedWork::default(),
            losses: Vec::new(),
            skipped_steps: 0,
            symbols: None,
        }
    }

    /// Bytes that were for this at the peak.
    #[must_use]
    pub fn bytes_of(&self, role: Role) -> u64 {
        of(&self.breakdown, role)
    }

    /// The most bytes that were for this at any time.
    #[must_use]
    pub fn most_of(&self, role: Role) -> u64 {
        of(&self.most, role)
    }

    /// Reserved for each byte that was asked for, at the peaks of both.
    #[must_use]
    pub fn waste(&self) -> f64 {
        self.reserved_peak as f64 / self.requested_peak.max(1) as f64
    }

    /// One JSON object; with what fits, if that was asked.
    #[must_use]
    pub fn to_json(&self, fit: Option<&Fit>) -> String {
        let mut object = self.json_object();
        if let Some(fit) = fit {
            object.insert("fit".to_owned(), json_of_fit(fit));
        }
        Value::Object(object).to_string()
    }

    fn json_object(&self) -> Map<String, Value> {
        let options = &self.options;
        let recipe: Recipe = options.recipe();
        let bytes = |(role, bytes): &(Role, u64)| (role.name().to_owned(), Value::from(*bytes));
        let phase = |it: &PhaseMemory| {
            json!({
                "phase": it.phase.name(),
                "allocated_peak": it.allocated_peak,
                "allocated_end": it.allocated_end,
            })
        };
        let formula = |it: &Formula| {
            json!({
                "name": it.name,
                "formula": it.formula,
                "bytes": it.bytes,
                "exact": it.exact,
                "error": it.error(),
            })
        };
        let symbols = |it: &Symbols| {
            json!({
                "sent": it.sent,
                "wrong": it.wrong,
                "rate": it.rate,
                "interval": it.interval,
                "theory": it.theory,
            })
        };
        let sizes: Map<_, _> = recipe
            .sizes()
            .map(|size| (size.name().to_owned(), Value::from(options.size(size))))
            .collect();
        let fields = [
            ("schema", json!(SCHEMA)),
            ("recipe", json!(recipe.name())),
            ("device", json!(self.device)),
            ("sizes", Value::Object(sizes)),
            ("steps", json!(options.steps)),
            ("optimizer", json!(options.optimizer.to_string())),
            ("amp", json!(options.amp.map(|it| it.to_string()))),
            ("checkpoint", json!(options.checkpoint.to_string())),
            ("accumulate", json!(options.accumulate)),
            ("offload", json!(options.offload)),
            ("graph", json!(options.graph)),
            ("tf32", json!(options.tf32)),
            ("limit", json!(options.limit)),
            ("conf", json!(options.conf)),
            ("policy", json!(options.policy.map(|it| it.to_string()))),
            ("memory_profile", json!(options.memory_profile.name())),
            ("seed", json!(options.seed)),
            ("snr_db", json!((!recipe.trains()).then_some(options.snr_db))),
            ("parameters", json!(self.parameters)),
            ("allocated_peak", json!(self.allocated_peak)),
            ("reserved_peak", json!(self.reserved_peak)),
            ("requested_peak", json!(self.requested_peak)),
            ("breakdown", Value::Object(self.breakdown.iter().map(bytes).collect())),
            ("phases", self.phases.iter().map(phase).collect()),
            ("peak_phase", json!(self.peak_phase.map(Phase::name))),
            ("peak_line", json!(self.peak_line)),
            ("formulas", self.formulas().iter().map(formula).collect()),
            ("losses", json!(self.losses)),
            ("skipped_steps", json!(self.skipped_steps)),
            ("symbols", json!(self.symbols.as_ref().map(symbols))),
        ];
        fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
    }
}

/// Such as `linear at tonnage-tensor/models/gpt2.rs:106, called from main.rs:12`.
fn line(peak: &Peak) -> String {
    let place = |it: &Location<'_>| format!("{}:{}", source_name(it.file()), it.line());
    let (line, site) = (place(peak.line), place(peak.site));
    let from = if site == line { String::new() } else { format!(", called from {site}") };
    format!("{} at {line}{from}", peak.operation)
}

fn of(bytes: &[(Role, u64)], role: Role) -> u64 {
    bytes.iter().find(|it| it.0 == role).map_or(0, |it| it.1)
}

fn json_of_fit(fit: &Fit) -> Value {
    let gain = |it: &Gain| {
        json!({
            "technique": it.technique.flags(),
            "saved": it.saved,
            "recomputed_kernels": it.recomputed.kernels,
            "recomputed_operations": it.recomputed.operations,
            "recomputed_share": it.recomputed_share,
            "batch": it.batch,
        })
    };
    let together = |it: &Together| {
        let techniques: Vec<_> = it.techniques.iter().map(|it| it.flags()).collect();
        json!({
            "techniques": techniques,
            "batch": it.batch,
            "runs": it.runs,
            "out_of_budget": it.out_of_budget,
        })
    };
    let gains: Value = fit.gains.iter().map(gain).collect();
    let peak = fit.outcome.as_ref().map(|it| it.reserved_peak);
    json!({
        "limit": fit.limit,
        "batch": fit.batch,
        "reserved_peak": peak,
        "compared_at": fit.compared_at,
        "techniques": gains,
        "together": fit.together.as_ref().map(together),
    })
}

/// What bytes are for, in the glossary's order.
pub(crate) const ORDER: [Role; Role::ALL.len()] = [
    Role::Parameters,
    Role::Gradients,
    Role::Optimizer,
    Role::Activations,
    Role::Temporary,
    Role::Workspace,
    Role::Cache,
];
