//! A number for texts: names of parts, and what tells one question from another.

/// FNV-1a of texts, one behind the other: the same on every machine and in every release. For what no one attacks.
#[must_use]
pub fn hash<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for text in texts {
        for byte in text.as_ref().bytes().chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_told_apart_also_by_where_one_ends() {
        assert_eq!(hash(["a", "b"]), hash(["a", "b"]));
        assert_ne!(hash(["a", "b"]), hash(["ab"]));
        assert_ne!(hash(["a", "b"]), hash(["b", "a"]));
        assert_eq!(hash([""; 0]), 0xcbf2_9ce4_8422_2325);
    }
}
