"""The number formats of one worker's computation: weights, activations, errors, products and the optimizer step."""
