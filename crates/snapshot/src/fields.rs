//! Stage 4: single values of a dictionary, checked.
//!
//! In:  a key and its value.
//! Out: the number, text, ... that the key should hold, or a [`Fault`] that says why not.

use tonnage_events::{DeviceId, StackId};

use crate::value::{StrId, Value};

/// What is wrong with one key of a dictionary.
pub(crate) struct Fault {
    pub(crate) key: StrId,
    pub(crate) value: Option<Value>,
    pub(crate) expected: &'static str,
}

pub(crate) type Checked<T> = Result<T, Fault>;

/// The pairs of a dictionary whose key is a text; no others are of use.
#[inline]
pub(crate) fn pairs(items: &[Value]) -> impl Iterator<Item = (StrId, Value)> + '_ {
    items.chunks_exact(2).filter_map(|pair| match pair[0] {
        Value::Str(key) => Some((key, pair[1])),
        _ => None,
    })
}

#[cold]
pub(crate) fn fault(key: StrId, value: Value, expected: &'static str) -> Fault {
    Fault { key, value: Some(value), expected }
}

#[inline]
pub(crate) fn required<T>(key: StrId, value: Option<T>) -> Checked<T> {
    value.ok_or(Fault { key, value: None, expected: "a value" })
}

#[inline]
pub(crate) fn unsigned(key: StrId, value: Value) -> Checked<u64> {
    match value {
        Value::Int(number) => Ok(number),
        _ => Err(fault(key, value, "an integer from 0 to 2^64 - 1")),
    }
}

pub(crate) fn signed(key: StrId, value: Value) -> Checked<i64> {
    let expected = "an integer of 64 bits with sign";
    match value {
        Value::Int(number) => i64::try_from(number).map_err(|_| fault(key, value, expected)),
        Value::Negative(number) => Ok(number),
        _ => Err(fault(key, value, expected)),
    }
}

pub(crate) fn fraction(key: StrId, value: Value) -> Checked<f64> {
    match value {
        Value::Float(number) if number.is_finite() => Ok(number),
        Value::Int(number) => Ok(number as f64),
        _ => Err(fault(key, value, "a finite number")),
    }
}

pub(crate) fn boolean(key: StrId, value: Value) -> Checked<bool> {
    match value {
        Value::Bool(value) => Ok(value),
        _ => Err(fault(key, value, "True or False")),
    }
}

#[inline]
pub(crate) fn text(key: StrId, value: Value) -> Checked<StrId> {
    match value {
        Value::Str(id) => Ok(id),
        _ => Err(fault(key, value, "a text")),
    }
}

pub(crate) fn device_of(key: StrId, value: Value) -> Checked<DeviceId> {
    let expected = "the number of a device";
    match value {
        Value::Int(number) => {
            let device = u32::try_from(number).ok().map(DeviceId);
            device.filter(|&it| it != DeviceId::HOST).ok_or_else(|| fault(key, value, expected))
        }
        _ => Err(fault(key, value, expected)),
    }
}

/// The number of a pair, of which there is a table.
#[inline]
pub(crate) fn pair_of(key: StrId, value: Value) -> Checked<u32> {
    match value {
        Value::Pair(number) => Ok(number),
        _ => Err(fault(key, value, "a pair of integers")),
    }
}

#[inline]
pub(crate) fn stack_of(key: StrId, value: Value) -> Checked<Option<StackId>> {
    match value {
        Value::Stack(number) => Ok(StackId::new(number)),
        Value::EmptyList | Value::None => Ok(None),
        _ => Err(fault(key, value, "a list of stack frames")),
    }
}

/// The beginning of a text, for an error.
pub(crate) fn quoted(text: &str) -> String {
    const SHOWN: usize = 40;
    let shown: String = text.chars().take(SHOWN).collect();
    let more = if shown.len() < text.len() { "..." } else { "" };
    format!("{shown:?}{more}")
}
