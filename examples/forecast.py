"""A forecast and its drifting sensors: by how much may a thermometer or an anemometer be off before the forecast leaves its band?"""

import torch

import holdfast as hf
from holdfast.datasets.station import (
    forecaster,
    station,
)  # a made-up weather station and a small GRU; any torch module will do

hours, names = station("test").x[:3], ("temperature in °C", "wind in m/s")
net = hf.Network.from_torch(forecaster(), classes=names, name="the forecast")
band = hf.Within([1.5, 1.0])  # 1.5 °C and 1 m/s around what it forecasts now
for place, forecast in enumerate(net(hours).tolist()):
    print(
        f"window {place}: "
        + ", ".join(f"{value:.1f} of {name}" for value, name in zip(forecast, names, strict=True))
    )

print("\nany number of the window may be off, each by as much as:")
for place, b in enumerate(hf.radius(net, hours, property=band)):
    print(f"  window {place}: safe up to {b.lower.value:.3f}, broken at {b.upper.value:.3f}")

print("\na sensor that drifts is off by the same all the time; a degree counts like 0.5 m/s:")
drifting = hf.radius(net, hours, property=band, drift=True, shares=[1.0, 0.5])
for place, b in enumerate(drifting):
    offset = (b.upper.evidence.witness - hours[place]).mean(0).tolist()
    told = ", ".join(f"{value:+.2f} of {name}" for value, name in zip(offset, names, strict=True))
    print(f"  window {place}: safe up to {b.lower.value:.3f}, broken at {b.upper.value:.3f} by {told}")

print("\nhow much room is left in the band when the sensors drift by at most 0.5?")
for place, b in enumerate(hf.worst(net, hf.region.Drift(hours, torch.tensor(0.5)), band)):
    print(f"  window {place}: at least {b.lower.value:.2f}, and somewhere only {b.upper.value:.2f}")
