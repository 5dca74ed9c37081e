//! Stage 4: a fleet behind the page: its rows, and the ranks that were opened of it.
//!
//! In:  rows as `tonnage-fleet` has them, what they say, and where their files lie.
//! Out: columns for the page; one rank's file as a recording, when it is asked for by its number.
//!
//! Nothing is opened that is not a row: the page knows numbers, and paths stay here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use axum::body::Bytes;
use serde::Serialize;
use tonnage_fleet::{
    Answer, Found, IterationLevel, LookOptions, Member, Place, Row, Section, Whose, read_again,
};
use tonnage_replay::Until;

use crate::encode::encode_fleet;
use crate::error::ApiError;
use crate::recording::Info;
use crate::recordings::Recordings;

/// A fleet to show.
#[derive(Clone, Debug)]
pub struct FleetPage {
    /// A row for each file.
    pub rows: Vec<Row>,
    /// What they say.
    pub answer: Answer,
    /// Where files were found; rows of an earlier run lie where their addresses say.
    pub files: Vec<Found>,
    /// How files are read when they are opened.
    pub looking: LookOptions,
}

/// A fleet that is shown.
pub(crate) struct Fleet {
    /// In the order of their addresses, as `answer.members`.
    rows: Vec<Row>,
    answer: Answer,
    files: BTreeMap<String, Found>,
    looking: LookOptions,
    encoded: OnceLock<Result<Bytes, String>>,
    /// The recording that a row's file became.
    opened: Mutex<BTreeMap<usize, u32>>,
}

/// What the page is told of the fleet beside its columns.
#[derive(Serialize)]
pub(crate) struct FleetHead<'a> {
    files: Vec<FileHead<'a>>,
    /// What they say, in a few sentences,
    text: &'a str,
    /// and in lists, whose lines name files.
    sections: Vec<Section>,
    /// The limit on reserved bytes, if one is known, and whether someone said it.
    limit: Option<u64>,
    given: bool,
    /// Numbers of files in which a request failed, that differ from their group, and that were near the limit.
    failed: Vec<usize>,
    outliers: Vec<usize>,
    near: Vec<usize>,
}

/// What the page is told of a file.
#[derive(Serialize)]
struct FileHead<'a> {
    address: &'a str,
    #[serde(flatten)]
    place: Place,
    /// Its group, from 0.
    group: Option<usize>,
    /// Why it could not be read.
    error: Option<&'a str>,
    /// What limits it, in a sentence.
    cause: Option<&'a str>,
    /// The file whose run it shares, by number.
    shares: Option<usize>,
}

/// The figures of a fleet, as columns: of each file, and of each iteration that is kept of it.
#[derive(Default)]
pub(crate) struct FleetColumns {
    /// Most bytes, of each file; none are not a number.
    pub(crate) live: Vec<f64>,
    pub(crate) reserved: Vec<f64>,
    /// How many iterations there were.
    pub(crate) iterations: Vec<f64>,
    /// Where the iterations of each file begin; one more than files.
    pub(crate) starts: Vec<u32>,
    pub(crate) number: Vec<f64>,
    pub(crate) live_in: Vec<f64>,
    pub(crate) reserved_in: Vec<f64>,
}

impl FleetColumns {
    fn of(rows: &[Row]) -> Result<Self, String> {
        let mut columns = Self::default();
        columns.starts.push(0);
        for row in rows {
            let facts = row.facts();
            let figure = |of: Option<u64>| of.map_or(f64::NAN, |it| it as f64);
            columns.live.push(figure(facts.map(|it| it.live)));
            columns.reserved.push(figure(facts.map(|it| it.reserved)));
            columns.iterations.push(figure(facts.map(|it| it.growth.iterations)));
            for &IterationLevel { number, live, reserved } in
                facts.map_or(&[][..], |it| &it.iterations)
            {
                columns.number.push(number as f64);
                columns.live_in.push(live as f64);
                columns.reserved_in.push(reserved as f64);
            }
            let end = u32::try_from(columns.number.len());
            columns.starts.push(end.map_err(|_| "there are more than four billion iterations")?);
        }
        Ok(columns)
    }
}

