//! The dictionary of `torch.cuda.memory._snapshot()`, walked as it is.
//!
//! In:  Python's dictionaries, lists, numbers and texts. Out: the [`SnapshotFile`] that a pickle of them would give, and its history.
//!
//! Looking at Python's objects needs the interpreter's lock, so it is given up every few milliseconds: other threads
//! run, and Ctrl-C is answered. Keys, and the calls that stacks are made of, are the same objects over and over:
//! each is looked into once, and so is each list of the same calls.

use std::collections::HashMap;
use std::mem;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use tonnage::snapshot::{
    HistoryColumns, Items, Limits, Object, ObjectReader, SnapshotError, SnapshotFile,
};

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
pub(crate) fn walk(
    snapshot: &Bound<'_, PyDict>,
    name: &str,
) -> PyResult<(SnapshotFile, Vec<HistoryColumns>)> {
    guard(|| walk_all(snapshot, name))?
}

fn walk_all(
    snapshot: &Bound<'_, PyDict>,
    name: &str,
) -> PyResult<(SnapshotFile, Vec<HistoryColumns>)> {
    let mut walk = Walk {
        reader: ObjectReader::new(Limits::default()),
        texts: HashMap::default(),
        frames: HashMap::default(),
        stacks: HashMap::default(),
        recent_keys: Vec::new(),
        places: Vec::new(),
        spare: Vec::new(),
        spare_held: Vec::new(),
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

type Map<K, V> = HashMap<K, V, rustc_hash::FxBuildHasher>;

type Known = Map<Place, (Py<PyAny>, Object)>;

/// Keys and values that are still to be looked into.
type Held<'py> = Vec<(Object, Bound<'py, PyAny>)>;

struct Walk<'a, 'py> {
    reader: ObjectReader,
    /// Texts and calls that were seen, by where they lie; kept, so that no other takes their place.
    texts: Known,
    frames: Known,
    /// Stacks that were seen, by where their calls lie: all of them are among the frames that are kept.
    stacks: Map<Box<[Place]>, Object>,
    /// The keys of the last dictionary, in their order: most have the same. They are among the texts that are kept.
    recent_keys: Vec<(Place, Object)>,
    /// Room for the calls of a stack, and for the next containers.
    places: Vec<Place>,
    spare: Vec<Items>,
    spare_held: Vec<Held<'py>>,
    countdown: u32,
    since: Instant,
    name: &'a str,
}

fn place(object: &Bound<'_, PyAny>) -> Place {
    object.as_ptr() as usize
}

impl<'py> Walk<'_, 'py> {
    fn object(&mut self, value: &Bound<'py, PyAny>, depth: usize) -> PyResult<Object> {
        // Exactly these are nearly all, and are told apart at once.
        if let Ok(number) = value.cast_exact::<PyInt>() {
            return Ok(Self::number(number));
        }
        if let Ok(text) = value.cast::<PyString>() {
            return self.text(text);
        }
        if let Ok(number) = value.cast::<PyInt>() {
            return match number.is_instance_of::<PyBool>() {
                true => Ok(number.is_truthy()?.into()),
                false => Ok(Self::number(number)),
            };
        }
        if depth == DEPTH {
            let sentence = format!("{}: more than {DEPTH} containers inside each other", self.name);
            return Err(exception("SnapshotError", &sentence, |_| Ok(())));
        }
        if let Ok(dict) = value.cast::<PyDict>() {
            return self.dict(dict, depth);
        }
        if let Ok(list) = value.cast::<PyList>() {
            return self.list(list, depth);
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

    fn list(&mut self, list: &Bound<'py, PyList>, depth: usize) -> PyResult<Object> {
        let is_short = list.len() <= BETWEEN as usize;
        if is_short {
            self.places.clear();
            self.places.extend(list.iter().map(|it| place(&it)));
            if let Some(stack) = self.stacks.get(&*self.places) {
                return Ok(*stack);
            }
        }
        let mut items = self.room();
        let mut seen = mem::take(&mut self.places);
        seen.clear();
        let mut are_frames = is_short;
        // Its length is asked again each time: other threads run in between.
        let mut at = 0;
        while at < list.len() {
            let value = list.get_item(at)?;
            let item = self.object(&value, depth + 1)?;
            are_frames &= item.is_frame();
            if are_frames {
                seen.push(place(&value));
            }
            self.reader.append(&mut items, item);
            at += 1;
            self.breathe(list.py())?;
        }
        let object = self.reader.list(&items);
        if are_frames && !seen.is_empty() {
            self.stacks.insert((&*seen).into(), object);
        }
        self.places = seen;
        self.spare.push(items);
        Ok(object)
    }

    fn dict(&mut self, dict: &Bound<'py, PyDict>, depth: usize) -> PyResult<Object> {
        if let Some((_, frame)) = self.frames.get(&place(dict)) {
            return Ok(*frame);
        }
        let mut items = self.room();
        // Others may run, and change it, while what it holds is looked into: that is for when it has been gone through.
        let mut held = self.spare_held.pop().unwrap_or_default();
        let is_small = dict.len() <= BETWEEN as usize;
        for (number, (key, value)) in dict.iter().enumerate() {
            // No other key means anything.
            let Some(key) = self.key(number, &key)? else { continue };
            let is_plain =
                value.is_exact_instance_of::<PyInt>() || value.is_exact_instance_of::<PyString>();
            if is_plain && is_small {
                let value = self.object(&value, depth + 1)?;
                self.reader.set(&mut items, key, value);
            } else {
                held.push((key, value));
            }
        }
        for (key, value) in held.drain(..) {
            let value = self.object(&value, depth + 1)?;
            self.reader.set(&mut items, key, value);
            if !is_small {
                self.breathe(dict.py())?;
            }
        }
        let object = self.reader.dict(&items);
        self.spare.push(items);
        self.spare_held.push(held);
        if object.is_frame() {
            self.frames.insert(place(dict), (dict.clone().into_any().unbind(), object));
        }
        self.breathe(dict.py())?;
        Ok(object)
    }

    /// A key, by its number in its dictionary; nothing if it is no text.
    fn key(&mut self, number: usize, key: &Bound<'py, PyAny>) -> PyResult<Option<Object>> {
        let there = place(key);
        let recent = self.recent_keys.get(number);
        if let Some((_, known)) = recent.filter(|recent| recent.0 == there) {
            return Ok(Some(*known));
        }
        let Ok(text) = key.cast::<PyString>() else { return Ok(None) };
        let object = self.text(text)?;
        // One that is not kept may make way for another in the same place.
        if self.texts.contains_key(&there) {
            let recent = &mut self.recent_keys;
            if number >= recent.len() {
                recent.resize(number + 1, (there, object));
            }
            recent[number] = (there, object);
        }
        Ok(Some(object))
    }

    fn text(&mut self, text: &Bound<'py, PyString>) -> PyResult<Object> {
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

    fn number(number: &Bound<'py, PyInt>) -> Object {
        if let Ok(number) = number.extract::<u64>() {
            return number.into();
        }
        number.extract::<i64>().map_or(Object::HUGE, Object::from)
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
        // Whoever waits for the interpreter's lock gets it here.
        py.detach(|| ());
        py.check_signals()?;
        self.since = Instant::now();
        Ok(())
    }
}
