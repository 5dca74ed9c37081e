//! A sheet as bytes, and back.
//!
//! In:  a [`FigureSheet`], or the bytes of a file that anyone may have written.
//! Out: bytes, at most [`LONGEST_SHEET`]; or a sheet within the bounds of [`figures`](crate::figures), or
//!      what is wrong with the bytes. Nothing is allocated for a length before it was compared with
//!      what is there.
//!
//! ```text
//! offset  bytes
//!      0      8  "TONNAGE" and the version of what follows, 1
//!      8      8  checksum of everything behind it, up to the end of the figures
//!     16      8  number of the sheet: 1, 2, 3 …
//!     24      4  bytes of the figures
//!     28         the figures: numbers of 8 bytes, texts as a length and UTF-8, lists as a length and
//!                their elements, whatever may be missing behind a 0 or 1; in the order of `figures`
//! ```
//!
//! Numbers have their lowest byte first. What lies behind the figures is left over from a longer sheet.

use thiserror::Error;

use crate::figures::{
    CallSite, DeviceFigures, FigureSheet, LONGEST_TEXT, MOST_CALL_SITES, MOST_DEVICES, MOST_POINTS,
    NowAndPeak,
};

const MAGIC: [u8; 7] = *b"TONNAGE";
const VERSION: u8 = 1;

/// Bytes before the figures.
const HEADER: usize = 28;

/// Most bytes of a sheet: every list at its longest, every text too.
pub(crate) const LONGEST_SHEET: usize = HEADER
    + 8 * 2
    + LONGEST_TEXT
    + 16
    + MOST_DEVICES
        * (LONGEST_TEXT + 24 * 8 + MOST_POINTS * 8 + MOST_CALL_SITES * (LONGEST_TEXT + 24));

/// Bytes that are no sheet.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SheetError {
    /// It is something else.
    #[error("it does not begin as a sheet does")]
    NotASheet,
    /// It was written by another release.
    #[error(
        "its version is {0}, and this program reads version {VERSION}: use the release that the process uses"
    )]
    Version(u8),
    /// It is being written, or was damaged.
    #[error("its checksum is wrong: it was damaged, or is written faster than it can be read")]
    Torn,
    /// It passes its checksum, but says what no sheet says.
    #[error("its {0} lies outside of what a sheet can hold")]
    Figures(&'static str),
}

impl FigureSheet {
    /// The bytes of this sheet as the one with this number.
    pub(crate) fn encode(&self, number: u64) -> Vec<u8> {
        let mut out = Out(vec![0; HEADER]);
        out.number(self.pid.into());
        out.text(&self.command, Keep::Beginning);
        out.number(self.sampled_us);
        out.list(&self.devices, MOST_DEVICES, Out::device);
        let mut bytes = out.0;
        let length = u32::try_from(bytes.len() - HEADER).unwrap_or(u32::MAX);
        bytes[..7].copy_from_slice(&MAGIC);
        bytes[7] = VERSION;
        bytes[16..24].copy_from_slice(&number.to_le_bytes());
        bytes[24..HEADER].copy_from_slice(&length.to_le_bytes());
        let sum = checksum(&bytes[16..]);
        bytes[8..16].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The sheet that these bytes are.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, SheetError> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
            return Err(SheetError::NotASheet);
        };
        let [magic @ .., version] = header.first_chunk::<8>().ok_or(SheetError::NotASheet)?;
        if *magic != MAGIC {
            return Err(SheetError::NotASheet);
        }
        if *version != VERSION {
            return Err(SheetError::Version(*version));
        }
        let mut fields = In(&header[8..]);
        let (sum, _number) = (fields.number()?, fields.number()?);
        let length = fields.take::<4>().map(|it| u32::from_le_bytes(it) as usize)?;
        let figures = rest.get(..length).ok_or(SheetError::Torn)?;
        if checksum(&bytes[16..HEADER + length]) != sum {
            return Err(SheetError::Torn);
        }
        let mut fields = In(figures);
        let pid = fields.number()?;
        let sheet = Self {
            pid: pid.try_into().map_err(|_| SheetError::Figures("process number"))?,
            command: fields.text()?,
            sampled_us: fields.number()?,
            devices: fields.list(MOST_DEVICES, In::device)?,
        };
        if fields.0.is_empty() { Ok(sheet) } else { Err(SheetError::Figures("length")) }
    }
}

