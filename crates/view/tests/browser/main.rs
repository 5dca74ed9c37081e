//! The page in a real Chromium, on the real server.

#[path = "../../../html/tests/suite/support/chromium.rs"]
mod chromium;

#[path = "../../../html/tests/suite/support/hostile.rs"]
mod hostile;

mod address;

mod frames;

mod large;

mod manners;

mod opening;

mod page;

mod panels;

mod timeline;