impl Fleet {
    pub(crate) fn new(page: FleetPage) -> Self {
        let FleetPage { mut rows, answer, files, looking } = page;
        rows.sort_by(|a, b| a.address.cmp(&b.address));
        let files = files.into_iter().map(|it| (it.address.clone(), it)).collect();
        let (encoded, opened) = (OnceLock::new(), Mutex::default());
        Self { rows, answer, files, looking, encoded, opened }
    }

    /// All of it, as the page takes it.
    pub(crate) fn encoded(&self) -> Result<Bytes, ApiError> {
        let encoded = self.encoded.get_or_init(|| {
            let numbers: BTreeMap<_, _> =
                self.rows.iter().enumerate().map(|(number, row)| (&*row.address, number)).collect();
            let files = self.rows.iter().zip(&self.answer.members).map(|(row, member)| {
                let Member { whose, group } = member;
                let (error, cause) = match row.facts() {
                    Some(facts) => (None, Some(&*facts.cause_text)),
                    None => (row.why(), None),
                };
                let shares = row.same_as.as_deref().and_then(|it| numbers.get(it).copied());
                let (address, place, group) = (&*row.address, whose.place, *group);
                FileHead { address, place, group, error, cause, shares }
            });
            let answer = &self.answer;
            let all = |of: &mut dyn Iterator<Item = &Whose>| {
                of.filter_map(|it| numbers.get(&*it.file).copied()).collect()
            };
            let near = answer.near.as_ref();
            let head = FleetHead {
                files: files.collect(),
                text: &answer.text,
                sections: answer.sections(),
                limit: near.map(|it| it.limit),
                given: near.is_some_and(|it| it.given),
                failed: all(&mut answer.failed.iter().map(|it| &it.whose)),
                outliers: all(&mut answer.outliers.iter().map(|it| &it.whose)),
                near: all(&mut near.iter().flat_map(|it| &it.ranks).map(|it| &it.whose)),
            };
            encode_fleet(&head, &FleetColumns::of(&self.rows)?).map(Bytes::from)
        });
        encoded.clone().map_err(ApiError::Failed)
    }

    /// The recording of a row's file: the one that is open, or a new one.
    pub(crate) fn open(
        &self,
        number: usize,
        recordings: &Recordings,
        until: &Until,
    ) -> Result<Info, ApiError> {
        let row = self.rows.get(number).ok_or_else(|| {
            ApiError::Missing(format!("there is no file {number}, but {}", self.rows.len()))
        })?;
        if let Some(file) = &row.same_as {
            return self.open_shared(number, file, recordings, until);
        }
        let is_open = self.lock().get(&number).and_then(|&id| recordings.get(id));
        if let Some(recording) = is_open {
            recordings.asked_again(recording.info.id);
            return Ok(recording.info.clone());
        }
        let refused = |why: &str| ApiError::Refused(format!("{}: {why}", row.address));
        let facts = row.facts().ok_or_else(|| refused(row.why().unwrap_or_default()))?;
        let found = self.files.get(&row.address);
        let file = read_again(row, found, &self.looking, until).map_err(|why| refused(&why))?;
        let row_of = u32::try_from(number).ok();
        let opened = recordings.opened_row(&row.address, file, facts.device, row_of);
        let info = opened.map_err(|why| refused(&why))?;
        self.lock().insert(number, info.id);
        Ok(info)
    }

    /// The recording of the run that a rank shares.
    fn open_shared(
        &self,
        number: usize,
        file: &str,
        recordings: &Recordings,
        until: &Until,
    ) -> Result<Info, ApiError> {
        // Runs that are shared are those of a file: a row that says otherwise is refused.
        let shared = self.rows.iter().position(|it| it.address == file && it.same_as.is_none());
        match shared {
            Some(shared) => self.open(shared, recordings, until),
            None => Err(ApiError::Refused(format!(
                "{}: it shares the run of {file}, which is not among these files",
                self.rows[number].address
            ))),
        }
    }

    /// Nothing is left half done while the lock is held, so a panic elsewhere is no reason to give up.
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, u32>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recordings {
    /// Shows a fleet: its ranks are opened when someone asks for them.
    pub fn show_fleet(&self, page: FleetPage) {
        self.set_fleet(Arc::new(Fleet::new(page)));
    }
}
