//! What was seen of a fleet, on the disk: for a run that goes on where another stopped, and for other tools.
//!
//! In:  rows, as they are done.
//! Out: a folder with Parquet files; from it, the rows that an earlier run left.
//!
//! ```text
//! FOLDER/_tonnage_fleet.json       says that the folder is a dataset, and is locked by the run that writes, where the disk has locks
//! FOLDER/_tonnage_fleet.finished   is there while the rows are all of those that were asked for: the run that wrote came to its end
//! FOLDER/files/part-….parquet      a row for each file, and what a later run reads
//! FOLDER/held/part-….parquet       who holds its memory
//! FOLDER/iterations/part-….parquet levels of its iterations
//! FOLDER/snapshots/                runs of simulated ranks: `runs.rs`
//! ```
//!
//! Parts are written whole, under names that their contents decide, those of `files` last: a part that `files` has not is of a
//! run that was killed, and goes. At the end the rows are put in their order, so many to a part: the same files give the same
//! bytes, whatever happened on the way. Nothing but parts is ever removed or replaced, and no folder is taken that has
//! something else in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use parquet::schema::types::Type;
use thiserror::Error;
use tonnage_events::Bytes;
use tonnage_export::{ExportError, write_values};
use tonnage_snapshot::{OutputError, OutputFile, SaveError, spare_memory};

use crate::address::names_storage;
use crate::facts::{Row, Seen};
use crate::hash::hash;
use crate::look::LookOptions;
use crate::runs::Runs;
use crate::source::Found;
use crate::table::{FleetTable, ROW};

/// Says that a folder is a dataset.
const MARKER: &str = "_tonnage_fleet.json";

/// Says that the run that wrote came to its end.
const FINISHED: &str = "_tonnage_fleet.finished";

/// What it says. The number counts up when an older program cannot read the tables.
const MARKED: &str = "{\"tonnage_fleet\": 1}\n";

/// Rows of a part: chosen, they take a megabyte.
const PART: usize = 64;

/// Bytes of a row's text, and of those of a part: chosen, a thousand times what they take. No more is read of a part that
/// somebody else has made.
const ROW_BYTES: usize = 16 << 20;
const PART_BYTES: usize = 64 << 20;

/// Bytes that rows may take of a machine that does not say what memory it has.
const UNTOLD: u64 = 4 << 30;

/// How long rows wait at most to be written: what a run loses that is killed.
const WAIT: Duration = Duration::from_secs(5);

/// A dataset that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// The folder has something else in it.
    #[error("{} is no dataset of a fleet and not empty: name another folder", .0.display())]
    Foreign(PathBuf),
    /// It is of another program.
    #[error("{} is a dataset of another version of tonnage: name another folder", .0.display())]
    OtherVersion(PathBuf),
    /// It has no dataset.
    #[error("{} is no dataset of a fleet: `tonnage fleet report SOURCE --out FOLDER` makes one", .0.display())]
    None(PathBuf),
    /// A part of it cannot be read.
    #[error(
        "{}: this part of the dataset is damaged, or of another program: look at the files again, with --out and another \
         folder", .0.display()
    )]
    Damaged(PathBuf),
    /// It has more than fits here.
    #[error(
        "{}: the rows of this dataset take more than the {} of memory that they may take here: look at a part of its files, \
         with --out and another folder", folder.display(), Bytes(*most)
    )]
    Large {
        /// The dataset.
        folder: PathBuf,
        /// Bytes that there are for rows.
        most: u64,
    },
    /// It is to be in storage.
    #[error("{}: a dataset is a folder of this machine: name one, and copy it when it is done", .0.display())]
    Storage(PathBuf),
    /// Someone else writes it.
    #[error("{} is being written by another run", .0.display())]
    Busy(PathBuf),
    /// A file in it is somebody else's.
    #[error("{} is no file of a simulated rank: name another folder, or move it away", .0.display())]
    NotOurs(PathBuf),
    /// It cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// What.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A part could not be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A part could not be written.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A snapshot could not be kept.
    #[error(transparent)]
    Save(#[from] SaveError),
}

