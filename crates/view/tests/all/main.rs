//! The page's server over a socket, tested as one program: it links once. The page in a browser is `browser/`.

#[path = "../../../fleet/examples/make_fleet/maker.rs"]
mod maker;

#[path = "../browser/fleets.rs"]
mod fleets;

mod fleet;

mod gate;

mod predictions;

mod routes;

mod support;

mod timelines;
