//! What is asked for: shapes, types and what comes right after a product. Plain data, by which plans are kept.

use std::fmt;

use crate::{Error, Result};

/// The type of a matrix's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Number {
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    Bf16,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
    /// Pairs of `f32`.
    Complex32,
    /// Pairs of `f64`.
    Complex64,
}

impl Number {
    /// Bytes of one.
    #[must_use]
    pub const fn size(self) -> u64 {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 | Self::Complex32 => 8,
            Self::Complex64 => 16,
        }
    }
}

/// How `f32` numbers are multiplied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Math {
    /// As they are.
    #[default]
    Full,
    /// Rounded to 10 bits first, on tensor cores.
    Tf32,
}

/// How a matrix lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// Whether its transpose is what lies there.
    pub transposed: bool,
    /// Numbers from one row, as it lies there, to the next.
    pub leading: u64,
    /// Numbers from one matrix of a batch to the next.
    pub stride: u64,
}

/// What is done with the product before it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// Nothing.
    #[default]
    None,
    /// A bias of `n` numbers is added to every row.
    Bias,
    /// What is below zero becomes zero, after a bias if there is one. With `mask`, which is the number of bits from one row to
    /// the next, a multiple of 128, one bit of each number is stored: whether it was above zero.
    Relu {
        /// Whether a bias is added first.
        bias: bool,
        /// Bits of a row of the mask.
        mask: Option<u64>,
    },
    /// GELU by its formula with `tanh`, after a bias if there is one. With `saved`, which is the number of numbers from one row
    /// to the next, a multiple of 8, what it was taken of is stored.
    Gelu {
        /// Whether a bias is added first.
        bias: bool,
        /// Numbers of a row of what is saved.
        saved: Option<u64>,
    },
    /// The product, where the mask of [`Relu`](Self::Relu) has a bit, and zero elsewhere.
    ReluGradient {
        /// Bits of a row of the mask.
        mask: u64,
        /// Whether the sums of its columns, `n` numbers, are stored too.
        bias_gradient: bool,
    },
    /// The product times the derivative of [`Gelu`](Self::Gelu) at what was saved.
    GeluGradient {
        /// Numbers of a row of what was saved.
        saved: u64,
        /// Whether the sums of its columns, `n` numbers, are stored too.
        bias_gradient: bool,
    },
    /// Nothing; the sums of the rows of `A` as it is multiplied, `m` numbers, are stored too.
    RowSumsOfA,
    /// Nothing; the sums of the columns of `B` as it is multiplied, `n` numbers, are stored too.
    ColumnSumsOfB,
}

impl Epilogue {
    /// Whether it reads a bias, or writes sums.
    #[must_use]
    pub const fn has_vector(self) -> bool {
        match self {
            Self::None => false,
            Self::Bias | Self::RowSumsOfA | Self::ColumnSumsOfB => true,
            Self::Relu { bias, .. } | Self::Gelu { bias, .. } => bias,
            Self::ReluGradient { bias_gradient, .. } | Self::GeluGradient { bias_gradient, .. } => {
                bias_gradient
            }
        }
    }

    /// The row of what it stores, or reads, beside the product: numbers or bits.
    #[must_use]
    pub const fn aside(self) -> Option<u64> {
        match self {
            Self::Relu { mask: aside, .. } | Self::Gelu { saved: aside, .. } => aside,
            Self::ReluGradient { mask: aside, .. } | Self::GeluGradient { saved: aside, .. } => {
                Some(aside)
            }
            _ => None,
        }
    }

    const fn is_mask(self) -> bool {
        matches!(self, Self::Relu { .. } | Self::ReluGradient { .. })
    }
}

/// `D = epilogue(alpha · A · B + beta · C)`, with A of m × k, B of k × n, C and D of m × n numbers; `batch` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Product {
    /// Rows of the result.
    pub m: u64,
    /// Columns of the result.
    pub n: u64,
    /// What is summed over.
    pub k: u64,
    /// How many products.
    pub batch: u64,
    /// The left matrix.
    pub a: Matrix,
    /// The right matrix.
    pub b: Matrix,
    /// Where C and D lie, alike: they are not transposed.
    pub d: Matrix,
    /// The numbers of A and B.
    pub input: Number,
    /// The numbers of C, D and a bias: those of A and B, or `f32` where these have 16 bits.
    pub output: Number,
    /// How `f32` is multiplied.
    pub math: Math,
    /// What comes after.
    pub epilogue: Epilogue,
}

