"""A host becomes the director and ceases to be: VIPs, forwarding, filters, announcing. `uvs director`."""
