//! Models made of [`nn`](crate::nn)'s layers: what the built-in recipes train.
//!
//! ```
//! use tonnage_tensor::models::{Gpt2, Gpt2Config};
//! use tonnage_tensor::optim::{AdamW, Optimizer};
//! use tonnage_tensor::nn::Module;
//! use tonnage_tensor::{DType, Device, Tensor};
//!
//! // Will a step of GPT-2 XL fit in 80 GiB? On `dry` the answer takes a moment and no memory.
//! let device = Device::dry("80 GiB")?;
//! let model = Gpt2::new(Gpt2Config::xl(), &device)?;
//! let mut optimizer = AdamW::new(model.parameters(), AdamW::options().lr(1e-4))?;
//! let tokens = Tensor::zeros([1, 1024], (&device, DType::I64))?;
//! model.loss(&tokens, &tokens)?.backward()?;
//! optimizer.step()?;
//! println!("at most {} bytes", device.memory().max_allocated());
//! # assert!(device.memory().max_allocated() > 4 * 4 * 1_557_611_200);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | model | what | names as in |
//! | --- | --- | --- |
//! | [`mlp()`] | linear layers with `relu` between them | `nn.Sequential` |
//! | [`DeepNet`] | residual blocks of linear layers | the checkpointing example it is known from |
//! | [`Gpt2`] | GPT-2, from a few thousand parameters to XL | OpenAI's files |
//! | [`ResNet`] | ResNet-18 to ResNet-152, and narrower ones for small images | torchvision |
//!
//! Each runs on every device and asks for the same memory on each.

mod deepnet;

mod gpt2;

mod mlp;

mod resnet;

pub use deepnet::DeepNet;
pub use gpt2::{Gpt2, Gpt2Config};
pub use mlp::mlp;
pub use resnet::{ResNet, ResNetConfig};
