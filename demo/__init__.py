"""`make demo`: the whole story on a real node, watched live and drawn at the end."""
