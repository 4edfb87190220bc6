"""How many edits of a message may be made before the help desk sends it elsewhere? The LSTM that ships with holdfast."""

import holdfast as hf
from holdfast.datasets import helpdesk

net, data = helpdesk.network(), helpdesk.sentences("test")
chosen = [0, 12, 24, 40]
texts, labels = [data.text[k] for k in chosen], data.y[chosen]

edits = hf.Edits(
    substitute=1,
    insert=1,
    delete=1,
    swap=1,
    duplicate=1,
    total=2,  # at most two of these together
    substitutes=helpdesk.substitutes(),
    insertions=["the", "a", "my", "please", "not"],
)
result = hf.radius(net, texts, labels, edits=edits)
print(result)

for text, bracket in zip(texts, result, strict=True):
    if bracket.upper.value < float("inf"):
        edited = " ".join(net.words(bracket.counterexample))
        print(f"{text} -> {edited} ({bracket.upper.value + 1:.0f} edits)")
    else:
        print(f"{text}: no text with two of these edits changes the answer")
