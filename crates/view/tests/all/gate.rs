//! Who is answered, and what every answer says.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use tonnage_view::{Patience, Recordings, ServeError, Server, ViewOptions};

use crate::support::{Page, trace};

fn get(page: &Page, path: &str, headers: &str) -> crate::support::Answer {
    page.send(&format!("GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n"))
}

#[test]
fn nothing_is_answered_without_the_token() {
    let page = Page::of([trace("mlp_seed.default")]);
    let token = &page.token;
    let mut wrong = token.clone();
    wrong.replace_range(..1, if token.starts_with('0') { "1" } else { "0" });
    for path in [
        "/".to_owned(),
        "/api/start".to_owned(),
        "/index.html".to_owned(),
        format!("/{wrong}/"),
        format!("/{wrong}/api/start"),
        format!("/{}/api/start", &token[..31]),
        format!("/x/{token}/api/start"),
        format!("//{token}/api/start"),
        format!("/{}/api/start", token.to_uppercase() + "A"),
    ] {
        let answer = get(&page, &path, "Host: localhost\r\n");
        assert_eq!(answer.status, 403, "{path}");
        assert!(answer.text().starts_with("The address lacks its token"), "{path}");
        assert_eq!(answer.text().lines().count(), 1);
    }
    assert_eq!(get(&page, &format!("/{token}/api/start"), "Host: localhost\r\n").status, 200);
}

#[test]
fn only_names_of_this_machine_are_answered_so_that_no_other_name_can_point_here() {
    let page = Page::of([trace("mlp_seed.default")]);
    let path = format!("/{}/api/start", page.token);
    for host in ["localhost", "localhost:9999", "127.0.0.1:1", "[::1]:7266"] {
        assert_eq!(get(&page, &path, &format!("Host: {host}\r\n")).status, 200, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example", "0.0.0.0", "192.168.0.1:7266", ""] {
        assert_eq!(get(&page, &path, &format!("Host: {host}\r\n")).status, 403, "{host}");
    }
    let two = "Host: localhost\r\nHost: evil.example\r\n";
    assert_ne!(get(&page, &path, two).status, 200);
    assert_ne!(get(&page, &path, "").status, 200);
    let whole = format!("http://evil.example{path}");
    assert_ne!(get(&page, &whole, "Host: localhost\r\n").status, 200);
}

#[test]
fn pages_of_other_sites_cannot_ask_or_post() {
    let page = Page::of([trace("mlp_seed.default")]);
    let body = r#"{"conf":"","policy":"pytorch","limit":null}"#;
    let what_if = "api/recordings/0/what-if";
    let typed = "Content-Type: application/json\r\n";
    let (port, path) = (page.port, format!("/{}/api/start", page.token));
    for origin in ["http://evil.example", "null", "https://localhost", "http://127.0.0.1"] {
        let headers = format!("{typed}Origin: {origin}\r\n");
        assert_eq!(page.post_with(what_if, body, &headers).status, 403, "{origin}");
        let headers = format!("Host: localhost:{port}\r\nOrigin: {origin}\r\n");
        assert_eq!(get(&page, &path, &headers).status, 403, "{origin}");
    }
    let own = format!("{typed}Origin: http://localhost:{port}\r\n");
    assert_eq!(page.post_with(what_if, body, &own).status, 200);
    // What a form of another site can send without asking.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        let headers = format!("Content-Type: {kind}\r\n");
        assert_eq!(page.post_with(what_if, body, &headers).status, 415, "{kind}");
    }
    assert_eq!(page.post_with(what_if, body, "").status, 415);
}

#[test]
fn large_and_broken_bodies_are_refused() {
    let page = Page::of([trace("mlp_seed.default")]);
    let long = format!(r#"{{"conf":"{}","policy":"","limit":null}}"#, " ".repeat(100 << 10));
    assert_eq!(page.post("api/recordings/0/what-if", &long).status, 413);
    for body in ["", "{", "[]", r#"{"conf":1}"#, r#"{"conf":"","policy":"","limit":-1}"#] {
        let status = page.post("api/recordings/0/what-if", body).status;
        assert!((400..500).contains(&status), "{body}: {status}");
    }
}

#[test]
fn every_answer_keeps_the_page_to_itself() {
    let page = Page::of([trace("mlp_seed.default")]);
    let token = page.token.clone();
    for path in ["", "main.js", "worker.js", "style.css", "api/start", "nothing", "api/nothing/x"] {
        let answer = get(&page, &format!("/{token}/{path}"), "Host: localhost\r\n");
        let header = |name: &str| answer.headers.get(name).map_or("", String::as_str);
        let policy = header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{path}: {policy}");
        assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{path}");
        assert_eq!(header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(header("referrer-policy"), "no-referrer", "{path}");
        assert_eq!(header("cache-control"), "no-store", "{path}");
        assert_eq!(header("cross-origin-opener-policy"), "same-origin", "{path}");
        assert_eq!(header("cross-origin-resource-policy"), "same-origin", "{path}");
    }
    let page_itself = page.get("");
    assert_eq!(page_itself.status, 200);
    assert_eq!(page_itself.headers["content-type"], "text/html; charset=utf-8");
    assert!(page_itself.text().contains("main.js"));
    assert_eq!(page.get("main.js").headers["content-type"], "text/javascript; charset=utf-8");
    assert_eq!(page.get("../Cargo.toml").status, 404);
    assert_eq!(page.get("nothing").status, 404);
    let refused = get(&page, "/", "Host: localhost\r\n");
    assert!(refused.headers.contains_key("content-security-policy"));
    // Without its slash the page's own addresses would not lie below the token.
    let bare = get(&page, &format!("/{token}"), "Host: localhost\r\n");
    assert_eq!((bare.status, &*bare.headers["location"]), (308, &*format!("/{token}/")));
}

#[test]
fn only_a_server_for_notebooks_may_be_in_a_frame_and_only_of_this_machine() {
    let page = Page::in_frames();
    let answer = page.get("");
    let policy = &answer.headers["content-security-policy"];
    let ancestors = policy.split_once("frame-ancestors ").unwrap().1;
    for source in ancestors.split(' ') {
        let host = source.split_once("://").unwrap().1;
        assert!(["localhost:*", "127.0.0.1:*"].contains(&host), "{policy}");
    }
    assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
}

#[test]
fn other_addresses_of_this_machine_do_not_lead_here() {
    let page = Page::of([trace("mlp_seed.default")]);
    // No packet is sent: this asks the system which of its addresses it would use.
    let outside = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        socket.local_addr()
    });
    let mut addresses = vec![SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), page.port))];
    match outside {
        Ok(own) if !own.ip().is_loopback() => addresses.push((own.ip(), page.port).into()),
        _ => eprintln!("this machine has no other address: 127.0.0.2 alone is tried"),
    }
    for address in addresses {
        let refused = TcpStream::connect_timeout(&address, Duration::from_secs(2));
        assert!(refused.is_err(), "{address} is answered");
    }
}

