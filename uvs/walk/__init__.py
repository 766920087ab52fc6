"""Telling a packet's walk (`uvs.ipvs.walk.Walk`): as text."""
