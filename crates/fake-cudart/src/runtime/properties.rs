//! `cudaDeviceProp`: the device's attributes in one structure, whose fields differ between releases.

use std::ffi::c_int;

use crate::profile::Profile;

/// A field, or several that stay 0.
#[derive(Clone, Copy)]
enum Field {
    /// An attribute, as an `int`.
    Int(c_int),
    /// An attribute, as a `size_t`.
    Size(c_int),
    /// The device's memory.
    Total,
    /// So many `int`s that nobody was seen to ask for.
    Ints(usize),
    /// An `int` that release 13 does not have any more.
    Old(c_int),
}

use Field::{Int, Ints, Old, Size, Total};

/// Name, two identities and a mask come first: text and numbers that are no attributes.
const BEFORE: usize = 256 + 16 + 8 + 4;

/// An attribute that no device has: stands for fields without one.
const NONE: c_int = 0;

const FIELDS: &[Field] = &[
    Total,
    // Shared memory and registers of a block, width of a warp.
    Size(8),
    Int(12),
    Int(10),
    Size(11),
    // Threads of a block, its extents, extents of a grid.
    Int(1),
    Int(2),
    Int(3),
    Int(4),
    Int(5),
    Int(6),
    Int(7),
    Old(13),
    Size(9),
    // The architecture.
    Int(75),
    Int(76),
    Size(14),
    Size(51),
    Old(15),
    // Multiprocessors.
    Int(16),
    Old(17),
    Int(18),
    Int(19),
    Old(20),
    // Textures and surfaces: sizes of which no tensor depends.
    Ints(2),
    Old(NONE),
    Ints(2 + 2 + 3 + 2 + 3 + 3 + 1 + 2 + 3 + 2),
    Ints(1 + 2 + 3 + 2 + 3 + 1 + 2),
    Size(30),
    Int(31),
    Int(32),
    // Where it is plugged in.
    Int(33),
    Int(34),
    Int(50),
    Int(35),
    Int(40),
    Int(41),
    // Memory and caches.
    Old(36),
    Int(37),
    Int(38),
    Int(108),
    Int(39),
    Int(78),
    Int(79),
    Int(80),
    // Shared memory and registers of a multiprocessor.
    Size(81),
    Int(82),
    Int(83),
    Int(84),
    Int(85),
    Int(86),
    Old(87),
    Int(88),
    Int(89),
    Int(90),
    Int(91),
    Int(95),
    Old(NONE),
    Size(97),
    Int(100),
    Int(101),
    Int(106),
    Int(109),
    Size(111),
    Int(99),
    Int(112),
    Int(113),
    Int(114),
    Int(115),
    Int(116),
    Int(117),
    Int(118),
    Int(119),
    Int(121),
    Int(125),
    Int(120),
];

/// Bytes of the structure of release 12.
pub(super) const SIZE_12: usize = 1032;

/// Bytes of the structure of release 13.
pub(super) const SIZE_13: usize = 1008;

/// The structure's bytes; their number says of which release.
pub(super) fn fill(bytes: &mut [u8], profile: &Profile, total: u64, device: c_int) {
    bytes.fill(0);
    let name = profile.name.as_bytes();
    let name = &name[..name.len().min(255)];
    bytes[..name.len()].copy_from_slice(name);
    // An identity of sixteen bytes, so that devices can be told apart.
    bytes[256] = 0x70;
    bytes[271] = device as u8;
    let old = bytes.len() == SIZE_12;
    let mut at = BEFORE;
    for &field in FIELDS {
        match field {
            Int(number) => put_int(bytes, &mut at, profile.attribute(number)),
            Old(number) if old => put_int(bytes, &mut at, profile.attribute(number)),
            Old(_) => {}
            Size(number) => {
                put_size(bytes, &mut at, profile.attribute(number).unsigned_abs().into());
            }
            Total => put_size(bytes, &mut at, total),
            Ints(count) => at += 4 * count,
        }
    }
}

fn put_int(bytes: &mut [u8], at: &mut usize, value: c_int) {
    bytes[*at..*at + 4].copy_from_slice(&value.to_le_bytes());
    *at += 4;
}

fn put_size(bytes: &mut [u8], at: &mut usize, value: u64) {
    *at = at.next_multiple_of(8);
    bytes[*at..*at + 8].copy_from_slice(&value.to_le_bytes());
    *at += 8;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places that the public headers of both releases give.
    #[test]
    fn fields_lie_where_each_release_has_them() {
        let attributes =
            [(16, 132), (75, 9), (76, 7), (39, 2048), (97, 232_448), (120, 5), (1, 1024)];
        let profile = Profile {
            name: "Tonnage".to_owned(),
            attributes: attributes.into(),
            ..Profile::default()
        };
        let int = |bytes: &[u8], at: usize| {
            i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        for (size, major, processors, threads, optin, cluster) in
            [(SIZE_12, 360, 388, 624, 696, 772), (SIZE_13, 360, 384, 604, 672, 748)]
        {
            let mut bytes = vec![0xAA; size];
            fill(&mut bytes, &profile, 0x1234_5678_9ABC, 3);
            assert_eq!(bytes[..8], *b"Tonnage\0");
            assert_eq!(bytes[271], 3);
            assert_eq!(bytes[288..296], 0x1234_5678_9ABC_u64.to_le_bytes());
            assert_eq!(int(&bytes, 320), 1024, "{size}");
            assert_eq!((int(&bytes, major), int(&bytes, major + 4)), (9, 7), "{size}");
            assert_eq!(int(&bytes, processors), 132, "{size}");
            assert_eq!(int(&bytes, threads), 2048, "{size}");
            assert_eq!(int(&bytes, optin), 232_448, "{size}");
            assert_eq!(int(&bytes, cluster), 5, "{size}");
        }
    }
}
