"""What is rounded inside one worker: weights, activations, errors, products, the step."""
