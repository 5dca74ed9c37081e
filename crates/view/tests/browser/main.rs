//! The page in a real Chromium, on the real server.

#[path = "../../../html/tests/support/chromium.rs"]
mod chromium;

#[path = "../../../html/tests/support/hostile.rs"]
mod hostile;

mod large;

mod page;

mod panels;

mod timeline;
