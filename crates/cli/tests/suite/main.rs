//! The command `tonnage`, as a program: what it prints, writes and exits with. One program, so that all that it is
//! tested with is linked once.

mod support;

// What all verbs do alike.
mod every_verb;

mod output;

mod limits;

mod schemas;

// Each verb.
mod devices;

mod diff;

mod export;

mod fleet;

#[cfg(feature = "storage")]
mod fleet_storage;

mod inspect;

mod manual;

mod predict_model;

mod predict_ranks;

mod predict_script;

mod predict_search;

mod recipes;

mod releases;

mod replay;

mod report;

mod run_on_fake;

mod top;

mod view;

mod what_if;
