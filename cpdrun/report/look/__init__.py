"""How every picture looks, as a figure and as SVG; knows nothing of what is drawn."""
