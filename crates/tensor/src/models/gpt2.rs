//! GPT-2: text, one token after the other.
//!
//! In:  tokens `[batch, rows]`.
//! Out: scores `[batch, rows, vocabulary]` of each row's next token, or the loss against known ones.

use crate::checkpoint::Placement;
use crate::create::TensorOptions;
use crate::dtype::DType;
use crate::entry::within;
use crate::error::{Call, ErrorKind, Result};
use crate::nn::init::normal_;
use crate::nn::{
    Dropout, Embedding, LayerNorm, Linear, Module, Sequential, Visitor, check_heads, join_heads,
    split_three,
};
use crate::ops::AttentionOptions;
use crate::tensor::Tensor;

/// The sizes of a [`Gpt2`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Gpt2Config {
    /// How many tokens there are.
    pub vocabulary: usize,
    /// How many tokens it sees at most.
    pub context: usize,
    /// Numbers for each token.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Into how many heads the width is split.
    pub heads: usize,
    /// The probability of dropout, after embeddings and before each sum.
    pub dropout: f64,
}

impl Gpt2Config {
    const fn sized(layers: usize, width: usize, heads: usize) -> Self {
        Self { vocabulary: 50_257, context: 1024, width, layers, heads, dropout: 0.1 }
    }

    /// 124 million parameters.
    #[must_use]
    pub const fn small() -> Self {
        Self::sized(12, 768, 12)
    }

    /// 355 million parameters.
    #[must_use]
    pub const fn medium() -> Self {
        Self::sized(24, 1024, 16)
    }

    /// 774 million parameters.
    #[must_use]
    pub const fn large() -> Self {
        Self::sized(36, 1280, 20)
    }

    /// 1.6 billion parameters.
    #[must_use]
    pub const fn xl() -> Self {
        Self::sized(48, 1600, 25)
    }

    /// Of these sizes, for text by bytes: each is a token.
    #[must_use]
    pub const fn bytes(layers: usize, width: usize, heads: usize) -> Self {
        let sized = Self::sized(layers, width, heads);
        Self { vocabulary: 256, ..sized }
    }

    /// Sees at most so many tokens.
    #[must_use]
    pub const fn context(mut self, tokens: usize) -> Self {
        self.context = tokens;
        self
    }

    /// With so many tokens.
    #[must_use]
    pub const fn vocabulary(mut self, tokens: usize) -> Self {
        self.vocabulary = tokens;
        self
    }

    /// With another probability of dropout.
    #[must_use]
    pub const fn dropout(mut self, p: f64) -> Self {
        self.dropout = p;
        self
    }
}

/// Each row attends to itself and those before it.
struct Attention {
    c_attn: Linear,
    c_proj: Linear,
    resid_dropout: Dropout,
    heads: usize,
}

impl Module for Attention {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        within(|| {
            let [query, key, value] = split_three(&self.c_attn.forward(x)?, self.heads)?;
            let options = AttentionOptions::default().causal(true);
            let attended = query.scaled_dot_product_attention(&key, &value, options)?;
            drop((query, key, value));
            self.resid_dropout.forward(&self.c_proj.forward(&join_heads(&attended)?)?)
        })
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module("c_attn", &self.c_attn);
        visitor.module("c_proj", &self.c_proj);
        visitor.module("resid_dropout", &self.resid_dropout);
    }
}

/// Two linear layers, the inner one four times as wide.
struct Feed {
    c_fc: Linear,
    c_proj: Linear,
    dropout: Dropout,
}

impl Module for Feed {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        within(|| {
            let inner = self.c_fc.forward(x)?.gelu_tanh()?;
            self.dropout.forward(&self.c_proj.forward(&inner)?)
        })
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module("c_fc", &self.c_fc);
        visitor.module("c_proj", &self.c_proj);
        visitor.module("dropout", &self.dropout);
    }
}

/// Attention and two linear layers, each after a norm and with a way around it.
struct Block {
    ln_1: LayerNorm,
    attn: Attention,
    ln_2: LayerNorm,
    mlp: Feed,
}

impl Block {
    #[track_caller]
    fn new(config: &Gpt2Config, options: TensorOptions<'_>) -> Result<Self> {
        let width = config.width;
        let dropout = || Dropout::new(config.dropout);
        let ln_1 = LayerNorm::new(width, options)?;
        let attn = Attention {
            c_attn: Linear::new(width, 3 * width, options)?,
            c_proj: Linear::new(width, width, options)?,
            resid_dropout: dropout(),
            heads: config.heads,
        };
        let ln_2 = LayerNorm::new(width, options)?;
        let mlp = Feed {
            c_fc: Linear::new(width, 4 * width, options)?,
            c_proj: Linear::new(4 * width, width, options)?,
            dropout: dropout(),
        };
        Ok(Self { ln_1, attn, ln_2, mlp })
    }
}

