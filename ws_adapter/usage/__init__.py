"""What each tenant uses: seconds and tokens, their quotas, and the log that they are billed from."""
