//! Recipes and prediction: the peak before the run.

#[cfg_attr(not(test), expect(dead_code, reason = "the recipe of this name calls it"))]
mod mimo;
