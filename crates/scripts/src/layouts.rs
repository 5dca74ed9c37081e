//! Sixteen ranks in a mesh, each run: whether those are alike that differ along an axis alone, and whether the last tells if they
//! are not.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tonnage_scripts::{
    Environment, Gpu, Layout, Options, Outcome, Range, World, predict_ranks, sets,
};

use super::{Failed, last_line, testdata};

const RANKS: u32 = 16;

/// A mesh, and what must come of it.
#[derive(Clone, Copy)]
pub(crate) struct LayoutCheck {
    pub(crate) name: &'static str,
    /// What the script is told.
    argument: Option<&'static str>,
    /// Whether ranks are alike along `dp`.
    alike: bool,
}

pub(crate) const LAYOUTS: [LayoutCheck; 2] = [
    LayoutCheck { name: "mesh", argument: None, alike: true },
    LayoutCheck { name: "mesh_uneven", argument: Some("uneven"), alike: false },
];

/// What a rank asks for: requested, allocated and reserved, and how many blocks.
type Asks = ([Range; 3], Option<u64>);

impl LayoutCheck {
    /// A sentence about what came out.
    pub(crate) fn run(&self, python: &str, environment: &Environment) -> Result<String, Failed> {
        let script = testdata().join("scripts/checks/mesh.py").canonicalize()?;
        let mut command = vec![python.to_owned(), script.to_string_lossy().into_owned()];
        command.extend(self.argument.map(str::to_owned));
        let options = Options {
            command,
            gpu: Gpu::find("h200")?,
            limit: None,
            settings: None,
            time: Duration::from_secs(600),
            gpus: 1,
            world: None,
            thorough: false,
            written: Vec::new(),
        };
        let worlds: Vec<_> =
            (0..RANKS).map(|rank| World { size: RANKS, rank, per_host: 8 }).collect();
        let (begun, mut asks) = (Instant::now(), BTreeMap::new());
        predict_ranks(
            &worlds,
            (&options, environment),
            None,
            |_, outcome| asks_of(&outcome).map_err(|why| Wrong(why.to_string())),
            |world, told| {
                asks.insert(world.rank, told);
                Ok(())
            },
        )?;
        let axes = ["dp=8", "tp=2"].map(|axis| axis.parse());
        let axes = axes.into_iter().collect::<Result<Vec<_>, _>>()?;
        let layout = Layout::new(axes, vec!["dp".to_owned()], RANKS)?;
        for set in sets(Some(&layout), &(0..RANKS).collect::<Vec<_>>()) {
            let (first, last) = (asks[&set[0]], asks[&set[set.len() - 1]]);
            if (first == last) != self.alike {
                return Err(format!("the ends of {set:?} ask for {first:?} and {last:?}").into());
            }
            // Those between are as the first, or the last tells that they may not be.
            let odd = set.iter().find(|rank| self.alike && asks[rank] != first);
            if let Some(rank) = odd {
                return Err(
                    format!("rank {rank} asks for {:?}, and not {first:?}", asks[rank]).into()
                );
            }
        }
        let word = if self.alike { "alike" } else { "not alike, as the last tells" };
        Ok(format!("{RANKS} ranks, along dp {word}, {:.0} s", begun.elapsed().as_secs_f64()))
    }
}

/// A rank that has no figures.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Wrong(String);

impl From<tonnage_scripts::Error> for Wrong {
    fn from(error: tonnage_scripts::Error) -> Self {
        Self(error.to_string())
    }
}

fn asks_of(outcome: &Outcome) -> Result<Asks, Failed> {
    let peaks = outcome.peaks.as_ref();
    let peaks = peaks.ok_or_else(|| format!("{:?}: {}", outcome.ending, last_line(outcome)))?;
    let all = [peaks.requested, peaks.allocated, peaks.reserved];
    Ok((all, outcome.stat("allocation.all.allocated")))
}
