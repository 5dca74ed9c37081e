//! A settings string into a [`Config`], by the rules and with the quirks of each release.
//!
//! In:  the `Config` so far, a string, and which of PyTorch's parsers is to read it.
//! Out: the `Config` changed in place; or an error, and then whatever came before the mistake
//!      stays applied.
//!
//! Note \[Two parsers\]. Before 2.10 one parser reads all keys from left to right. From 2.10 on the
//! parser common to all accelerators walks the whole string first and skips what belongs to CUDA;
//! then CUDA's parser walks it again and skips the rest. Both refuse unknown keys. So a mistake in
//! a common key at the end of the string keeps a CUDA key at its beginning from being applied. From
//! 2.11 on one more walk precedes them, which looks for `large_segment_size_mb` alone because the
//! bounds of other keys depend on it.
//!
//! Bounds are in [`bounds`], the defaults in [`Config`]; nothing here knows a number.

use std::collections::BTreeMap;

use super::error::{ConfigError, Place, Problem};
use super::key::Key;
use super::token::{Token, tokenise};
use super::{Backend, Config, DIVISION_SLOTS, Release, Reserve, bounds, number};

/// Which parser reads: see Note \[Two parsers\].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parser {
    All,
    Common,
    CudaSpecific,
}

impl Parser {
    /// The parsers of a release, in their order.
    pub(super) fn of(release: Release) -> &'static [Self] {
        if release.two_parsers() { &[Self::Common, Self::CudaSpecific] } else { &[Self::All] }
    }

    fn sets(self, key: Key) -> bool {
        match self {
            Self::All => true,
            // The large segment size has been read by then.
            Self::Common => key.is_common() && key != Key::LargeSegmentSizeMb,
            Self::CudaSpecific => !key.is_common(),
        }
    }

    /// Lets this parser read `conf`.
    pub(super) fn read(self, config: &mut Config, conf: &str) -> Result<(), ConfigError> {
        if self != Self::CudaSpecific {
            config.max_split_size = None;
            config.roundup_power2_divisions = [0; DIVISION_SLOTS];
            config.garbage_collection_threshold = 0.0;
            conf.clone_into(&mut config.last_settings);
        }
        let tokens = tokenise(conf, config.release);
        let mut walk = Walk { config, tokens: &tokens, next: 0, end: conf.len() };
        if self == Self::Common {
            walk.large_segment_size()?;
            if walk.config.release.reparse_resets_non_split_rounding() {
                walk.config.max_non_split_rounding = walk.config.large_segment_size;
            }
        }
        walk.settings(self)
    }
}

/// The backend that PyTorch chooses when it is loaded: the first one that the string names.
/// Everything else in it, mistakes included, is passed over.
pub(super) fn backend_at_load(conf: &str, release: Release) -> Backend {
    let tokens = tokenise(conf, release);
    tokens
        .windows(3)
        .filter(|window| window[0].is(Key::Backend.name()))
        .find_map(|window| Backend::from_name(&window[2].text))
        .unwrap_or_default()
}

/// A walk over the tokens that applies what it reads.
struct Walk<'a> {
    config: &'a mut Config,
    tokens: &'a [Token],
    /// Index of the token that comes next.
    next: usize,
    /// Length of the string, where missing things are missing.
    end: usize,
}

