"""HTTP responses (status, queue, errors) and the web page."""
