"""Networks whose layers are split over workers."""
