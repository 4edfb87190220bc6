"""How much must a table's row change before a random forest predicts another class, and which columns?"""

import pandas as pd
from sklearn.datasets import load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

import holdfast as hf

wines = load_wine(as_frame=True)
names = pd.Series(wines.target_names[wines.target])
train, test, y_train, y_test = train_test_split(wines.data, names, random_state=0)
forest = RandomForestClassifier(20, max_depth=4, random_state=0).fit(train, y_train)

# Radii are in standard deviations of each column; one column is not perturbed.
columns = hf.Columns.of(wines.data, scales="std", frozen=["proline"])
net = hf.Network.from_sklearn(forest, columns=columns, name="the forest")
print(f"{(forest.predict(test) == y_test).mean():.0%} accuracy; {net.notes[0]}")

few, labels = test[:4], y_test[:4].to_numpy()
for place, b in enumerate(hf.radius(net, few, labels)):
    row, witness = net.rows(few)[place], b.counterexample
    predicted = forest.classes_[int(net(witness[None]).argmax())]
    moved = columns.changes(row.tolist(), witness.tolist())
    print(
        f"\n{labels[place]}: certified up to {b.lower.value:.3f} standard deviations, "
        f"counterexample at {b.upper.value:.3f}: {predicted}"
    )
    print(
        f"  {len(moved)} columns change, "
        + ", ".join(f"{name} {was} -> {float(now):.4g}" for name, was, now in moved[:3])
        + " ..."
    )

print("\nnumber of columns that may change, to any value:")
for place, b in enumerate(hf.radius(net, few, labels, norm=0, stop=hf.Stop(queries=4000))):
    moved = columns.changes(net.rows(few)[place].tolist(), b.counterexample.tolist())
    shown = ", ".join(f"{name} {was} -> {float(now):.4g}" for name, was, now in moved)
    print(
        f"  {labels[place]}: certified for {b.lower.value:.0f}, "
        f"counterexample with {b.upper.value + 1:.0f} ({shown})"
    )
