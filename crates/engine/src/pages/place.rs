//! Pages from their homes to a view and back. No driver call: they are mapped in both places.

use tonnage_device::Device;
use tonnage_events::{Address, StackId, StreamId};

use super::store::{Lent, PageKey, ViewKey};
use crate::block::BlockId;
use crate::engine::Engine;
use crate::segment::{RangeId, Role};

/// What a view takes: a page that lies free, or what lies free at one end of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) page: PageKey,
    /// The free block that it is a part of, where the page is in use now.
    pub(super) block: BlockId,
    /// Where in the page it begins.
    pub(super) offset: u64,
    pub(super) size: u64,
}

impl<D: Device> Engine<D> {
    /// Brings parts to the first pages of a view, from the free blocks that are given with them. They become one
    /// block, in no set, of `stream`, which the free blocks must serve. They lie one behind the other there: the first may be
    /// the end of a page, the last the beginning of one, the others are whole.
    pub(super) fn use_view(
        &mut self,
        view: ViewKey,
        parts: &[Part],
        stream: StreamId,
        stack: Option<StackId>,
    ) -> BlockId {
        // What is left of the last page may be free at once.
        let of_stream = parts.iter().map(|part| &self.blocks[part.block]);
        let of_stream = of_stream.filter(|block| block.stream == stream);
        let until = of_stream.map(|block| block.used_until).max().unwrap_or(0);
        self.leave_places(parts, stack);
        let range = self.store.views[view].range;
        let mut whole: Option<BlockId> = None;
        for part in parts {
            let id = self.enter_place(part, range);
            let block = &mut self.blocks[id];
            block.blocked = false;
            block.mapped = true;
            block.stream = stream;
            block.used_until = until;
            match whole {
                Some(whole) => self.blocks.absorb(whole, id),
                None => whole = Some(id),
            }
        }
        let id = whole.expect("a view has pages");
        self.blocks[id].segment_stack = stack;
        self.note_arrived(id, stack);
        // A page further on may be in use here, with a free part that lies behind these.
        self.merge_all(id);
        self.store.stitches += 1;
        let used_at = self.store.stitches;
        self.store.views[view].used_at = used_at;
        id
    }

    /// Blocks parts of pages that are about to be used elsewhere, each in the free block it lies in.
    fn leave_places(&mut self, parts: &[Part], stack: Option<StackId>) {
        let mut leaving: Vec<_> = parts
            .iter()
            .map(|part| {
                let page = &self.store.pages[part.page];
                let address = page.places[page.active].address.offset(part.offset);
                (part.block, address, part.page, part.size)
            })
            .collect();
        leaving.sort_unstable();
        // What is left of the free block behind the part before.
        let mut rest: Option<(BlockId, BlockId)> = None;
        for (block, address, page, size) in leaving {
            let from = rest.filter(|&(of, _)| of == block).map_or(block, |(_, rest)| rest);
            let (id, behind) = self.cut_out(from, address, size);
            self.note_left(id, stack);
            self.block_place(id);
            let page = &mut self.store.pages[page];
            page.places[page.active].blocked = Some(id);
            rest = behind.map(|behind| (block, behind));
        }
    }

    /// The block that stands for a part of a page in a range, where it comes into use: in no set. Of a page that is not whole
    /// the other bytes stay blocked there.
    fn enter_place(&mut self, part: &Part, range: RangeId) -> BlockId {
        let page = &mut self.store.pages[part.page];
        let index = page.place_in(range).expect("a view's pages are mapped there");
        let id = page.places[index].blocked.take().expect("it was in use elsewhere");
        let is_whole = part.size == page.size;
        self.take(id);
        if is_whole {
            self.store.pages[part.page].active = index;
            return id;
        }
        let other = if part.offset > 0 {
            self.blocks.split_front(id, part.offset)
        } else {
            self.blocks.split_back(id, part.size)
        };
        self.blocks[other].blocked = true;
        self.put(other);
        let page = &mut self.store.pages[part.page];
        page.places[index].blocked = Some(other);
        page.lent = Some(Lent { range, offset: part.offset, size: part.size });
        id
    }

