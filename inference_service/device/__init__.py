"""The model's device: transfers, captured graphs, compiled regions, paged attention."""
