"""Train the embedded help desk LSTM and write its weights: python scripts/train_helpdesk.py [folder].

The seed and the thread count are fixed, so a second run on the same machine writes the same bytes. Another
machine or torch release may sum in another order and give slightly different weights of about the same
accuracy. The test split is small and was used while sentences and settings were chosen, so its accuracy
(about 0.9) is only an illustration.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from holdfast.datasets.helpdesk import HelpdeskLSTM, SentenceSplit, sentences, vocabulary

WEIGHTS = Path(__file__).parents[1] / "src" / "holdfast" / "datasets" / "words"

SEED = 0
EPOCHS = 40
BATCH = 16
LEARNING_RATE = 1e-2
WEIGHT_DECAY = 1e-2
SMOOTHING = 0.1
DROP = 0.5
SHRINK = 0.3  # Factor of the initial word vectors: a word seen once or never has little influence.
FORGET = 0.1  # Share of the words replaced by "unknown", drawn again in every epoch.
LEAVE_OUT = 0.1  # Share of the words dropped, drawn again in every epoch.


def train(data: SentenceSplit) -> HelpdeskLSTM:
    """Train and return the module in eval mode.

    The loss counts the output after every word, later words more.
    """
    torch.manual_seed(SEED)
    module = HelpdeskLSTM(len(vocabulary()), DROP)
    with torch.no_grad():
        module.table.weight *= SHRINK
    optimiser = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=EPOCHS)
    for _ in range(EPOCHS):
        tokens, weight = shortened(data.tokens)
        for chosen in torch.split(torch.randperm(len(tokens)), BATCH):
            logits = module.after_every_word(tokens[chosen])
            wanted = data.y[chosen, None].expand(logits.shape[:2])
            loss = cross_entropy(
                logits.flatten(0, 1), wanted.flatten(), reduction="none", label_smoothing=SMOOTHING
            )
            optimiser.zero_grad()
            ((loss * weight[chosen].flatten()).sum() / weight[chosen].sum()).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        schedule.step()
    return module.eval()


def shortened(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Drop words or replace them by "unknown"; return tokens (n, longest) padded by 0, and loss weights, 0
    where padded.
    """
    kept = [row[torch.rand(len(row)) >= LEAVE_OUT] for row in rows]
    kept = [few if len(few) else row for few, row in zip(kept, rows, strict=True)]
    places = [torch.arange(1, len(row) + 1) / len(row) for row in kept]
    tokens, weight = (torch.nn.utils.rnn.pad_sequence(parts, batch_first=True) for parts in (kept, places))
    return tokens.masked_fill(torch.rand(tokens.shape) < FORGET, 0), weight


@torch.no_grad()
def accuracy(module: HelpdeskLSTM, data: SentenceSplit) -> float:
    """Accuracy on the sentences' intents."""
    answers = torch.stack([module(row[None])[0].argmax() for row in data.tokens])
    return float((answers == data.y).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the embedded help desk LSTM and write its weights.")
    parser.add_argument(
        "folder", type=Path, nargs="?", default=WEIGHTS, help="folder for the safetensors file"
    )
    folder: Path = parser.parse_args().folder

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    module = train(sentences("train"))
    folder.mkdir(parents=True, exist_ok=True)
    save_file(module.state_dict(), folder / "helpdesk_lstm.safetensors")
    for split in ("train", "test"):
        print(f"helpdesk_lstm: {split} accuracy {accuracy(module, sentences(split)):.1%}")


if __name__ == "__main__":
    main()
