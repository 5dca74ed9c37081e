//! The settings that a process finds in its environment.
//!
//! In:  a function from names of variables to their values, and the release.
//! Out: the [`Config`] that PyTorch starts with there.
//!
//! | release | common keys from the first one set of | keys of CUDA from the first one set of |
//! | --- | --- | --- |
//! | 2.8, 2.9 | `PYTORCH_CUDA_ALLOC_CONF` | the same |
//! | 2.10 to 2.15 | `PYTORCH_CUDA_ALLOC_CONF`, `PYTORCH_HIP_ALLOC_CONF`, `PYTORCH_ALLOC_CONF` | `PYTORCH_CUDA_ALLOC_CONF`, `PYTORCH_ALLOC_CONF` |
//!
//! Values are never combined: the first variable that is set, even to nothing, is the only one
//! read. A build for CUDA is assumed; on ROCm the HIP name is honoured for more.

use super::parse::{Parser, backend_at_load};
use super::{Config, ConfigError, Release};

const CUDA: &str = "PYTORCH_CUDA_ALLOC_CONF";
const HIP: &str = "PYTORCH_HIP_ALLOC_CONF";
const GENERIC: &str = "PYTORCH_ALLOC_CONF";

/// The variables that a parser looks for, in order.
fn variables(parser: Parser) -> &'static [&'static str] {
    match parser {
        Parser::All => &[CUDA],
        Parser::Common => &[CUDA, HIP, GENERIC],
        Parser::CudaSpecific => &[CUDA, GENERIC],
    }
}

/// The settings a process starts with whose environment `lookup` describes.
///
/// `lookup` returns the value of a variable, or none if it is not set. The string kept as
/// `last_settings` is the one the common keys came from.
pub fn from_environment(
    lookup: impl Fn(&str) -> Option<String>,
    release: Release,
) -> Result<Config, ConfigError> {
    let first_set = |parser: Parser| {
        variables(parser).iter().find_map(|&name| lookup(name).map(|conf| (name, conf)))
    };
    let mut config = Config::for_release(release);
    for &parser in Parser::of(release) {
        let Some((name, conf)) = first_set(parser) else { continue };
        if parser != Parser::Common {
            config.backend = backend_at_load(&conf, release);
        }
        parser.read(&mut config, &conf).map_err(|error| error.in_variable(name))?;
    }
    Ok(config)
}

/// [`from_environment`] of this process. Bytes that are not UTF-8 are replaced, which leaves them
/// as unknown as they were.
pub fn from_process_environment(release: Release) -> Result<Config, ConfigError> {
    let lookup = |name: &str| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned());
    from_environment(lookup, release)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Backend, ConfigErrorKind, MIB};

    fn read(variables: &[(&str, &str)], release: Release) -> Result<Config, ConfigError> {
        let lookup = |wanted: &str| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, conf)| (*conf).to_owned())
        };
        from_environment(lookup, release)
    }

    /// One common key and one of CUDA, told apart by the split size.
    fn conf(mb: u64) -> String {
        format!("max_split_size_mb:{mb},release_lock_on_cudamalloc:True")
    }

    #[test]
    fn the_first_variable_set_is_the_only_one_read() {
        let (cuda, hip, generic) = (conf(100), conf(200), conf(300));
        // Which variables are set; the split size in MB and whether CUDA's key took effect, in
        // 2.9 and before, and later.
        type Set<'a> = &'a [(&'a str, &'a str)];
        type Found = (Option<u64>, bool);
        let table: [(Set<'_>, Found, Found); 9] = [
            (&[], (None, false), (None, false)),
            (&[(CUDA, &cuda)], (Some(100), true), (Some(100), true)),
            (&[(HIP, &hip)], (None, false), (Some(200), false)),
            (&[(GENERIC, &generic)], (None, false), (Some(300), true)),
            (&[(CUDA, &cuda), (HIP, &hip)], (Some(100), true), (Some(100), true)),
            (&[(CUDA, &cuda), (GENERIC, &generic)], (Some(100), true), (Some(100), true)),
            (&[(HIP, &hip), (GENERIC, &generic)], (None, false), (Some(200), true)),
            (
                &[(CUDA, &cuda), (HIP, &hip), (GENERIC, &generic)],
                (Some(100), true),
                (Some(100), true),
            ),
            (&[(CUDA, ""), (GENERIC, &generic)], (None, false), (None, false)),
        ];
        for (variables, before, later) in table {
            for release in Release::ALL {
                let (mb, lock) = if release < Release::V2_10 { before } else { later };
                let config = read(variables, release).unwrap();
                let found = (
                    config.max_split_size_limit().map(|bytes| bytes / MIB),
                    config.release_lock_on_cudamalloc(),
                );
                assert_eq!(found, (mb, lock), "{release}: {variables:?}");
            }
        }
    }

    #[test]
    fn the_string_shown_is_the_one_of_the_common_keys() {
        let config = read(&[(HIP, "max_split_size_mb:40"), (GENERIC, "")], Release::V2_11).unwrap();
        assert_eq!(config.last_settings(), "max_split_size_mb:40");
        assert_eq!(read(&[], Release::V2_11).unwrap().last_settings(), "");
    }

    #[test]
    fn a_string_read_for_half_its_keys_must_still_have_no_unknown_ones() {
        let error = read(&[(HIP, "max_split_size_mb:40"), (GENERIC, "oops:1")], Release::V2_11)
            .unwrap_err();
        assert_eq!((error.key(), error.variable()), ("oops", Some(GENERIC)));
        let error = read(&[(HIP, "oops:1")], Release::V2_10).unwrap_err();
        assert_eq!((error.key(), error.variable()), ("oops", Some(HIP)));
    }

    #[test]
    fn the_memory_fraction_is_a_key_of_cuda() {
        let fraction = |name| {
            let config = read(&[(name, "per_process_memory_fraction:0.5")], Release::V2_11);
            config.unwrap().per_process_memory_fraction()
        };
        assert_eq!([CUDA, HIP, GENERIC].map(fraction), [0.5, 1.0, 0.5]);
    }

    #[test]
    fn the_backend_is_chosen_by_the_environment() {
        let conf = "max_split_size_mb:40,backend:cudaMallocAsync";
        for release in Release::ALL {
            let config = read(&[(CUDA, conf)], release).unwrap();
            assert_eq!(config.backend(), Backend::CudaMallocAsync, "{release}");
        }
        assert_eq!(
            read(&[(HIP, conf)], Release::V2_11).unwrap().backend(),
            Backend::Native,
            "the HIP variable is read for common keys only"
        );
    }

    #[test]
    fn an_error_names_the_variable() {
        let error = read(&[(GENERIC, "expandable_segments:1")], Release::V2_11).unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::ValueError);
        assert_eq!(
            error.to_string(),
            "`expandable_segments:1` (byte 20 of PYTORCH_ALLOC_CONF): neither `True` nor \
             `False`, in this spelling; PyTorch 2.11 takes `True` or `False`"
        );
        assert!(read(&[(GENERIC, "expandable_segments:1")], Release::V2_9).is_ok(), "not read");
    }
}
