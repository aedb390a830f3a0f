"""Where a server is, what its pages say, and which exception its refusals become."""
