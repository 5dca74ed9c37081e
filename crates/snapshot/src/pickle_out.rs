//! Writing, the lower half: plain data as a pickle of protocol 4.
//!
//! In:  numbers and texts.
//! Out: opcodes, each text spelled out once.
//!
//! PyTorch's page has a reader of its own (`MemoryViz.js`), which knows few opcodes: nothing here
//! writes another. FRAME is left out, as it may be: it would mean to hold back a piece before its
//! length is known.
//!
//! What is written once is not memoised: Python's writer cannot know and memoises everything, and
//! readers then keep it.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::opcode::plain;
use crate::strings::known;
use crate::value::StrId;

/// A place in the memo of whoever reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u32);

/// Writes opcodes.
pub(crate) struct PickleOut<'a, W> {
    out: W,
    /// Places memoised so far.
    memoised: u32,
    /// Where the texts of the format are, by their ids.
    known: [Option<Place>; known::ALL.len()],
    /// Where other texts are.
    texts: HashMap<&'a str, Place>,
}

impl<'a, W: Write> PickleOut<'a, W> {
    /// Begins a pickle.
    pub(crate) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&[plain::PROTO, 4])?;
        let known = [None; known::ALL.len()];
        Ok(Self { out, memoised: 0, known, texts: HashMap::new() })
    }

    /// Ends the pickle.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.opcode(plain::STOP)?;
        Ok(self.out)
    }

    pub(crate) fn opcode(&mut self, opcode: u8) -> io::Result<()> {
        self.out.write_all(&[opcode])
    }

    /// Lets what was written last be named again.
    pub(crate) fn memoise(&mut self) -> io::Result<Place> {
        let place = Place(self.memoised);
        let next = self.memoised.checked_add(1);
        self.memoised = next.ok_or_else(|| too_much("2³² things that are shared"))?;
        self.opcode(plain::MEMOIZE)?;
        Ok(place)
    }

    /// Names again what was memoised.
    #[inline]
    pub(crate) fn again(&mut self, Place(place): Place) -> io::Result<()> {
        match u8::try_from(place) {
            Ok(place) => self.out.write_all(&[plain::BINGET, place]),
            Err(_) => self.with_argument(plain::LONG_BINGET, &place.to_le_bytes()),
        }
    }

    /// A text of the format.
    #[inline]
    pub(crate) fn known(&mut self, id: StrId) -> io::Result<()> {
        let index = id.0 as usize;
        if let Some(place) = self.known[index] {
            return self.again(place);
        }
        self.spell(known::ALL[index])?;
        self.known[index] = Some(self.memoise()?);
        Ok(())
    }

    /// Any text.
    pub(crate) fn text(&mut self, text: &'a str) -> io::Result<()> {
        if let Some(&place) = self.texts.get(text) {
            return self.again(place);
        }
        self.spell(text)?;
        let place = self.memoise()?;
        self.texts.insert(text, place);
        Ok(())
    }

    fn spell(&mut self, text: &str) -> io::Result<()> {
        if let Ok(len) = u8::try_from(text.len()) {
            self.out.write_all(&[plain::SHORT_BINUNICODE, len])?;
        } else {
            let len = u32::try_from(text.len()).map_err(|_| too_much("a text of 4 GiB"))?;
            self.with_argument(plain::BINUNICODE, &len.to_le_bytes())?;
        }
        self.out.write_all(text.as_bytes())
    }

    #[inline]
    pub(crate) fn unsigned(&mut self, number: u64) -> io::Result<()> {
        if let Ok(byte) = u8::try_from(number) {
            return self.out.write_all(&[plain::BININT1, byte]);
        }
        if let Ok(short) = u16::try_from(number) {
            return self.with_argument(plain::BININT2, &short.to_le_bytes());
        }
        match i64::try_from(number) {
            Ok(number) => self.signed(number),
            // The ninth byte says that the number is not negative.
            Err(_) => {
                self.out.write_all(&[plain::LONG1, 9])?;
                self.out.write_all(&number.to_le_bytes())?;
                self.out.write_all(&[0])
            }
        }
    }

    pub(crate) fn signed(&mut self, number: i64) -> io::Result<()> {
        if let Ok(int) = i32::try_from(number) {
            return self.with_argument(plain::BININT, &int.to_le_bytes());
        }
        // As few bytes as show the sign.
        let sign_bits = number.leading_zeros().max(number.leading_ones());
        let len = (64 - sign_bits as usize) / 8 + 1;
        self.out.write_all(&[plain::LONG1, len as u8])?;
        self.out.write_all(&number.to_le_bytes()[..len])
    }

    pub(crate) fn float(&mut self, number: f64) -> io::Result<()> {
        self.with_argument(plain::BINFLOAT, &number.to_be_bytes())
    }

    pub(crate) fn boolean(&mut self, value: bool) -> io::Result<()> {
        self.opcode(if value { plain::NEWTRUE } else { plain::NEWFALSE })
    }

    /// A pair of numbers.
    pub(crate) fn pair(&mut self, first: u64, second: u64) -> io::Result<()> {
        self.unsigned(first)?;
        self.unsigned(second)?;
        self.opcode(plain::TUPLE2)
    }

    #[inline]
    fn with_argument(&mut self, opcode: u8, argument: &[u8]) -> io::Result<()> {
        self.opcode(opcode)?;
        self.out.write_all(argument)
    }
}

fn too_much(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{what} cannot be written to a snapshot"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written<'a>(write: impl FnOnce(&mut PickleOut<'a, Vec<u8>>) -> io::Result<()>) -> Vec<u8> {
        let mut out = PickleOut::new(Vec::new()).unwrap();
        write(&mut out).unwrap();
        out.finish().unwrap()[2..].to_vec()
    }

    #[test]
    fn numbers_take_the_shortest_form() {
        for (number, bytes) in [
            (0, &b"K\x00."[..]),
            (255, b"K\xff."),
            (256, b"M\x00\x01."),
            (65_535, b"M\xff\xff."),
            (65_536, b"J\x00\x00\x01\x00."),
            (0x7fff_ffff, b"J\xff\xff\xff\x7f."),
            (0x8000_0000, b"\x8a\x05\x00\x00\x00\x80\x00."),
            (0x007f_ffff_ffff, b"\x8a\x05\xff\xff\xff\xff\x7f."),
            (0x80_0000_0000, b"\x8a\x06\x00\x00\x00\x00\x80\x00."),
            (i64::MAX as u64, b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."),
            (u64::MAX, b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."),
        ] {
            assert_eq!(written(|out| out.unsigned(number)), bytes, "{number}");
        }
        for (number, bytes) in [
            (-1, &b"J\xff\xff\xff\xff."[..]),
            (i64::from(i32::MIN) - 1, b"\x8a\x05\xff\xff\xff\x7f\xff."),
            (i64::MIN, b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80."),
        ] {
            assert_eq!(written(|out| out.signed(number)), bytes, "{number}");
        }
    }

    #[test]
    fn a_text_is_spelled_out_once() {
        let twice = written(|out| {
            out.text("ab")?;
            out.known(known::SIZE)?;
            out.text("ab")?;
            out.known(known::SIZE)
        });
        assert_eq!(twice, b"\x8c\x02ab\x94\x8c\x04size\x94h\x00h\x01.");
        let long = "x".repeat(256);
        assert_eq!(written(|out| out.text(&long))[..5], *b"X\x00\x01\x00\x00");
    }
}
