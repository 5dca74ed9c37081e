//! What the fake reads of compiled kernels: which there are, and how large their arguments are.
//!
//! PTX says so in its text. A cubin is an ELF file whose sections `.nv.info.NAME` list the parameters of each kernel,
//! one attribute each; the layout is that of the CUDA binary utilities.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};

use crate::codes::Code;

/// Kernels by name, with the sizes of their parameters.
pub(crate) type Kernels = BTreeMap<String, Vec<usize>>;

/// Attributes of a kernel's parameter: in cubins of CUDA 12 and before, and after.
const PARAMETER: u8 = 0x17;
const PARAMETER_WIDE: u8 = 0x45;

/// The kernels of an image.
///
/// # Safety
///
/// `image` is null, or a whole cubin, or text that ends in a zero byte.
pub(crate) unsafe fn kernels(image: *const c_void) -> Result<Kernels, Code> {
    if image.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: both kinds have at least one byte, and text ends before what is not there is compared.
    let first = unsafe { CStr::from_ptr(image.cast::<c_char>()) }.to_bytes();
    if !first.starts_with(b"\x7fELF") {
        return of_ptx(&String::from_utf8_lossy(first));
    }
    // SAFETY: a cubin begins with an ELF header, which has 64 bytes.
    let header = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), 64) };
    let size = tables_end(header).ok_or(Code::INVALID_IMAGE)?;
    // SAFETY: a whole cubin has the tables that its header names.
    let tables = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), size) };
    let end = sections(tables).ok_or(Code::INVALID_IMAGE)?.iter().map(Section::end).max();
    // SAFETY: it has the sections that its tables name, too.
    let whole =
        unsafe { std::slice::from_raw_parts(image.cast::<u8>(), end.unwrap_or(0).max(size)) };
    of_cubin(whole).ok_or(Code::INVALID_IMAGE)
}

fn of_ptx(text: &str) -> Result<Kernels, Code> {
    let text: String = text.lines().map(|line| line.split("//").next().unwrap_or("")).collect();
    if !text.contains(".version") || !text.contains(".target") {
        return Err(Code::INVALID_PTX);
    }
    let mut kernels = Kernels::new();
    for entry in text.split(".entry").skip(1) {
        let (name, rest) = entry.split_once('(').ok_or(Code::INVALID_PTX)?;
        let (parameters, _) = rest.split_once(')').ok_or(Code::INVALID_PTX)?;
        let sizes = parameters.split(',').filter(|part| part.contains(".param")).map(size_of_ptx);
        let sizes = sizes.collect::<Option<_>>().ok_or(Code::INVALID_PTX)?;
        kernels.insert(name.trim().to_owned(), sizes);
    }
    Ok(kernels)
}

/// The bytes of `.param .align 8 .b8 name[48]`.
fn size_of_ptx(parameter: &str) -> Option<usize> {
    let bits = parameter
        .split(|it: char| it.is_whitespace())
        .filter_map(|word| word.strip_prefix(['.']))
        .find_map(|word| word.strip_prefix(['u', 's', 'b', 'f'])?.parse::<usize>().ok())?;
    let count = match parameter.split_once('[') {
        Some((_, rest)) => rest.split(']').next()?.trim().parse().ok()?,
        None => 1,
    };
    Some(bits / 8 * count)
}

struct Section<'a> {
    name: &'a [u8],
    start: usize,
    size: usize,
}

impl Section<'_> {
    fn end(&self) -> usize {
        self.start.saturating_add(self.size)
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(N)?)?;
    let mut whole = [0; 8];
    whole[..N].copy_from_slice(part);
    Some(u64::from_le_bytes(whole))
}

/// Where the tables of sections and of segments end.
fn tables_end(header: &[u8]) -> Option<usize> {
    let table = |start, width, count| {
        let size = number::<2>(header, width)?.checked_mul(number::<2>(header, count)?)?;
        usize::try_from(number::<8>(header, start)?.checked_add(size)?).ok()
    };
    Some(table(0x28, 0x3a, 0x3c)?.max(table(0x20, 0x36, 0x38)?))
}

fn sections(file: &[u8]) -> Option<Vec<Section<'_>>> {
    let start = usize::try_from(number::<8>(file, 0x28)?).ok()?;
    let (width, count) = (number::<2>(file, 0x3a)? as usize, number::<2>(file, 0x3c)? as usize);
    let names = start + width * number::<2>(file, 0x3e)? as usize;
    let names = usize::try_from(number::<8>(file, names + 0x18)?).ok()?;
    let section = |index| {
        let at = start + width * index;
        let name = names.checked_add(number::<4>(file, at)? as usize)?;
        // Names may lie beyond what is known to be there when sizes are looked for.
        let name = file.get(name..).unwrap_or_default();
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        // Sections of kind 8 have no bytes in the file.
        let size = if number::<4>(file, at + 4)? == 8 { 0 } else { number::<8>(file, at + 0x20)? };
        Some(Section { name, start: number::<8>(file, at + 0x18)? as usize, size: size as usize })
    };
    (0..count).map(section).collect()
}

fn of_cubin(file: &[u8]) -> Option<Kernels> {
    let mut kernels = Kernels::new();
    for section in sections(file)? {
        if let Some(name) = section.name.strip_prefix(b".text.") {
            kernels.entry(String::from_utf8_lossy(name).into_owned()).or_default();
        }
        let Some(name) = section.name.strip_prefix(b".nv.info.") else { continue };
        let sizes = parameters(file.get(section.start..section.end())?)?;
        kernels.insert(String::from_utf8_lossy(name).into_owned(), sizes);
    }
    Some(kernels)
}

/// The sizes that a section `.nv.info.NAME` lists.
fn parameters(mut info: &[u8]) -> Option<Vec<usize>> {
    let mut sizes = BTreeMap::new();
    while let [format, attribute, rest @ ..] = info {
        // Format 4 has a size and as many bytes; the others two bytes.
        let size = if *format == 4 { number::<2>(rest, 0)? as usize } else { 0 };
        let value = rest.get(2..2 + size)?;
        match *attribute {
            PARAMETER => {
                sizes.insert(number::<2>(value, 4)?, number::<4>(value, 8)? as usize >> 18);
            }
            PARAMETER_WIDE => {
                sizes.insert(number::<2>(value, 4)?, number::<4>(value, 8)? as usize);
            }
            _ => {}
        }
        info = &rest[2 + size..];
    }
    Some(sizes.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_names_its_kernels_and_their_parameters() {
        let text = ".version 8.0 // a comment(\n.target sm_80\n.address_size 64\n\
            .visible .entry one(\n.param .u64 .ptr .align 1 one_0,\n.param .f32 one_1,\n\
            .param .align 8 .b8 one_2[48]\n)\n{ ret; }\n.visible .entry none()\n{ ret; }\n\
            .func helper(.param .b32 x)\n{ ret; }";
        let kernels = of_ptx(text).unwrap();
        assert_eq!(kernels["one"], [8, 4, 48]);
        assert_eq!(kernels["none"], []);
        assert_eq!(kernels.len(), 2);
        assert_eq!(of_ptx("int main"), Err(Code::INVALID_PTX));
        assert_eq!(of_ptx(".version 8.0 .target sm_80 .entry x("), Err(Code::INVALID_PTX));
    }
}
