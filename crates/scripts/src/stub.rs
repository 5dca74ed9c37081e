//! A shared library that is only names: written as bytes, without a compiler or a linker.
//!
//! In:  a library's file name, the version its symbols carry, the names it exports, the library with behaviour.
//! Out: an ELF file for x86-64. Each name passes itself to `tonnage_fake_unknown` of the library with behaviour.
//!
//! Only what a loader reads is written: program headers, symbols, their hash table and versions, one relocation. All
//! addresses are offsets into the file.

use std::collections::BTreeMap;

use object::elf::hash;

/// What a library is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stub<'a> {
    /// What programs ask for: `libcudart.so.13`.
    pub(crate) file: &'a str,
    /// The version that symbols carry; empty for none.
    pub(crate) version: &'a str,
    /// Exported names.
    pub(crate) names: &'a [String],
    /// The path of the library with behaviour.
    pub(crate) core: &'a str,
}

/// What every name calls, with the address of its text.
const HANDLER: &str = "tonnage_fake_unknown";

const PAGE: u64 = 4096;
const FILE_HEADER: u64 = 64;
const PROGRAM_HEADER: u64 = 56;
const PROGRAM_HEADERS: u16 = 4;
const SYMBOL: u64 = 24;
const RELOCATION: u64 = 24;
const CODE: u64 = 16;

/// The handler's symbol, and the first name's.
const HANDLER_SYMBOL: u64 = 1;
const FIRST_SYMBOL: u32 = 2;

/// Versions by number: of symbols from elsewhere, of the file, of our symbols.
const VERSION_FILE: u16 = 1;
const VERSION_OURS: u16 = 2;

impl Stub<'_> {
    /// The file.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let versioned = !self.version.is_empty();
        let mut strings = Strings::default();
        let handler = strings.add(HANDLER);
        let core = strings.add(self.core);
        let file = strings.add(self.file);
        let version = strings.add(self.version);
        let names: Vec<u32> = self.names.iter().map(|name| strings.add(name)).collect();
        let symbols = names.len() as u64 + u64::from(FIRST_SYMBOL);

        // Where everything lies.
        let hash_table = FILE_HEADER + u64::from(PROGRAM_HEADERS) * PROGRAM_HEADER;
        let buckets = symbols as u32;
        let symbol_table =
            (hash_table + 4 * (2 + u64::from(buckets) + symbols)).next_multiple_of(8);
        let string_table = symbol_table + SYMBOL * symbols;
        let version_table = (string_table + strings.bytes.len() as u64).next_multiple_of(8);
        let versions = (version_table + 2 * symbols).next_multiple_of(8);
        let relocations = versions + 2 * (20 + 8);
        let code = (relocations + RELOCATION).next_multiple_of(16);
        let slot = (code + CODE * names.len() as u64).next_multiple_of(PAGE);
        let dynamic = slot + 8;

        let mut entries = vec![(DT_NEEDED, u64::from(core)), (DT_SONAME, u64::from(file))];
        entries.extend([
            (DT_HASH, hash_table),
            (DT_STRTAB, string_table),
            (DT_SYMTAB, symbol_table),
        ]);
        entries.extend([(DT_STRSZ, strings.bytes.len() as u64), (DT_SYMENT, SYMBOL)]);
        entries.extend([(DT_RELA, relocations), (DT_RELASZ, RELOCATION), (DT_RELAENT, RELOCATION)]);
        if versioned {
            entries.extend([(DT_VERSYM, version_table), (DT_VERDEF, versions), (DT_VERDEFNUM, 2)]);
        }
        entries.push((DT_NULL, 0));
        let end = dynamic + 16 * entries.len() as u64;

        let mut out = Out::default();
        out.file_header();
        out.program_header(PT_LOAD, READ | EXECUTE, 0, slot, PAGE);
        out.program_header(PT_LOAD, READ | WRITE, slot, end - slot, PAGE);
        out.program_header(PT_DYNAMIC, READ | WRITE, dynamic, end - dynamic, 8);
        out.program_header(PT_GNU_STACK, READ | WRITE, 0, 0, 16);
        out.hash_table(buckets, self.names);
        out.pad_to(symbol_table);
        out.symbol(0, false, 0);
        out.symbol(handler, false, 0);
        for (number, &name) in names.iter().enumerate() {
            out.symbol(name, true, code + CODE * number as u64);
        }
        out.bytes.extend(&strings.bytes);
        out.pad_to(version_table);
        out.u16(0);
        out.u16(VERSION_FILE);
        for _ in &names {
            out.u16(VERSION_OURS);
        }
        out.pad_to(versions);
        out.version(VERSION_FILE, self.file, file, false);
        out.version(VERSION_OURS, self.version, version, true);
        out.pad_to(relocations);
        out.u64(slot);
        out.u64(HANDLER_SYMBOL << 32 | R_X86_64_GLOB_DAT);
        out.u64(0);
        out.pad_to(code);
        for (number, &name) in names.iter().enumerate() {
            let here = code + CODE * number as u64;
            out.call_with(here, string_table + u64::from(name), slot);
        }
        out.pad_to(dynamic);
        for (tag, value) in entries {
            out.u64(tag);
            out.u64(value);
        }
        out.bytes
    }
}

