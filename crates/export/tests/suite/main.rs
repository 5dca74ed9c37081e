//! Files for other tools, as these read them.

mod perfetto;

mod tables;
