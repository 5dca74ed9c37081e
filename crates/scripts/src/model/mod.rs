//! A Hugging Face model as a script: from a `config.json` alone, with random weights.
//!
//! In:  nothing but the options that the script takes.
//! Out: the script, in a folder that goes with it, and what it says of the model.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::Error;
use crate::place::Folder;

/// What the script is called.
pub const FILE: &str = "model.py";

/// The script. It needs PyTorch and transformers, and runs on a GPU as well.
pub const SCRIPT: &str = include_str!("model.py");

/// How the line begins in which the script tells of the model.
const FACTS: &str = "tonnage-model ";

/// The script in a file, which goes with this value.
#[derive(Debug)]
pub struct ScriptFile(Folder);

impl ScriptFile {
    /// Writes it where temporary files are.
    ///
    /// # Errors
    ///
    /// If nothing can be written there.
    pub fn new() -> Result<Self, Error> {
        let file = Self(Folder::new()?);
        fs::write(file.path(), SCRIPT).map_err(Error::of(&file.path()))?;
        Ok(file)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.0.path().join(FILE)
    }

    /// A command with the script's name in the place of where it is.
    #[must_use]
    pub fn by_its_name(&self, command: &[String]) -> Vec<String> {
        let name = |word: &String| match Path::new(word) == self.path() {
            true => FILE.to_owned(),
            false => word.clone(),
        };
        command.iter().map(name).collect()
    }
}

/// What the script says of the model.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Facts {
    /// The class of transformers.
    pub model: String,
    /// How many numbers it has.
    pub parameters: u64,
    /// How many of them are trained.
    pub trained: u64,
    /// Bytes of its weights, of sharded ones those of this rank.
    pub weights: u64,
    /// Bytes of the cache once everything is generated.
    pub cache: Option<u64>,
}

impl Facts {
    /// From what the script printed; nothing if it did not come so far.
    #[must_use]
    pub fn of(output: &str) -> Option<Self> {
        let line = output.lines().rev().find_map(|line| line.strip_prefix(FACTS))?;
        serde_json::from_str(line).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::is_given_up;

    #[test]
    fn the_last_line_of_facts_counts() {
        let line = "tonnage-model {\"model\": \"GPT2LMHeadModel\", \"parameters\": 3, \"trained\": 2, \"weights\": 6}";
        let output = format!("a warning\ntonnage-model {{}}\n{line}\nbye\n");
        let facts = Facts::of(&output).unwrap();
        assert_eq!((facts.parameters, facts.trained, facts.weights), (3, 2, 6));
        assert_eq!((facts.model.as_str(), facts.cache), ("GPT2LMHeadModel", None));
        assert_eq!(Facts::of("tonnage-model \n"), None);
        assert_eq!(Facts::of(""), None);
    }

    #[test]
    fn the_script_is_there_as_long_as_its_file() {
        let file = ScriptFile::new().unwrap();
        let path = file.path();
        assert_eq!(fs::read_to_string(&path).unwrap(), SCRIPT);
        assert!(is_given_up(&path), "it goes if someone presses Ctrl-C");
        drop(file);
        assert!(!path.exists() && !is_given_up(&path));
    }
}