/// Whether a file that begins with these bytes was made to be a sheet, of any version, whole or not.
pub(crate) fn begins_as_sheet(bytes: &[u8]) -> bool {
    let compared = bytes.len().min(MAGIC.len());
    bytes[..compared] == MAGIC[..compared]
}

/// FNV-1a, with 64 bits: a sheet is short, and no one is to be kept from forging one.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Which part of a text that is too long says most.
#[derive(Clone, Copy)]
enum Keep {
    Beginning,
    End,
}

/// The beginning of a text, cut between two characters.
fn beginning_of(text: &str) -> &str {
    let mut end = text.len().min(LONGEST_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The end of a text, cut between two characters.
fn end_of(text: &str) -> &str {
    let mut start = text.len().saturating_sub(LONGEST_TEXT);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

/// Figures on their way out.
struct Out(Vec<u8>);

impl Out {
    fn number(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    fn text(&mut self, text: &str, keep: Keep) {
        let text = match keep {
            Keep::Beginning => beginning_of(text),
            Keep::End => end_of(text),
        };
        self.number(text.len() as u64);
        self.0.extend(text.as_bytes());
    }

    fn list<T>(&mut self, list: &[T], most: usize, mut each: impl FnMut(&mut Self, &T)) {
        let list = &list[..list.len().min(most)];
        self.number(list.len() as u64);
        for element in list {
            each(self, element);
        }
    }

    fn level(&mut self, level: NowAndPeak) {
        self.number(level.now);
        self.number(level.peak);
    }

    fn device(&mut self, device: &DeviceFigures) {
        self.text(&device.name, Keep::Beginning);
        self.number(device.total);
        self.number(device.limit.is_some().into());
        if let Some(limit) = device.limit {
            self.number(limit);
        }
        for level in [device.requested, device.allocated, device.active, device.reserved] {
            self.level(level);
        }
        for number in [device.blocks, device.allocations, device.frees] {
            self.number(number);
        }
        self.number(device.allocations_per_second.to_bits());
        for number in [device.ooms, device.retries] {
            self.number(number);
        }
        self.list(&device.past, MOST_POINTS, |out, &point| out.number(point));
        self.number(device.span_us);
        self.number(device.call_sites.is_some().into());
        if let Some(sites) = &device.call_sites {
            self.list(sites, MOST_CALL_SITES, |out, site| {
                // The end of a line names the file, and the place in it.
                out.text(&site.line, Keep::End);
                out.number(site.bytes);
                out.number(site.blocks);
            });
        }
    }
}

/// Figures on their way in: what is left of them.
struct In<'a>(&'a [u8]);

impl In<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], SheetError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(SheetError::Figures("length"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn number(&mut self) -> Result<u64, SheetError> {
        self.take().map(u64::from_le_bytes)
    }

    fn length(&mut self, most: usize, what: &'static str) -> Result<usize, SheetError> {
        let length = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        if length <= most { Ok(length) } else { Err(SheetError::Figures(what)) }
    }

    fn text(&mut self) -> Result<String, SheetError> {
        let length = self.length(LONGEST_TEXT, "text")?;
        let (text, rest) = self.0.split_at_checked(length).ok_or(SheetError::Figures("text"))?;
        self.0 = rest;
        let text = std::str::from_utf8(text).map_err(|_| SheetError::Figures("text"))?;
        Ok(text.to_owned())
    }

    fn list<T>(
        &mut self,
        most: usize,
        mut each: impl FnMut(&mut Self) -> Result<T, SheetError>,
    ) -> Result<Vec<T>, SheetError> {
        let length = self.length(most, "list")?;
        (0..length).map(|_| each(self)).collect()
    }

    fn optional<T>(
        &mut self,
        value: impl FnOnce(&mut Self) -> Result<T, SheetError>,
    ) -> Result<Option<T>, SheetError> {
        match self.number()? {
            0 => Ok(None),
            1 => value(self).map(Some),
            _ => Err(SheetError::Figures("mark of a missing figure")),
        }
    }

    fn level(&mut self) -> Result<NowAndPeak, SheetError> {
        Ok(NowAndPeak { now: self.number()?, peak: self.number()? })
    }

    fn rate(&mut self) -> Result<f64, SheetError> {
        let rate = f64::from_bits(self.number()?);
        if rate.is_finite() && rate >= 0.0 { Ok(rate) } else { Err(SheetError::Figures("rate")) }
    }

    // The fields of an expression are evaluated in the order in which they are written, which is
    // that of `Out::device`.
    fn device(&mut self) -> Result<DeviceFigures, SheetError> {
        Ok(DeviceFigures {
            name: self.text()?,
            total: self.number()?,
            limit: self.optional(Self::number)?,
            requested: self.level()?,
            allocated: self.level()?,
            active: self.level()?,
            reserved: self.level()?,
            blocks: self.number()?,
            allocations: self.number()?,
            frees: self.number()?,
            allocations_per_second: self.rate()?,
            ooms: self.number()?,
            retries: self.number()?,
            past: self.list(MOST_POINTS, Self::number)?,
            span_us: self.number()?,
            call_sites: self.optional(|it| it.list(MOST_CALL_SITES, Self::call_site))?,
        })
    }

    fn call_site(&mut self) -> Result<CallSite, SheetError> {
        Ok(CallSite { line: self.text()?, bytes: self.number()?, blocks: self.number()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sheet in which every number is another one.
    fn sheet(seed: u64, devices: usize) -> FigureSheet {
        let mut last = seed;
        let mut next = || {
            last += 1;
            last
        };
        let device = |number: usize, next: &mut dyn FnMut() -> u64| DeviceFigures {
            name: format!("cuda:{number}"),
            total: next(),
            limit: number.is_multiple_of(2).then(&mut *next),
            requested: NowAndPeak { now: next(), peak: next() },
            allocated: NowAndPeak { now: next(), peak: next() },
            active: NowAndPeak { now: next(), peak: next() },
            reserved: NowAndPeak { now: next(), peak: next() },
            blocks: next(),
            allocations: next(),
            frees: next(),
            allocations_per_second: next() as f64 / 2.0,
            ooms: next(),
            retries: next(),
            past: (0..number % 5).map(|_| next()).collect(),
            span_us: next(),
            call_sites: number.is_multiple_of(3).then(|| {
                vec![CallSite { line: "train.rs:7 größe".into(), bytes: next(), blocks: next() }]
            }),
        };
        let devices = (0..devices).map(|number| device(number, &mut next)).collect();
        FigureSheet { pid: 77, command: "train --steps 3".into(), sampled_us: next(), devices }
    }

    #[test]
    fn what_goes_in_comes_out() {
        for devices in [0, 1, 2, 7, MOST_DEVICES] {
            let sheet = sheet(1_000, devices);
            assert_eq!(FigureSheet::decode(&sheet.encode(3)), Ok(sheet), "{devices} devices");
        }
    }

    #[test]
    fn what_is_too_much_is_cut_and_still_a_sheet() {
        let mut sheet = sheet(0, MOST_DEVICES + 3);
        sheet.command = "ä".repeat(1_000);
        let device = &mut sheet.devices[0];
        device.past = vec![u64::MAX; 500];
        let line = format!("{}/train.rs:7", "ü".repeat(1_000));
        let site = CallSite { line, bytes: 1, blocks: 1 };
        device.call_sites = Some(vec![site; 50]);
        let bytes = sheet.encode(1);
        assert!(bytes.len() <= LONGEST_SHEET, "{}", bytes.len());
        let read = FigureSheet::decode(&bytes).unwrap();
        assert_eq!(read.devices.len(), MOST_DEVICES);
        assert_eq!(read.command, "ä".repeat(80));
        assert_eq!(read.devices[0].past.len(), MOST_POINTS);
        let sites = read.devices[0].call_sites.as_ref().unwrap();
        assert_eq!(sites.len(), MOST_CALL_SITES);
        assert!(sites[0].line.ends_with("ü/train.rs:7"), "{}", sites[0].line);
    }

    #[test]
    fn the_longest_sheet_is_within_the_bound() {
        let device = DeviceFigures {
            name: "n".repeat(LONGEST_TEXT),
            limit: Some(1),
            past: vec![1; MOST_POINTS],
            call_sites: Some(vec![
                CallSite { line: "l".repeat(LONGEST_TEXT), bytes: 1, blocks: 1 };
                MOST_CALL_SITES
            ]),
            ..DeviceFigures::default()
        };
        let command = "c".repeat(LONGEST_TEXT);
        let sheet =
            FigureSheet { command, devices: vec![device; MOST_DEVICES], ..FigureSheet::default() };
        assert!(sheet.encode(1).len() <= LONGEST_SHEET);
    }

    #[test]
    fn no_mixture_of_two_sheets_passes_for_a_third() {
        for (before, after) in [(2, 2), (2, 1), (1, 2), (0, 3)] {
            let (old, new) = (sheet(1, before), sheet(900, after));
            let (mut first, second) = (old.encode(1), new.encode(2));
            // A shorter sheet leaves the end of the longer one behind.
            first.resize(first.len().max(second.len()), 0);
            for cut in 0..=second.len() {
                let mut forwards = first.clone();
                forwards[..cut].copy_from_slice(&second[..cut]);
                let mut backwards = first.clone();
                backwards[cut..second.len()].copy_from_slice(&second[cut..]);
                for mixture in [forwards, backwards] {
                    match FigureSheet::decode(&mixture) {
                        Ok(sheet) => assert!(sheet == old || sheet == new, "cut at {cut}"),
                        Err(error) => assert_eq!(error, SheetError::Torn, "cut at {cut}"),
                    }
                }
            }
        }
    }

    #[test]
    fn a_changed_byte_and_a_missing_end_are_found() {
        let bytes = sheet(5, 3).encode(9);
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 0x10;
            // The number of a sheet says nothing about its figures, but is covered too.
            FigureSheet::decode(&changed).unwrap_err();
            FigureSheet::decode(&bytes[..place]).unwrap_err();
        }
    }

    /// Bytes with a checksum that is right.
    fn forged(figures: &[u8]) -> Vec<u8> {
        let mut bytes = FigureSheet::default().encode(1);
        bytes.truncate(HEADER);
        bytes[24..HEADER].copy_from_slice(&u32::try_from(figures.len()).unwrap().to_le_bytes());
        bytes.extend(figures);
        let sum = checksum(&bytes[16..]);
        bytes[8..16].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    #[test]
    fn figures_that_no_sheet_has_are_refused_though_their_checksum_is_right() {
        let good = sheet(5, 4).encode(1)[HEADER..].to_vec();
        FigureSheet::decode(&forged(&good)).unwrap();
        for place in (0..good.len()).step_by(4) {
            for value in [u64::MAX, 1 << 40, f64::NAN.to_bits(), f64::INFINITY.to_bits(), 200] {
                let mut bad = good.clone();
                let end = (place + 8).min(bad.len());
                bad[place..end].copy_from_slice(&value.to_le_bytes()[..end - place]);
                // Refused or not, what comes out is within bounds.
                if let Ok(sheet) = FigureSheet::decode(&forged(&bad)) {
                    assert!(sheet.devices.len() <= MOST_DEVICES);
                    assert!(sheet.devices.iter().all(|it| it.allocations_per_second.is_finite()));
                }
            }
        }
        let mut not_text = good.clone();
        not_text[16] = 0xff;
        assert_eq!(FigureSheet::decode(&forged(&not_text)), Err(SheetError::Figures("text")));
        let mut many = good.clone();
        many[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(FigureSheet::decode(&forged(&many)), Err(SheetError::Figures("text")));
        let mut longer = good;
        longer.push(0);
        assert_eq!(FigureSheet::decode(&forged(&longer)), Err(SheetError::Figures("length")));
    }

    #[test]
    fn other_files_and_other_versions_are_told_apart() {
        assert_eq!(FigureSheet::decode(b""), Err(SheetError::NotASheet));
        assert_eq!(FigureSheet::decode(&[0; 100]), Err(SheetError::NotASheet));
        let mut newer = FigureSheet::default().encode(1);
        newer[7] = 2;
        assert_eq!(FigureSheet::decode(&newer), Err(SheetError::Version(2)));
    }
}
