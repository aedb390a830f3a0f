"""Recognition of words of a small grammar, by an acoustic model that was trained on people."""
