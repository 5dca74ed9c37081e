//! Pages from their homes to a view and back. No driver call: they are mapped in both places.

use tonnage_device::Device;
use tonnage_events::{Address, StackId, StreamId};

use super::store::{PageKey, ViewKey};
use crate::block::BlockId;
use crate::engine::Engine;
use crate::segment::Role;

impl<D: Device> Engine<D> {
    /// Brings the first pages of a view there, from the free blocks at their homes that are given with them. They become one
    /// block, in no set, of `stream`, which the free blocks must serve.
    pub(crate) fn use_view(
        &mut self,
        view: ViewKey,
        at_home: &[(PageKey, BlockId)],
        stream: StreamId,
        stack: Option<StackId>,
    ) -> BlockId {
        // What is left of the last page may be free at once.
        let of_stream = at_home.iter().map(|&(_, id)| &self.blocks[id]);
        let of_stream = of_stream.filter(|block| block.stream == stream);
        let until = of_stream.map(|block| block.used_until).max().unwrap_or(0);
        self.leave_homes(at_home, stack);
        let range = self.store.views[view].range;
        let mut whole: Option<BlockId> = None;
        for &(page, _) in at_home {
            let page = &mut self.store.pages[page];
            let index = page.place_in(range).expect("a view's pages are mapped there");
            page.active = index;
            let id = page.places[index].blocked.take().expect("it was in use at home");
            self.take(id);
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

    /// Blocks the homes of pages that are about to be used elsewhere, each with the free block it lies in.
    fn leave_homes(&mut self, at_home: &[(PageKey, BlockId)], stack: Option<StackId>) {
        let mut leaving: Vec<_> = at_home
            .iter()
            .map(|&(page, block)| (block, self.store.pages[page].places[0].address, page))
            .collect();
        leaving.sort_unstable();
        // What is left of the free block behind the page before.
        let mut rest: Option<(BlockId, BlockId)> = None;
        for (block, address, page) in leaving {
            let from = rest.filter(|&(of, _)| of == block).map_or(block, |(_, rest)| rest);
            let size = self.store.pages[page].size;
            let (id, behind) = self.cut_out(from, address, size);
            self.note_left(id, stack);
            self.block_place(id);
            self.store.pages[page].places[0].blocked = Some(id);
            rest = behind.map(|behind| (block, behind));
        }
    }

    /// Sends the pages that lie in a free block of a view home. The block may be gone then.
    pub(crate) fn send_pages_home(&mut self, id: BlockId, stack: Option<StackId>) {
        let block = &self.blocks[id];
        let Some(range) = block.range else { return };
        let Role::View(view) = self.ranges[range].role else { return };
        let within: Vec<_> = self.ranges[range].laid_within(block.address, block.size).collect();
        if within.is_empty() {
            return;
        }
        let (stream, until) = (block.stream, block.used_until);
        let store = &mut self.store;
        store.views[view].note_use(stream, until, &store.marks);
        let mut from = Some(id);
        for (address, page) in within {
            let Some(block) = from else { break };
            let size = self.store.pages[page].size;
            let (here, behind) = self.cut_out(block, address, size);
            from = behind;
            self.note_left(here, stack);
            self.block_place(here);
            let page = &mut self.store.pages[page];
            let index = page.place_in(range).expect("it lies there");
            page.places[index].blocked = Some(here);
            page.active = 0;
            let home = page.places[0].blocked.take().expect("it was in use in a view");
            self.unblock_home(home, (stream, until), stack);
        }
    }

    /// Makes the home of a page free that a stream has used elsewhere, until a mark.
    fn unblock_home(&mut self, id: BlockId, used: (StreamId, u64), stack: Option<StackId>) {
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
