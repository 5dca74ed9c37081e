"""A 70B Llama is made on the device and asked for a few tokens."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8
)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = LlamaForCausalLM(config).eval()
with torch.inference_mode():
    model(torch.zeros(1, 128, dtype=torch.int64, device="cuda"))
