"""A forecast from drifting sensors: how large may a sensor error be before the forecast leaves its band?"""

import torch

import holdfast as hf
from holdfast.datasets.station import forecaster, station

# A synthetic weather station and a small GRU; any torch module works.
hours, names = station("test").x[:3], ("temperature in °C", "wind in m/s")
net = hf.Network.from_torch(forecaster(), classes=names, name="the forecast")
band = hf.Within([1.5, 1.0])  # 1.5 °C and 1 m/s around the present forecast.
for place, forecast in enumerate(net(hours).tolist()):
    print(
        f"window {place}: "
        + ", ".join(f"{value:.1f} of {name}" for value, name in zip(forecast, names, strict=True))
    )

print("\nindependent errors of at most this size in every number of the window:")
for place, b in enumerate(hf.radius(net, hours, property=band)):
    print(f"  window {place}: certified up to {b.lower.value:.3f}, counterexample at {b.upper.value:.3f}")

print("\na drift, the same error in all hours; one degree counts as much as 0.5 m/s:")
drifting = hf.radius(net, hours, property=band, drift=True, shares=[1.0, 0.5])
for place, b in enumerate(drifting):
    offset = (b.counterexample - hours[place]).mean(0).tolist()
    shown = ", ".join(f"{value:+.2f} of {name}" for value, name in zip(offset, names, strict=True))
    print(
        f"  window {place}: certified up to {b.lower.value:.3f}, "
        f"counterexample at {b.upper.value:.3f}: {shown}"
    )

print("\nsmallest margin to the edge of the band under a drift of at most 0.5:")
for place, b in enumerate(hf.worst(net, hf.region.Drift(hours, torch.tensor(0.5)), band)):
    print(f"  window {place}: at least {b.lower.value:.2f}, found {b.upper.value:.2f}")
