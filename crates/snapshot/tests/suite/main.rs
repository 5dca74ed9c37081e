//! Tests of the reader as others use it.

mod corpus;
mod forms;
mod hostile;
mod python_pickles;
mod recordings;
mod support;
mod written;
