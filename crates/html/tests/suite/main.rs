//! The report as HTML: what it holds, and what a browser makes of it.

mod support;

mod goldens;

mod browser;
