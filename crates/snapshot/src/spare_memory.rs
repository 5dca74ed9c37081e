//! Memory that this process can still have: of the machine, of the groups that it is in, of its own limits.
//!
//! In:  the files in which Linux tells these, under `/proc` and `/sys/fs/cgroup`.
//! Out: the least of them, in bytes; none where the system tells nothing.

use std::path::{Path, PathBuf};

/// Bytes that this process can still have, where the system says so: what the machine has to spare, less if a
/// control group (version 1 or 2) or a limit of the process (`ulimit -v`, `ulimit -d`) allows less.
#[must_use]
pub fn spare_memory() -> Option<u64> {
    System { root: Path::new("/") }.spare()
}

/// The system, below a folder.
struct System<'a> {
    root: &'a Path,
}

/// How the files of a group are called.
struct GroupFiles {
    limit: &'static str,
    used: &'static str,
    /// In `memory.stat`: bytes of files that can be read again.
    reclaimable: &'static str,
}

const VERSION_2: GroupFiles =
    GroupFiles { limit: "memory.max", used: "memory.current", reclaimable: "inactive_file" };

const VERSION_1: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};

impl System<'_> {
    fn spare(&self) -> Option<u64> {
        let machine = self.read("proc/meminfo").and_then(|text| kibibytes(&text, "MemAvailable:"));
        let own = self.own_limits();
        let groups = self.groups();
        machine.into_iter().chain(own).chain(groups).min()
    }

    fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        std::fs::read_to_string(self.root.join(path)).ok()
    }

    /// What the limits of the process leave of addresses and of data.
    fn own_limits(&self) -> Vec<u64> {
        let (Some(limits), Some(status)) =
            (self.read("proc/self/limits"), self.read("proc/self/status"))
        else {
            return Vec::new();
        };
        [("Max address space", "VmSize:"), ("Max data size", "VmData:")]
            .into_iter()
            .filter_map(|(limit, used)| {
                let line = limits.lines().find_map(|line| line.strip_prefix(limit))?;
                // `unlimited` is no number.
                let limit: u64 = line.split_whitespace().next()?.parse().ok()?;
                Some(limit.saturating_sub(kibibytes(&status, used)?))
            })
            .collect()
    }

    /// What each group leaves that the process is in, those around it included.
    fn groups(&self) -> Vec<u64> {
        let Some(text) = self.read("proc/self/cgroup") else { return Vec::new() };
        let mut left = Vec::new();
        for line in text.lines() {
            // Number, controllers, path; version 2 has the number 0 and names no controllers.
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            if controllers.is_empty() {
                // Beside version 1 it has a folder of its own.
                for mount in ["sys/fs/cgroup", "sys/fs/cgroup/unified"] {
                    self.chain(mount, path, &VERSION_2, &mut left);
                }
            } else if controllers.split(',').any(|it| it == "memory") {
                self.chain("sys/fs/cgroup/memory", path, &VERSION_1, &mut left);
            }
        }
        left
    }

    /// A group and all around it. In a container the path may be the host's, and not lead anywhere: then the
    /// root, which is the container's own, is what there is.
    fn chain(&self, mount: &str, path: &str, files: &GroupFiles, left: &mut Vec<u64>) {
        let mount = PathBuf::from(mount);
        let mut group = Some(Path::new(path.trim_start_matches('/')));
        while let Some(inner) = group {
            left.extend(self.left_in(&mount.join(inner), files));
            group = inner.parent();
        }
    }

    fn left_in(&self, group: &Path, files: &GroupFiles) -> Option<u64> {
        // `max` is no number.
        let limit: u64 = self.read(group.join(files.limit))?.trim().parse().ok()?;
        let used: u64 = self.read(group.join(files.used))?.trim().parse().ok()?;
        let stat = self.read(group.join("memory.stat")).unwrap_or_default();
        let reclaimable: u64 = stat
            .lines()
            .find_map(|line| line.strip_prefix(files.reclaimable)?.strip_prefix(' '))
            .and_then(|number| number.trim().parse().ok())
            .unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(reclaimable)))
    }
}

/// The number behind `name`, as bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A system made of these files.
    fn spare(files: &[(&str, &str)]) -> Option<u64> {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        System { root: folder.path() }.spare()
    }

    const MACHINE: (&str, &str) =
        ("proc/meminfo", "MemTotal:  67108864 kB\nMemFree:  1 kB\nMemAvailable:   33554432 kB\n");

    #[test]
    fn the_machine_s_memory_counts_where_nothing_else_is_set() {
        assert_eq!(spare(&[]), None);
        assert_eq!(spare(&[MACHINE]), Some(32 * GIB));
        assert_eq!(spare(&[MACHINE, ("proc/self/cgroup", "0::/\n")]), Some(32 * GIB));
        assert_eq!(spare(&[("proc/meminfo", "MemAvailable: what kB")]), None);
    }

    #[test]
    fn the_tightest_group_of_version_2_counts_and_cached_files_are_no_use() {
        let group = "sys/fs/cgroup/user.slice/job.scope";
        let files = [
            MACHINE,
            ("proc/self/cgroup", "0::/user.slice/job.scope\n"),
            (&format!("{group}/memory.max") as &str, "max\n"),
            (&format!("{group}/memory.current"), "1\n"),
            ("sys/fs/cgroup/user.slice/memory.max", "8589934592\n"),
            ("sys/fs/cgroup/user.slice/memory.current", "7516192768\n"),
            ("sys/fs/cgroup/user.slice/memory.stat", "anon 5\ninactive_file 3221225472\n"),
        ];
        assert_eq!(spare(&files), Some(4 * GIB));
    }

    #[test]
    fn groups_of_version_1_count_also_in_a_container_that_sees_the_host_s_path() {
        let files = [
            MACHINE,
            ("proc/self/cgroup", "5:cpu,cpuacct:/docker/ab\n4:memory:/docker/ab\n0::/docker/ab\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1610612736\n"),
            (
                "sys/fs/cgroup/memory/memory.stat",
                "inactive_file 7\ntotal_inactive_file 536870912\n",
            ),
        ];
        assert_eq!(spare(&files), Some(GIB));
        // Without a limit there stands a number beyond all memory.
        let files = [
            MACHINE,
            ("proc/self/cgroup", "4:memory:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n"),
        ];
        assert_eq!(spare(&files), Some(32 * GIB));
    }

    #[test]
    fn limits_of_the_process_count() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\n\
            Max data size             unlimited            unlimited            bytes\n\
            Max address space         4294967296           unlimited            bytes\n";
        let status = "VmSize:\t 1048576 kB\nVmData:\t 5 kB\n";
        let files = [MACHINE, ("proc/self/limits", limits), ("proc/self/status", status)];
        assert_eq!(spare(&files), Some(3 * GIB));
    }

    #[test]
    fn this_machine_tells() {
        assert!(spare_memory().is_none_or(|bytes| bytes > 0));
    }
}
