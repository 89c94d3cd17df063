"""One server whose clients have models of their own."""
