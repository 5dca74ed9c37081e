//! Libraries that bring a CUDA runtime inside themselves: those ask the driver for private tables, which are not imitated, and
//! then find no device. Of NVIDIA's own beside PyTorch that is as wanted; of others it is told.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use crate::notes;

/// Calls that are looked through, from the innermost: few lie between the one who asks and this library.
const CALLS: usize = 16;

/// Where libraries lie that PyTorch came with.
const OWN: &str = "/torch/lib/";

/// Names of its libraries, and of CUDA's that it is built on, up to their versions: they lie among those of others. Those that
/// replace CUDA's have the same names.
const OWN_NAMES: [&str; 37] = [
    "libc10",
    "libc10_cuda",
    "libcaffe2_nvrtc",
    "libcublas",
    "libcublasLt",
    "libcuda",
    "libcudart",
    "libcudnn",
    "libcufft",
    "libcufftw",
    "libcufile",
    "libcufile_rdma",
    "libcupti",
    "libcurand",
    "libcusolver",
    "libcusolverMg",
    "libcusparse",
    "libcusparseLt",
    "libnccl",
    "libnvJitLink",
    "libnvToolsExt",
    "libnvblas",
    "libnvfatbin",
    "libnvidia-ml",
    "libnvperf_host",
    "libnvperf_target",
    "libnvrtc",
    "libnvrtc-builtins",
    "libnvshmem_host",
    "libshm",
    "libtorch",
    "libtorch_cpu",
    "libtorch_cuda",
    "libtorch_cuda_linalg",
    "libtorch_global_deps",
    "libtorch_nvshmem",
    "libtorch_python",
];

/// How the names of cuDNN's parts begin.
const OF_CUDNN: &str = "libcudnn_";

/// Whether PyTorch came with a library.
fn is_own(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file);
    let stem = name.split('.').next().unwrap_or(name);
    // Where a wheel brings a library along, its name ends in a part of a hash.
    let is_hash = |end: &str| end.len() >= 8 && end.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts = stem.rsplit_once('-').filter(|(_, end)| is_hash(end));
    let without_hash = parts.map_or(stem, |(plain, _)| plain);
    let is_known = |stem: &str| OWN_NAMES.contains(&stem) || stem.starts_with(OF_CUDNN);
    file.contains(OWN) || is_known(stem) || is_known(without_hash)
}

/// Whether code lies in a library that PyTorch came with.
pub(crate) fn is_pytorchs(address: *const c_void) -> bool {
    file_of(address).is_some_and(|file| is_own(&file))
}

/// Notes that someone who is not of PyTorch asks how much memory there is.
pub(crate) fn note_asking(function: &str) {
    if caller().is_some() {
        notes::note(notes::ASKED_FILE, function);
    }
}

/// Notes whose library asks.
pub(super) fn note_outsider() {
    if let Some(file) = caller() {
        notes::note(
            notes::GUESSES_FILE,
            &format!(
                "{file} brings a CUDA runtime of its own, which finds no GPU here: what it would take of one is not counted"
            ),
        );
    }
}

/// The library that calls this one, if PyTorch did not come with it.
fn caller() -> Option<String> {
    let mut calls = [ptr::null_mut(); CALLS];
    // SAFETY: there is room for so many.
    let count = unsafe { libc::backtrace(calls.as_mut_ptr(), CALLS as c_int) };
    let here = file_of((note_outsider as fn()) as *const c_void);
    let files =
        calls.iter().take(usize::try_from(count).unwrap_or(0)).filter_map(|it| file_of(*it));
    outsider(files, here.as_deref())
}

/// The file that an address of code lies in.
fn file_of(address: *const c_void) -> Option<String> {
    let mut found = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: the address is only looked up, and what is found is written to a place of ours.
    let known = unsafe { libc::dladdr(address, &raw mut found) };
    if known == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own text, which ends in a zero byte and stays as long as the file is loaded.
    let file = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(file.to_string_lossy().into_owned())
}

/// The name of the first file that is not this library, if PyTorch did not come with it.
fn outsider(files: impl Iterator<Item = String>, here: Option<&str>) -> Option<String> {
    let mut others = files.filter(|file| Some(&file[..]) != here);
    let first = others.find(|file| !is_of_the_system(file))?;
    (!is_own(&first)).then(|| first.rsplit('/').next().unwrap_or(&first).to_owned())
}

/// What calls others on anyone's behalf: the loader and C's library.
fn is_of_the_system(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file);
    let own: BTreeSet<&str> = ["libc", "libpthread", "libdl", "ld-linux-x86-64"].into();
    name.split('.').next().is_some_and(|stem| own.contains(stem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_pytorch_did_not_bring_is_told() {
        let told = |files: &[&str]| {
            outsider(files.iter().map(|it| (*it).to_owned()), Some("/tmp/libfake.so"))
        };
        let runtime = "/env/site-packages/cupy_backends/cuda/api/runtime.cpython-312.so";
        let python = "/usr/bin/python3";
        let given = ["/tmp/libfake.so", "/lib/x86_64-linux-gnu/libc.so.6", runtime, python];
        assert_eq!(told(&given).as_deref(), Some("runtime.cpython-312.so"));
        assert_eq!(
            told(&["/tmp/libfake.so", "/env/nvidia/cudnn/lib/libcudnn_graph.so.9", python]),
            None
        );
        assert_eq!(told(&["/tmp/libfake.so", "/env/torch/lib/libtorch_cuda.so", python]), None);
        assert_eq!(told(&["/tmp/libfake.so", "/opt/conda/lib/libc10_cuda.so", python]), None);
        assert_eq!(told(&["/tmp/libfake.so"]), None);
        for own in ["libcudart-a7b20f20.so.11.0", "libnvrtc-builtins.so.13.0", "libnvrtc.alt.so.12"]
        {
            assert_eq!(told(&[&format!("/env/other.libs/{own}"), python]), None, "{own}");
        }
        for other in
            ["libcudf/lib64/libcudf.so", "nvidia/dali/libdali.so", "nvidia/nvcomp/libnvcomp.so.5"]
        {
            let name = other.rsplit('/').next();
            assert_eq!(told(&[&format!("/env/{other}"), python]).as_deref(), name, "{other}");
        }
    }

    #[test]
    fn code_is_found_in_its_file() {
        let here = file_of((note_outsider as fn()) as *const c_void).unwrap();
        let program = std::env::current_exe().unwrap();
        assert_eq!(here.rsplit('/').next(), program.file_name().and_then(|it| it.to_str()));
        assert_eq!(file_of(ptr::without_provenance(1)), None);
    }
}
