//! The run of the recipe that does not train: symbols sent and detected.

use tonnage_tensor::{Device, Levels, QueuedWork};

use crate::error::Result;
use crate::meter::{Meter, Phase};
use crate::mimo;
use crate::options::Options;
use crate::outcome::{Outcome, Symbols};
use crate::train::{Progress, requests, save_of};

/// Simulates what options describe, and says where the memory went.
pub(crate) fn simulate(
    device: &Device,
    options: &Options,
    meter: &mut Meter<'_>,
    each: &mut dyn FnMut(&Progress),
) -> Result<Outcome> {
    // There was no model to make.
    meter.phases.clear();
    meter.begin(1);
    let (points, mut levels) = (meter.points, Levels::default());
    let before = requests(device);
    let (mut worked, mut work) = (device.work(), QueuedWork::default());
    let result = meter.run(Phase::Simulate, || {
        mimo::run(device, &options.mimo(), &mut |step| {
            let rate = |errors: u64| errors as f64 / step.symbols.max(1) as f64;
            each(&Progress {
                done: step.step,
                of: options.steps,
                measure: step.errors.map(rate),
                allocated_peak: device.memory().max_allocated(),
                reserved_peak: device.memory().max_reserved(),
            });
            work = device.work().since(worked);
            worked = device.work();
            if let Some(points) = points {
                levels = device.take_levels();
                device.record_levels(points);
            }
            Ok(())
        })
    });
    let result = save_of(device, options, result)?;
    (meter.step, meter.recorded) = (options.steps, options.steps);
    (meter.levels, meter.work) = (levels, device.work());
    let requests = (requests(device) - before) / options.steps.max(1) as u64;
    let symbols = Some(Symbols {
        sent: result.symbols,
        wrong: result.measured.map(|it| it.errors),
        rate: result.measured.map(|it| it.ser),
        interval: result.measured.map(|it| it.interval),
        theory: result.theory,
    });
    Ok(Outcome { requests, work, symbols, ..Outcome::new(options, device, meter) })
}
