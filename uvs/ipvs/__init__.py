"""What an ip_vs module is, sans-io: packet, table, routes and clock in; verdict, packets and walk out."""
