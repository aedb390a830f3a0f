"""The kernels, built with sanitizers in a folder of their own, and their tests against that build."""
