//! The host device's streams: order within, none across, and what events say about it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use tonnage_device::host::{Host, Streams};
use tonnage_device::{Device, DeviceError, EventId};
use tonnage_events::StreamId;

/// Long enough that what should not happen would have.
const MOMENT: Duration = Duration::from_millis(20);

fn streams() -> Streams {
    Host::new(1 << 30).streams()
}

/// Holds a stream up until the sender sends or goes away.
fn block(streams: &Streams, stream: StreamId) -> Sender<()> {
    let (go, blocked) = mpsc::channel::<()>();
    let work = move || {
        let _ = blocked.recv();
    };
    streams.launch(stream, work).unwrap();
    go
}

fn failed<T: std::fmt::Debug>(result: Result<T, DeviceError>, words: &str) {
    match result {
        Err(DeviceError::Driver { call: "launch", message, .. }) => {
            assert!(message.contains(words), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

fn misused<T: std::fmt::Debug>(result: Result<T, DeviceError>) {
    assert!(matches!(result, Err(DeviceError::Misuse { .. })), "{result:?}");
}

#[test]
fn work_of_a_stream_runs_in_order() {
    let streams = streams();
    let seen = Arc::new(Mutex::new(Vec::new()));
    for number in 0..10_000 {
        let seen = Arc::clone(&seen);
        streams.launch(StreamId(0), move || seen.lock().unwrap().push(number)).unwrap();
    }
    streams.synchronize(StreamId(0)).unwrap();
    assert_eq!(*seen.lock().unwrap(), (0..10_000).collect::<Vec<_>>());
}

#[test]
fn streams_run_at_the_same_time() {
    let streams = streams();
    let meeting = Arc::new(Barrier::new(4));
    for stream in [StreamId(0), StreamId(4096), streams.create(), streams.create()] {
        let meeting = Arc::clone(&meeting);
        let work = move || {
            meeting.wait();
        };
        streams.launch(stream, work).unwrap();
    }
    streams.synchronize_all().unwrap();
}

#[test]
fn an_event_completes_when_the_work_before_it_does() {
    let mut host = Host::new(1 << 30);
    let streams = host.streams();
    let idle = host.record_event(StreamId(1)).unwrap();
    assert_eq!(host.query_event(idle), Ok(true));
    let go = block(&streams, StreamId(1));
    let event = host.record_event(StreamId(1)).unwrap();
    let other = host.record_event(StreamId(2)).unwrap();
    thread::sleep(MOMENT);
    assert_eq!(host.query_event(event), Ok(false));
    assert_eq!(host.query_event(other), Ok(true), "another stream is not held up");
    assert_eq!(host.query_event(idle), Ok(true), "nor is what was recorded before");
    let behind = block(&streams, StreamId(1));
    go.send(()).unwrap();
    host.wait_event(event).unwrap();
    assert_eq!(host.query_event(event), Ok(true), "though more is queued behind");
    drop(behind);
    host.synchronize(StreamId(1)).unwrap();
    assert_eq!(host.handles(), 3);
    for event in [idle, event, other] {
        host.destroy_event(event).unwrap();
    }
    misused(streams.query(event));
    misused(streams.wait(event));
    misused(streams.wait_on(StreamId(0), event));
    misused(streams.destroy_event(EventId(999)));
    assert_eq!(host.handles(), 0);
}

#[test]
fn a_stream_waits_for_an_event_of_another_even_if_the_event_is_forgotten() {
    let streams = streams();
    let [one, two] = [streams.create(), streams.create()];
    let (tell, told) = mpsc::channel();
    let go = block(&streams, one);
    let event = streams.record(one).unwrap();
    streams.wait_on(two, event).unwrap();
    streams.destroy_event(event).unwrap();
    streams.launch(two, move || tell.send(()).unwrap()).unwrap();
    let end = streams.record(two).unwrap();
    assert!(told.recv_timeout(MOMENT).is_err());
    assert_eq!(streams.query(end), Ok(false));
    drop(go);
    told.recv().unwrap();
    streams.wait(end).unwrap();
}

#[test]
fn a_wait_holds_up_events_too_and_one_for_the_own_stream_does_nothing() {
    let streams = streams();
    let go = block(&streams, StreamId(1));
    let event = streams.record(StreamId(1)).unwrap();
    streams.wait_on(StreamId(1), event).unwrap();
    streams.wait_on(StreamId(2), event).unwrap();
    let end = streams.record(StreamId(2)).unwrap();
    assert_eq!(streams.query(end), Ok(false));
    drop(go);
    streams.wait(end).unwrap();
    assert_eq!(streams.query(event), Ok(true));
}

#[test]
fn a_panic_is_reported_once_by_the_first_who_asks_behind_it() {
    let streams = streams();
    let before = streams.record(StreamId(1)).unwrap();
    streams.launch(StreamId(1), || panic!("number {}", 1)).unwrap();
    let behind = streams.record(StreamId(1)).unwrap();
    let (tell, told) = mpsc::channel();
    streams.launch(StreamId(1), move || tell.send(()).unwrap()).unwrap();
    told.recv().unwrap();
    assert_eq!(streams.query(before), Ok(true));
    streams.synchronize(StreamId(0)).unwrap();
    failed(streams.query(behind), "stream 1 panicked: number 1");
    assert_eq!(streams.query(behind), Ok(true));
    streams.synchronize(StreamId(1)).unwrap();

    streams.launch(StreamId(2), || std::panic::panic_any(3)).unwrap();
    streams.launch(StreamId(2), || panic!("again")).unwrap();
    streams.launch(StreamId(3), || panic!("there too")).unwrap();
    failed(streams.synchronize_all(), "not text (and 2 more failed)");
    streams.synchronize_all().unwrap();

    streams.launch(StreamId(2), || panic!("late")).unwrap();
    failed(streams.wait(streams.record(StreamId(2)).unwrap()), "late");
}

#[test]
fn a_panic_that_panics_again_when_dropped_does_not_end_the_worker() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if !thread::panicking() {
                std::panic::panic_any(Bomb);
            }
        }
    }
    let streams = streams();
    streams.launch(StreamId(1), || std::panic::panic_any(Bomb)).unwrap();
    failed(streams.synchronize(StreamId(1)), "panicked");
    streams.launch(StreamId(1), || ()).unwrap();
    streams.synchronize(StreamId(1)).unwrap();
}

#[test]
fn a_failure_stays_with_its_stream_when_another_waits_for_it() {
    let streams = streams();
    let go = block(&streams, StreamId(1));
    streams.launch(StreamId(1), || panic!("one")).unwrap();
    streams.wait_on(StreamId(2), streams.record(StreamId(1)).unwrap()).unwrap();
    streams.launch(StreamId(2), || ()).unwrap();
    drop(go);
    streams.synchronize(StreamId(2)).unwrap();
    failed(streams.synchronize(StreamId(1)), "one");
}

#[test]
fn streams_are_created_used_and_destroyed() {
    let streams = streams();
    let first = streams.create();
    assert_eq!(first, StreamId(1));
    streams.launch(StreamId(2), || ()).unwrap();
    assert_eq!(streams.create(), StreamId(3));
    let go = block(&streams, first);
    let event = streams.record(first).unwrap();
    let destroyer = thread::spawn({
        let streams = streams.clone();
        move || streams.destroy(first)
    });
    thread::sleep(MOMENT);
    assert!(!destroyer.is_finished());
    drop(go);
    destroyer.join().unwrap().unwrap();
    assert_eq!(streams.query(event), Ok(true));
    misused(streams.destroy(first));
    misused(streams.destroy(StreamId(0)));
    misused(streams.destroy(StreamId(4096)));

    // Its name may come back, as a new stream.
    let go = block(&streams, first);
    assert_eq!(streams.query(event), Ok(true));
    assert_eq!(streams.query(streams.record(first).unwrap()), Ok(false));
    drop(go);
    streams.launch(first, || panic!("unheard")).unwrap();
    failed(streams.destroy(first), "unheard");
    streams.destroy(first).unwrap();
}

#[test]
fn work_may_launch_and_record_but_not_wait() {
    let mut host = Host::new(1 << 30);
    let segment = host.acquire(2 << 20).unwrap();
    let streams = host.streams();
    let (tell, told) = mpsc::channel();
    let inside = streams.clone();
    let work = move || {
        let event = inside.record(StreamId(1)).unwrap();
        let results = [
            inside.wait(event),
            inside.synchronize(StreamId(2)),
            inside.synchronize_all(),
            inside.destroy(StreamId(1)),
            host.release(segment),
        ];
        inside.launch(StreamId(2), || ()).unwrap();
        inside.wait_on(StreamId(2), event).unwrap();
        tell.send((host, results, inside.query(event))).unwrap();
    };
    streams.launch(StreamId(1), work).unwrap();
    let (host, results, asked) = told.recv().unwrap();
    results.into_iter().for_each(misused);
    assert_eq!(asked, Ok(false), "the event is behind the work that asks");
    assert_eq!(host.used(), 2 << 20);
    streams.synchronize_all().unwrap();
}

#[test]
fn dropping_the_last_handle_finishes_what_is_queued() {
    let done = Arc::new(AtomicUsize::new(0));
    let streams = streams();
    let go = block(&streams, StreamId(0));
    let event = streams.record(StreamId(0)).unwrap();
    for stream in (0..4).map(StreamId) {
        streams.wait_on(stream, event).unwrap();
        for _ in 0..100 {
            let done = Arc::clone(&done);
            let work = move || {
                done.fetch_add(1, Ordering::Relaxed);
            };
            streams.launch(stream, work).unwrap();
        }
    }
    assert_eq!(done.load(Ordering::Relaxed), 0);
    // While the handle is being dropped, or before; both must do.
    let later = thread::spawn(move || {
        thread::sleep(MOMENT);
        drop(go);
    });
    drop(streams);
    assert_eq!(done.load(Ordering::Relaxed), 400);
    later.join().unwrap();
}

#[test]
fn work_may_drop_the_last_handle_and_the_device() {
    let (tell, told) = mpsc::channel();
    let mut host = Host::new(1 << 30);
    let segment = host.acquire(2 << 20).unwrap();
    let pointer = host.pointer(segment, 2 << 20).unwrap() as usize;
    let streams = host.streams();
    let (go, blocked): (_, Receiver<Streams>) = mpsc::channel();
    let work = move || {
        // Comes when everything is queued.
        let streams = blocked.recv().unwrap();
        drop(host);
        drop(streams);
    };
    streams.launch(StreamId(1), work).unwrap();
    for stream in [1, 2].map(StreamId) {
        let tell = tell.clone();
        let event = streams.record(StreamId(1)).unwrap();
        streams.wait_on(stream, event).unwrap();
        let work = move || {
            thread::sleep(MOMENT);
            // SAFETY: one byte for each stream, which nothing else touches; the device, though
            // dropped, gives its memory back only when the work that was queued by then is done.
            unsafe { (pointer as *mut u8).wrapping_add(stream.0 as usize).write(1) };
            tell.send(stream).unwrap();
        };
        streams.launch(stream, work).unwrap();
    }
    go.send(streams).unwrap();
    drop(tell);
    let mut ran: Vec<_> = told.iter().collect();
    ran.sort_unstable();
    assert_eq!(ran, [1, 2].map(StreamId));
}

#[test]
fn sixteen_streams_with_much_work_from_four_threads() {
    const EACH: usize = 500;
    let streams = streams();
    let ids: Vec<_> = (0..16).map(|_| streams.create()).collect();
    let done: Arc<[AtomicUsize; 16]> = Arc::default();
    thread::scope(|scope| {
        for caller in 0..4 {
            let (streams, ids, done) = (&streams, &ids, &done);
            scope.spawn(move || {
                for round in 0..EACH {
                    for index in 0..16 {
                        let done = Arc::clone(done);
                        let work = move || {
                            done[index].fetch_add(1, Ordering::Relaxed);
                        };
                        streams.launch(ids[index], work).unwrap();
                    }
                    let event = streams.record(ids[(round + caller) % 16]).unwrap();
                    streams.wait_on(ids[round % 16], event).unwrap();
                    if round % 50 == 0 {
                        streams.wait(event).unwrap();
                    }
                    streams.destroy_event(event).unwrap();
                }
            });
        }
    });
    streams.synchronize_all().unwrap();
    assert!(done.iter().all(|count| count.load(Ordering::Relaxed) == 4 * EACH));
    for stream in ids {
        streams.destroy(stream).unwrap();
    }
}
