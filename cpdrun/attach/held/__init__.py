"""Ways to take hold of a script: DDP, fully_shard, before a step, around the workers that it plays; its layers."""
