"""Rules about learning rate schedules."""
