"""Room 3: what a network can do over a whole region of inputs."""

from holdfast.lipschitz.instances import Instance, read_instances, read_key
from holdfast.lipschitz.verify import Verdict, verify

__all__ = ["Instance", "Verdict", "read_instances", "read_key", "verify"]
