//! The engine as its callers see it; the model has a program of its own.

mod frameworks;
mod history;
mod misuse;
mod oom;
mod pools;
mod summary;
mod vectors;
