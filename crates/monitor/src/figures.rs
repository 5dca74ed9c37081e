//! What a process tells: plain data, in the project's words for quantities of bytes.

/// Most devices of a sheet; a process that has more shows the first.
pub const MOST_DEVICES: usize = 32;

/// Most call sites of a device.
pub const MOST_CALL_SITES: usize = 8;

/// Most points of a device's past.
pub const MOST_POINTS: usize = 120;

/// Longest text of a sheet, in bytes; longer ones lose their beginning or end.
pub(crate) const LONGEST_TEXT: usize = 160;

/// What one process tells of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FigureSheet {
    /// Its number.
    pub pid: u32,
    /// Its command line.
    pub command: String,
    /// When the figures were taken, by [`now_us`](crate::now_us).
    pub sampled_us: u64,
    /// Its devices, in the order in which they were published.
    pub devices: Vec<DeviceFigures>,
}

impl FigureSheet {
    /// A sheet of the process that calls, without devices.
    #[must_use]
    pub fn of_this_process() -> Self {
        let mut words = std::env::args_os();
        let program = words.next().unwrap_or_default();
        // The folder of a program says little, and takes the room of its arguments.
        let program = std::path::Path::new(&program).file_name().unwrap_or(&program).to_owned();
        let words = std::iter::once(program).chain(words);
        let command: Vec<_> = words.map(|word| word.to_string_lossy().into_owned()).collect();
        Self {
            pid: std::process::id(),
            command: command.join(" "),
            sampled_us: crate::now_us(),
            devices: Vec::new(),
        }
    }

    /// Microseconds since the figures were taken.
    #[must_use]
    pub fn age_us(&self) -> u64 {
        crate::now_us().saturating_sub(self.sampled_us)
    }
}

/// A quantity of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NowAndPeak {
    /// Now.
    pub now: u64,
    /// The most it has been, since the process last let peaks begin again.
    pub peak: u64,
}

/// The figures of one device in one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceFigures {
    /// Its kind and ordinal: `cuda:0`.
    pub name: String,
    /// Bytes that it has.
    pub total: u64,
    /// Most bytes that the process may reserve, if there is a limit.
    pub limit: Option<u64>,
    /// What callers asked for.
    pub requested: NowAndPeak,
    /// Blocks handed out.
    pub allocated: NowAndPeak,
    /// Allocated, or freed but still in use by a stream.
    pub active: NowAndPeak,
    /// Obtained from the device.
    pub reserved: NowAndPeak,
    /// Blocks handed out now.
    pub blocks: u64,
    /// Blocks handed out since the process last let counts begin again.
    pub allocations: u64,
    /// Blocks that came back since then.
    pub frees: u64,
    /// Blocks handed out per second, over the last second.
    pub allocations_per_second: f64,
    /// Requests that failed.
    pub ooms: u64,
    /// Times the device was asked again after everything cached had been given back.
    pub retries: u64,
    /// The most allocated bytes of each time span of the past, oldest first.
    pub past: Vec<u64>,
    /// How long a span of [`past`](Self::past) is.
    pub span_us: u64,
    /// The lines that hold most of the live bytes, largest first; none unless stacks are recorded.
    pub call_sites: Option<Vec<CallSite>>,
}

impl DeviceFigures {
    /// Peak reserved ÷ peak requested; none before the first request.
    #[must_use]
    pub fn waste(&self) -> Option<f64> {
        (self.requested.peak > 0).then(|| self.reserved.peak as f64 / self.requested.peak as f64)
    }
}

/// A line that holds memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallSite {
    /// `file:line function`.
    pub line: String,
    /// Bytes that it asked for and that are live.
    pub bytes: u64,
    /// Blocks that these are in.
    pub blocks: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waste_is_peak_reserved_by_peak_requested() {
        let mut figures = DeviceFigures::default();
        assert_eq!(figures.waste(), None);
        figures.requested.peak = 8;
        figures.reserved = NowAndPeak { now: 0, peak: 20 };
        assert_eq!(figures.waste(), Some(2.5));
    }

    #[test]
    fn a_process_knows_its_number_and_its_command() {
        let sheet = FigureSheet::of_this_process();
        assert_eq!(sheet.pid, std::process::id());
        assert!(sheet.command.starts_with("tonnage_monitor"), "{}", sheet.command);
        assert!(sheet.age_us() < 60_000_000);
    }
}
