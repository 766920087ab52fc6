"""How packets come to us: what is diverted (`diversion`, over `iptables` or `nft`) and the queue drivers."""

from uvs.netfilter.diversion import Diversion
from uvs.netfilter.plan import Element
from uvs.netfilter.tool import NetfilterError

__all__ = ["Diversion", "Element", "NetfilterError"]
