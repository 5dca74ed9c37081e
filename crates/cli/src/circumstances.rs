//! What was so when files were recorded and they do not tell, or tell in doubt.

use clap::Args;
use tonnage::{Bytes, Release};

use crate::release;
use crate::size::memory_size;

/// What a report may be told.
#[derive(Args, Clone, Copy, Default)]
pub(crate) struct Circumstances {
    /// The limit that was in force, which the file does not tell. Bytes, `24GiB`, `24GB`. Without it, where a request
    /// failed, it is concluded as far as the recording tells
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    pub(crate) limit: Option<Bytes>,

    /// The memory of the device: with it, memory that others held is told where a request failed
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    pub(crate) total: Option<Bytes>,

    /// The release whose rules to follow, from 2.8 to 2.15; later ones get those of 2.15. Else it is told from the
    /// file
    #[arg(long, value_name = "RELEASE", value_parser = release::nearest)]
    pub(crate) pytorch: Option<Release>,

    /// The device to take, if a file has several. Else the one with most entries
    #[arg(long, value_name = "N")]
    pub(crate) ordinal: Option<usize>,
}
