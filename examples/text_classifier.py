"""A text classifier in the style of Hugging Face: token ids in, an output with `logits` out.

The sentences are synthetic, and two of twelve clients have all those about chess. They are in a
Hugging Face `Dataset`, and the token ids stay integers. The script prints the recall of each topic,
and the prediction of the trained model for a new sentence.
"""

import datasets
import numpy as np
import torch
from torch import nn

import fedraw

TOPICS = {
    "music": ["song", "band", "guitar", "drum", "melody", "concert"],
    "weather": ["rain", "wind", "cloud", "storm", "sunny", "snow"],
    "chess": ["bishop", "knight", "pawn", "rook", "castle", "checkmate"],
}
COMMON = ["the", "a", "we", "in", "of", "and", "today", "was", "very", "then"]
words = [*COMMON, *(word for topic in TOPICS.values() for word in topic)]
token = {word: number for number, word in enumerate(words)}

rng = np.random.default_rng(0)
labels = np.repeat([0, 1, 2], 240)
sentences = [[*rng.choice(list(TOPICS.values())[y], 3), *rng.choice(COMMON, 5)] for y in labels]
table = datasets.Dataset.from_dict(
    {"input_ids": [[token[word] for word in s] for s in sentences], "label": labels},
    features=datasets.Features(
        input_ids=datasets.List(datasets.Value("int64")),
        label=datasets.ClassLabel(names=list(TOPICS)),
    ),
)


class Classifier(nn.Module):
    """A linear layer on the mean embedding of the words."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(words), 16)
        self.classifier = nn.Linear(16, len(TOPICS))

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.classifier(self.embedding(input_ids).mean(1))}


result = fedraw.simulate(
    strategy=fedraw.FedRAW(buffer=6),
    data=table,
    partition=fedraw.Coverage(clients=12, rare_labels=["chess"], clients_per_common_label=10),
    model=Classifier,
    train=fedraw.SGD(epochs=2, batch=16, lr=0.5),
    events=400,
    seeds=1,
)
last = list(result.recalls.rows())[-1]
print(*(f"{topic} {last[topic]:.0f} %" for topic in TOPICS))

model = Classifier()
model.load_state_dict(result.state_dict())
sentence = "then the knight was in the castle"
scores = model(torch.tensor([[token[word] for word in sentence.split()]]))["logits"]
print(f"{sentence}: {list(TOPICS)[scores.argmax()]}")
