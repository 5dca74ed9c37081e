//! Learning rates over time, as functions of the step: pass the result to
//! [`set_lr`](super::Optimizer::set_lr).

/// Rises evenly from nothing to 1 over `steps`, then stays.
#[must_use]
pub fn warmup(step: u64, steps: u64) -> f64 {
    if step >= steps { 1.0 } else { (step + 1) as f64 / (steps + 1) as f64 }
}

/// Falls from 1 to `least` along half a cosine over `steps`, then stays.
#[must_use]
pub fn cosine(step: u64, steps: u64, least: f64) -> f64 {
    let done = if steps == 0 { 1.0 } else { (step as f64 / steps as f64).min(1.0) };
    least + (1.0 - least) * 0.5 * (1.0 + (std::f64::consts::PI * done).cos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_begin_and_end_where_they_should() {
        assert_eq!((warmup(0, 4), warmup(4, 4), warmup(9, 4), warmup(0, 0)), (0.2, 1.0, 1.0, 1.0));
        assert_eq!((cosine(0, 10, 0.1), cosine(10, 10, 0.1), cosine(99, 10, 0.1)), (1.0, 0.1, 0.1));
        assert!((cosine(5, 10, 0.0) - 0.5).abs() < 1e-12);
    }
}
