"""Words of a small grammar, heard by an acoustic model that was trained on people."""
