//! Recordings and command streams through the engine, and what is concluded from them.

// Recordings of programs that never ran.
mod synthetic;

mod ages;
mod bounded;
mod changed;
mod damaged;
mod pages;
mod partial;
mod pools;
mod recordings;
mod releases;
mod streams;
mod tune;
mod what_if;
