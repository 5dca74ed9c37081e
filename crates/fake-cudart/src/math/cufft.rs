//! cuFFT: plans go by number. What they need beside is not known.

use std::ffi::c_int;

use super::entry;
use crate::notes;
use crate::state::put;

entry! {
    /// A plan.
    fn cufftCreate(plan: *mut c_int) |state| {
        let handle = state.next_handle();
        // SAFETY: the caller's promise.
        unsafe { put(plan, handle as c_int) }
    }

    /// The plan needs nothing beside, which is a guess.
    fn cufftXtMakePlanMany(
        _plan: c_int,
        _rank: c_int,
        _n: *mut i64,
        _in_embed: *mut i64,
        _in_stride: i64,
        _in_distance: i64,
        _in_type: c_int,
        _out_embed: *mut i64,
        _out_stride: i64,
        _out_distance: i64,
        _out_type: c_int,
        _batch: i64,
        workspace: *mut usize,
        _type: c_int,
    ) |_| {
        notes::note(notes::GUESSES_FILE, "workspaces of Fourier transforms (cuFFT) count as nothing");
        // SAFETY: the caller's promise.
        unsafe { put(workspace, 0) }
    }
}
