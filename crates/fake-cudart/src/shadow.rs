//! Bytes that the host wrote to the device, as far as they are known, so that they can be read back.
//!
//! Device memory has no contents here. What a program copies to it in small pieces is kept beside, until something
//! else is written there; everything else reads as zeros. What kernels write is not seen.

use std::collections::BTreeMap;

/// Larger pieces are not kept: nobody decides anything by a mebibyte.
const LARGEST: usize = 1 << 20;

/// Bytes of all pieces together: chosen, little beside a Python with PyTorch. A data set that is copied to the device piece by piece
/// would take as much of the host.
const MOST: usize = 256 << 20;

/// Pieces that stay when all of them are too much: lengths, masks, losses.
const SMALL: usize = 4 << 10;

/// Known bytes by address; pieces do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    pieces: BTreeMap<u64, Vec<u8>>,
    /// Bytes of all of them.
    held: usize,
}

impl Shadow {
    /// What lies at `[address, address + length)` is no longer known.
    pub(crate) fn forget(&mut self, address: u64, length: usize) {
        let end = address.saturating_add(length as u64);
        let before = self.pieces.range(..address).next_back().map(|(&start, _)| start);
        let inside: Vec<u64> =
            before.into_iter().chain(self.pieces.range(address..end).map(|(&at, _)| at)).collect();
        for start in inside {
            let piece_end = self.pieces.get(&start).map_or(start, |it| start + it.len() as u64);
            if piece_end <= address {
                continue;
            }
            let Some(mut piece) = self.pieces.remove(&start) else { continue };
            self.held -= piece.len();
            if piece_end > end {
                self.insert(end, piece.split_off((end - start) as usize));
            }
            if start < address {
                piece.truncate((address - start) as usize);
                self.insert(start, piece);
            }
        }
    }

    /// A piece where nothing is known.
    fn insert(&mut self, address: u64, piece: Vec<u8>) {
        self.held += piece.len();
        self.pieces.insert(address, piece);
    }

    /// Makes room for another piece: what is large is no longer known, and if that is not enough nothing is.
    fn make_room(&mut self, length: usize) {
        if self.held + length <= MOST {
            return;
        }
        self.pieces.retain(|_, piece| piece.len() <= SMALL);
        self.held = self.pieces.values().map(Vec::len).sum();
        if self.held > MOST / 2 {
            self.pieces.clear();
            self.held = 0;
        }
    }

    /// Bytes were written.
    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) {
        self.forget(address, bytes.len());
        if !bytes.is_empty() && bytes.len() <= LARGEST {
            self.make_room(bytes.len());
            self.insert(address, bytes.to_vec());
        }
    }

    /// The same byte was written many times.
    pub(crate) fn fill(&mut self, address: u64, byte: u8, length: usize) {
        self.forget(address, length);
        // Zeros are what unknown bytes read as.
        if byte != 0 && (1..=LARGEST).contains(&length) {
            self.make_room(length);
            self.insert(address, vec![byte; length]);
        }
    }

    /// What is known, with zeros for the rest; whether that is all.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> bool {
        into.fill(0);
        let mut known = 0;
        let end = address.saturating_add(into.len() as u64);
        let before = self.pieces.range(..address).next_back();
        for (&start, piece) in before.into_iter().chain(self.pieces.range(address..end)) {
            let from = start.max(address);
            let to = (start + piece.len() as u64).min(end);
            if from < to {
                into[(from - address) as usize..(to - address) as usize]
                    .copy_from_slice(&piece[(from - start) as usize..(to - start) as usize]);
                known += to - from;
            }
        }
        known == into.len() as u64
    }

    /// Bytes move on the device.
    pub(crate) fn copy(&mut self, to: u64, from: u64, length: usize) {
        if length > LARGEST {
            return self.forget(to, length);
        }
        let mut bytes = vec![0; length];
        self.read(from, &mut bytes);
        self.write(to, &bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random writes, fills and copies against an array of bytes.
    #[test]
    fn known_bytes_are_those_of_an_array() {
        const BASE: u64 = 1 << 40;
        let mut array = [0_u8; 64];
        let mut shadow = Shadow::default();
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for step in 0..20_000 {
            let (at, length) = (random(64), random(20));
            let length = length.min(64 - at) as usize;
            let place = at as usize..at as usize + length;
            match random(4) {
                0 => {
                    let bytes: Vec<u8> = (0..length).map(|_| random(256) as u8).collect();
                    array[place].copy_from_slice(&bytes);
                    shadow.write(BASE + at, &bytes);
                }
                1 => {
                    let byte = random(3) as u8;
                    array[place].fill(byte);
                    shadow.fill(BASE + at, byte, length);
                }
                2 => {
                    array[place].fill(0);
                    shadow.forget(BASE + at, length);
                }
                _ => {
                    let from = random(65 - length as u64);
                    array.copy_within(from as usize..from as usize + length, at as usize);
                    shadow.copy(BASE + at, BASE + from, length);
                }
            }
            let mut read = [1; 64];
            shadow.read(BASE, &mut read);
            assert_eq!(read, array, "step {step}");
            assert_eq!(shadow.held, shadow.pieces.values().map(Vec::len).sum::<usize>());
        }
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_small_stays() {
        let mut shadow = Shadow::default();
        shadow.write(0, &[7; 8]);
        let mut last = 0;
        for number in 1..=2 * (MOST / LARGEST) as u64 {
            last = number * LARGEST as u64;
            shadow.write(last, &vec![number as u8 | 1; LARGEST]);
            assert!(shadow.held <= MOST);
        }
        let mut read = [0; 8];
        assert!(shadow.read(0, &mut read) && read == [7; 8], "a small piece");
        assert!(shadow.read(last, &mut read), "the last one");
        assert!(!shadow.read(LARGEST as u64, &mut read), "the first large one");
        for number in 0..=(MOST / SMALL) as u64 {
            shadow.write((1 << 40) + number * SMALL as u64, &[1; SMALL]);
            assert!(shadow.held <= MOST);
        }
    }

    #[test]
    fn large_pieces_are_forgotten() {
        let mut shadow = Shadow::default();
        shadow.write(0, &[7; 8]);
        shadow.write(0, &vec![1; LARGEST + 1]);
        let mut read = [9; 8];
        assert!(!shadow.read(0, &mut read));
        assert_eq!(read, [0; 8]);
        shadow.write(0, &[7; 4]);
        shadow.write(4, &[6; 3]);
        assert!(shadow.read(1, &mut read[..6]), "two pieces are one");
        assert!(!shadow.read(0, &mut read));
    }
}
