"""uvsadm: ipvsadm 1.31's grammar, output, messages and exit statuses, against a director of uvs."""
