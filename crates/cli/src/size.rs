//! Sizes of memory on the command line.

use tonnage::Bytes;

/// No device has less: a smaller number without a unit was meant with one.
const LEAST: u64 = 1 << 20;

/// Reads a size of memory: `24G`, `24Gi`, `24GiB`, `24GB`, `1.5GiB`, or bytes.
pub(crate) fn memory_size(text: &str) -> Result<Bytes, String> {
    let size: Bytes =
        text.parse().map_err(|error: tonnage::events::ParseBytesError| error.to_string())?;
    let has_unit = text.contains(|c: char| c.is_ascii_alphabetic());
    if !has_unit && (1..LEAST).contains(&size.0) {
        return Err(format!(
            "that is {} bytes: with a unit it would be `{}GiB`",
            size.0,
            text.trim()
        ));
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_without_its_unit_is_refused_with_what_was_meant() {
        for (text, bytes) in [
            ("24G", 24 << 30),
            ("24Gi", 24 << 30),
            ("24GiB", 24 << 30),
            ("24GB", 24_000_000_000),
            ("1.5GiB", 3 << 29),
            ("2097152", 2 << 20),
            ("512KiB", 512 << 10),
            ("0", 0),
        ] {
            assert_eq!(memory_size(text), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["24", "80", "1000000"] {
            let message = memory_size(text).unwrap_err();
            assert!(message.contains(&format!("`{text}GiB`")), "{message}");
        }
        assert!(memory_size("24 parsecs").unwrap_err().contains("the unit is none of"));
    }
}
