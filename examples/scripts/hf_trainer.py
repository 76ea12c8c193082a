r"""Train a tiny GPT-2 with Hugging Face's Trainer. Nothing is downloaded, and a token is a byte.

How many bits do its gradients need? The script needs no change, and what Trainer logs is recorded:

    cpdrun sweep script=hf_trainer.py script_args='--seed {seed} --output_dir {run_dir}/out' \
        format=fp32,e3m0 aps=false,true seed=0,1,2 nproc=2
    cpdrun report

Answer (eval_loss after 60 steps, 2 workers, CPython 3.11): fp32 2.95 ± .23; e3m0 4.47 ± .07, with APS 2.93 ± .42.
With nproc=1 world_size=2 and --gradient_accumulation_steps 2, one process emulates both workers.
"""

import argparse
from pydoc_data.topics import topics

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

parser = argparse.ArgumentParser()
parser.add_argument("--max_steps", type=int, default=60)
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
parser.add_argument("--learning_rate", type=float, default=1e-2)
parser.add_argument("--seed", type=int, default=42)
parser.add_argument("--output_dir", default="hf_trainer_out")
args = parser.parse_args()

set_seed(args.seed)


class ByteBlocks(Dataset):
    """English text, in sequences of 32 bytes."""

    def __init__(self, text):
        self.blocks = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().split(32)[:-1]

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, i):
        return {"input_ids": self.blocks[i], "labels": self.blocks[i]}


text = "\n".join(topics[name] for name in sorted(topics)).encode()
config = GPT2Config(
    vocab_size=256,
    n_positions=32,
    n_embd=32,
    n_layer=2,
    n_head=2,
    resid_pdrop=0,
    embd_pdrop=0,
    attn_pdrop=0,
    bos_token_id=0,
    eos_token_id=0,
)
trainer = Trainer(
    model=GPT2LMHeadModel(config),
    args=TrainingArguments(
        output_dir=args.output_dir,
        max_steps=args.max_steps,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=32,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        learning_rate=args.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=5,
        eval_strategy="steps",
        eval_steps=20,
        logging_steps=20,
        save_strategy="no",
        seed=args.seed,
        use_cpu=True,
        disable_tqdm=True,
    ),
    train_dataset=ByteBlocks(text[:-20_000]),
    eval_dataset=ByteBlocks(text[-20_000:]),
)
trainer.train()
trainer.save_model()