    /// Sends the pages, and parts of pages, that lie in a free block of a view back to where they are from. The block may
    /// be gone then.
    pub(crate) fn send_pages_home(&mut self, id: BlockId, stack: Option<StackId>) {
        let block = &self.blocks[id];
        let Some(range) = block.range else { return };
        let Role::View(view) = self.ranges[range].role else { return };
        let within = self.used_within(range, block.address, block.size);
        if within.is_empty() {
            return;
        }
        let (stream, until) = (block.stream, block.used_until);
        let store = &mut self.store;
        store.views[view].note_use(stream, until, &store.marks);
        let mut from = Some(id);
        for (address, page, size) in within {
            let Some(block) = from else { break };
            let (here, behind) = self.cut_out(block, address, size);
            from = behind;
            self.note_left(here, stack);
            let home = self.leave_view(here, page, range);
            self.unblock(home, (stream, until), stack);
            // The rest of the page may lie free in another view.
            self.send_pages_home(home, stack);
        }
    }

    /// What is in use in a view and lies entirely within `bytes` from `start`: where, of which page, and its size.
    fn used_within(
        &self,
        range: RangeId,
        start: Address,
        bytes: u64,
    ) -> Vec<(Address, PageKey, u64)> {
        let (base, laid) = (self.ranges[range].base, &self.ranges[range].laid);
        let from = start.distance_from(base);
        let end = from + bytes;
        let first = laid.range(..=from).next_back().map_or(from, |(&at, _)| at);
        laid.range(first..end)
            .filter_map(|(&at, &(page, _))| {
                let (offset, size) = self.store.pages[page].used_in(range)?;
                let at = at + offset;
                (from <= at && at + size <= end).then(|| (base.offset(at), page, size))
            })
            .collect()
    }

    /// Blocks the place of a page in a view, where a block, in no set, is all that was in use of it. Returns the block that
    /// stands for it where it is in use then.
    fn leave_view(&mut self, here: BlockId, page: PageKey, range: RangeId) -> BlockId {
        self.block_place(here);
        let page = &mut self.store.pages[page];
        let index = page.place_in(range).expect("it lies there");
        if page.lent.take_if(|lent| lent.range == range).is_some() {
            let whole = page.places[index].blocked.expect("the rest is in use elsewhere");
            let home = page.places[page.active].blocked.take();
            self.take(whole);
            self.take(here);
            self.blocks.absorb(whole, here);
            self.put(whole);
            return home.expect("a part of it was in use in a view");
        }
        page.places[index].blocked = Some(here);
        page.active = 0;
        page.places[0].blocked.take().expect("it was in use in a view")
    }

    /// Makes a block that stood for a page, or a part of one, free: a stream has used it elsewhere, until a mark.
    fn unblock(&mut self, id: BlockId, used: (StreamId, u64), stack: Option<StackId>) {
        self.take(id);
        let block = &mut self.blocks[id];
        block.blocked = false;
        block.mapped = true;
        (block.stream, block.used_until) = used;
        self.note_arrived(id, stack);
        self.merge_all(id);
        self.put(id);
    }

    /// Cuts `size` bytes at `address` out of a free block, as a block in no set. What is left before and behind stays
    /// free; the part behind is returned too.
    pub(crate) fn cut_out(
        &mut self,
        id: BlockId,
        address: Address,
        size: u64,
    ) -> (BlockId, Option<BlockId>) {
        self.take(id);
        let before = address.distance_from(self.blocks[id].address);
        if before > 0 {
            let front = self.blocks.split_front(id, before);
            self.put(front);
        }
        let behind = (self.blocks[id].size > size).then(|| {
            let back = self.blocks.split_back(id, size);
            self.put(back);
            back
        });
        (id, behind)
    }

    /// Makes a block, in no set, stand for a page that is in use elsewhere.
    fn block_place(&mut self, id: BlockId) {
        let block = &mut self.blocks[id];
        block.mapped = false;
        block.blocked = true;
        block.stream = StreamId::DEFAULT;
        self.put(id);
    }
}
