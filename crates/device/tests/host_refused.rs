//! What the system refuses is told with its code, and changes nothing. Alone in its process: it
//! lowers the process's limits.

use std::fs;

use tonnage_device::host::Host;
use tonnage_device::{Device, DeviceError};
use tonnage_events::StreamId;

const MIB: u64 = 1 << 20;

fn limit(resource: libc::__rlimit_resource_t) -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes to `limit`, which is exclusive.
    assert_eq!(unsafe { libc::getrlimit(resource, &raw mut limit) }, 0);
    limit
}

/// Runs `work` with at most `amount` of a resource.
fn with_at_most<T>(
    resource: libc::__rlimit_resource_t,
    amount: u64,
    work: impl FnOnce() -> T,
) -> T {
    let usual = limit(resource);
    let lower = libc::rlimit { rlim_cur: amount, ..usual };
    // SAFETY: reads `lower`, which lives until it returns.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const lower) }, 0);
    let result = work();
    // SAFETY: reads `usual`, which lives until it returns.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const usual) }, 0);
    result
}

/// Bytes of addresses that this process has.
fn addresses() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmSize:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn what_the_system_refuses_changes_nothing() {
    let mut host = Host::new(1 << 30);
    let refused = with_at_most(libc::RLIMIT_AS, addresses() + 64 * MIB, || {
        (host.acquire(256 * MIB), host.reserve(256 * MIB))
    });
    assert_eq!(refused.0, Err(DeviceError::OutOfMemory { requested: 256 * MIB }));
    let Err(DeviceError::Driver { call: "mmap", code: libc::ENOMEM, .. }) = refused.1 else {
        panic!("{:?}", refused.1);
    };

    let refused = with_at_most(libc::RLIMIT_NOFILE, 0, || host.create_page(2 * MIB));
    let Err(DeviceError::Driver { call: "memfd_create", code: libc::EMFILE, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((host.used(), host.handles()), (0, 0));

    let streams = host.streams();
    let stream = streams.create();
    // A thread needs 2 MiB of addresses for its stack.
    let refused =
        with_at_most(libc::RLIMIT_AS, addresses() + MIB, || streams.launch(stream, || ()));
    let Err(DeviceError::Driver { call: "pthread_create", code, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(code, libc::EAGAIN);
    // Nothing was queued: nothing is waited for.
    streams.synchronize(stream).unwrap();
    assert!(streams.query(streams.record(stream).unwrap()).unwrap());

    // And then all of it works.
    let segment = host.acquire(256 * MIB).unwrap();
    let range = host.reserve(256 * MIB).unwrap();
    let page = host.create_page(2 * MIB).unwrap();
    host.map(page, range).unwrap();
    streams.launch(stream, || ()).unwrap();
    host.synchronize(stream).unwrap();
    host.synchronize(StreamId::DEFAULT).unwrap();
    host.release(segment).unwrap();
}
