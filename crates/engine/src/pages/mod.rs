//! Physical pages that go where they are needed.
//!
//! In:  a request that no free block serves, under the policy `pages`. Out: a block of pages that the device made now,
//!      or of pages that lay free elsewhere.
//!
//! # Note \[Pages that move\]
//!
//! *Why.* A page that is mapped for one segment, pool or stream stays there, however long it is free, while another one
//! grows. And unmapping must wait for the GPU.
//!
//! *How.* Each half of a pool has a *home*, a range at whose end new pages are laid one behind the other; blocks are cut from it
//! to the byte, so that neighbours share pages. If no free block is large enough but enough pages are free, these are
//! mapped a second time, one behind the other, as a *view*. Nothing is unmapped for it: a page has several
//! places, of which one is in use, and the others are *blocked*: blocks that are unmapped by all accounts. A page whose
//! bytes in a view are all free goes home, which costs nothing; the view stays for the next time, which costs nothing
//! either.
//!
//! *Limits.* A page with one live byte stays where it is. Private pools have homes and no views: captured graphs use
//! their memory unasked, on streams that no one knows yet, so that nothing is lent by them. What a pool leaves that was
//! released goes to whoever needs it next, once no stream can still run its graphs.
//!
//! | file | what |
//! | --- | --- |
//! | `store` | the pages, their places, the views |
//! | `order` | which streams are done with which memory |
//! | `home` | new pages |
//! | `stitch` | which pages make a view |
//! | `ends` | parts of pages, rather than fail |
//! | `place` | pages from home to a view and back |
//! | `leftovers` | homes of released pools |
//! | `give_back` | pages back to the device, views that are dropped |
//! | `check` | what is always true of them |

mod check;

mod ends;

mod give_back;

mod home;

mod leftovers;

mod order;

mod place;

mod stitch;

mod store;

pub(crate) use stitch::Effort;
pub(crate) use store::{PageKey, PageStore, ViewKey};
