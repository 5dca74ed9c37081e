//! The host device: its memory and its streams. What looks at the whole process, or limits it, has a program of its own.

mod memory;
mod order;
mod streams;
