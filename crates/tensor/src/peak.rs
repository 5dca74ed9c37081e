//! What the most allocated bytes were for.
//!
//! In:  storages as they come, change what they are for, and go.
//! Out: the [`Peak`]: bytes by role, and the call whose memory reached it.
//!
//! A result is claimed (saved, made a gradient, made state) after it is allocated, so a peak is
//! written down late: when the next storage goes, or when someone asks. Until then no bytes come
//! without making a new peak, and none go. Each step costs a few additions.

use std::panic::Location;

use crate::error::Call;
use crate::live::Role;

/// The bytes of each role, in the order of [`Role::ALL`].
pub(crate) type Sums = [u64; Role::ALL.len()];

/// The bytes of all roles together.
pub(crate) fn total(sums: &Sums) -> u64 {
    sums.iter().fold(0, |sum, it| sum.wrapping_add(*it))
}

/// The moment when the tensors of a device held most memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peak {
    sums: Sums,
    most: Sums,
    /// The operation whose memory reached it.
    pub operation: &'static str,
    /// Where that was called.
    pub site: &'static Location<'static>,
    /// The line in the model, if it is one of [`models`](crate::models); otherwise the same.
    pub line: &'static Location<'static>,
}

impl Peak {
    /// Bytes of the blocks that were handed out.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        total(&self.sums)
    }

    /// Those of them that were for this.
    #[must_use]
    pub fn of(&self, role: Role) -> u64 {
        self.sums[role as usize]
    }

    /// The most bytes that were for this at any time, until now.
    #[must_use]
    pub fn most_of(&self, role: Role) -> u64 {
        self.most[role as usize]
    }
}

/// Follows the sums, and keeps the largest.
#[derive(Default)]
pub(crate) struct PeakWatch {
    now: Sums,
    /// The most that each has been.
    most: Sums,
    most_allocated: u64,
    peak: Option<Peak>,
    /// Whose memory made what is there now the most ever, as long as that is so.
    at_peak: Option<Call>,
}

impl PeakWatch {
    pub(crate) fn add(&mut self, role: Role, size: u64, call: Call) {
        self.increase(role, size);
        let allocated = total(&self.now);
        if allocated > self.most_allocated {
            self.most_allocated = allocated;
            self.at_peak = Some(call);
        }
    }

    /// Two threads that change one storage may come here in the other order: the sums wrap and come
    /// out right.
    pub(crate) fn change(&mut self, from: Role, to: Role, size: u64) {
        self.now[from as usize] = self.now[from as usize].wrapping_sub(size);
        self.increase(to, size);
    }

    fn increase(&mut self, role: Role, size: u64) {
        let now = &mut self.now[role as usize];
        *now = now.wrapping_add(size);
        // A sum that has wrapped is about to come right again.
        if *now < u64::MAX / 2 {
            self.most[role as usize] = self.most[role as usize].max(*now);
        }
    }

    pub(crate) fn remove(&mut self, role: Role, size: u64) {
        if size > 0 {
            self.write_down();
            self.at_peak = None;
        }
        self.now[role as usize] = self.now[role as usize].wrapping_sub(size);
    }

    /// What is there now.
    pub(crate) fn sums(&self) -> &Sums {
        &self.now
    }

    pub(crate) fn peak(&mut self) -> Option<Peak> {
        self.write_down();
        let most = self.most;
        self.peak.clone().map(|peak| Peak { most, ..peak })
    }

    fn write_down(&mut self) {
        if let Some(Call { name: operation, site, line }) = self.at_peak {
            self.peak = Some(Peak { sums: self.now, most: self.most, operation, site, line });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_split_as_it_was_claimed_before_the_next_storage_went() {
        let mut watch = PeakWatch::default();
        let [first, second] = ["first", "second"].map(Call::here);
        watch.add(Role::Temporary, 10, first);
        watch.change(Role::Temporary, Role::Parameters, 10);
        watch.add(Role::Temporary, 5, second);
        watch.change(Role::Temporary, Role::Activations, 5);
        watch.remove(Role::Activations, 5);
        watch.add(Role::Temporary, 5, first);
        let peak = watch.peak().unwrap();
        assert_eq!((peak.allocated(), peak.operation), (15, "second"));
        assert_eq!((peak.of(Role::Parameters), peak.of(Role::Activations)), (10, 5));
        watch.add(Role::Temporary, 1, first);
        assert_eq!(watch.peak().unwrap().of(Role::Temporary), 6);
    }
}
