//! Which allocator PyTorch was told to use: the `backend` setting.

use std::fmt;

/// The allocator behind PyTorch's memory functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Backend {
    /// The caching allocator.
    #[default]
    Native,
    /// The driver's own stream-ordered allocator.
    CudaMallocAsync,
}

impl Backend {
    /// Every backend.
    pub const ALL: [Self; 2] = [Self::Native, Self::CudaMallocAsync];

    /// The word for it in the settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::CudaMallocAsync => "cudaMallocAsync",
        }
    }

    /// The backend of this name. `hipMallocAsync` is a name on ROCm builds only.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|backend| backend.name() == name)
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