/// How often a dataset is listed again whose parts go while it is read: whoever writes it puts it in order once.
const LISTED: usize = 3;

/// A dataset that is being written.
#[derive(Debug)]
pub struct Dataset {
    folder: PathBuf,
    /// Locked while this run goes on.
    _marker: File,
    /// Rows that are not written yet.
    waiting: Vec<Row>,
    written: Instant,
}

impl Dataset {
    /// Opens the dataset in a folder, or makes one.
    ///
    /// # Errors
    ///
    /// If the folder has something else in it, is being written by another run, or cannot be.
    pub fn open(folder: &Path) -> Result<Self, DatasetError> {
        let io = |path: &Path, source| DatasetError::Io { path: path.to_owned(), source };
        if names_storage(&folder.to_string_lossy()) {
            return Err(DatasetError::Storage(folder.to_owned()));
        }
        std::fs::create_dir_all(folder).map_err(|error| io(folder, error))?;
        let path = folder.join(MARKER);
        match is_marker(&path) {
            Ok(true) => {}
            Ok(false) => return Err(DatasetError::OtherVersion(folder.to_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let mut entries = std::fs::read_dir(folder).map_err(|error| io(folder, error))?;
                if entries.next().is_some() {
                    return Err(DatasetError::Foreign(folder.to_owned()));
                }
                OutputFile::at(&path)?.write(|out| {
                    out.write_all(MARKED.as_bytes()).map_err(|error| io(&path, error))
                })?;
            }
            Err(error) => return Err(io(&path, error)),
        }
        // NFS locks nothing that is not open for writing.
        let marker = File::options().read(true).write(true).open(&path);
        let marker = marker.map_err(|error| io(&path, error))?;
        // Where there are no locks, as on some shared disks, there is none.
        if let Err(TryLockError::WouldBlock) = marker.try_lock() {
            return Err(DatasetError::Busy(folder.to_owned()));
        }
        for table in FleetTable::ALL {
            let within = folder.join(table.name());
            std::fs::create_dir_all(&within).map_err(|error| io(&within, error))?;
        }
        let folder = folder.to_owned();
        Ok(Self { folder, _marker: marker, waiting: Vec::new(), written: Instant::now() })
    }

    /// What it keeps of simulated ranks.
    #[must_use]
    pub fn runs(&self) -> Runs {
        Runs::of(&self.folder)
    }

    /// Whether a folder has a dataset.
    #[must_use]
    pub fn is_at(folder: &Path) -> bool {
        folder.join(MARKER).is_file()
    }

    /// Whether the rows of the dataset in a folder are all that were asked for; else the run that wrote them goes on, or was
    /// stopped.
    #[must_use]
    pub fn is_finished(folder: &Path) -> bool {
        folder.join(FINISHED).is_file()
    }

    /// The rows of the dataset in a folder, in the order of their addresses. Nothing is locked, changed or made; where two
    /// parts have a file, as a run that was stopped leaves them, the later one counts.
    ///
    /// # Errors
    ///
    /// If there is no dataset, or one of its parts cannot be read.
    pub fn read(folder: &Path) -> Result<Vec<Row>, DatasetError> {
        let path = folder.join(MARKER);
        match is_marker(&path) {
            Ok(true) => {}
            Ok(false) => return Err(DatasetError::OtherVersion(folder.to_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(DatasetError::None(folder.to_owned()));
            }
            Err(source) => return Err(DatasetError::Io { path, source }),
        }
        let mut tries = 1;
        loop {
            match rows_of(folder) {
                // Someone else has put it in order meanwhile.
                Err(DatasetError::Io { source, .. })
                    if source.kind() == ErrorKind::NotFound && tries < LISTED =>
                {
                    tries += 1;
                }
                read => return read,
            }
        }
    }

    /// Rows of an earlier run that are about these files as they are now, asked the same. Files that could not be read are
    /// tried again.
    ///
    /// # Errors
    ///
    /// If the folder cannot be looked into. A part that cannot be read counts as not there.
    pub fn known(&self, files: &[Found], options: &LookOptions) -> Result<Vec<Row>, DatasetError> {
        let by_address: BTreeMap<_, _> = files.iter().map(|it| (&*it.address, it)).collect();
        let analysis = options.analysis();
        let mut known = BTreeMap::new();
        for part in self.parts(FleetTable::Files)? {
            let (rows, _) = read_part(&self.path(FleetTable::Files, &part)).unwrap_or_default();
            for mut row in rows {
                let file = by_address.get(&*row.address);
                let is_of = file.is_some_and(|file| row.is_of(file, &analysis));
                if is_of && matches!(row.seen, Seen::Facts(_)) {
                    row.place = options.names.place(&row.address);
                    known.insert(row.address.clone(), row);
                }
            }
        }
        Ok(known.into_values().collect())
    }

    /// Takes a row; it is written soon.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn add(&mut self, row: &Row) -> Result<(), DatasetError> {
        self.unfinish()?;
        self.waiting.push(row.clone());
        if self.waiting.len() < PART && self.written.elapsed() < WAIT {
            return Ok(());
        }
        self.flush()
    }

    /// Writes the rows that wait.
    ///
    /// # Errors
    ///
    /// If they cannot be written.
    pub fn flush(&mut self) -> Result<(), DatasetError> {
        let mut rows = std::mem::take(&mut self.waiting);
        self.written = Instant::now();
        if rows.is_empty() {
            return Ok(());
        }
        rows.sort_by(|a, b| a.address.cmp(&b.address));
        self.write(&part_name(&rows), &rows)
    }

    /// Puts all rows in their order: from now on they are what the dataset holds, and nothing else is.
    ///
    /// # Errors
    ///
    /// If they cannot be written.
    pub fn finish(&mut self, rows: &[Row]) -> Result<(), DatasetError> {
        self.unfinish()?;
        self.waiting.clear();
        let mut rows = rows.to_vec();
        rows.sort_by(|a, b| a.address.cmp(&b.address));
        let mut kept = BTreeSet::new();
        for rows in rows.chunks(PART) {
            let name = part_name(rows);
            if !self.is_whole(&name, rows) {
                self.write(&name, rows)?;
            }
            kept.insert(name);
        }
        // Those of `files` first: what is not in it does not count.
        for table in FleetTable::ALL.into_iter().rev() {
            for part in self.parts(table)?.difference(&kept) {
                let path = self.path(table, part);
                std::fs::remove_file(&path).map_err(|source| DatasetError::Io { path, source })?;
            }
        }
        let path = self.folder.join(FINISHED);
        let io = |source| DatasetError::Io { path: path.clone(), source };
        OutputFile::at(&path)?.write(|out| out.write_all(b"finished\n").map_err(io))
    }

    /// From now on the rows are not all.
    fn unfinish(&mut self) -> Result<(), DatasetError> {
        let path = self.folder.join(FINISHED);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                Err(DatasetError::Io { path, source })
            }
            _ => Ok(()),
        }
    }

    /// Whether a part is there in all tables, with these rows.
    fn is_whole(&self, part: &str, rows: &[Row]) -> bool {
        let there = |table: FleetTable| self.path(table, part).is_file();
        FleetTable::ALL.into_iter().all(there)
            && read_part(&self.path(FleetTable::Files, part)).is_some_and(|it| it.0 == rows)
    }

    fn path(&self, table: FleetTable, part: &str) -> PathBuf {
        self.folder.join(table.name()).join(part)
    }

    /// Parts of a table that a run has written.
    fn parts(&self, table: FleetTable) -> Result<BTreeSet<String>, DatasetError> {
        parts_of(&self.folder, table)
    }

    fn write(&self, part: &str, rows: &[Row]) -> Result<(), DatasetError> {
        for table in FleetTable::ALL {
            OutputFile::at(self.path(table, part))?.write(|out| {
                write_values(table.name(), table.columns(), &table.values(rows), out)
                    .map_err(DatasetError::from)
            })?;
        }
        Ok(())
    }
}

