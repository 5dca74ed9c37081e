//! A level over time as a row of bars.

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The last points as so many characters, the newest to the right; the largest of them is a whole bar.
pub(super) fn bars(points: &[u64], width: usize) -> String {
    let points = last(points, width);
    let most = points.iter().copied().max().unwrap_or(0).max(1);
    let bar = |&point: &u64| {
        // Eighths, rounded up: whatever is there shows.
        let eighths = (u128::from(point) * BARS.len() as u128).div_ceil(u128::from(most));
        match usize::try_from(eighths) {
            Ok(eighths @ 1..) => BARS[(eighths - 1).min(BARS.len() - 1)],
            _ => ' ',
        }
    };
    let empty = std::iter::repeat_n(' ', width - points.len());
    empty.chain(points.iter().map(bar)).collect()
}

/// The last points that there is room for.
pub(super) fn last(points: &[u64], width: usize) -> &[u64] {
    &points[points.len().saturating_sub(width)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_a_whole_bar_and_the_newest_stands_right() {
        assert_eq!(bars(&[0, 1, 4, 8], 6), "   ▁▄█");
        assert_eq!(bars(&[8, 1, 2, 2], 2), "██");
        assert_eq!(bars(&[], 3), "   ");
        assert_eq!(bars(&[0, 0], 2), "  ");
        assert_eq!(bars(&[u64::MAX, 1], 2), "█▁");
        assert_eq!(bars(&[1], 0), "");
    }
}