impl Product {
    /// One product of matrices that lie densely, transposed or not.
    #[must_use]
    pub const fn dense(
        [m, n, k]: [u64; 3],
        [a_transposed, b_transposed]: [bool; 2],
        number: Number,
    ) -> Self {
        const fn of(transposed: bool, rows: u64, columns: u64) -> Matrix {
            let leading = if transposed { rows } else { columns };
            Matrix { transposed, leading, stride: rows * columns }
        }
        Self {
            m,
            n,
            k,
            batch: 1,
            a: of(a_transposed, m, k),
            b: of(b_transposed, k, n),
            d: of(false, m, n),
            input: number,
            output: number,
            math: Math::Full,
            epilogue: Epilogue::None,
        }
    }

    /// Refuses what makes no sense, before the library sees it.
    pub(super) fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::Misuse(format!("{what}, in {self}")));
        if self.m == 0 || self.n == 0 || self.k == 0 || self.batch == 0 {
            return wrong("a product has at least one number in each direction".into());
        }
        for (name, matrix, rows, columns) in [
            ("A", self.a, self.m, self.k),
            ("B", self.b, self.k, self.n),
            ("D", self.d, self.m, self.n),
        ] {
            let row = if matrix.transposed { rows } else { columns };
            if matrix.leading < row {
                return wrong(format!("rows of {row} numbers of {name} overlap"));
            }
            if i64::try_from(matrix.leading).is_err() || i64::try_from(matrix.stride).is_err() {
                return wrong(format!("{name} is larger than memory"));
            }
        }
        if self.d.transposed {
            return wrong("the result is not transposed".into());
        }
        let narrow = matches!(self.input, Number::F16 | Number::Bf16);
        if self.output != self.input && !(narrow && self.output == Number::F32) {
            return wrong(format!("{:?} is no output for {:?}", self.output, self.input));
        }
        if let Some(aside) = self.epilogue.aside() {
            let unit = if self.epilogue.is_mask() { 128 } else { 8 };
            if aside < self.n || !aside.is_multiple_of(unit) {
                return wrong(format!(
                    "a row of {aside} beside the product is below n or no multiple of {unit}"
                ));
            }
        }
        Ok(())
    }
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = |matrix: Matrix| if matrix.transposed { "ᵀ" } else { "" };
        write!(
            f,
            "{} products of {}{}×{} by {}×{}{} in {:?} to {:?}",
            self.batch,
            self.m,
            sign(self.a),
            self.k,
            self.k,
            self.n,
            sign(self.b),
            self.input,
            self.output,
        )?;
        if self.math == Math::Tf32 {
            write!(f, " by TF32")?;
        }
        match self.epilogue {
            Epilogue::None => Ok(()),
            other => write!(f, " with {other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_with_its_shape() {
        let good = Product::dense([4, 8, 16], [false, true], Number::Bf16);
        assert_eq!((good.a.leading, good.b.leading, good.d.leading), (16, 16, 8));
        good.check().unwrap();
        let refused = |change: &dyn Fn(&mut Product), part: &str| {
            let mut product = good;
            change(&mut product);
            let Err(Error::Misuse(text)) = product.check() else { panic!("not refused: {part}") };
            assert!(text.contains(part) && text.contains("products of"), "{text}");
        };
        refused(&|it| it.k = 0, "at least one number");
        refused(&|it| it.batch = 0, "at least one number");
        refused(&|it| it.a.leading = 15, "rows of 16 numbers of A overlap");
        refused(&|it| it.b.leading = 15, "rows of 16 numbers of B overlap");
        refused(&|it| it.d.leading = 7, "rows of 8 numbers of D overlap");
        refused(&|it| it.d.stride = u64::MAX, "D is larger than memory");
        refused(&|it| it.output = Number::F64, "F64 is no output for Bf16");
        let gelu = |saved| Epilogue::Gelu { bias: true, saved: Some(saved) };
        refused(&|it| it.epilogue = gelu(12), "no multiple of 8");
        refused(&|it| it.epilogue = gelu(0), "below n");
        refused(
            &|it| it.epilogue = Epilogue::ReluGradient { mask: 8, bias_gradient: false },
            "128",
        );
        let mut product = good;
        product.epilogue = gelu(8);
        product.output = Number::F32;
        product.check().unwrap();
        assert_eq!(
            product.to_string(),
            "1 products of 4×16 by 16×8ᵀ in Bf16 to F32 with Gelu { bias: true, saved: Some(8) }"
        );
    }
}