/// Parts of a table of the dataset in a folder.
fn parts_of(folder: &Path, table: FleetTable) -> Result<BTreeSet<String>, DatasetError> {
    let path = folder.join(table.name());
    let entries = std::fs::read_dir(&path).and_then(|entries| {
        entries.map(|it| it.map(|it| it.file_name())).collect::<Result<Vec<_>, _>>()
    });
    let entries = entries.map_err(|source| DatasetError::Io { path, source })?;
    let names = entries.into_iter().filter_map(|it| it.into_string().ok());
    Ok(names.filter(|it| is_part(it)).collect())
}

/// All rows of the dataset in a folder, each file's once.
fn rows_of(folder: &Path) -> Result<Vec<Row>, DatasetError> {
    let mut parts = Vec::new();
    for name in parts_of(folder, FleetTable::Files)? {
        let path = folder.join(FleetTable::Files.name()).join(name);
        let written = std::fs::metadata(&path).and_then(|about| about.modified());
        match written {
            Ok(written) => parts.push((written, path)),
            Err(source) => return Err(DatasetError::Io { path, source }),
        }
    }
    parts.sort();
    let most = spare_memory().map_or(UNTOLD, |spare| spare / 2);
    let (mut rows, mut taken) = (BTreeMap::new(), 0);
    for (_, path) in parts {
        let Some((part, bytes)) = read_part(&path) else {
            return Err(match std::fs::metadata(&path) {
                Err(source) => DatasetError::Io { path, source },
                Ok(_) => DatasetError::Damaged(path),
            });
        };
        taken += bytes as u64;
        if taken > most {
            return Err(DatasetError::Large { folder: folder.to_owned(), most });
        }
        rows.extend(part.into_iter().map(|row| (row.address.clone(), row)));
    }
    Ok(rows.into_values().collect())
}