impl Module for Block {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        within(|| {
            let x = x.add(&self.attn.forward(&self.ln_1.forward(x)?)?)?;
            x.add(&self.mlp.forward(&self.ln_2.forward(&x)?)?)
        })
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module("ln_1", &self.ln_1);
        visitor.module("attn", &self.attn);
        visitor.module("ln_2", &self.ln_2);
        visitor.module("mlp", &self.mlp);
    }
}

/// GPT-2. The table of tokens is also the last layer, as in the original. Weights of attention are never
/// in memory, so none of them are dropped.
///
/// ```
/// use tonnage_tensor::models::{Gpt2, Gpt2Config};
/// use tonnage_tensor::nn::Module;
/// use tonnage_tensor::{Device, Tensor};
///
/// let device = Device::host("64 MiB")?;
/// let model = Gpt2::new(Gpt2Config::bytes(2, 32, 2).context(16), &device)?;
/// let tokens = Tensor::randint(0, 256, [4, 17], &device)?;
/// let loss = model.loss(&tokens.narrow(1, 0, 16)?, &tokens.narrow(1, 1, 16)?)?;
/// loss.backward()?;
/// assert!((loss.item::<f32>()? - 256f32.ln()).abs() < 0.2, "as good as guessing, at first");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gpt2 {
    config: Gpt2Config,
    wte: Embedding,
    wpe: Embedding,
    drop: Dropout,
    h: Sequential,
    ln_f: LayerNorm,
}

impl Gpt2 {
    /// A new one, with GPT-2's first values.
    ///
    /// # Errors
    ///
    /// If the width cannot be split into the heads, or if there is no memory.
    #[track_caller]
    pub fn new<'a>(config: Gpt2Config, options: impl Into<TensorOptions<'a>>) -> Result<Self> {
        check_heads(Call::here("Gpt2"), config.width, config.heads)?;
        let options = options.into();
        let wte = Embedding::new(config.vocabulary, config.width, options)?;
        let wpe = Embedding::new(config.context, config.width, options)?;
        let h = (0..config.layers).map(|_| Block::new(&config, options));
        let h = h.collect::<Result<Sequential>>()?;
        let ln_f = LayerNorm::new(config.width, options)?;
        let model = Self { config, wte, wpe, drop: Dropout::new(config.dropout), h, ln_f };
        model.initialise()?;
        Ok(model)
    }

    /// Deviations of 0.02; those of layers that are added up are smaller, so that sums are not
    /// larger in deeper models.
    #[track_caller]
    fn initialise(&self) -> Result<()> {
        let added = (2.0 * self.config.layers as f64).sqrt();
        for (name, parameter) in self.named_parameters() {
            if name.ends_with("bias") {
                crate::autograd::no_grad(|| parameter.zero_())?;
            } else if name.ends_with("c_proj.weight") {
                normal_(&parameter, 0.0, 0.02 / added)?;
            } else if !name.contains("ln_") {
                normal_(&parameter, 0.0, 0.02)?;
            }
        }
        Ok(())
    }

    /// Which blocks are recomputed in the backward.
    #[must_use]
    pub fn checkpointed(mut self, placement: Placement) -> Self {
        self.h = self.h.checkpointed(placement);
        self
    }

    /// The sizes.
    #[must_use]
    pub fn config(&self) -> &Gpt2Config {
        &self.config
    }

    /// The mean cross-entropy of `targets`, the next token of each row of `tokens`. Scores go as soon
    /// as their logarithms are there.
    ///
    /// # Errors
    ///
    /// As for [`forward`](Module::forward), and if there is not one target for each token. A token that
    /// is none is reported at the next synchronisation.
    #[track_caller]
    pub fn loss(&self, tokens: &Tensor, targets: &Tensor) -> Result<Tensor> {
        within(|| {
            let scores = self.forward(tokens)?;
            let rows = scores.view([tokens.numel(), self.config.vocabulary])?;
            rows.cross_entropy(&targets.reshape([targets.numel()])?)
        })
    }
}

impl Module for Gpt2 {
    #[track_caller]
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let call = Call::here("Gpt2");
        let &[_, rows] = &tokens.shape()[..] else {
            let error = call.shape_error("tokens have two axes: batch, row");
            return Err(error.with_tensor("tokens", tokens));
        };
        if rows > self.config.context {
            let what = format!("the model sees at most {} tokens", self.config.context);
            let error = call.error(ErrorKind::Value, what).with_tensor("tokens", tokens);
            return Err(error.help("cut the text, or make a model with a longer context"));
        }
        within(|| {
            let places = Tensor::arange(0, rows as i64, 1, (tokens.device(), DType::I64))?;
            let x = self.wte.forward(tokens)?.add(&self.wpe.forward(&places)?)?;
            let x = self.h.forward(&self.drop.forward(&x)?)?;
            self.ln_f.forward(&x)?.linear(&self.wte.weight, None)
        })
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module("wte", &self.wte);
        visitor.module("wpe", &self.wpe);
        visitor.module("drop", &self.drop);
        visitor.module("h", &self.h);
        visitor.module("ln_f", &self.ln_f);
    }
}
