"""Images: their definitions, the cache they are kept in, and the programs that build and start them."""
