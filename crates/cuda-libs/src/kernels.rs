//! Kernels by name on one device: compiled or taken from the disk once, loaded once.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

use tonnage_device::cuda::{Function, Launcher, Module};

use crate::Result;
use crate::cache::Cache;
use crate::find::Search;
use crate::nvrtc::{Architecture, Compiler};

/// A piece of CUDA C++, with one or more kernels in it.
///
/// ```
/// use tonnage_cuda_libs::KernelSource;
///
/// const FILL: KernelSource = KernelSource::new("fill", r#"
/// #include "tonnage.cuh"
/// extern "C" __global__ void fill(float* to, float value, u64 count) {
///     for (u64 i = global_thread(); i < count; i += global_threads()) to[i] = value;
/// }
/// "#);
/// assert_eq!(FILL.name, "fill");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSource {
    /// Its name, for messages; sources with one name and different texts may stand side by side.
    pub name: Cow<'static, str>,
    /// The text.
    pub text: Cow<'static, str>,
    /// Options of the compiler, besides those that every source gets.
    pub options: &'static [&'static str],
}

impl KernelSource {
    /// A source that stands in the program.
    #[must_use]
    pub const fn new(name: &'static str, text: &'static str) -> Self {
        Self { name: Cow::Borrowed(name), text: Cow::Borrowed(text), options: &[] }
    }

    /// A source that was put together.
    #[must_use]
    pub const fn made(name: String, text: String) -> Self {
        Self { name: Cow::Owned(name), text: Cow::Owned(text), options: &[] }
    }

    /// The same with options.
    #[must_use]
    pub const fn with_options(mut self, options: &'static [&'static str]) -> Self {
        self.options = options;
        self
    }
}

/// The kernels of one device. Functions are kept: the second time, a kernel costs a look into a table.
pub struct Kernels {
    launcher: Launcher,
    cache: Cache,
    search: Search,
    /// Loaded when the first kernel is asked for: a device that computes nothing needs none. One that is missing is looked
    /// for again: it may have been installed.
    compiler: OnceLock<Compiler>,
    sources: RwLock<HashMap<Cow<'static, str>, Vec<Loaded>>>,
    /// Held while a source is compiled, so that it is compiled once.
    turn: Mutex<()>,
}

struct Loaded {
    source: KernelSource,
    module: Module,
    functions: HashMap<String, Function>,
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernels")
            .field("device", &self.launcher.properties().id)
            .finish_non_exhaustive()
    }
}

impl Kernels {
    /// The kernels of a device, with the user's cache and the compiler that is found here.
    ///
    /// # Errors
    ///
    /// If the driver cannot tell its version.
    pub fn new(launcher: Launcher) -> Result<Self> {
        let search = Search::here().for_driver(launcher.driver().version()?);
        Ok(Self::with(launcher, search, Cache::of_user()))
    }

    /// The same with another cache, and a compiler from elsewhere.
    #[must_use]
    pub fn with(launcher: Launcher, search: Search, cache: Cache) -> Self {
        let (compiler, sources, turn) = Default::default();
        Self { launcher, cache, search, compiler, sources, turn }
    }

    /// The device's architecture.
    #[must_use]
    pub fn architecture(&self) -> Architecture {
        self.launcher.properties().compute_capability.into()
    }

    /// The device's streams.
    #[must_use]
    pub fn launcher(&self) -> &Launcher {
        &self.launcher
    }

    /// The compiler.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn compiler(&self) -> Result<&Compiler> {
        if let Some(loaded) = self.compiler.get() {
            return Ok(loaded);
        }
        let loaded = Compiler::load(&self.search)?;
        // Two threads at once load two, and one is kept.
        Ok(self.compiler.get_or_init(|| loaded))
    }

    /// The kernel `name` of a source.
    ///
    /// # Errors
    ///
    /// If there is no compiler, if the source does not compile or has no such kernel, or if the driver refuses it.
    pub fn function(&self, source: &KernelSource, name: &str) -> Result<Function> {
        if let Some(function) = self.known(source, name) {
            return Ok(function);
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = self.known(source, name) {
            return Ok(function);
        }
        let module = match self.module(source) {
            Some(module) => module,
            None => self.load(source)?,
        };
        let function = module.function(name)?;
        let mut sources = self.sources.write().unwrap_or_else(PoisonError::into_inner);
        let list = sources.entry(source.name.clone()).or_default();
        match list.iter_mut().find(|it| it.source == *source) {
            Some(loaded) => _ = loaded.functions.insert(name.to_owned(), function.clone()),
            None => {
                let functions = HashMap::from([(name.to_owned(), function.clone())]);
                list.push(Loaded { source: source.clone(), module, functions });
            }
        }
        Ok(function)
    }

    fn known(&self, source: &KernelSource, name: &str) -> Option<Function> {
        let sources = self.sources.read().unwrap_or_else(PoisonError::into_inner);
        let loaded = sources.get(&source.name)?.iter().find(|it| it.source == *source)?;
        loaded.functions.get(name).cloned()
    }

    fn module(&self, source: &KernelSource) -> Option<Module> {
        let sources = self.sources.read().unwrap_or_else(PoisonError::into_inner);
        let loaded = sources.get(&source.name)?.iter().find(|it| it.source == *source)?;
        Some(loaded.module.clone())
    }

    fn load(&self, source: &KernelSource) -> Result<Module> {
        let (compiler, architecture) = (self.compiler()?, self.architecture());
        let parts = compiler.parts(source, architecture);
        let compile = || compiler.compile(source, architecture).map(|image| image.bytes);
        let image = self.cache.get_or(&parts, compile)?;
        // SAFETY: the compiler has just made it, or had, and its hash says that it is whole.
        Ok(unsafe { self.launcher.load(&image) }?)
    }
}
