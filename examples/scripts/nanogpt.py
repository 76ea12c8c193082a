r"""Train a small GPT on bytes of English text, with a training loop like nanoGPT's.

The loop has get_batch, estimate_loss, gradient accumulation, warm-up and a cosine schedule. The text is CPython's
documentation (pydoc_data), which is part of every Python and differs between versions.

How many bits do its gradients need? The script needs no change:

    cpdrun sweep script=nanogpt.py script_args='--seed {seed}' \
        script.metrics.val_loss='val loss ([0-9.]+)' \
        script.metrics.step='step ([0-9]+)' \
        format=fp32,e3m0 aps=false,true seed=0,1,2 nproc=2
    cpdrun report

Answer (loss on unseen text after 60 steps, 2 workers, CPython 3.11): fp32 3.21 ± .11; e3m0 4.65 ± .30, with APS
3.28 ± .34. With nproc=1 world_size=2, one process emulates both workers, with one micro-batch each.
"""

import argparse
import math
import os
from contextlib import nullcontext
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--max_iters", type=int, default=60)
parser.add_argument("--eval_interval", type=int, default=20)
parser.add_argument("--eval_iters", type=int, default=8)
parser.add_argument("--batch_size", type=int, default=4)
parser.add_argument("--block_size", type=int, default=32)
parser.add_argument("--gradient_accumulation_steps", type=int, default=2, help="of all processes together")
parser.add_argument("--n_layer", type=int, default=2)
parser.add_argument("--n_head", type=int, default=2)
parser.add_argument("--n_embd", type=int, default=32)
parser.add_argument("--learning_rate", type=float, default=1e-2)
parser.add_argument("--warmup_iters", type=int, default=10)
parser.add_argument("--grad_clip", type=float, default=1.0)
parser.add_argument("--seed", type=int, default=1337)
parser.add_argument("--out", help="file for the trained weights")
args = parser.parse_args()

ddp = "RANK" in os.environ
if ddp:
    init_process_group("gloo")
rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
master_process = rank == 0
assert args.gradient_accumulation_steps % world_size == 0
gradient_accumulation_steps = args.gradient_accumulation_steps // world_size

text = torch.frombuffer(
    bytearray("\n".join(topics[name] for name in sorted(topics)).encode()), dtype=torch.uint8
)
cut = int(0.9 * len(text))
data = {"train": text[:cut], "val": text[cut:]}


def get_batch(split):
    ix = torch.randint(len(data[split]) - args.block_size, (args.batch_size,))
    x = torch.stack([data[split][i : i + args.block_size] for i in ix]).long()
    y = torch.stack([data[split][i + 1 : i + 1 + args.block_size] for i in ix]).long()
    return x, y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(args.n_embd), nn.LayerNorm(args.n_embd)
        self.c_attn = nn.Linear(args.n_embd, 3 * args.n_embd)
        self.c_proj = nn.Linear(args.n_embd, args.n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(args.n_embd, 4 * args.n_embd), nn.GELU(), nn.Linear(4 * args.n_embd, args.n_embd)
        )

    def forward(self, x):
        B, T, C = x.shape
        qkv = self.c_attn(self.ln_1(x)).view(B, T, 3, args.n_head, C // args.n_head)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab_size=256):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, args.n_embd), nn.Embedding(args.block_size, args.n_embd)
        self.h = nn.Sequential(*(Block() for _ in range(args.n_layer)))
        self.ln_f = nn.LayerNorm(args.n_embd)
        self.lm_head = nn.Linear(args.n_embd, vocab_size, bias=False)
        self.apply(self._init_weights)
        self.lm_head.weight = self.wte.weight

    def _init_weights(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        logits = self.lm_head(self.ln_f(self.h(x)))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def estimate_loss():
    out = {}
    raw_model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(args.eval_iters)
        for k in range(args.eval_iters):
            _, loss = raw_model(*get_batch(split))
            losses[k] = loss.item()
        out[split] = losses.mean()
    raw_model.train()
    return out


def get_lr(it):
    if it < args.warmup_iters:
        return args.learning_rate * (it + 1) / (args.warmup_iters + 1)
    decay = (it - args.warmup_iters) / (args.max_iters - args.warmup_iters)
    return args.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * decay)))


torch.manual_seed(args.seed)
model = raw_model = GPT()
decay = [p for p in model.parameters() if p.dim() >= 2]
rest = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=args.learning_rate, betas=(0.9, 0.99))
if ddp:
    model = DistributedDataParallel(model)
torch.manual_seed(args.seed + rank)

X, Y = get_batch("train")
for iter_num in range(args.max_iters + 1):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % args.eval_interval == 0 and master_process:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}", flush=True)
    if iter_num == args.max_iters:
        break
    for micro_step in range(gradient_accumulation_steps):
        last = micro_step == gradient_accumulation_steps - 1
        with nullcontext() if last or not ddp else model.no_sync():
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
            X, Y = get_batch("train")
            loss.backward()
    if args.grad_clip:
        nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

if args.out and master_process:
    torch.save(raw_model.state_dict(), args.out)
if ddp:
    destroy_process_group()
