"""What HTTP requests are answered with: status, errors, the web page."""
