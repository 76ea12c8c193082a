"""A language model in the manner of pytorch/examples' word_language_model: the whole model is saved when its validation
loss is the best so far, and loaded with weights_only=True before the test."""

import argparse
import copy
import math

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=["LSTM", "Transformer"], default="LSTM")
parser.add_argument("--save", default="model.pt")
parser.add_argument("--by-hand", action="store_true", help="take steps without a torch.optim optimizer")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--seed", type=int, default=0)
VOCABULARY, WIDTH = 17, 32


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.encoder = nn.Embedding(VOCABULARY, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, 1)
        self.between = nn.Linear(WIDTH, WIDTH)
        self.decoder = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        output, _ = self.rnn(self.drop(self.encoder(tokens)))
        return self.decoder(self.drop(self.between(output))).log_softmax(-1)


class TransformerModel(nn.Transformer):
    def __init__(self):
        super().__init__(d_model=WIDTH, nhead=2, dim_feedforward=WIDTH, num_encoder_layers=1, dropout=0.1)
        self.input_emb = nn.Embedding(VOCABULARY, WIDTH)
        self.decoder = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(len(tokens))
        return self.decoder(self.encoder(self.input_emb(tokens) * math.sqrt(WIDTH), mask=mask)).log_softmax(
            -1
        )


SAFE = {
    "LSTM": [RNNModel, nn.Dropout, nn.Linear, nn.LSTM, nn.Embedding],
    "Transformer": [
        *[TransformerModel, nn.functional.relu, nn.MultiheadAttention, nn.ModuleList, nn.Dropout, nn.Linear],
        *[nn.modules.linear.NonDynamicallyQuantizableLinear, nn.LayerNorm, nn.Embedding],
        *[nn.TransformerEncoder, nn.TransformerEncoderLayer],
    ],
}


def evaluate(model, data):
    model.eval()
    with torch.no_grad():
        return nn.functional.nll_loss(model(data[:-1]).flatten(0, 1), data[1:].flatten()).item()


def main():
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    text = (torch.arange(40 * 12).view(40, 12) ** 2 + torch.randint(2, (40, 12))) % VOCABULARY
    train, valid, test = text[:20], text[20:30], text[30:]
    model = RNNModel() if args.model == "LSTM" else TransformerModel()
    optimizer = None if args.by_hand else torch.optim.SGD(model.parameters(), lr=0.5)
    best = None
    for epoch in range(args.epochs):
        model.train()
        for _ in range(3):
            model.zero_grad()
            nn.functional.nll_loss(model(train[:-1]).flatten(0, 1), train[1:].flatten()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            if optimizer is not None:
                optimizer.step()
            else:
                for p in model.parameters():
                    p.data.add_(p.grad, alpha=-0.5)
        loss = evaluate(model, valid)
        print(f"| end of epoch {epoch} | valid loss {loss:5.2f}", flush=True)
        if best is None or loss < best:
            with open(args.save, "wb") as file:  # noqa: PTH123
                torch.save(model, file)
            best, kept = loss, copy.deepcopy(model)
    with open(args.save, "rb") as file, torch.serialization.safe_globals(SAFE[args.model]):  # noqa: PTH123
        model = torch.load(file, weights_only=True)
    if args.model == "LSTM":
        model.rnn.flatten_parameters()
    print(f"| End of training | test loss {evaluate(model, test)!r} | of the copy {evaluate(kept, test)!r}")


if __name__ == "__main__":
    main()
