//! The page's server over a socket, tested as one program: it links once. The page in a browser is `browser/`.

mod gate;

mod predictions;

mod routes;

mod support;

mod timelines;
