//! The bytes of a run before it runs: the same program on a device without memory.

use crate::device_kind::DeviceKind;
use crate::error::Result;
use crate::options::Options;
use crate::outcome::Outcome;
use crate::train::train;

/// What a run with these options takes, on any device: to the byte, in a moment.
///
/// # Errors
///
/// If options do not fit together, or if memory does not suffice for the limit that they set.
pub fn predict(options: &Options) -> Result<Outcome> {
    train(&DeviceKind::Dry.open(options)?, options, &mut |_| ())
}
