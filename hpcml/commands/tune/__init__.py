"""What `hpcml tune` does."""
