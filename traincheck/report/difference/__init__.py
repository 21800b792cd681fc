"""Reports of `traincheck diff`: text, Markdown, JSON, and forms for CI."""