#[test]
fn a_port_that_is_taken_is_an_error_if_it_was_asked_for() {
    let page = Page::of([trace("mlp_seed.default")]);
    let nothing = || Recordings::new(ViewOptions::default());
    let taken = Server::bind(nothing(), Some(page.port)).err().unwrap();
    assert!(matches!(taken, ServeError::Taken(port) if port == page.port), "{taken}");
    // Whoever has the usual one, both get a port.
    let one = Server::bind(nothing(), None).unwrap();
    let other = Server::bind(nothing(), None).unwrap();
    assert_ne!(one.port(), other.port());
    assert_ne!(one.url(), other.url());
}

#[test]
fn a_server_that_is_stopped_answers_no_more() {
    let page = Page::of([trace("mlp_seed.default")]);
    let port = page.port;
    // A connection that is open and says nothing does not hold it up.
    let _idle = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let token = page.token.clone();
    // Returns only once it has stopped; a server that waits for the idle connection hangs here.
    drop(page);
    // Another test may have been given the port since: it does not know the token.
    if let Ok(mut socket) = TcpStream::connect(("127.0.0.1", port)) {
        let request = format!(
            "GET /{token}/api/start HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        );
        let mut answer = String::new();
        let asked = socket.write_all(request.as_bytes());
        let answered = asked.and_then(|()| socket.read_to_string(&mut answer));
        assert!(answered.is_err() || !answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

/// Time enough on any machine.
const LONG: Duration = Duration::from_secs(600);
const PATIENT: Patience = Patience { head: LONG, body: LONG, answer: LONG };

/// A page whose clients have a fifth of a second for each part.
fn impatient() -> Page {
    let short = Duration::from_millis(200);
    let patience = Patience { head: short, body: short, answer: short };
    Page::patient(ViewOptions::default(), patience)
}

/// What comes back until the other side closes; only a server that keeps the connection open holds this up.
fn until_closed(mut socket: TcpStream) -> String {
    let mut said = Vec::new();
    // A connection that is reset is closed too.
    let _ = socket.read_to_end(&mut said);
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn connections_that_say_nothing_or_half_a_thing_are_closed() {
    let page = impatient();
    let token = page.token.clone();
    let head = format!("POST /{token}/api/predict HTTP/1.1\r\nHost: localhost\r\n");
    for begun in ["".to_owned(), "GET /".to_owned(), head.clone()] {
        let mut socket = TcpStream::connect(("127.0.0.1", page.port)).unwrap();
        socket.write_all(begun.as_bytes()).unwrap();
        let said = until_closed(socket);
        assert!(!said.contains("200 OK"), "{begun:?}: {said}");
    }
    // A body that does not come, after a head that has all the time it needs.
    let short = Duration::from_millis(200);
    let page = Page::patient(ViewOptions::default(), Patience { body: short, ..PATIENT });
    let head = format!("POST /{}/api/predict HTTP/1.1\r\nHost: localhost\r\n", page.token);
    let mut socket = TcpStream::connect(("127.0.0.1", page.port)).unwrap();
    let begun = format!("{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{");
    socket.write_all(begun.as_bytes()).unwrap();
    let said = until_closed(socket);
    assert!(said.starts_with("HTTP/1.1 408"), "{said}");
    let page = impatient();
    let token = page.token.clone();
    // One that has its answer, and asks no more.
    let mut socket = TcpStream::connect(("127.0.0.1", page.port)).unwrap();
    let whole = format!("GET /{token}/api/start HTTP/1.1\r\nHost: localhost\r\n\r\n");
    socket.write_all(whole.as_bytes()).unwrap();
    let said = until_closed(socket);
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 200"), "{said}");
}

#[test]
fn a_connection_that_takes_none_of_its_answers_is_closed() {
    let page = impatient();
    let mut socket = TcpStream::connect(("127.0.0.1", page.port)).unwrap();
    let request = format!("GET /{}/main.js HTTP/1.1\r\nHost: localhost\r\n\r\n", page.token);
    // Nothing is read here: once no more fits between the two, the server waits, gives up and hangs up.
    while socket.write_all(request.as_bytes()).is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
}
