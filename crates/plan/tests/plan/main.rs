//! Recipes: what they take, what fits, and that they learn.

mod curves;

mod fitting;

mod grid;

mod timeline;
