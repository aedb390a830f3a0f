"""HTTP responses: status, queue, errors, the web page."""
