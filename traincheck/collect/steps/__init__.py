"""When a step ends, and which steps are recorded. Knows no tensor."""
