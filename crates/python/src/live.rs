//! The dictionary of `torch.cuda.memory._snapshot()`, walked as it is.
//!
//! In:  Python's dictionaries, lists, numbers and texts. Out: the [`SnapshotFile`] that a pickle of them would give.
//!
//! Looking at Python's objects needs the interpreter's lock, so it is given up every few milliseconds: other threads
//! run, and Ctrl-C is answered. Keys, and the calls that stacks are made of, are the same objects over and over:
//! each is looked into once.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use tonnage::snapshot::{Items, Limits, Object, ObjectReader, SnapshotError, SnapshotFile};

use crate::errors::{exception, raise};
use crate::work::guard;

/// How long other threads wait at most: what Python itself gives a thread before the next one's turn.
const TURN: Duration = Duration::from_millis(5);

/// How many containers and items of lists are taken in before the clock is looked at.
const BETWEEN: u32 = 512;

/// Texts that are known by their object. Chosen: keys and actions are a few dozen, and names of functions and files
/// some thousand; each is kept alive.
const MOST_TEXTS: usize = 1 << 16;

/// Containers inside containers. PyTorch nests six deep.
const DEPTH: usize = 64;

/// Walks a snapshot that goes by this name.
pub(crate) fn walk(snapshot: &Bound<'_, PyDict>, name: &str) -> PyResult<SnapshotFile> {
    guard(|| walk_all(snapshot, name))?
}

fn walk_all(snapshot: &Bound<'_, PyDict>, name: &str) -> PyResult<SnapshotFile> {
    let mut walk = Walk {
        reader: ObjectReader::new(Limits::default()),
        texts: HashMap::default(),
        frames: HashMap::default(),
        spare: Vec::new(),
        countdown: BETWEEN,
        since: Instant::now(),
        name,
    };
    let mut whole = Items::default();
    let pairs: Vec<_> = snapshot.iter().collect();
    for (key, value) in pairs {
        let Ok(key) = key.cast::<PyString>() else { continue };
        let (key, value) = (walk.text(key)?, walk.object(&value, 0)?);
        walk.reader.set(&mut whole, key, value);
    }
    let Walk { reader, .. } = walk;
    let finished = snapshot.py().detach(|| reader.finish(whole));
    finished.map_err(|error| refuse(error, name))
}

/// The reader's error, without the offsets that only files have.
fn refuse(error: SnapshotError, name: &str) -> PyErr {
    match error {
        SnapshotError::Shape { path, expected, found, .. } => {
            let sentence = format!("{name}: {path}: expected {expected}, found {found}");
            exception("SnapshotError", &sentence, |_| Ok(()))
        }
        other => raise(anyhow::Error::new(other).context(name.to_owned())),
    }
}

/// Where an object lies, for as long as it is kept.
type Place = usize;

type Known = HashMap<Place, (Py<PyAny>, Object), rustc_hash::FxBuildHasher>;

struct Walk<'a> {
    reader: ObjectReader,
    /// Texts and calls that were seen, by where they lie; kept, so that no other takes their place.
    texts: Known,
    frames: Known,
    /// Room for the next containers.
    spare: Vec<Items>,
    countdown: u32,
    since: Instant,
    name: &'a str,
}

fn place(object: &Bound<'_, PyAny>) -> Place {
    object.as_ptr() as usize
}

