//! Numbers and texts, as the opcodes spell them.
//!
//! In:  the bytes after an opcode.
//! Out: a value on the stack. Integers beyond 64 bits and bytes are noticed but not kept: nothing in
//!      a snapshot is one.

use crate::error::Result;
use crate::input::Source;
use crate::machine::{Machine, over_memory};
use crate::value::{Kind, Value};

impl Machine<'_> {
    /// LONG1: `low` holds the first seven bytes of the number, which suffice for addresses and
    /// times.
    #[inline]
    pub(super) fn long1(&mut self, len: u8, low: u64) -> Result<()> {
        let bytes = self.source.take(usize::from(len))?;
        let number = match len {
            1..=7 => {
                let unused = 64 - 8 * u32::from(len);
                integer((low << unused) as i64 >> unused)
            }
            _ => long(bytes),
        };
        self.push(number);
        Ok(())
    }

    pub(super) fn long4(&mut self, len: i32) -> Result<()> {
        let Ok(len) = u64::try_from(len) else {
            return Err(self.malformed("LONG4 of negative length"));
        };
        let number = if len <= u64::from(u8::MAX) {
            long(self.source.take(len as usize)?)
        } else {
            self.source.take_pieces(len, |_| Ok(()))?;
            Value::HugeInt
        };
        self.push(number);
        Ok(())
    }

    /// INT: an integer, or a bool, as a line of text.
    pub(super) fn int_line(&mut self) -> Result<()> {
        // Twenty digits and a sign are the most that 64 bits need.
        let mut line = Vec::new();
        loop {
            match self.source.take(1)?[0] {
                b'\n' => break,
                byte if line.len() < 24 => line.push(byte),
                _ => return Err(self.malformed("INT with more digits than 64 bits need")),
            }
        }
        let value = match line.as_slice() {
            b"00" => Value::Bool(false),
            b"01" => Value::Bool(true),
            digits => {
                let number = std::str::from_utf8(digits).ok().and_then(|text| {
                    let signed = || text.parse().ok().map(integer);
                    text.parse().ok().map(Value::Int).or_else(signed)
                });
                number.ok_or_else(|| self.malformed("INT without a number of 64 bits"))?
            }
        };
        self.push(value);
        Ok(())
    }

    pub(super) fn text(&mut self, len: u64) -> Result<()> {
        let id = if Source::fits(len) {
            self.rows.strings.intern(self.source.take(len as usize)?)
        } else {
            let (limits, offset) = (self.limits, self.at);
            let mut text = Vec::new();
            self.source.take_pieces(len, |piece| {
                // It grows to the double, beside what it had, and is then copied to where the others are.
                if text.len() as u64 > limits.memory / 6 {
                    return Err(over_memory(&limits, offset));
                }
                text.extend_from_slice(piece);
                Ok(())
            })?;
            self.rows.strings.intern(&text)
        };
        self.push(Value::Str(id));
        Ok(())
    }

    pub(super) fn bytes(&mut self, len: u64) -> Result<()> {
        self.source.take_pieces(len, |_| Ok(()))?;
        self.push(Value::Opaque(Kind::Bytes));
        Ok(())
    }
}

#[inline]
pub(super) fn integer(number: i64) -> Value {
    match u64::try_from(number) {
        Ok(number) => Value::Int(number),
        Err(_) => Value::Negative(number),
    }
}

/// The integer that LONG1 and LONG4 spell: little endian, two's complement.
#[inline]
fn long(bytes: &[u8]) -> Value {
    match *bytes {
        [] => Value::Int(0),
        // An address or a time.
        [ref low @ .., top] if low.len() < 8 => {
            let fill = if top >= 0x80 { 0xff } else { 0 };
            let mut whole = [fill; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            integer(i64::from_le_bytes(whole))
        }
        // From 2⁶³ on, a ninth byte holds the sign.
        [ref low @ .., 0] if low.len() == 8 => {
            let mut whole = [0; 8];
            whole.copy_from_slice(low);
            Value::Int(u64::from_le_bytes(whole))
        }
        _ => Value::HugeInt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_integers_are_read_up_to_64_bits_and_never_wrap() {
        for (bytes, value) in [
            (&[][..], Value::Int(0)),
            (&[0x80, 0x00], Value::Int(128)),
            (&[0x80], Value::Negative(-128)),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], Value::Int(i64::MAX as u64)),
            (&[0, 0, 0, 0, 0, 0, 0, 0x80], Value::Negative(i64::MIN)),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x00], Value::Int(u64::MAX)),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 1], Value::HugeInt),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0xff], Value::HugeInt),
        ] {
            assert_eq!(long(bytes), value, "{bytes:x?}");
        }
    }
}
