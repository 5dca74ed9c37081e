//! What stands for storage where the program was built without it: every address is refused, in the same words as others.

use std::fmt::{Display, Formatter};
use std::io::Read;

use tonnage_replay::Until;

use crate::source::FoundAll;

pub(crate) enum Storage {}

pub(crate) enum Object {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)]
pub(crate) enum Trouble {
    Absent,
    Refused,
    Interrupted,
    Address,
    Server,
    Storage,
}

#[derive(Clone, Debug)]
pub(crate) struct StorageError {
    pub(crate) trouble: Trouble,
}

impl Display for StorageError {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("this program was built without storage: build it with the feature `storage`, or copy the files here")
    }
}

impl std::error::Error for StorageError {}

impl Storage {
    pub(crate) fn own() -> Result<&'static Self, StorageError> {
        Err(StorageError { trouble: Trouble::Storage })
    }

    pub(crate) fn find(&'static self, _: Vec<String>, _: &Until) -> FoundAll {
        match *self {}
    }

    pub(crate) fn open(&'static self, _: &str, _: &Until) -> Result<Object, StorageError> {
        match *self {}
    }
}

impl Object {
    pub(crate) fn version(&self) -> (String, u64) {
        match *self {}
    }

    pub(crate) fn failed(&self) -> Option<&StorageError> {
        match *self {}
    }
}

impl Read for Object {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        match *self {}
    }
}
