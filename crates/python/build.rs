//! What the linker is told of an extension module: on macOS that Python's own functions are found when it is loaded.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
