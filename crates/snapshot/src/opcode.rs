//! Stage 2: what each byte of a pickle's program is called, and why some are refused.
//!
//! In:  an opcode byte.
//! Out: a constant to match on, or the error for one that is not plain data.
//!
//! The arguments of an opcode are read in `machine.rs`. Names and values are those of Python's
//! `pickletools`.

use crate::error::SnapshotError;

/// Opcodes that make plain data, in the order of `pickletools`' groups.
pub(crate) mod plain {
    pub(crate) const INT: u8 = b'I';
    pub(crate) const BININT: u8 = b'J';
    pub(crate) const BININT1: u8 = b'K';
    pub(crate) const BININT2: u8 = b'M';
    pub(crate) const LONG1: u8 = 0x8a;
    pub(crate) const LONG4: u8 = 0x8b;
    pub(crate) const BINFLOAT: u8 = b'G';
    pub(crate) const NONE: u8 = b'N';
    pub(crate) const NEWTRUE: u8 = 0x88;
    pub(crate) const NEWFALSE: u8 = 0x89;
    pub(crate) const SHORT_BINUNICODE: u8 = 0x8c;
    pub(crate) const BINUNICODE: u8 = b'X';
    pub(crate) const BINUNICODE8: u8 = 0x8d;
    pub(crate) const SHORT_BINBYTES: u8 = b'C';
    pub(crate) const BINBYTES: u8 = b'B';
    pub(crate) const BINBYTES8: u8 = 0x8e;
    pub(crate) const BYTEARRAY8: u8 = 0x96;
    pub(crate) const EMPTY_LIST: u8 = b']';
    pub(crate) const APPEND: u8 = b'a';
    pub(crate) const APPENDS: u8 = b'e';
    pub(crate) const LIST: u8 = b'l';
    pub(crate) const EMPTY_TUPLE: u8 = b')';
    pub(crate) const TUPLE: u8 = b't';
    pub(crate) const TUPLE1: u8 = 0x85;
    pub(crate) const TUPLE2: u8 = 0x86;
    pub(crate) const TUPLE3: u8 = 0x87;
    pub(crate) const EMPTY_DICT: u8 = b'}';
    pub(crate) const DICT: u8 = b'd';
    pub(crate) const SETITEM: u8 = b's';
    pub(crate) const SETITEMS: u8 = b'u';
    pub(crate) const EMPTY_SET: u8 = 0x8f;
    pub(crate) const ADDITEMS: u8 = 0x90;
    pub(crate) const FROZENSET: u8 = 0x91;
    pub(crate) const POP: u8 = b'0';
    pub(crate) const MARK: u8 = b'(';
    pub(crate) const POP_MARK: u8 = b'1';
    pub(crate) const BINGET: u8 = b'h';
    pub(crate) const LONG_BINGET: u8 = b'j';
    pub(crate) const BINPUT: u8 = b'q';
    pub(crate) const LONG_BINPUT: u8 = b'r';
    pub(crate) const MEMOIZE: u8 = 0x94;
    pub(crate) const PROTO: u8 = 0x80;
    pub(crate) const FRAME: u8 = 0x95;
    pub(crate) const STOP: u8 = b'.';
}

const RUNS_CODE: &str = "would make Python import or call something. A memory snapshot never does; \
                         do not load this file with Python unless you trust its author";
const OUT_OF_BAND: &str = "needs data from outside the file, which a memory snapshot never does; dump it again with \
     torch.cuda.memory._dump_snapshot";
const OLD_TEXT: &str = "is of an old text protocol that PyTorch does not use for snapshots; if you \
                        trust the file, write it again with pickle.dump(..., protocol=4)";

/// The opcodes that are refused: name, and why.
const REFUSED: &[(u8, &str, &str)] = &[
    (b'c', "GLOBAL", RUNS_CODE),
    (0x93, "STACK_GLOBAL", RUNS_CODE),
    (b'R', "REDUCE", RUNS_CODE),
    (b'b', "BUILD", RUNS_CODE),
    (b'i', "INST", RUNS_CODE),
    (b'o', "OBJ", RUNS_CODE),
    (0x81, "NEWOBJ", RUNS_CODE),
    (0x92, "NEWOBJ_EX", RUNS_CODE),
    (0x82, "EXT1", RUNS_CODE),
    (0x83, "EXT2", RUNS_CODE),
    (0x84, "EXT4", RUNS_CODE),
    (b'P', "PERSID", RUNS_CODE),
    (b'Q', "BINPERSID", RUNS_CODE),
    (0x97, "NEXT_BUFFER", OUT_OF_BAND),
    (0x98, "READONLY_BUFFER", OUT_OF_BAND),
    (b'S', "STRING", OLD_TEXT),
    (b'T', "BINSTRING", OLD_TEXT),
    (b'U', "SHORT_BINSTRING", OLD_TEXT),
    (b'V', "UNICODE", OLD_TEXT),
    (b'F', "FLOAT", OLD_TEXT),
    (b'L', "LONG", OLD_TEXT),
    (b'g', "GET", OLD_TEXT),
    (b'p', "PUT", OLD_TEXT),
    (b'2', "DUP", OLD_TEXT),
];

/// The error for a byte that is none of [`plain`].
#[cold]
pub(crate) fn refuse(byte: u8, offset: u64) -> SnapshotError {
    match REFUSED.iter().find(|&&(opcode, ..)| opcode == byte) {
        Some(&(_, opcode, why)) => SnapshotError::Opcode { opcode, offset, why },
        None => SnapshotError::Malformed {
            offset,
            what: format!("{byte:#04x} is not an opcode of any pickle protocol up to 5"),
        },
    }
}
