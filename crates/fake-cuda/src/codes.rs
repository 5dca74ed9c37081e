//! The driver's result codes, with its names and words for them: those that both fakes share.

pub(crate) use tonnage_cuda_codes::{Code, SUCCESS, driver_text as text};