/// The name of a part: its contents decide it.
fn part_name(rows: &[Row]) -> String {
    let hash = hash(rows.iter().map(|row| serde_json::to_string(row).unwrap_or_default()));
    format!("part-{hash:016x}.parquet")
}

fn is_part(name: &str) -> bool {
    let hash = name.strip_prefix("part-").and_then(|it| it.strip_suffix(".parquet"));
    hash.is_some_and(|it| it.len() == 16 && it.bytes().all(|it| it.is_ascii_hexdigit()))
}

/// Rows of a part of `files`, and bytes of their texts; none if it cannot be read.
fn read_part(path: &Path) -> Option<(Vec<Row>, usize)> {
    // The reader panics at some damaged bytes.
    catch_unwind(AssertUnwindSafe(|| try_part(path))).ok().flatten()
}

/// A few bytes of a file can stand for any number of rows: no more are made of them than a part has.
fn try_part(path: &Path) -> Option<(Vec<Row>, usize)> {
    let file = File::open(path).ok().filter(|file| {
        file.metadata().is_ok_and(|about| about.is_file() && about.len() <= PART_BYTES as u64)
    })?;
    let reader = SerializedFileReader::new(file).ok()?;
    let fields = reader.metadata().file_metadata().schema().get_fields().to_vec();
    let fields = fields.into_iter().filter(|it| it.name() == ROW).collect();
    let projection = Type::group_type_builder("files").with_fields(fields).build().ok()?;
    let mut rows = Vec::new();
    let mut bytes = 0;
    for row in reader.get_row_iter(Some(projection)).ok()? {
        let row = row.ok()?;
        let text = row.get_string(0).ok()?;
        bytes += text.len();
        if rows.len() == PART || text.len() > ROW_BYTES || bytes > PART_BYTES {
            return None;
        }
        rows.push(serde_json::from_str(text).ok()?);
    }
    Some((rows, bytes))
}

/// Whether a file says that its folder is a dataset, of this version.
fn is_marker(path: &Path) -> std::io::Result<bool> {
    let mut text = Vec::new();
    File::open(path)?.take(MARKED.len() as u64 + 1).read_to_end(&mut text)?;
    Ok(text == MARKED.as_bytes())
}
