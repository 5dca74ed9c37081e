//! A library's functions, by name and type: one table for each library.

/// Defines `Table`: the functions of a library, each with its type, found by their names.
macro_rules! table {
    ($($name:ident = $symbol:literal ($($arg:ident: $kind:ty),* $(,)?) -> $answer:ty;)*) => {
        /// The library's functions.
        pub(super) struct Table {
            $(pub(super) $name: unsafe extern "C" fn($($arg: $kind),*) -> $answer,)*
        }

        impl Table {
            pub(super) fn resolve(found: &$crate::find::Found) -> $crate::Result<Self> {
                Ok(Self {
                    // SAFETY: the type is that of the function of this name in the library's manual.
                    $($name: unsafe { found.function($symbol) }?,)*
                })
            }
        }
    };
}

pub(crate) use table;