const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_RELAENT: u64 = 9;
const DT_STRSZ: u64 = 10;
const DT_SYMENT: u64 = 11;
const DT_SONAME: u64 = 14;
const DT_VERSYM: u64 = 0x6fff_fff0;
const DT_VERDEF: u64 = 0x6fff_fffc;
const DT_VERDEFNUM: u64 = 0x6fff_fffd;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_STACK: u32 = 0x6474_e551;
const EXECUTE: u32 = 1;
const WRITE: u32 = 2;
const READ: u32 = 4;

const R_X86_64_GLOB_DAT: u64 = 6;

/// Texts one after the other, each once.
#[derive(Default)]
struct Strings<'a> {
    bytes: Vec<u8>,
    places: BTreeMap<&'a str, u32>,
}

impl<'a> Strings<'a> {
    fn add(&mut self, text: &'a str) -> u32 {
        if self.bytes.is_empty() {
            // Nothing is the empty text.
            self.bytes.push(0);
            self.places.insert("", 0);
        }
        *self.places.entry(text).or_insert_with(|| {
            let place = self.bytes.len() as u32;
            self.bytes.extend(text.as_bytes());
            self.bytes.push(0);
            place
        })
    }
}

#[derive(Default)]
struct Out {
    bytes: Vec<u8>,
}

impl Out {
    fn u16(&mut self, value: u16) {
        self.bytes.extend(value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.bytes.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes.extend(value.to_le_bytes());
    }

    fn pad_to(&mut self, place: u64) {
        debug_assert!(self.bytes.len() as u64 <= place, "parts overlap at {place:#x}");
        self.bytes.resize(place as usize, 0);
    }

    /// A shared library for x86-64, without sections.
    fn file_header(&mut self) {
        self.bytes.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        self.u16(3);
        self.u16(62);
        self.u32(1);
        self.u64(0);
        self.u64(FILE_HEADER);
        self.u64(0);
        self.u32(0);
        self.u16(FILE_HEADER as u16);
        self.u16(PROGRAM_HEADER as u16);
        self.u16(PROGRAM_HEADERS);
        self.u16(64);
        self.u16(0);
        self.u16(0);
    }

    fn program_header(&mut self, kind: u32, flags: u32, place: u64, size: u64, alignment: u64) {
        self.u32(kind);
        self.u32(flags);
        for value in [place, place, place, size, size, alignment] {
            self.u64(value);
        }
    }

    /// Chains of symbols by hash. The handler, which is elsewhere, is in none.
    fn hash_table(&mut self, buckets: u32, names: &[String]) {
        let mut first = vec![0; buckets as usize];
        let mut next = vec![0; names.len() + FIRST_SYMBOL as usize];
        for (name, symbol) in names.iter().zip(FIRST_SYMBOL..) {
            let bucket = &mut first[(hash(name.as_bytes()) % buckets) as usize];
            next[symbol as usize] = *bucket;
            *bucket = symbol;
        }
        self.u32(buckets);
        self.u32(next.len() as u32);
        for symbol in first.into_iter().chain(next) {
            self.u32(symbol);
        }
    }

    /// A function, here or elsewhere.
    fn symbol(&mut self, name: u32, here: bool, place: u64) {
        const GLOBAL_FUNCTION: u8 = 1 << 4 | 2;
        self.u32(name);
        self.bytes.push(if name == 0 { 0 } else { GLOBAL_FUNCTION });
        self.bytes.push(0);
        // Which section does not matter, as long as there is one.
        self.u16(u16::from(here));
        self.u64(place);
        self.u64(if here { CODE } else { 0 });
    }

    fn version(&mut self, number: u16, text: &str, name: u32, last: bool) {
        const SIZE: u32 = 20;
        self.u16(1);
        self.u16(u16::from(number == VERSION_FILE));
        self.u16(number);
        self.u16(1);
        self.u32(hash(text.as_bytes()));
        self.u32(SIZE);
        self.u32(if last { 0 } else { SIZE + 8 });
        self.u32(name);
        self.u32(0);
    }

    /// `lea rdi, [text]; jmp [slot]`, at `here`.
    fn call_with(&mut self, here: u64, text: u64, slot: u64) {
        const LEA: u64 = 7;
        const JMP: u64 = 6;
        let distance = |from: u64, to: u64| (to as i64 - from as i64) as i32 as u32;
        self.bytes.extend([0x48, 0x8d, 0x3d]);
        self.u32(distance(here + LEA, text));
        self.bytes.extend([0xff, 0x25]);
        self.u32(distance(here + LEA + JMP, slot));
        self.pad_to(here + CODE);
    }
}

#[cfg(test)]
mod tests {
    use object::read::elf::{ElfFile64, FileHeader as _};
    use object::{Endianness, Object as _, ObjectSymbol as _, elf};

    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("cuFunction{number}")).collect()
    }

    /// An independent reader finds the names by what a loader reads: it goes through the dynamic section, since there
    /// are no others.
    #[test]
    fn a_reader_finds_the_names() {
        for count in [0, 1, 7, 1000] {
            let names = names(count);
            let stub = Stub { file: "libx.so.1", version: "V1", names: &names, core: "/core.so" };
            let bytes = stub.to_bytes();
            let file = ElfFile64::<Endianness>::parse(&*bytes).unwrap();
            assert_eq!(file.elf_header().e_type(Endianness::Little), elf::ET_DYN);
            assert_eq!(bytes.windows(9).filter(|it| *it == b"libx.so.1").count(), 1);
            assert!(file.dynamic_symbols().all(|symbol| symbol.name().is_ok()));
        }
    }
}
