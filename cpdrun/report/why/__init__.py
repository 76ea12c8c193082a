"""Why a run is worse than its baseline, as far as the record of both tells."""