impl<'a> Walk<'a> {
    fn take(&mut self) -> Option<&'a Token> {
        let token = self.tokens.get(self.next)?;
        self.next += 1;
        Some(token)
    }

    /// Every `large_segment_size_mb`, wherever it stands; the last one wins.
    fn large_segment_size(&mut self) -> Result<(), ConfigError> {
        let key = Key::LargeSegmentSizeMb;
        if !key.exists_in(self.config.release) {
            return Ok(());
        }
        while let Some(token) = self.take() {
            if key.is_written(&token.text) {
                self.separator(key, ':')?;
                self.setting(key)?;
            }
        }
        self.next = 0;
        Ok(())
    }

    /// All settings of one parser, from left to right.
    fn settings(&mut self, parser: Parser) -> Result<(), ConfigError> {
        while let Some(token) = self.take() {
            let release = self.config.release;
            let key = Key::find(&token.text, release).ok_or_else(|| {
                let place = Place::Settings { at: token.at, variable: None };
                ConfigError::unknown_key(&token.text, place, release)
            })?;
            self.separator(key, ':')?;
            if parser.sets(key) {
                self.setting(key)?;
            } else {
                self.skip(key)?;
            }
            if self.next < self.tokens.len() {
                self.separator(key, ',')?;
            }
        }
        Ok(())
    }

    /// The value of `key`, read, checked and stored.
    fn setting(&mut self, key: Key) -> Result<(), ConfigError> {
        let (release, segment) = (self.config.release, self.config.large_segment_size);
        match key {
            Key::LargeSegmentSizeMb => {
                self.config.large_segment_size = self.size(key, bounds::large_segment_size)?;
            }
            Key::MaxSplitSizeMb => {
                let check = |mb| bounds::split_size(mb, release, segment);
                self.config.max_split_size = Some(self.size(key, check)?);
            }
            Key::MaxNonSplitRoundingMb => {
                let check = |mb| bounds::split_size(mb, release, segment);
                self.config.max_non_split_rounding = self.size(key, check)?;
            }
            Key::PinnedReserveSegmentSizeMb => {
                self.config.pinned_reserve_segment_size =
                    self.size(key, bounds::pinned_reserve_segment_size)?;
            }
            Key::PinnedNumRegisterThreads => {
                self.config.pinned_num_register_threads =
                    self.size(key, bounds::register_threads)?;
            }
            Key::PinnedMaxRoundThresholdMb => {
                self.config.pinned_max_round_threshold =
                    Some(self.size(key, bounds::pinned_bound)?);
            }
            Key::PinnedMaxCachedSizeMb => {
                self.config.pinned_max_cached_size = Some(self.size(key, bounds::pinned_bound)?);
            }
            Key::ExpandableSegmentsReserve => {
                // What is no such value is passed over: PyTorch warns of it and keeps what it had.
                if let Some(reserve) = Reserve::read(&self.value(key)?.text) {
                    self.config.expandable_segments_reserve = Some(reserve);
                }
            }
            Key::ExpandableSegmentsReserveByClass => self.reserve_by_class()?,
            Key::PinnedFreeCatchAll => self.config.pinned_free_catch_all = self.boolean(key)?,
            Key::ThrowOnCudamallocOom => self.config.throw_on_cudamalloc_oom = self.boolean(key)?,
            Key::GarbageCollectionThreshold => {
                self.config.garbage_collection_threshold =
                    self.fraction(key, bounds::garbage_collection_threshold)?;
            }
            Key::PerProcessMemoryFraction => {
                self.config.per_process_memory_fraction =
                    self.fraction(key, bounds::memory_fraction)?;
            }
            Key::RoundupPower2Divisions => self.divisions()?,
            Key::Backend => self.backend()?,
            Key::ExpandableSegments => self.config.expandable_segments = self.boolean(key)?,
            Key::PinnedUseBackgroundThreads => {
                self.config.pinned_use_background_threads = self.boolean(key)?;
            }
            Key::ReleaseLockOnCudamalloc => {
                self.config.release_lock_on_cudamalloc = self.boolean(key)?;
            }
            Key::GraphCaptureRecordStreamReuse => {
                self.config.graph_capture_record_stream_reuse = self.boolean(key)?;
            }
            Key::PinnedUseCudaHostRegister => {
                self.config.pinned_use_cuda_host_register = self.boolean(key)?;
            }
        }
        Ok(())
    }

    /// A value that another parser reads.
    fn skip(&mut self, key: Key) -> Result<(), ConfigError> {
        if !self.value(key)?.is("[") {
            return Ok(());
        }
        while let Some(token) = self.take() {
            if token.is("]") {
                return Ok(());
            }
        }
        Err(self.missing(key, Problem::UnclosedList))
    }

    fn size(
        &mut self,
        key: Key,
        check: impl Fn(u64) -> Result<u64, Problem>,
    ) -> Result<u64, ConfigError> {
        let token = self.value(key)?;
        self.whole(token).and_then(check).map_err(|problem| self.refused(key, token, problem))
    }

    fn fraction(
        &mut self,
        key: Key,
        check: impl Fn(f64) -> Result<f64, Problem>,
    ) -> Result<f64, ConfigError> {
        let token = self.value(key)?;
        number::double(&token.text)
            .and_then(check)
            .map_err(|problem| self.refused(key, token, problem))
    }

    fn boolean(&mut self, key: Key) -> Result<bool, ConfigError> {
        let token = self.value(key)?;
        match token.text.as_str() {
            "True" => Ok(true),
            "False" => Ok(false),
            _ => Err(self.refused(key, token, Problem::NotABoolean)),
        }
    }

    fn backend(&mut self) -> Result<(), ConfigError> {
        let token = self.value(Key::Backend)?;
        let problem = match Backend::from_name(&token.text) {
            Some(named) if named == self.config.backend => return Ok(()),
            Some(_) => Problem::BackendFixed,
            None => Problem::UnknownBackend,
        };
        Err(self.refused(Key::Backend, token, problem))
    }

    /// One number for all slots, or a list of `key:value`. Slots are set as they are read, so a
    /// list that breaks off leaves its beginning behind, as in PyTorch.
    fn divisions(&mut self) -> Result<(), ConfigError> {
        let key = Key::RoundupPower2Divisions;
        let first = self.value(key)?;
        if !first.is("[") {
            let all = self
                .whole(first)
                .and_then(bounds::divisions_for_all)
                .map_err(|problem| self.refused(key, first, problem))?;
            self.config.roundup_power2_divisions = [all; DIVISION_SLOTS];
            return Ok(());
        }
        let mut last_slot = None;
        while let Some(bound) = self.take() {
            if bound.is("]") {
                return Ok(());
            }
            self.separator(key, ':')?;
            let divisions = self.size(key, bounds::divisions_for_slot)?;
            if bound.is(">") {
                let after = usize::from(self.config.release.division_tail_starts_after_last_key());
                let from = last_slot.unwrap_or(0) + after;
                self.config.roundup_power2_divisions[from..].fill(divisions);
            } else {
                let slot =
                    slot(&bound.text).map_err(|problem| self.refused(key, bound, problem))?;
                if last_slot.is_none() {
                    self.config.roundup_power2_divisions[..slot].fill(divisions);
                }
                self.config.roundup_power2_divisions[slot] = divisions;
                last_slot = Some(slot);
            }
            match self.tokens.get(self.next) {
                // Before 2.10 PyTorch reads past the end of its tokens here; what that gives is undefined.
                None => return Err(self.missing(key, Problem::UnclosedList)),
                Some(token) if token.is("]") => {}
                Some(_) => self.separator(key, ',')?,
            }
        }
        // Before 2.10 no bracket is asked for after `[` or a comma, so both may end the string.
        if self.config.release.separators_enforced() {
            return Ok(());
        }
        Err(self.missing(key, Problem::UnclosedList))
    }

    /// A list of `class:value`, which replaces the one before once it is read to its end.
    fn reserve_by_class(&mut self) -> Result<(), ConfigError> {
        let key = Key::ExpandableSegmentsReserveByClass;
        // Any token does for the brackets and the colon, as in every list.
        self.value(key)?;
        let mut by_class = BTreeMap::new();
        loop {
            let class = self.take().ok_or_else(|| self.missing(key, Problem::UnclosedList))?;
            if class.is("]") {
                self.config.expandable_segments_reserve_by_class = by_class;
                return Ok(());
            }
            self.separator(key, ':')?;
            if let Some(reserve) = Reserve::read(&self.value(key)?.text) {
                by_class.insert(class.text.clone(), reserve);
            }
            if self.tokens.get(self.next).is_some_and(|token| token.is(",")) {
                self.next += 1;
            }
        }
    }

    fn value(&mut self, key: Key) -> Result<&'a Token, ConfigError> {
        self.take().ok_or_else(|| self.missing(key, Problem::MissingValue))
    }

    /// The separator `wanted`, or, where the release does not mind, any token in its place.
    fn separator(&mut self, key: Key, wanted: char) -> Result<(), ConfigError> {
        let Some(token) = self.take() else {
            return Err(self.missing(key, Problem::MissingSeparator(wanted)));
        };
        let right = token.text.chars().eq([wanted]);
        if right || !self.config.release.separators_enforced() {
            return Ok(());
        }
        Err(self.refused(key, token, Problem::WrongSeparator(wanted)))
    }

    /// A whole number of the width that the release reads.
    fn whole(&self, token: &Token) -> Result<u64, Problem> {
        if self.config.release.reads_numbers_as_int() {
            number::int_as_unsigned(&token.text)
        } else {
            number::unsigned(&token.text)
        }
    }

    fn refused(&self, key: Key, token: &Token, problem: Problem) -> ConfigError {
        self.error(key, Some(&token.text), problem, token.at)
    }

    fn missing(&self, key: Key, problem: Problem) -> ConfigError {
        self.error(key, None, problem, self.end)
    }

    fn error(&self, key: Key, value: Option<&str>, problem: Problem, at: usize) -> ConfigError {
        let place = Place::Settings { at, variable: None };
        let Config { release, large_segment_size, .. } = *self.config;
        ConfigError::refused(key, value, problem, place, release, large_segment_size)
    }
}

/// The slot that begins at this many MB. Every release reads a key as an unsigned 64-bit number.
fn slot(bound: &str) -> Result<usize, Problem> {
    let mb = number::unsigned(bound)?;
    if !mb.is_power_of_two() {
        return Err(Problem::NotAPowerOfTwo);
    }
    Ok((mb.trailing_zeros() as usize).min(DIVISION_SLOTS - 1))
}

#[cfg(test)]
#[path = "parse_tests.rs"]
pub(super) mod tests;