impl Walk<'_> {
    fn object(&mut self, value: &Bound<'_, PyAny>, depth: usize) -> PyResult<Object> {
        if let Ok(text) = value.cast::<PyString>() {
            return self.text(text);
        }
        if let Ok(number) = value.cast::<PyInt>() {
            return self.number(number);
        }
        if depth == DEPTH {
            let sentence = format!("{}: more than {DEPTH} containers inside each other", self.name);
            return Err(exception("SnapshotError", &sentence, |_| Ok(())));
        }
        if let Ok(dict) = value.cast::<PyDict>() {
            return self.dict(dict, depth);
        }
        if let Ok(list) = value.cast::<PyList>() {
            let mut items = self.room();
            // Its length is asked again each time: other threads run in between.
            let mut at = 0;
            while at < list.len() {
                let item = self.object(&list.get_item(at)?, depth + 1)?;
                self.reader.append(&mut items, item);
                at += 1;
                self.breathe(list.py())?;
            }
            let object = self.reader.list(&items);
            self.spare.push(items);
            return Ok(object);
        }
        if let Ok(tuple) = value.cast::<PyTuple>() {
            let mut items = self.room();
            for item in tuple.iter_borrowed() {
                let item = self.object(&item, depth + 1)?;
                self.reader.append(&mut items, item);
                self.breathe(tuple.py())?;
            }
            let object = self.reader.tuple(&items);
            self.spare.push(items);
            return Ok(object);
        }
        if value.is_none() {
            return Ok(Object::NONE);
        }
        match value.cast::<PyFloat>() {
            Ok(number) => Ok(number.value().into()),
            Err(_) => Ok(Object::OTHER),
        }
    }

    fn dict(&mut self, dict: &Bound<'_, PyDict>, depth: usize) -> PyResult<Object> {
        if let Some((_, frame)) = self.frames.get(&place(dict)) {
            return Ok(*frame);
        }
        let mut items = self.room();
        // Others may run, and change it, while what it holds is looked into: that is for when it has been gone through.
        let mut held = Vec::new();
        let is_small = dict.len() <= BETWEEN as usize;
        for (key, value) in dict.iter() {
            // No other key means anything.
            let Ok(key) = key.cast::<PyString>() else { continue };
            let key = self.text(key)?;
            let is_plain = value.is_instance_of::<PyInt>() || value.is_instance_of::<PyString>();
            if is_plain && is_small {
                let value = self.object(&value, depth + 1)?;
                self.reader.set(&mut items, key, value);
            } else {
                held.push((key, value));
            }
        }
        for (key, value) in held {
            let value = self.object(&value, depth + 1)?;
            self.reader.set(&mut items, key, value);
            if !is_small {
                self.breathe(dict.py())?;
            }
        }
        let object = self.reader.dict(&items);
        self.spare.push(items);
        if object.is_frame() {
            self.frames.insert(place(dict), (dict.clone().into_any().unbind(), object));
        }
        self.breathe(dict.py())?;
        Ok(object)
    }

    fn text(&mut self, text: &Bound<'_, PyString>) -> PyResult<Object> {
        if let Some((_, known)) = self.texts.get(&place(text)) {
            return Ok(*known);
        }
        let object = match text.to_str() {
            Ok(text) => self.reader.text(text.as_bytes()),
            // Lone surrogates stand for bytes of file names that are not UTF-8.
            Err(_) => self.reader.text(text.to_string_lossy().as_bytes()),
        };
        if self.texts.len() < MOST_TEXTS {
            self.texts.insert(place(text), (text.clone().into_any().unbind(), object));
        }
        Ok(object)
    }

    fn number(&self, number: &Bound<'_, PyInt>) -> PyResult<Object> {
        if number.is_instance_of::<PyBool>() {
            return Ok(number.is_truthy()?.into());
        }
        if let Ok(number) = number.extract::<u64>() {
            return Ok(number.into());
        }
        Ok(number.extract::<i64>().map_or(Object::HUGE, Object::from))
    }

    /// Room for the items of one more container.
    fn room(&mut self) -> Items {
        let mut items = self.spare.pop().unwrap_or_default();
        items.clear();
        items
    }

    /// Lets others run, and Ctrl-C be answered, every few milliseconds.
    fn breathe(&mut self, py: Python<'_>) -> PyResult<()> {
        self.countdown -= 1;
        if self.countdown > 0 {
            return Ok(());
        }
        self.countdown = BETWEEN;
        if self.since.elapsed() < TURN {
            return Ok(());
        }
        self.reader.take_stock().map_err(|error| refuse(error, self.name))?;
        py.detach(std::thread::yield_now);
        py.check_signals()?;
        self.since = Instant::now();
        Ok(())
    }
}
