"""Privacy accounting: ε of what a job has spent, and the noise that keeps its target."""
