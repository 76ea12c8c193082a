"""Why a run is worse than its baseline, as far as the records of both tell. Numbers only; reports render them."""
