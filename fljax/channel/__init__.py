"""What happens to a message on its way: it is perturbed, and it is counted."""

from fljax.channel.channel import Channel, Traffic

__all__ = ["Channel", "Traffic"]
