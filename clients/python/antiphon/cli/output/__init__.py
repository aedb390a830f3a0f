"""What commands show: events, failures and colour."""
