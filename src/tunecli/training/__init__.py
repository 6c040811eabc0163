"""The loop and what it needs: optimizer, schedule, checkpoints, metrics, evaluation."""
