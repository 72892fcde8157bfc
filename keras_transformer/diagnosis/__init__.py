"""Why a training or a translation goes wrong: probes of models, logs and texts."""
