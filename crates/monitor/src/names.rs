//! Names of the files that publishers make: `PROCESS-MOMENT.sheet`, and `.new` while one is being made.
//!
//! In:  a process and a moment; or the name of a file that anyone may have made.
//! Out: a name that no other publisher ever has; or what a file of that name may be. Others' files have
//!      other names, and are none of our business.

use std::ffi::OsStr;

/// What a file may be, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// A sheet.
    Sheet,
    /// A sheet that is being made.
    Unfinished,
}

impl Named {
    fn ending(self) -> &'static str {
        match self {
            Self::Sheet => "sheet",
            Self::Unfinished => "new",
        }
    }

    /// The name of such a file.
    pub(crate) fn of(self, process: u32, moment_us: u64) -> String {
        format!("{process}-{moment_us}.{}", self.ending())
    }

    /// What the file of this name may be; none if no publisher gives such names.
    pub(crate) fn read(name: &OsStr) -> Option<Self> {
        let (stem, ending) = name.to_str()?.split_once('.')?;
        let named = [Self::Sheet, Self::Unfinished].into_iter().find(|it| it.ending() == ending)?;
        let (process, moment) = stem.split_once('-')?;
        // Read and written again it is the same: no sign, no leading zero.
        let (process, moment) = (process.parse().ok()?, moment.parse().ok()?);
        (OsStr::new(&named.of(process, moment)) == name).then_some(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_publishers_give_are_known() {
        for named in [Named::Sheet, Named::Unfinished] {
            assert_eq!(Named::read(OsStr::new(&named.of(7, u64::MAX))), Some(named));
        }
        for name in [
            "thesis.sheet",
            "nginx.conf.new",
            "7.sheet",
            "7-.sheet",
            "-7.new",
            "07-1.sheet",
            "+7-1.sheet",
            "7-1.sheet.new",
            "7-1.page",
            "7-1",
            ".sheet",
            "99999999999-1.sheet",
        ] {
            assert_eq!(Named::read(OsStr::new(name)), None, "{name}");
        }
    }
}
