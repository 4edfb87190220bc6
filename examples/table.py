"""Trees on a table: how little must change in a row before a forest says something else, and which columns does it take?"""

import pandas as pd
from sklearn.datasets import load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

import holdfast as hf

wines = load_wine(as_frame=True)
names = pd.Series(wines.target_names[wines.target])
train, test, y_train, y_test = train_test_split(wines.data, names, random_state=0)
forest = RandomForestClassifier(20, max_depth=4, random_state=0).fit(train, y_train)

columns = hf.Columns.of(
    wines.data, scales="std", frozen=["proline"]
)  # a change of 1 is a standard deviation; one column stays as it is
net = hf.Network.from_sklearn(forest, columns=columns, name="the forest")
print(f"{(forest.predict(test) == y_test).mean():.0%} right; {net.notes[0]}")

few, labels = test[:4], y_test[:4].to_numpy()
for place, b in enumerate(hf.radius(net, few, labels)):
    row, witness = net.rows(few)[place], b.upper.evidence.witness
    says = net.classes[int(net(witness[None]).argmax())]
    moved = net.columns.changes(row.tolist(), witness.tolist())
    print(
        f"\n{labels[place]}: safe up to {b.lower.value:.3f} standard deviations, at {b.upper.value:.3f} it says {says}"
    )
    print(
        f"  {len(moved)} columns move, "
        + ", ".join(f"{name} {was} -> {float(now):.4g}" for name, was, now in moved[:3])
        + " ..."
    )

print("\nand how many columns must be another, to whatever value?")
for place, b in enumerate(hf.radius(net, few, labels, norm=0, stop=hf.Stop(queries=4000))):
    moved = net.columns.changes(net.rows(few)[place].tolist(), b.upper.evidence.witness.tolist())
    told = ", ".join(f"{name} {was} -> {float(now):.4g}" for name, was, now in moved)
    print(f"  {labels[place]}: any {b.lower.value:.0f} may, {b.upper.value + 1:.0f} suffice ({told})")
