//! Memory given back to the host device goes back to the system. Alone in its process: it looks at
//! what the whole process holds.

use std::fs;
use std::os::unix::fs::MetadataExt;

use tonnage_device::Device;
use tonnage_device::host::Host;

const MIB: u64 = 1 << 20;

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Bytes of memory behind the device's pages, mapped or not; nothing if it has no file.
fn behind_pages() -> Option<u64> {
    let files = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let mut ours = files.filter(|file| {
        fs::read_link(file.path())
            .is_ok_and(|target| target.to_string_lossy().contains("tonnage-host"))
    });
    let blocks = ours.next().map(|file| fs::metadata(file.path()).unwrap().blocks());
    assert!(ours.next().is_none(), "one file for all pages");
    blocks.map(|blocks| blocks * 512)
}

fn spans() -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

#[test]
fn memory_given_back_is_gone() {
    let mut host = Host::new(1 << 34);
    let start = resident();
    let held = |bytes: u64| {
        let more = resident().saturating_sub(start);
        assert!(more.abs_diff(bytes) < 16 * MIB, "{more} bytes more, not {bytes}");
    };

    let segment = host.acquire(1 << 33).unwrap();
    held(0);
    host.fill(segment, 1, 128 * MIB).unwrap();
    held(128 * MIB);
    host.release(segment).unwrap();
    held(0);

    assert_eq!(behind_pages(), None);
    let range = host.reserve(1 << 33).unwrap();
    let pages: Vec<_> = (0..64).map(|_| host.create_page(2 * MIB).unwrap()).collect();
    assert_eq!(behind_pages(), Some(0));
    for (index, page) in (0..).zip(&pages) {
        host.map(*page, range.offset(index * 2 * MIB)).unwrap();
    }
    host.fill(range, 2, 128 * MIB).unwrap();
    held(128 * MIB);
    assert_eq!(behind_pages(), Some(128 * MIB));
    for index in 0..64 {
        host.unmap(range.offset(index * 2 * MIB)).unwrap();
    }
    held(0);
    assert_eq!(behind_pages(), Some(128 * MIB), "an unmapped page keeps its bytes");
    for page in pages.iter().skip(1).step_by(2) {
        host.destroy_page(*page).unwrap();
    }
    assert_eq!(behind_pages(), Some(64 * MIB));

    host.map(pages[0], range).unwrap();
    drop(host);
    assert_eq!(behind_pages(), None);
    held(0);

    let before = spans();
    for _ in 0..100 {
        let mut host = Host::new(1 << 30);
        let range = host.reserve(64 * MIB).unwrap();
        let page = host.create_page(2 * MIB).unwrap();
        host.map(page, range.offset(4 * MIB)).unwrap();
        host.acquire(3 * MIB).unwrap();
        host.streams().launch(host.streams().create(), || ()).unwrap();
    }
    let after = spans();
    assert!(after < before + 50, "{before} spans of addresses became {after}");
    let threads = fs::read_dir("/proc/self/task").unwrap().count();
    assert!(threads <= 3, "{threads} threads are left");
}
