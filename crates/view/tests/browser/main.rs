//! The page in a real Chromium, on the real server.

#[path = "../../../html/tests/suite/support/chromium.rs"]
mod chromium;

#[path = "../../../html/tests/suite/support/hostile.rs"]
mod hostile;

#[path = "../../../fleet/examples/make_fleet/maker.rs"]
mod maker;

mod address;

mod fleet;

mod fleets;

mod frames;

mod large;

mod manners;

mod opening;

mod page;

mod panels;

mod timeline;
