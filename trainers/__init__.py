"""From a parallel corpus to a run directory: recipe, batches, training, checkpoints, evaluation."""
