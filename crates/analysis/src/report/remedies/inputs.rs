//! Remedies for what is given to models.

use super::{Found, Remedy};
use crate::report::held::{Block, Held};
use crate::report::origins::Work;
use crate::report::purpose::Confidence;
use crate::report::verdict::Cause;

/// A block that has another so many times is that one written again and again.
const REPEATED: u64 = 16;
/// Smaller blocks are no masks.
const SMALLEST: u64 = 64 << 10;

/// A block of the program that is as large as many of the one before it, with that one.
fn repeated<'h>(held: &'h Held<'_>) -> Option<(&'h Block, u64)> {
    let mut large = held.live_by(Work::Program).filter(|it| it.bytes >= held.need() / 10);
    large.find_map(|it| {
        let soon = |other: &Block| {
            other.origin.work == Work::Program
                && other.event < it.event
                && other.event + 8 >= it.event
                && other.bytes >= SMALLEST
                && it.bytes.is_multiple_of(other.bytes)
                && it.bytes / other.bytes >= REPEATED
        };
        let part = held.ever(soon).last()?.requested;
        // Many parts that are put side by side are there themselves.
        let parts = held.blocks.iter().filter(|it| it.bytes == part).count() as u64;
        // Caches of layers are alike.
        let alike =
            held.blocks.iter().filter(|other| other.stack == it.stack && other.bytes == it.bytes);
        let alone = alike.count() == 1;
        let used = held.first_forward.is_some_and(|first| first > it.event);
        (used && alone && parts < it.bytes / part / 2).then_some((it, part))
    })
}

pub(super) const REMEDIES: &[Remedy] = &[
    Remedy {
        name: "fewer_batches_ahead",
        signature: |scene| Found::some(scene.now.ahead, Confidence::Medium, None),
        cause: Cause::Need,
        change: "keep fewer batches ahead on the device: one that is used, one that is copied",
        cost: "none, as long as a copy takes less time than a step",
        code: &["queue = collections.deque(maxlen=2)    # where batches are fetched ahead"],
    },
    Remedy {
        name: "expand",
        signature: |scene| {
            let held = scene.held()?;
            let (block, part) = repeated(held)?;
            Found::some(block.bytes - part, Confidence::High, held.line(block))
        },
        cause: Cause::Need,
        change: "if it is one tensor written again and again, expand() it instead of repeat()",
        cost: "none, unless it is written to",
        code: &[
            "mask = mask.expand(rows, heads, -1, -1)    # instead of mask.repeat(rows, heads, 1, 1)",
        ],
    },
    Remedy {
        name: "uint8_images",
        signature: |scene| {
            // One block that was there before the model worked and outweighs most else.
            let held = scene.held()?;
            let first = held.first_forward?;
            let data = held.live_by(Work::Program).filter(|it| it.event < first);
            let data = data.max_by_key(|it| it.bytes)?;
            let outweighs = data.bytes >= held.need() / 3 && repeated(held).is_none();
            let sure = if held.asked.is_some() { Confidence::Medium } else { Confidence::Low };
            let found = Found::some(data.bytes / 4 * 3, sure, held.line(data));
            found.filter(|_| outweighs)
        },
        cause: Cause::Need,
        change: "keep data on the device as it was stored, images as uint8, and convert each batch",
        cost: "a conversion for each batch",
        code: &[
            "images = raw.cuda()                    # uint8",
            "batch = images[chosen].float() / 255",
        ],
    },
];
